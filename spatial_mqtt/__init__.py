"""Messages and MQTT connections that all programs of Yamamori share.

Priorities, S2 cells, topics, SenML packs, QoS policy, directory entries and custody
receipts are pure values and functions. Only `connection`, `paho_client` and `codec`
import paho.
"""
