"""Web console for analysts: live view of the tables, without Spark."""
