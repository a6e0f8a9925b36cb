"""Pure functions between the tables: bytes to readings, readings to levels."""
