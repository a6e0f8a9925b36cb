"""Judging of a table of readings by the code of the pipeline, without Spark."""
