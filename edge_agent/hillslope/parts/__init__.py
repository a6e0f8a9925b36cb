"""Simulated parts: one short file for each kind of sensor's other end."""
