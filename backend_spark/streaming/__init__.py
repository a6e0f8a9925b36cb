"""The Spark job: sources, session, pipeline and replay."""
