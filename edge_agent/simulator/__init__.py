"""The simulated slope: rain, soil and creep that move mock pins and registers.

The drivers in `edge_agent.sensors` cannot tell it from a wired board, so a node
without hardware runs the same code as one on a mountain.
"""
