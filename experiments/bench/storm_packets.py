"""Packets of many nodes in a storm, encoded once and stamped when they are sent.

A node's pack has five readings, about 250 bytes as a PUBLISH; two nodes share a
cell. Of a hundred nodes 50 send priority 1, 30 send 2, 14 send 3, 4 send 4
and 2 send 5. Time, sequence number and accumulated rain are written into the encoded
packet, which costs a tenth of encoding it anew.
"""

import struct
from dataclasses import dataclass
from typing import Final

from spatial_mqtt import codec
from spatial_mqtt.cells import Cell
from spatial_mqtt.custody import CustodyReceipt
from spatial_mqtt.senml import MessageId, Pack, Reading, encode_cbor
from spatial_mqtt.topics import ForwardTopic, cell_topic
from spatial_mqtt.transport import Publication

FIRST_SEQ: Final = 2**32  # from here on CBOR encodes the number in eight bytes
BOOT: Final = "0ce93c39"
URGENT: Final = (4, 5)
RAIN_MM: Final = 0.5
_SHARES: Final = ((2, 5), (6, 4), (20, 3), (50, 2), (100, 1))
_TIME: Final = 1_234_567_890.125
_SUM: Final = 98_765.4375
_TILT: Final = 0.0123
_PORE: Final = 37.5
_PACKET_ID: Final = 0x5AA5


def priority_of(node: int) -> int:
    """Return the priority of a node's messages; neighbours differ."""
    percentile = node * 37 % 100
    return next(priority for below, priority in _SHARES if percentile < below)


def name_of(node: int) -> str:
    """Return the id of a node."""
    return f"storm-{node:05d}"


def place_of(node: int) -> str:
    """Return the topic of a node's location; two nodes share an analysis cell."""
    row, column = divmod(node // 2, 100)
    return cell_topic(Cell.at(33.0 + row * 0.02, 133.0 + column * 0.02))


@dataclass(frozen=True)
class FieldOffsets:
    """Offsets of the fields in a packet that change with each message.

    Attributes:
        packet_id: Packet identifier.
        time: Unix time, in seconds.
        seq: Sequence number of the message id.
        rain: Depth since the counter began, in mm.
        tilt: In degrees.
        pore: Pressure, in hPa.
    """

    packet_id: int
    time: int
    seq: int
    rain: int
    tilt: int
    pore: int

    @classmethod
    def find(cls, packet: bytes) -> "FieldOffsets":
        """Find the placeholder values that `StormNode` encoded."""
        return cls(
            packet.index(struct.pack("!H", _PACKET_ID)),
            packet.index(struct.pack("!d", _TIME)),
            packet.index(struct.pack("!Q", FIRST_SEQ)),
            *(packet.index(struct.pack("!d", value)) for value in (_SUM, _TILT, _PORE)),
        )


class StormNode:
    """One node's PUBLISH packets.

    Args:
        number: Number of the node.
        relay: Custody topic of the gateway that forwards them to a distributed broker;
            None for a node that sends them to its gateway.

    Attributes:
        priority: Priority of its messages.
    """

    def __init__(self, number: int, relay: str | None) -> None:
        self.priority = priority_of(number)
        self._number = number
        cell = place_of(number)
        readings = (
            Reading("rain", "mm", None, _SUM),
            Reading("tilt/x", "deg", _TILT),
            Reading("tilt/y", "deg", -0.0047),
            Reading("soil", "/", 0.3425),
            Reading("pore", "hPa", _PORE),
        )
        id_ = MessageId(name_of(number), BOOT, FIRST_SEQ)
        pack = Pack(id_, self.priority, _TIME, readings, mono_s=86400.5)
        topic = str(ForwardTopic(cell, self.priority)) if relay is None else cell
        pri = None if relay is None else self.priority
        message = Publication(
            topic, encode_cbor(pack), priority=pri, response_topic=relay
        )
        self._packet = bytearray(codec.encode_publish(message, topic, None, _PACKET_ID))
        self._offsets = FieldOffsets.find(self._packet)

    def packet(self, seq: int, packet_id: int, now_s: float) -> bytes:
        """Return the PUBLISH of a sampling.

        Args:
            seq: Number of the sampling, from 0.
            packet_id: Packet identifier.
            now_s: Unix time.
        """
        at, packet = self._offsets, self._packet
        struct.pack_into("!H", packet, at.packet_id, packet_id)
        struct.pack_into("!d", packet, at.time, now_s)
        struct.pack_into("!Q", packet, at.seq, FIRST_SEQ + seq)
        struct.pack_into("!d", packet, at.rain, RAIN_MM * seq)
        # Noise of a sensor's resolution: constant values would compress to nothing.
        noise = hash((self._number, seq)) % 256
        struct.pack_into("!d", packet, at.tilt, round(_TILT + noise / 1e4, 4))
        struct.pack_into("!d", packet, at.pore, round(_PORE + noise / 1e2, 2))
        return bytes(packet)


def receipted(payload: bytes) -> set[tuple[int, int]]:
    """Return node and number of each sampling that a receipt names."""
    return {
        (int(node[-5:]), seq - FIRST_SEQ)
        for (node, _), ranges in CustodyReceipt.decode(payload).ranges.items()
        for low, high in ranges
        for seq in range(low, high + 1)
    }
