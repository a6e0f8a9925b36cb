"""What a gateway tells the Managers of its load."""

import msgspec

from spatial_mqtt.directory import BrokerInfo
from spatial_mqtt.errors import DirectoryError

MOST_CELLS = 24
"""Topics that a gateway names: enough to see where the load is, and 1 kB."""


class LaneLoad(msgspec.Struct, frozen=True):
    """What waits for one distributed broker.

    Attributes:
        broker: Where it goes.
        rows: Messages.
        age_s: Age of the oldest.
    """

    broker: BrokerInfo
    rows: int
    age_s: float


class Load(msgspec.Struct, frozen=True):
    """The load of one gateway.

    Attributes:
        gateway: Its public address.
        per_s: Messages that clients publish in a second.
        cpu: Busy share of its machine, 0 to 1.
        cells: Topics with the most messages, and how many in a second.
        lanes: What waits for each broker.
    """

    gateway: BrokerInfo
    per_s: float = 0.0
    cpu: float = 0.0
    cells: tuple[tuple[str, float], ...] = ()
    lanes: tuple[LaneLoad, ...] = ()


def decode_load(payload: bytes) -> Load:
    """Decode a gateway's load.

    Raises:
        DirectoryError: It does not parse.
    """
    try:
        return msgspec.json.decode(payload, type=Load)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        rule = f"JSON of its form ({error})"
        raise DirectoryError("gateway load", rule, payload) from error
