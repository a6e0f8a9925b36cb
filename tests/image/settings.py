"""A node's settings for the QEMU machine.

GPIO line 3 is low at rest and raised by a tip. The sensor kind is `vibration`, which
is active high and counts in the same way as the rain gauge.
"""

from image.vm import RAIN_PIN

NODE = """
[node]
id = "kochi-0001"
latitude = 33.5588
longitude = 133.5312
[uplink]
gateway = "{gateway}"
gather_s = 0
[tls]
allow_plain_mqtt = true
[[sensor]]
kind = "vibration"
name = "bucket"
pin = {pin}
active_high = true
interval_s = 2
[[triage.limit]]
sensor = "bucket"
above = 0.5
level = 5
hold_s = 1
"""


def node(gateway: str) -> str:
    """The settings file with the line ends of Windows."""
    return NODE.format(gateway=gateway, pin=RAIN_PIN).replace("\n", "\r\n")
