"""Scoring: readings of a cell to indices, levels and reasons.

Pure Python and Arrow; Spark calls it in its executors.
"""
