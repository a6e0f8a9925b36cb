"""The Gateway: what clients publish goes onto its disk, and on by priority."""
