"""Sensors: one short file for each kind of part, under one protocol."""
