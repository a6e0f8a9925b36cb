"""Names of the readings by which a node reports its own state.

| name | unit | value |
|---|---|---|
| `agent/queued` | none | queued messages by priority, such as ``5:1 3:13`` |
| `agent/oldest` | s | age of the oldest one without a receipt |
| `agent/gateway` | none | the gateway in use, ``host:port``, or ``none`` |
| `agent/dropped` | count | messages dropped so far |
| `agent/battery` | V | voltage, where the settings name a battery |
| `agent/update` | none | state of an update for the node |
"""

from typing import Final

PREFIX: Final = "agent/"
QUEUED: Final = f"{PREFIX}queued"
OLDEST: Final = f"{PREFIX}oldest"
GATEWAY: Final = f"{PREFIX}gateway"
DROPPED: Final = f"{PREFIX}dropped"
BATTERY: Final = f"{PREFIX}battery"
UPDATE: Final = f"{PREFIX}update"

NO_VALUE: Final = "none"
"""Value for an empty queue, and for a node without a gateway."""
