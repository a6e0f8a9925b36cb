"""The buses of a real machine, as Linux shows them; one library in each file."""
