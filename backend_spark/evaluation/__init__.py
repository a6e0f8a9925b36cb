"""How well levels warned of landslides that happened."""
