"""Spark job: sources, session, batch pipeline and replay."""
