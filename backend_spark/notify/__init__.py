"""The way back to the slope: levels of cells as retained, signed notices."""
