"""The urgent path: from the log to the table of alerts, without Spark."""
