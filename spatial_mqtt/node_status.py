"""What a node says of itself beside its sensors: names of readings in its packs.

| name | unit | value |
|---|---|---|
| `agent/queued` | none | messages that wait, by priority, such as ``5:1 3:13`` |
| `agent/oldest` | s | how long the oldest of them has waited for a receipt |
| `agent/gateway` | none | the gateway in use, ``host:port``, or ``none`` |
| `agent/dropped` | count | messages ever given up |
| `agent/battery` | V | voltage, where the settings name a battery |
| `agent/update` | none | how an update stands, where one is meant for the node |
"""

from typing import Final

PART: Final = "agent/"
QUEUED: Final = f"{PART}queued"
OLDEST: Final = f"{PART}oldest"
GATEWAY: Final = f"{PART}gateway"
DROPPED: Final = f"{PART}dropped"
BATTERY: Final = f"{PART}battery"
UPDATE: Final = f"{PART}update"

NOTHING: Final = "none"
"""Of a queue that is empty, and of a node that knows no gateway."""
