"""Notifications: e-mail and webhooks about events, also while no page is open."""
