"""Exports: CAP drafts, GeoJSON, CSV, Parquet, SensorThings."""
