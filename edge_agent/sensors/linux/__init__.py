"""Buses of a real machine under Linux; one external library per file."""
