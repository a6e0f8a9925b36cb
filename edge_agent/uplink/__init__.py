"""Uplink: sends the queue's messages by priority, with custody and few in flight."""
