"""Listens at brokers, to see in what order each store sends on what it was given."""

import time

from chaos.house import GATEWAY_2, LINK, LOCAL_2, SITE, House
from chaos.oracle import Hop, Sent
from programs import Client
from soak.rig import AGENT, DISTRIBUTED, FED, GATEWAY, LOCAL
from soak.witness import Witness

from gateway_daemon.gateway.ingress_messages import Unpacker
from service_runtime.tls import Endpoint
from spatial_mqtt.errors import EnvelopeError
from spatial_mqtt.senml import decode_message_id
from spatial_mqtt.topics import FORWARD_FILTER, OFFER_FILTER, matches, offer_topic
from spatial_mqtt.transport import IncomingMessage

AREA = "/1/#"
"""Where the nodes stand."""


STORES = {LOCAL: "gw-1", LOCAL_2: "gw-2", DISTRIBUTED: "ingest-0"}


class Tap(Client):
    """One listener, which remembers when it heard what.

    It listens only once the store does that is meant: a broker that was restarted
    would else take us for it, and not tell the sender that nobody has the message.
    """

    def __init__(self, endpoint: Endpoint, filter_: str, store: str) -> None:
        self._heard: list[tuple[float, IncomingMessage]] = []
        self._filter = filter_
        super().__init__(endpoint, f"tap-{endpoint.port}", offer_topic(store))

    def on_message(self, message: IncomingMessage) -> None:
        """See `ConnectionHandler`."""
        if matches(OFFER_FILTER, message.topic):
            self.connection.subscribe([(self._filter, 2)])
        else:
            self._heard.append((time.monotonic(), message))

    def told(self, by: str) -> list[Sent]:
        """Messages in their order, those in parcels one by one; the first of each."""
        opener = Unpacker()
        first: dict[str, Sent] = {}
        for at_s, incoming in list(self._heard):
            for message in opener.unpack([incoming]):
                try:
                    id_, priority = decode_message_id(message.payload)
                except EnvelopeError:
                    continue
                name = str(id_)
                first.setdefault(name, Sent(name, by, priority, at_s))
        return list(first.values())


class Taps:
    """Listeners at the brokers of both gateways and behind them."""

    def __init__(self, house: House) -> None:
        brokers = house.brokers
        self._at = {
            name: Tap(
                brokers[name].endpoint,
                AREA if name == DISTRIBUTED else FORWARD_FILTER,
                store,
            )
            for name, store in STORES.items()
        }

    def hops(self, witness: Witness) -> list[Hop]:
        """Every step from a node to the broker behind the gateways.

        Beside each other the gateways order nothing: what went by both is nobody's.
        """
        first, second = self._at[LOCAL].told(GATEWAY), self._at[LOCAL_2].told(GATEWAY_2)
        by_both = {each.id for each in first} & {each.id for each in second}
        last = _in_order(self._at[DISTRIBUTED].told(DISTRIBUTED))
        put = [
            Sent(note.id, node, note.priority, note.at_s)
            for node, ledger in witness.ledgers.items()
            for note in ledger.notes.values()
            if note.id not in by_both
        ]
        return [
            Hop(
                put,
                _in_order(first),
                frozenset({AGENT, FED, LINK, SITE, LOCAL, GATEWAY}),
            ),
            Hop(put, _in_order(second), frozenset({AGENT, SITE, LOCAL_2, GATEWAY_2})),
            *(
                Hop(
                    [each for each in told if each.id not in by_both],
                    last,
                    frozenset({broker, gateway, DISTRIBUTED}),
                )
                for told, broker, gateway in (
                    (first, LOCAL, GATEWAY),
                    (second, LOCAL_2, GATEWAY_2),
                )
            ),
        ]

    def close(self) -> None:
        """Stop listening."""
        for tap in self._at.values():
            tap.connection.stop()


def _in_order(told: list[Sent]) -> list[tuple[str, float]]:
    return [(each.id, each.at_s) for each in told]
