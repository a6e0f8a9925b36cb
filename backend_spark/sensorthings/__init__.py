"""OGC SensorThings API 1.1, reading: nodes, sensors and readings as entities."""
