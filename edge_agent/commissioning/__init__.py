"""Commissioning of nodes: checks of sensors and link before an installer leaves."""
