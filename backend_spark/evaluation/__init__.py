"""Evaluation: skill of levels against landslides that occurred."""
