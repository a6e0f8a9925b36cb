"""The bench: two network namespaces, a slow link, and the programs on its two sides."""
