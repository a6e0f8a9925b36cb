"""Formulas for slopes, pure functions with their sources.

A node's triage, the backend's score and the simulated hillslope must agree on
what "level 4" means, so the formulas live here once, and import nothing.
"""
