"""Who may say and hear what on which broker, as lines of a Mosquitto ACL. No I/O.

Each certificate gets lines of its own: a pattern knows the user's name but not its
cell. Who is not named may ask for a new certificate and nothing else; a revoked one is
not named. Mosquitto refuses a publication that is not allowed; a subscription it takes,
and delivers nothing on it.

Source: mosquitto.conf(5), `acl_file`, of version 2.0.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from gateway_daemon.ca.identity import GATEWAY, NODE, Identity
from gateway_daemon.overlay.topics import (
    OVERLAY_NAME_FILTER,
    overlay_name_topic,
    overlay_topic,
)
from spatial_mqtt.topics import (
    BROKER_TABLE,
    BROKER_UPDATE,
    CELLS_FILTER,
    CLIENT_LOG,
    CUSTODY_ANY,
    ERRORS,
    FORWARD_FILTER,
    FROM_FILTER,
    GATEWAY_DOWN,
    GATEWAY_HERE,
    GATEWAY_INFO,
    GATEWAY_LOAD,
    GATEWAY_NOTICE,
    GATEWAY_PLACES,
    GATEWAY_WISH,
    MANAGER_LOAD,
    MANAGER_TOPICS,
    NOTICES,
    OFFER_FILTER,
    RECEIVED_COUNT,
    REGISTER,
    RENEWALS,
    RENEWED,
    SUBSCRIBE_LOG,
    TOOLS,
    UNREGISTER,
    UNSUBSCRIBE_LOG,
    Forward,
    custody_topic,
    gateway_place_topic,
    notice_filters,
    offer_topic,
)
from spatial_mqtt.update_topics import (
    PIECES,
    ROLLOUTS,
    WANTS,
    piece_topic,
    rollout_filters,
    want_topic,
)

KINDS: Final = ("gateway", "manager", "distributed")
"""Brokers: of a gateway, of a Manager, and those between gateways and the backend."""

PATTERNS: Final = (
    f"pattern write {RENEWALS.replace('+', '%u')}",
    f"pattern read {RENEWED.replace('+', '%u')}",
)

Rights = Callable[[Identity], Iterator[str]]


def acl(kind: str, owner: str, holders: Iterable[Identity]) -> str:
    """The ACL of one broker.

    Args:
        kind: One of `KINDS`.
        owner: Name of the gateway or Manager whose broker it is; of a distributed
            one its own.
        holders: Everybody with a certificate that counts.
    """
    blocks = []
    for holder in holders:
        rights = _RIGHTS[kind].get(holder.role)
        # Only its own gateway serves a gateway's broker; others pass frames to it.
        if kind == GATEWAY == holder.role and holder.name != owner:
            told = _gateway_at_another(owner)
        elif rights is not None:
            told = rights(holder)
        else:
            continue
        lines = [f"topic {line}" for line in told]
        blocks.append("\n".join([f"user {holder.name}", *lines]))
    patterns = PATTERNS if kind == "manager" else ()
    return "\n\n".join([f"# {kind} broker of {owner}", *blocks, *patterns]) + "\n"


def _node_at_gateway(node: Identity) -> Iterator[str]:
    (cell,) = node.cells
    yield f"write {Forward(_below(cell), by=node.name)}"
    yield f"read {custody_topic(node.name)}"
    yield f"read {OFFER_FILTER}"
    yield from (f"read {each}" for each in notice_filters(cell))
    yield from (f"read {each}" for each in rollout_filters(cell))
    yield f"write {want_topic(node.name)}"
    yield f"read {piece_topic(node.name)}"


def _gateway_at_its_own(gateway: Identity) -> Iterator[str]:
    yield f"read {FORWARD_FILTER}"
    yield f"read {FROM_FILTER}"
    yield f"write {CUSTODY_ANY}"
    yield f"read {OFFER_FILTER}"
    yield f"write {offer_topic(gateway.name)}"
    yield f"read {overlay_topic(gateway.name)}"
    yield f"write {overlay_name_topic(gateway.name)}"
    yield from (f"write {each}" for each in CELLS_FILTER)
    yield from (f"write {each}" for each in (NOTICES, ROLLOUTS, PIECES))
    yield f"read {WANTS}"
    watched = (SUBSCRIBE_LOG, UNSUBSCRIBE_LOG, CLIENT_LOG, REGISTER, UNREGISTER)
    yield from (f"read {each}" for each in watched)


def _gateway_at_another(owner: str) -> Iterator[str]:
    yield f"read {OVERLAY_NAME_FILTER}"
    yield f"write {overlay_topic(owner)}"


def _client_at_gateway(client: Identity) -> Iterator[str]:
    yield from (f"read {each}" for each in CELLS_FILTER)
    yield from (f"write {each}" for each in (REGISTER, UNREGISTER))
    for each in _filters(client.cells):
        yield f"write {Forward(each)}"
        yield f"write {Forward(each, by=client.name)}"


def _admin_at_gateway(admin: Identity) -> Iterator[str]:
    yield from _client_at_gateway(admin)
    yield from (f"readwrite {each}" for each in (NOTICES, ROLLOUTS))


def _asks_who_serves(_: Identity) -> Iterator[str]:
    yield f"read {GATEWAY_INFO}"


def _gateway_at_manager(gateway: Identity) -> Iterator[str]:
    yield from (f"read {t}" for t in (GATEWAY_INFO, BROKER_TABLE, BROKER_UPDATE))
    yield from (f"read {each}" for each in (NOTICES, ROLLOUTS))
    told = (GATEWAY_NOTICE, GATEWAY_HERE, GATEWAY_DOWN, GATEWAY_LOAD, GATEWAY_WISH)
    yield from (f"write {topic}" for topic in told)
    yield f"write {gateway_place_topic(gateway.name)}"


def _manager_at_manager(_: Identity) -> Iterator[str]:
    yield from (f"readwrite {topic}" for topic in MANAGER_TOPICS)


def _admin_at_manager(_: Identity) -> Iterator[str]:
    yield from (f"readwrite {each}" for each in (TOOLS, NOTICES, ROLLOUTS))
    read = (GATEWAY_INFO, BROKER_TABLE, MANAGER_LOAD, ERRORS)
    yield from (f"read {topic}" for topic in read)


def _backend_at_manager(_: Identity) -> Iterator[str]:
    yield f"write {NOTICES}"
    yield from (f"read {t}" for t in (GATEWAY_INFO, GATEWAY_PLACES))  # for the map


def _signer_at_manager(_: Identity) -> Iterator[str]:
    yield f"read {RENEWALS}"
    yield f"write {RENEWED}"


def _gateway_between(gateway: Identity) -> Iterator[str]:
    yield from (f"write {each}" for each in _filters(gateway.cells))
    yield from (f"read {each}" for each in CELLS_FILTER)
    yield f"read {custody_topic(gateway.name)}"
    yield f"read {OFFER_FILTER}"
    yield f"write {offer_topic(gateway.name)}"


def _backend_between(backend: Identity) -> Iterator[str]:
    yield from (f"read {each}" for each in CELLS_FILTER)
    yield f"write {CUSTODY_ANY}"
    yield f"write {offer_topic(backend.name)}"


def _manager_between(_: Identity) -> Iterator[str]:
    yield f"read {RECEIVED_COUNT}"


_RIGHTS: Mapping[str, Mapping[str, Rights]] = {
    "gateway": {
        NODE: _node_at_gateway,
        GATEWAY: _gateway_at_its_own,
        "client": _client_at_gateway,
        "admin": _admin_at_gateway,
    },
    "manager": {
        NODE: _asks_who_serves,
        "client": _asks_who_serves,
        GATEWAY: _gateway_at_manager,
        "manager": _manager_at_manager,
        "admin": _admin_at_manager,
        "signer": _signer_at_manager,
        "backend": _backend_at_manager,
    },
    "distributed": {
        GATEWAY: _gateway_between,
        "backend": _backend_between,
        "manager": _manager_between,
    },
}


def _filters(areas: Iterable[str]) -> Iterator[str]:
    """Filters for what is published in some areas; never for our own business."""
    for area in areas:
        yield from CELLS_FILTER if area == "/" else (_below(area),)


def _below(area: str) -> str:
    return f"{area}/#"
