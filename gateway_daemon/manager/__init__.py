"""The Manager: which gateway serves which area, which broker holds which topic."""
