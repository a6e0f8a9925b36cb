"""A certificate authority and brokers for tests, with real keys and Mosquitto."""

import os
import pwd
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from conftest import MOSQUITTO, Broker, free_port, wait_until
from programs import run_command

from gateway_daemon.ca import acl
from gateway_daemon.ca.acl import MosquittoConfig
from gateway_daemon.ca.authority import Identity
from gateway_daemon.ca.store import AuthorityFolder
from service_runtime.tls import Endpoint, TlsFiles
from spatial_mqtt.connection import Connection
from spatial_mqtt.transport import IncomingMessage, Publication, Session

HOUR_S = 3600.0
DUE_AGE_S = 0.4 * HOUR_S
"""Age of a certificate of one hour in the last third of its validity, which begins an
hour before its issue."""


class IssuingAuthority:
    """A certificate authority that issues certificates."""

    def __init__(self, path: Path, token: str | None = None) -> None:
        self.folder = AuthorityFolder(path, time.time)
        self.folder.create("Otoyo", token)

    def issue(
        self,
        role: str,
        name: str,
        *cells: str,
        hosts: tuple[str, ...] = (),
        life_s: float = HOUR_S,
        age_s: float = 0.0,
    ) -> TlsFiles:
        earlier = AuthorityFolder(self.folder.path, lambda: time.time() - age_s)
        made = earlier.issue_with_key(Identity(role, name, cells, hosts), life_s)
        return self.files(name, made)

    def files(self, name: str, made: Path | None = None) -> TlsFiles:
        made = made or self.folder.path / "issued" / f"{name}.pem"
        return TlsFiles(
            ca=str(self.folder.path / "ca.pem"),
            certificate=str(made),
            key=str(made.with_suffix(".key")),
        )


def run_ca(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run_command("gateway_daemon", "ca", "--folder", str(folder), *words)


class TrustedBroker(Broker):
    """A Mosquitto broker that accepts the certificates of one authority."""

    def __init__(
        self,
        folder: Path,
        authority: IssuingAuthority,
        kind: str,
        owner: str,
        *,
        refuses_nodes: bool = True,
    ) -> None:
        self.authority, self.kind, self.owner = authority, kind, owner
        self._folder = folder / f"{kind}-{owner}"
        self._folder.mkdir()
        self.log = self._folder / "log"
        ports = free_port(), free_port()
        self.plan = MosquittoConfig(
            kind, self._folder, *ports, "127.0.0.1", refuses_nodes
        )
        self.port = ports[0]
        self.nodes = Endpoint("localhost", ports[0], tls=True)
        daemons = ports[0] if kind == "distributed" else ports[1]
        self.daemons = Endpoint("localhost", daemons, tls=True)
        name = f"{owner}-broker"
        made = authority.issue("broker", name, hosts=("localhost", "127.0.0.1"))
        self.copy_certificate(made)
        self._config = self._folder / "yamamori.conf"
        user = pwd.getpwuid(os.getuid()).pw_name
        # Started by root, Mosquitto would switch to a user without access to it.
        self._config.write_text(
            f"user {user}\nlog_dest stderr\nlog_type all\n{self.plan.format()}"
        )
        self.write()
        self.start()

    def renewing(self, name: str, renewed: Path) -> TlsFiles:
        """TLS settings of a name that renews at a signer at this broker."""
        files = self.authority.files(name)
        return replace(files, renewed=str(renewed), signer=f"mqtts://{self.nodes}")

    def copy_certificate(self, made: TlsFiles) -> None:
        """Copy the broker's own certificate and key."""
        self._copy(Path(made.certificate or ""), "broker.pem")
        self._copy(Path(made.key or ""), "broker.key")

    def write(self) -> None:
        """Write the broker's files as ``ca broker-config`` does."""
        source = self.authority.folder
        for name in ("ca.pem", *self.plan.crl_files):
            self._copy(source.path / name, name)
        holders = source.load_register().list_holders(time.time())
        text = acl.format_acl(self.kind, self.owner, holders)
        (self._folder / "acl").write_text(text)

    def start(self) -> None:
        self._process = subprocess.Popen(
            [MOSQUITTO, "-c", str(self._config)],
            stdout=subprocess.DEVNULL,
            stderr=self.log.open("ab"),
        )
        wait_until(self._listens)

    def hup(self) -> None:
        self.write()
        self._process.send_signal(1)

    def _copy(self, source: Path, name: str) -> None:
        (self._folder / name).write_bytes(source.read_bytes())


class Person:
    """A client with a certificate at a broker."""

    def __init__(
        self, at: Endpoint, tls: TlsFiles, name: str, *filters: str, wait: bool = True
    ) -> None:
        self.got: list[IncomingMessage] = []
        self.answers: dict[int, str | None] = {}
        self.is_ready = threading.Event()
        self._filters = filters
        session = Session(name, [(f, 1) for f in filters])
        self.connection = Connection(at, session, self, tls)
        self.connection.start()
        if wait:
            assert self.is_ready.wait(60), self.connection.last_reason

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        if not self._filters:
            self.is_ready.set()

    def on_down(self, reason: str) -> None:
        pass

    def on_message(self, message: IncomingMessage) -> None:
        self.got.append(message)

    def on_published(self, token: int, refused: str | None) -> None:
        self.answers[token] = refused

    def on_subscribed(self) -> None:
        self.is_ready.set()

    def say(self, topic: str, payload: bytes = b"x", **more: object) -> str | None:
        """Publish; returns the reason if the broker refused it, else None."""
        token = self.connection.publish(Publication(topic, payload, **more))
        assert token is not None, self.connection.last_reason
        wait_until(lambda: token in self.answers)
        refused = self.answers[token]
        return None if refused == "no matching subscribers" else refused

    def reaches(self, topic: str, payload: bytes) -> bool:
        """Publish; returns whether the topic has subscribers."""
        token = self.connection.publish(Publication(topic, payload))
        wait_until(lambda: token in self.answers)
        return self.answers[token or 0] is None

    def is_refused(self, reason: str) -> bool:
        """Whether the connection failed with a reason.

        It may need several attempts: the link may be cut before the reason is read.
        """
        wait_until(lambda: reason in self.connection.last_reason)
        return not self.is_ready.is_set()

    def heard(self) -> list[str]:
        return [message.topic for message in self.got]

    def stop(self) -> None:
        self.connection.stop()


Make = Callable[..., TrustedBroker]
Join = Callable[..., Person]
