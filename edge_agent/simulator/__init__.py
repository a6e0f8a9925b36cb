"""Simulated slope: rain, soil and creep that drive mock pins and chip registers.

The drivers in `edge_agent.sensors` run unchanged, as on a wired board.
"""
