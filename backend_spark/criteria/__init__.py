"""Criteria from tables, and JMA's files of rain and warnings."""
