"""The analysts' web pages: what the tables say, live, without Spark."""
