"""The words that all programs of Yamamori share.

Priorities, S2 cells, topics, the SenML envelope, QoS policy, directory entries
and custody receipts are pure values and functions; `connection` is the one
module that touches the network, and the one that imports paho.
"""
