"""Updates of the node's image: which is meant for us, and what came of it."""
