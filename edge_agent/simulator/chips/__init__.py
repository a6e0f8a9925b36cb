"""Simulated chips, by bus: the registers and frames that a driver reads."""
