"""Experiments: what the papers and the peers measured, measured on our programs."""
