"""From the broker to the log: on disk first, acknowledged second. No Spark here."""
