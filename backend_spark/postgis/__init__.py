"""A copy of gold in a PostGIS database, kept in step with the tables."""
