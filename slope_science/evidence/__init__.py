"""Evidence of movement and water: one set of rules for the node and the backend.

The node runs them on its own sensors, the backend on all sensors of a cell.
"""
