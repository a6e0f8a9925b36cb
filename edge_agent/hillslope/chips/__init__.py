"""Chips and devices of the simulated board as they answer on their bus."""
