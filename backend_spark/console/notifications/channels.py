"""Channels: how one message reaches one address.

An address with ``http://`` or ``https://`` is a webhook, which gets JSON in the format
of its receiver. Every other address is one of Apprise's, such as ``mailtos://``.
"""

import base64
import hashlib
import hmac
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
import urllib3

from service_runtime.decoding import DECODE_ERRORS, decode_json
from service_runtime.errors import FieldError, YamamoriError, shortened

log = logging.getLogger(__name__)

TIMEOUT_S: Final = 20.0
"""Longest wait for a connection, and for each part of an answer.

Nothing limits a delivery as a whole: a thread cannot be ended, and one that is left to
itself may deliver later what is sent again meanwhile.
"""
MAX_ANSWER_BYTES: Final = 10_000
MAX_TEXT_LENGTH: Final = 2000
"""Longest text: the limit of LINE WORKS, which allows the fewest characters of the
webhooks. Many services of Apprise allow fewer, see `_fitted`."""

_LONGER_BODIES: Final = {"Twilio": 1600}
"""Limits of services for which Apprise states that of one SMS, 160 characters, by the
documentation of the service."""

_POOL: Final = urllib3.PoolManager(maxsize=2)


class DeliveryError(YamamoriError):
    """A message did not reach its address."""


@dataclass(frozen=True)
class Message:
    """What is sent.

    Attributes:
        id: Identifies the message; the same in each attempt.
        title: One line.
        within: Makes plain text of at most a number of characters; empty if nothing
            fits.
        link: Address of the console's page; empty if unknown.
        events: The events as data, for the format ``json``.
    """

    id: str
    title: str
    within: Callable[[int], str]
    link: str
    events: list[dict[str, Any]]

    @property
    def text(self) -> str:
        """Text for every webhook."""
        return self.within(MAX_TEXT_LENGTH)

    @property
    def full_text(self) -> str:
        """Text with the link below it."""
        return "\n".join(filter(None, (self.text, self.link)))


def deliver(
    address: str,
    form: str,
    key: bytes | None,
    message: Message,
    now_s: float,
    *,
    reached: set[str],
) -> None:
    """Send a message, and return when the receiver has accepted it.

    Args:
        address: See the module.
        form: Format of a webhook, a key of `FORMATS`.
        key: Signs a webhook; None without a signature.
        message: The message.
        now_s: Unix time, for the signature.
        reached: Recipients of a mail that accepted it in an earlier attempt, who do not
            get it again; those that accept it now are added.

    Raises:
        DeliveryError: It was not accepted, or not by every recipient.
    """
    if is_webhook(address):
        _post(address, form, key, message, now_s)
    else:
        _send_by_apprise(address, message, reached)


def is_webhook(address: str) -> bool:
    """Whether an address is a webhook."""
    return address.startswith(("http://", "https://"))


def masked(address: str) -> str:
    """An address without its secrets; the path of a webhook is one."""
    try:
        parts = urlsplit(address)
        host = f"{parts.scheme}://{parts.hostname or ''}"
    except ValueError:  # such as [ in a password
        return "…"
    return f"{host}/…" if is_webhook(address) else _apprise_name(address) or host


def check_address(address: str) -> None:
    """Refuse an address that no channel understands.

    Raises:
        FieldError: It is none.
    """
    rule = "https://… of a webhook, or an address of Apprise such as mailtos://…"
    if is_webhook(address):
        if not _has_host(address):
            raise FieldError("to", rule, shortened(address))
        return
    try:
        if _apprise_service(address) is not None:
            return
    except (TypeError, ValueError) as error:
        raise FieldError("to", rule, masked(address), str(error)) from error
    remedy = "https://appriseit.com/services/ lists them"
    raise FieldError("to", rule, address.partition("://")[0] + "://…", remedy)


def _has_host(url: str) -> bool:
    try:
        return bool(urlsplit(url).hostname)
    except ValueError:
        return False


def read_secret(path: Path) -> str:
    """First line of a file.

    Raises:
        FieldError: It cannot be read, or is empty.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise FieldError(
            "file", "a readable text file", str(path), str(error)
        ) from error
    if not lines[0].strip():
        raise FieldError("file", "a file with a first line", str(path))
    return lines[0].strip()


def signature(key: bytes, message_id: str, at_s: int, body: bytes) -> str:
    """Signature of a webhook by Standard Webhooks (standardwebhooks.com)."""
    signed = f"{message_id}.{at_s}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


def post_heartbeat(url: str) -> None:
    """Ping a dead man's switch.

    Raises:
        DeliveryError: It did not accept the request.
    """
    _request("GET", url, None, {})


def _post(
    url: str, form: str, key: bytes | None, message: Message, now_s: float
) -> None:
    body = msgspec.json.encode(FORMATS[form](message))
    headers = {
        "Content-Type": "application/json; charset=utf-8",
        "webhook-id": message.id,
        "webhook-timestamp": str(int(now_s)),
    }
    if key is not None:
        signed = signature(key, message.id, int(now_s), body)
        headers["webhook-signature"] = signed
    answer = _request("POST", url, body, headers)
    if form == "lineworks":
        _check_lineworks(answer)


def _request(
    method: str, url: str, body: bytes | None, headers: Mapping[str, str]
) -> bytes:
    try:
        answer = _POOL.request(
            method,
            url,
            body=body,
            headers={"User-Agent": "yamamori", **headers},
            timeout=urllib3.Timeout(total=TIMEOUT_S),
            retries=False,
            redirect=False,
            preload_content=False,
        )
        try:
            content = answer.read(MAX_ANSWER_BYTES)
        except urllib3.exceptions.HTTPError:
            content = b""  # the status has said whether it was accepted
        finally:
            answer.close()
    except (urllib3.exceptions.HTTPError, ValueError) as error:
        # What comes before may contain the path, which is a secret.
        reason = shortened(str(error).rpartition(": ")[2])
        raise DeliveryError(f"{type(error).__name__}: {reason}") from error
    if not 200 <= answer.status < 300:  # noqa: PLR2004
        text = shortened(content.decode("utf-8", "replace"))
        raise DeliveryError(f"HTTP {answer.status} {text}")
    return content


def _check_lineworks(answer: bytes) -> None:
    """LINE WORKS may answer HTTP 200 with another code within."""
    try:
        code = decode_json(answer, dict[str, Any]).get("code", 200)
    except DECODE_ERRORS:
        return
    if code not in {200, "200"}:
        raise DeliveryError(f"code {shortened(code)}")


def _json(message: Message) -> dict[str, Any]:
    return {
        "type": "yamamori.events",
        "id": message.id,
        "title": message.title,
        "text": message.text,
        "link": message.link,
        "events": message.events,
    }


def _lineworks(message: Message) -> dict[str, Any]:
    content = {"title": message.title, "body": {"text": message.text}}
    if not message.link:
        return content
    return content | {"button": {"label": "Yamamori", "url": message.link}}


def _slack(message: Message) -> dict[str, Any]:
    text = f"{message.title}\n{message.full_text}"
    for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(character, entity)
    return {"text": text}


def _teams(message: Message) -> dict[str, Any]:
    """Adaptive card for a webhook of Teams' Workflows."""
    blocks = [
        {"type": "TextBlock", "text": text, "wrap": True, "weight": weight}
        for text, weight in ((message.title, "Bolder"), (message.full_text, "Default"))
    ]
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": blocks,
    }
    kind = "application/vnd.microsoft.card.adaptive"
    attachment = {"contentType": kind, "contentUrl": None, "content": card}
    return {"type": "message", "attachments": [attachment]}


FORMATS: Final[Mapping[str, Callable[[Message], dict[str, Any]]]] = {
    "json": _json,
    "lineworks": _lineworks,
    "slack": _slack,
    "teams": _teams,
}
"""Body of a webhook by its format."""


class _WarningHandler(logging.Handler):
    """Passes warnings of another library to the log of this module."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        log.log(record.levelno, "%s", record.getMessage())


@cache
def _import_apprise() -> Any:  # noqa: ANN401 - Apprise is imported when used
    """Import Apprise, 26 MB, for installations that use it.

    Its details are in its results, for `_reasons`, but not in the log: some are secret.
    """
    import apprise  # noqa: PLC0415

    details = logging.getLogger("apprise")
    details.setLevel(logging.DEBUG)
    details.propagate = False
    details.addHandler(_WarningHandler())
    return apprise


def _apprise_service(address: str) -> Any:  # noqa: ANN401 - of Apprise
    """Apprise's service for an address; None if it knows none.

    It has no time limit of Apprise's: calls with one share a few threads in the
    process, and go on in them after the limit.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        apprise = _import_apprise()
        asset = apprise.AppriseAsset(
            app_id="Yamamori", storage_mode="memory", service_timeout=0
        )
        return apprise.Apprise.instantiate(
            address, asset=asset, suppress_exceptions=False
        )


def _apprise_name(address: str) -> str:
    try:
        service = _apprise_service(address)
    except (TypeError, ValueError):
        return ""
    return "" if service is None else service.url(privacy=True).partition("?")[0]


def _send_by_apprise(address: str, message: Message, reached: set[str]) -> None:
    try:
        service = _apprise_service(address)
    except (TypeError, ValueError) as error:
        raise DeliveryError(str(error)) from error
    if service is None:
        raise DeliveryError("no service of Apprise has this address")
    service.socket_connect_timeout = service.socket_read_timeout = TIMEOUT_S
    from apprise.plugins.email.base import NotifyEmail  # noqa: PLC0415

    if isinstance(service, NotifyEmail):
        _mail_each_alone(service, reached)
    apprise = _import_apprise()
    sender = apprise.Apprise(asset=service.asset)
    sender.add(service)
    title, text = _fitted(service, message)
    result = sender.notify(
        body=text,
        title=title,
        body_format=apprise.NotifyFormat.TEXT,
        log_level=logging.DEBUG,
    )
    if not result:
        reasons = "; ".join(_reasons(result))
        raise DeliveryError(reasons[:500] or "not accepted")


def _fitted(service: Any, message: Message) -> tuple[str, str]:  # noqa: ANN401
    """Title and text within the limits of a service of Apprise.

    Otherwise it may refuse each repetition. An address with ``overflow=split`` gets all
    in several messages. Some services have the title in the text.
    """
    title, text = message.title, message.full_text
    if service.overflow_mode == "split":
        return title, text
    whole = max(service.body_maxlen, _LONGER_BODIES.get(service.service_name, 0))
    most = whole
    if service.title_maxlen > 0:
        title = title[: service.title_maxlen]
    if service.title_maxlen <= 0 or service.overflow_amalgamate_title:
        most -= len(title) + len("\r\n")
    if len(text) <= most:
        return title, text
    link = f"\n{message.link}" if message.link else ""
    text = message.within(most - len(link))
    if text:
        return title, text + link
    text = message.within(most)
    return (title, text) if text else ("", title[:whole])


def _reasons(result: Any) -> Iterator[str]:  # noqa: ANN401 - Apprise's result
    """Why Apprise delivered nothing.

    It logs the answer of a mail server at the level of its own details, of which others
    may contain secrets.
    """
    for entry in result.logs():
        head, _, answer = entry.message.partition("Socket Exception: ")
        if not head and answer:
            yield answer
        elif entry.level not in ("DEBUG", "INFO", "TRACE"):
            yield entry.message


def _mail_each_alone(service: Any, reached: set[str]) -> None:  # noqa: ANN401
    """Let each recipient of a mail have an own one, once.

    Otherwise a dead mailbox would let the others have the same mail every five
    minutes; with a copy (cc, bcc) the server accepts or refuses all together.
    """
    known = {address for _, address in service.targets}
    copies = sorted((service.cc | service.bcc) - known)
    service.targets += [(service.names.get(each, False), each) for each in copies]
    service.cc, service.bcc = set(), set()
    service.targets = [each for each in service.targets if each[1] not in reached]
    service.mark_delivered = lambda key, **_: reached.add(str(key))
