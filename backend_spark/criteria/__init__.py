"""Criteria from tables, and levels from JMA's warning telegrams."""
