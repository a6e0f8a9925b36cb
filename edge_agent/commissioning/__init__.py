"""Commissioning of nodes: fleet files, first boot, checks of sensors and link."""
