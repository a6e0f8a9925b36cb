"""HTTP routes of the console, by subject."""
