"""Durable priority queue: holds each message until the next store has it on disk."""
