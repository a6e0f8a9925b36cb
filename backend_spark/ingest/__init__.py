"""Ingest: broker to segment log, on disk before it is acknowledged; no Spark."""
