"""Alerts process: writes urgent messages to a table within a second, without Spark."""
