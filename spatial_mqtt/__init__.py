"""The words that all programs of Yamamori share.

Priorities, S2 cells, topics, the SenML envelope, QoS policy, directory entries
and custody receipts are pure values and functions. `connection` is what touches
the network; only it and its parts, `corked` and `properties`, import paho.
"""
