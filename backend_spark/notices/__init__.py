"""Notices: levels sent back to the slope."""
