"""A gateway: stores messages of its clients and forwards them by priority."""
