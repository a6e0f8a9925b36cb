"""Official forecasts of rain: loaded from files, kept in a table, judged by cell."""
