"""The Gateway: takes what clients publish onto its disk, and passes it on by priority."""
