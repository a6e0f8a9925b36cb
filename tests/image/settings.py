"""A node's settings for the machine in QEMU.

Line 3 there is low at rest and lifted by a tip, as by a module that lifts its pin: the
kind `vibration`, whose counting is the rain gauge's.
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
    """The file, as Notepad saves it."""
    return NODE.format(gateway=gateway, pin=RAIN_PIN).replace("\n", "\r\n")
