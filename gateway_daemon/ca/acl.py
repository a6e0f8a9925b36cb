"""Mosquitto configuration: access control list and listeners with mutual TLS. No I/O.

Wherever another machine can connect, the client id is the user name, so one certificate
cannot take over another's session. At a Manager's listener for daemons the user name is
the whole subject: a daemon's session there and its renewals at the other listener, with
the same certificate, do not take over each other.

Each certificate has its own ACL lines, because a pattern can contain the user's name
but not its cell. A user without lines may only request a new certificate; a revoked
user has no lines. Mosquitto rejects a publication that is not allowed. It accepts a
subscription that is not allowed, and delivers nothing on it.

Source: mosquitto.conf(5), `acl_file`, of version 2.0.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gateway_daemon.ca.authority import (
    DISTRIBUTED,
    GATEWAY,
    INFRASTRUCTURE,
    NODE,
    Identity,
)
from gateway_daemon.ca.store import CRL_FILE, INFRASTRUCTURE_CRL_FILE
from spatial_mqtt.topics import (
    ADMIN_FILTER,
    BROKER_NOTICE,
    BROKER_READY,
    BROKER_TABLE,
    BROKER_UPDATE,
    CELL_FILTERS,
    CLIENT_LOG,
    CUSTODY_FILTER,
    DRILL_FILTER,
    ERRORS,
    FILE_CHUNKS,
    FILE_REQUESTS,
    FORWARD_FILTER,
    FROM_FILTER,
    GATEWAY_INFO,
    GATEWAY_LOCATIONS,
    GATEWAY_NOTICE,
    MANAGER_FILTERS,
    MANAGER_LOAD,
    NOTICE_FILTER,
    OVERLAY_NAME_FILTER,
    RECEIVED_COUNT,
    REGISTER,
    RENEWAL_ANSWERS,
    RENEWAL_REQUESTS,
    ROLLOUT_FILTER,
    SUBSCRIBE_LOG,
    UNREGISTER,
    UNSUBSCRIBE_LOG,
    ForwardTopic,
    cell_publication_topics,
    custody_topic,
    drill_filters,
    file_chunk_topic,
    file_request_topic,
    gateway_location_topic,
    named_api_topic,
    notice_filters,
    offer_topic,
    overlay_name_topic,
    overlay_topic,
    renewal_answer_topic,
    renewal_topic,
    rollout_filters,
)

BROKER_KINDS: Final = ("gateway", "manager", "distributed")
"""Brokers: of a gateway, of a Manager, and those between gateways and the backend."""

ACL_PATTERNS: Final = (
    f"pattern write {RENEWAL_REQUESTS.replace('+', '%u')}",
    f"pattern read {RENEWAL_ANSWERS.replace('+', '%u')}",
)

TopicRights = Callable[[Identity], Iterator[str]]


def format_acl(kind: str, owner: str, holders: Iterable[Identity]) -> str:
    """Return the ACL of one broker.

    Args:
        kind: One of `BROKER_KINDS`.
        owner: Name of the gateway or Manager that owns the broker; of a distributed
            broker its own name.
        holders: All identities with a valid certificate.
    """
    holders = list(holders)
    offers = list(_offers(kind, owner, holders))
    blocks = []
    for holder in holders:
        rights = _RIGHTS[kind].get(holder.role)
        # Only its own gateway serves a gateway's broker; others pass frames to it.
        if kind == GATEWAY == holder.role and holder.name != owner:
            lines_of = [*_gateway_at_another(owner)]
        elif rights is not None:
            lines_of = [*rights(holder), *offers * (holder.role in {NODE, GATEWAY})]
        else:
            continue
        lines = [f"topic {line}" for line in lines_of]
        blocks.append("\n".join([f"user {holder.name}", *lines]))
        if kind == "manager" and holder.role in INFRASTRUCTURE:
            lines += (f"topic {line}" for line in _renewal(holder.name))
            blocks.append("\n".join([f"user {holder.subject_text()}", *lines]))
    patterns = ACL_PATTERNS if kind == "manager" else ()
    return "\n\n".join([f"# {kind} broker of {owner}", *blocks, *patterns]) + "\n"


def _offers(kind: str, owner: str, holders: Iterable[Identity]) -> Iterator[str]:
    """Rights to read the offers of the stores, by name.

    Mosquitto delivers an offer that another one retained before it lost the right.
    """
    if kind == "gateway":
        yield f"read {offer_topic(owner)}"
    if kind == "distributed":
        stores = (each.name for each in holders if each.role == "backend")
        yield from (f"read {offer_topic(name)}" for name in stores)


RELAYED: Final = (NOTICE_FILTER, DRILL_FILTER, ROLLOUT_FILTER)
"""Messages for areas that gateways relay from the Managers to their nodes."""


def _renewal(name: str) -> Iterator[str]:
    """Rights of `ACL_PATTERNS` for a user name that is not the holder's name."""
    yield f"write {renewal_topic(name)}"
    yield f"read {renewal_answer_topic(name)}"


def _node_at_gateway(node: Identity) -> Iterator[str]:
    (cell,) = node.cells
    yield from (f"write {each}" for each in cell_publication_topics(node.name, cell))
    yield f"read {custody_topic(node.name)}"
    yield from (f"read {each}" for each in notice_filters(cell))
    yield from (f"read {each}" for each in drill_filters(cell))
    yield from (f"read {each}" for each in rollout_filters(cell))
    yield f"write {file_request_topic(node.name)}"
    yield f"read {file_chunk_topic(node.name)}"


def _gateway_at_its_own(gateway: Identity) -> Iterator[str]:
    yield f"read {FORWARD_FILTER}"
    yield f"read {FROM_FILTER}"
    yield f"write {CUSTODY_FILTER}"
    yield f"write {offer_topic(gateway.name)}"
    yield f"read {overlay_topic(gateway.name)}"
    yield f"write {overlay_name_topic(gateway.name)}"
    yield from (f"write {each}" for each in CELL_FILTERS)
    yield from (f"write {each}" for each in (*RELAYED, FILE_CHUNKS))
    yield f"read {FILE_REQUESTS}"
    watched = (SUBSCRIBE_LOG, UNSUBSCRIBE_LOG, CLIENT_LOG, REGISTER, UNREGISTER)
    yield from (f"read {each}" for each in watched)


def _gateway_at_another(owner: str) -> Iterator[str]:
    yield f"read {OVERLAY_NAME_FILTER}"
    yield f"write {overlay_topic(owner)}"


def _client_at_gateway(client: Identity) -> Iterator[str]:
    yield from (f"read {each}" for each in CELL_FILTERS)
    yield from (f"write {each}" for each in (REGISTER, UNREGISTER))
    for each in _filters(client.cells):
        yield f"write {ForwardTopic(each)}"
        yield f"write {ForwardTopic(each, publisher=client.name)}"


def _admin_at_gateway(admin: Identity) -> Iterator[str]:
    yield from _client_at_gateway(admin)
    yield from (f"readwrite {each}" for each in RELAYED)


def _reader_of_gateways(_: Identity) -> Iterator[str]:
    yield f"read {GATEWAY_INFO}"


def _gateway_at_manager(gateway: Identity) -> Iterator[str]:
    tables = (BROKER_TABLE, BROKER_READY, BROKER_UPDATE)
    directory = (GATEWAY_INFO, GATEWAY_LOCATIONS, *tables)
    yield from (f"read {topic}" for topic in directory)
    yield from (f"read {each}" for each in RELAYED)
    yield f"write {named_api_topic(_below(GATEWAY_NOTICE), gateway.name)}"
    yield f"write {gateway_location_topic(gateway.name)}"


def _distributed_at_manager(broker: Identity) -> Iterator[str]:
    yield f"write {named_api_topic(_below(BROKER_NOTICE), broker.name)}"
    yield f"read {BROKER_TABLE}"


def _manager_at_manager(_: Identity) -> Iterator[str]:
    yield from (f"readwrite {topic}" for topic in MANAGER_FILTERS)


def _admin_at_manager(_: Identity) -> Iterator[str]:
    yield from (f"readwrite {each}" for each in (ADMIN_FILTER, *RELAYED))
    read = (GATEWAY_INFO, BROKER_TABLE, MANAGER_LOAD, ERRORS)
    yield from (f"read {topic}" for topic in read)


def _backend_at_manager(_: Identity) -> Iterator[str]:
    yield from (f"write {each}" for each in (NOTICE_FILTER, DRILL_FILTER))
    yield from (f"read {t}" for t in (GATEWAY_INFO, GATEWAY_LOCATIONS))  # for the map


def _signer_at_manager(_: Identity) -> Iterator[str]:
    yield f"read {RENEWAL_REQUESTS}"
    yield f"write {RENEWAL_ANSWERS}"


def _gateway_between(gateway: Identity) -> Iterator[str]:
    yield from (f"write {each}" for each in _filters(gateway.cells))
    yield from (f"read {each}" for each in CELL_FILTERS)
    yield f"read {custody_topic(gateway.name)}"


def _backend_between(backend: Identity) -> Iterator[str]:
    yield from (f"read {each}" for each in CELL_FILTERS)
    yield f"write {CUSTODY_FILTER}"
    yield f"write {offer_topic(backend.name)}"


def _manager_between(_: Identity) -> Iterator[str]:
    yield f"read {RECEIVED_COUNT}"


_RIGHTS: Mapping[str, Mapping[str, TopicRights]] = {
    "gateway": {
        NODE: _node_at_gateway,
        GATEWAY: _gateway_at_its_own,
        "client": _client_at_gateway,
        "admin": _admin_at_gateway,
    },
    "manager": {
        NODE: _reader_of_gateways,
        "client": _reader_of_gateways,
        GATEWAY: _gateway_at_manager,
        "manager": _manager_at_manager,
        "admin": _admin_at_manager,
        "signer": _signer_at_manager,
        "backend": _backend_at_manager,
        DISTRIBUTED: _distributed_at_manager,
    },
    "distributed": {
        GATEWAY: _gateway_between,
        "backend": _backend_between,
        "manager": _manager_between,
    },
}


def _filters(areas: Iterable[str]) -> Iterator[str]:
    """Yield filters for publications in some areas; never for internal topics."""
    for area in areas:
        yield from CELL_FILTERS if area == "/" else (_below(area),)


def _below(area: str) -> str:
    return f"{area}/#"


MAX_PACKET_BYTES = 1024 * 1024
"""Limit of a packet; larger messages are sent in chunks."""

MAX_QUEUED = 10_000_000
"""Effectively no limit. With none (0) Mosquitto 2.0.11 disconnects a client whose
publication is not allowed, instead of returning an error."""

MAX_SESSIONS = 20_000


@dataclass(frozen=True)
class MosquittoConfig:
    """Configuration of one broker.

    Attributes:
        kind: One of `BROKER_KINDS`.
        folder: Where Mosquitto finds the files.
        port: For nodes and clients; of a distributed broker for all.
        daemons_port: For daemons and administrators; not at a distributed broker.
        bind: Address for the first port.
        refuses_nodes: Whether listeners for daemons accept only certificates of
            `INFRASTRUCTURE`, which all of these must then name in themselves.
    """

    kind: str
    folder: Path
    port: int = 8883
    daemons_port: int = 8884
    bind: str = "0.0.0.0"  # noqa: S104 - nodes come from outside
    refuses_nodes: bool = True

    @property
    def crl_files(self) -> tuple[str, ...]:
        """Names of the revocation lists, the one that all brokers have at the end."""
        return (
            (INFRASTRUCTURE_CRL_FILE, CRL_FILE) if self.refuses_nodes else (CRL_FILE,)
        )

    def format(self) -> str:
        """Return the configuration file."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        yield "# Made by gateway-daemon ca broker-config; changed by it, too."
        yield "per_listener_settings false"
        yield "allow_anonymous false"
        yield f"acl_file {self.folder / 'acl'}"
        yield f"max_packet_size {MAX_PACKET_BYTES}"
        yield f"max_queued_messages {MAX_QUEUED}"
        yield "max_inflight_messages 0"
        yield "set_tcp_nodelay true"
        yield from ("log_dest syslog", "log_type error", "log_type warning")
        yield "log_type notice"
        if self.kind == "gateway":
            # The gateway discovers subscriptions in these log topics.
            yield from ("log_dest topic", "log_type subscribe", "log_type unsubscribe")
            yield "queue_qos0_messages true"  # for the daemon, while it is away
        is_shared = self.kind != "distributed"
        yield from self._listener(self.port, self.bind, for_nodes=is_shared)
        yield "use_identity_as_username true"
        yield from _one_session_per_user()
        if self.kind == "gateway":
            # Only the daemon on this machine; it has several sessions.
            yield from self._listener(self.daemons_port, "127.0.0.1", for_nodes=False)
            yield "use_identity_as_username true"
        elif self.kind == "manager":
            yield from self._listener(self.daemons_port, self.bind, for_nodes=False)
            yield "use_subject_as_username true"
            yield from _one_session_per_user()

    def _listener(self, port: int, bind: str, *, for_nodes: bool) -> Iterator[str]:
        is_open = for_nodes or not self.refuses_nodes
        revoked = CRL_FILE if is_open else INFRASTRUCTURE_CRL_FILE
        yield f"listener {port} {bind}"
        yield f"cafile {self.folder / 'ca.pem'}"
        yield f"crlfile {self.folder / revoked}"
        yield f"certfile {self.folder / 'broker.pem'}"
        yield f"keyfile {self.folder / 'broker.key'}"
        yield "tls_version tlsv1.2"
        yield "require_certificate true"


def _one_session_per_user() -> Iterator[str]:
    yield "use_username_as_clientid true"
    yield f"max_connections {MAX_SESSIONS}"
