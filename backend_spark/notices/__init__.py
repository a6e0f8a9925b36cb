"""Notices: signed, retained messages with the level of a cell, for its nodes."""
