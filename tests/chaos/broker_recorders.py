"""Records messages at brokers, to check the order in which each store sends them on."""

import time

from chaos.oracle import Hop, Sent
from chaos.whole_system import GATEWAY_2, LINK, LOCAL_2, SITE, WholeSystem
from programs import Client
from soak.rig import AGENT, DISTRIBUTED, FED, GATEWAY, LOCAL
from soak.witness import Witness

from gateway_daemon.gateway.incoming import Unpacker
from service_runtime.tls import Endpoint
from spatial_mqtt.errors import EnvelopeError
from spatial_mqtt.senml import decode_message_id
from spatial_mqtt.topics import FORWARD_FILTER, OFFER_FILTER, matches, offer_topic
from spatial_mqtt.transport import IncomingMessage

AREA = "/1/#"
"""Area of the nodes."""


STORES = {LOCAL: "gw-1", LOCAL_2: "gw-2", DISTRIBUTED: "ingest-0"}


class BrokerRecorder(Client):
    """Records the messages of one broker with their times.

    It subscribes only after the store has subscribed. Otherwise a restarted broker
    would count the recorder as a subscriber and acknowledge a message that no store
    receives.
    """

    def __init__(self, endpoint: Endpoint, filter_: str, store: str) -> None:
        self._received: list[tuple[float, IncomingMessage]] = []
        self._filter = filter_
        super().__init__(endpoint, f"recorder-{endpoint.port}", offer_topic(store))

    def on_message(self, message: IncomingMessage) -> None:
        """See `ConnectionHandler`."""
        if matches(OFFER_FILTER, message.topic):
            self.connection.subscribe([(self._filter, 2)])
        else:
            self._received.append((time.monotonic(), message))

    def messages(self, store: str) -> list[Sent]:
        """First delivery of each message in order, with batches unpacked."""
        unpacker = Unpacker(float)
        first: dict[str, Sent] = {}
        for at_s, incoming in list(self._received):
            for message in unpacker.unpack(incoming):
                try:
                    id_, priority = decode_message_id(message.payload)
                except EnvelopeError:
                    continue
                name = str(id_)
                first.setdefault(name, Sent(name, store, priority, at_s))
        return list(first.values())


class BrokerRecorders:
    """Recorders at the brokers of both gateways and behind them."""

    def __init__(self, system: WholeSystem) -> None:
        brokers = system.brokers
        self._at = {
            name: BrokerRecorder(
                brokers[name].endpoint,
                AREA if name == DISTRIBUTED else FORWARD_FILTER,
                store,
            )
            for name, store in STORES.items()
        }

    def hops(self, witness: Witness) -> list[Hop]:
        """Every hop from a node to the broker behind the gateways.

        The two gateways do not order messages between each other, so messages that
        passed both are left out.
        """
        first = self._at[LOCAL].messages(GATEWAY)
        second = self._at[LOCAL_2].messages(GATEWAY_2)
        by_both = {each.id for each in first} & {each.id for each in second}
        last = _in_order(self._at[DISTRIBUTED].messages(DISTRIBUTED))
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
                    [each for each in messages if each.id not in by_both],
                    last,
                    frozenset({broker, gateway, DISTRIBUTED}),
                )
                for messages, broker, gateway in (
                    (first, LOCAL, GATEWAY),
                    (second, LOCAL_2, GATEWAY_2),
                )
            ),
        ]

    def close(self) -> None:
        """Stop recording."""
        for recorder in self._at.values():
            recorder.connection.stop()


def _in_order(messages: list[Sent]) -> list[tuple[str, float]]:
    return [(each.id, each.at_s) for each in messages]
