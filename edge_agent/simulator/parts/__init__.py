"""Simulated parts, by family: what each sensor of a simulated board measures."""
