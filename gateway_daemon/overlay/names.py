"""Names of gateways: a name says where it stands and where its broker listens.

So nobody has to keep an address book, and gateways sort along S2's curve: those of one
valley are neighbours.
"""

import re
from typing import NamedTuple

from gateway_daemon.overlay.errors import OverlayError
from spatial_mqtt.directory import BrokerInfo

VALLEY_DEPTH = 12
"""Levels of a topic that make a valley: the face and eleven more, cells of 5 km."""

_NAME = re.compile(r"(?P<place>[^@]*)@(?P<host>[^!]+):(?P<port>\d{1,5})!(?P<id>[^!]+)")


class Name(NamedTuple):
    """A gateway's name; names have the order of their fields.

    Attributes:
        place: Topic of the cell where it stands; empty when it is not known.
        broker: Where its broker listens.
        id: Its id in the settings; several gateways may share a broker.
    """

    place: str
    broker: BrokerInfo
    id: str

    def __str__(self) -> str:
        """``place@host:port!id``."""
        return f"{self.place}@{self.broker}!{self.id}"

    @classmethod
    def parse(cls, text: str) -> "Name":
        """Take a name apart.

        Raises:
            OverlayError: It has another form.
        """
        found = _NAME.fullmatch(text)
        rule = "place@host:port!id"
        if found is None:
            raise OverlayError("gateway name", rule, text)
        try:
            broker = BrokerInfo(found["host"], int(found["port"]))
        except ValueError as error:
            raise OverlayError("gateway name", rule, text) from error
        return cls(found["place"], broker, found["id"])


def valley_of(name: str) -> str:
    """The valley of a gateway, from its name; empty when its place is not known."""
    place = name.partition("@")[0]
    return "/".join(place.split("/")[: VALLEY_DEPTH + 1])
