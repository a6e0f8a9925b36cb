"""The alerts process: urgent messages into a table within a second, without Spark."""
