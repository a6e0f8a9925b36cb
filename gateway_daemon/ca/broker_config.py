"""Configuration of a Mosquitto with certificates on both sides. No I/O.

Source: mosquitto.conf(5) of version 2.0.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MOST_PACKET_BYTES = 1024 * 1024
"""Larger messages come in pieces; nobody sends this much at once."""

MOST_QUEUED = 10_000_000
"""As good as no limit. Without one (0) Mosquitto 2.0.11 drops the link of who publishes
what is not allowed, instead of telling it so."""

MOST_SESSIONS = 20_000


@dataclass(frozen=True)
class BrokerPlan:
    """One broker.

    Attributes:
        kind: One of `acl.KINDS`.
        folder: Where Mosquitto finds the files.
        port: For nodes and clients; of a distributed broker for everybody.
        daemons_port: For daemons and administrators; not at a distributed broker.
        bind: Address for the first port.
    """

    kind: str
    folder: Path
    port: int = 8883
    daemons_port: int = 8884
    bind: str = "0.0.0.0"  # noqa: S104 - nodes come from outside

    def text(self) -> str:
        """The configuration file."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        yield "# Made by gateway-daemon ca broker-config; changed by it, too."
        yield "per_listener_settings false"
        yield "allow_anonymous false"
        yield f"acl_file {self.folder / 'acl'}"
        yield f"max_packet_size {MOST_PACKET_BYTES}"
        yield f"max_queued_messages {MOST_QUEUED}"
        yield "max_inflight_messages 0"
        yield "set_tcp_nodelay true"
        yield from ("log_dest syslog", "log_type error", "log_type warning")
        yield "log_type notice"
        if self.kind == "gateway":
            # The gateway learns from these who listens to what.
            yield from ("log_dest topic", "log_type subscribe", "log_type unsubscribe")
        yield from self._listener(self.port, self.bind)
        if self.kind == "distributed":
            return
        # One session for each certificate: nobody takes over another's by its name.
        yield "use_username_as_clientid true"
        yield f"max_connections {MOST_SESSIONS}"
        # A gateway's daemon is on the same machine; a Manager's gateways are not.
        own = "127.0.0.1" if self.kind == "gateway" else self.bind
        yield from self._listener(self.daemons_port, own)

    def _listener(self, port: int, bind: str) -> Iterator[str]:
        yield f"listener {port} {bind}"
        yield f"cafile {self.folder / 'ca.pem'}"
        yield f"crlfile {self.folder / 'revoked.pem'}"
        yield f"certfile {self.folder / 'broker.pem'}"
        yield f"keyfile {self.folder / 'broker.key'}"
        yield "tls_version tlsv1.2"
        yield "require_certificate true"
        yield "use_identity_as_username true"
