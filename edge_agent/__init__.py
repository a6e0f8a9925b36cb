"""The edge agent: sensors to queue to uplink, on a node on the slope."""
