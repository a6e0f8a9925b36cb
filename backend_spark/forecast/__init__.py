"""Official rain forecasts: import from files, table, selection by cell."""
