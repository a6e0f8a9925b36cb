"""What leaves the house: CAP drafts, GeoJSON, CSV, Parquet, SensorThings."""
