"""Triage rules: one module for each kind of evidence."""
