"""Sensor drivers: one file per kind of part, all with the protocol `Sensor`."""
