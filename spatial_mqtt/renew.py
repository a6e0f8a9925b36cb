"""Asks for a new certificate and keeps it: what a timer runs on every machine."""

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from spatial_mqtt import tls
from spatial_mqtt.connection import Connection
from spatial_mqtt.endpoint import Endpoint, TlsFiles
from spatial_mqtt.errors import BrokerError, FieldError, RenewalError
from spatial_mqtt.link import Incoming, Publication, Session
from spatial_mqtt.renewal import Answer, Held, Request
from spatial_mqtt.settings import parse, read, text_of
from spatial_mqtt.topics import renewal_topic, renewed_topic

TIMEOUT_S = 20.0
SECRET = 0o600
CREDENTIALS = "/run/credentials/"


def tls_of(path: Path, credentials: Path | None = None) -> TlsFiles:
    """The ``[tls]`` of any program's settings.

    Args:
        path: The settings.
        credentials: Folder of our unit's credentials; files that the settings have
            among another unit's are looked for there.

    Raises:
        SettingsError: It has mistakes.
        OSError: The file cannot be read.
    """
    table = parse(text_of(path)).get("tls", {})
    files = read(TlsFiles, table, "tls")
    if credentials is None:
        return files
    ours = {
        name: str(credentials / Path(file).name)
        for name in ("ca", "certificate", "key")
        if (file := getattr(files, name)) and file.startswith(CREDENTIALS)
    }
    return replace(files, **ours)


def renew(files: TlsFiles, now_s: float, *, is_forced: bool = False) -> str:
    """Renew a certificate when two thirds of its life are over; what was done.

    Raises:
        FieldError: The settings name no signer or no file, or the signer refuses.
        BrokerError: The signer is out of reach.
        OSError: A file cannot be read or written.
    """
    if files.signer is None or files.renewed is None:
        missing = "signer" if files.signer is None else "renewed"
        raise FieldError(
            f"tls.{missing}", "given, for a certificate to be renewed", None
        )
    held = _held(files)
    ends = held.certificate.not_valid_after_utc
    if not is_forced and not held.is_due(now_s):
        return f"not due: the certificate counts until {ends:%Y-%m-%d %H:%M} UTC"
    key = ec.generate_private_key(ec.SECP256R1())
    answer = _ask(Endpoint.parse(files.signer), files, Request.of(held, key))
    new = answer.for_key(key)
    _keep(Path(files.renewed), new.pem())
    ends = new.certificate.not_valid_after_utc
    return (
        f"renewed: counts until {ends:%Y-%m-%d %H:%M} UTC, from the next connection on"
    )


def _held(files: TlsFiles) -> Held:
    certificate, key = tls.own_files(files)
    if certificate is None:
        raise FieldError("tls.certificate", "given, for it to be renewed", None)
    pem = Path(certificate).read_bytes()
    return Held.load(pem, Path(key).read_bytes() if key else pem)


def _keep(path: Path, pem: bytes) -> None:
    """Replace a file whole; nobody else ever reads it."""
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, SECRET)
    with os.fdopen(descriptor, "wb") as file:
        file.write(pem)
        file.flush()
        os.fsync(descriptor)
    fresh.replace(path)


def _ask(signer: Endpoint, files: TlsFiles, request: Request) -> Answer:
    (named,) = request.old.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    name = str(named.value)
    asker = _Asker(Publication(renewal_topic(name), request.encode()))
    session = Session(f"{name}-asks", ((renewed_topic(name), 1),), keepalive_s=10)
    connection = Connection(signer, session, asker, files)
    asker.say = connection.publish
    connection.start()
    try:
        if not asker.is_answered.wait(TIMEOUT_S):
            said = asker.refused or connection.last_reason or "the signer says nothing"
            raise BrokerError(str(signer), f"{said} within {TIMEOUT_S:g} s")
    finally:
        connection.stop()
    if asker.answer is None:
        raise RenewalError("answer", "a certificate", asker.refused)
    return asker.answer


class _Asker:
    """Handler that asks once it listens, and keeps the answer."""

    def __init__(self, question: Publication) -> None:
        self.is_answered = threading.Event()
        self.answer: Answer | None = None
        self.refused: str | None = None
        self.say: Callable[[Publication], object] = lambda _: None
        self._question = question

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        """See `Handler`."""

    def on_subscribed(self) -> None:
        """See `Handler`."""
        self.say(self._question)

    def on_down(self, reason: str) -> None:
        """See `Handler`."""

    def on_published(self, token: int, refused: str | None) -> None:
        """See `Handler`."""
        self.refused = refused

    def on_message(self, message: Incoming) -> None:
        """See `Handler`."""
        try:
            self.answer = Answer.decode(message.payload)
        except RenewalError as error:
            self.refused = str(error)
        self.is_answered.set()
