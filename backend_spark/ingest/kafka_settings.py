"""Settings of a log in Kafka, and the options of its clients.

No secret is in the settings: what a cluster asks for is in a file of librdkafka's
options, which systemd can pass as a credential.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from service_runtime.errors import FieldError
from service_runtime.settings import KeyRule, Problem, SettingsError, key

_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_SERVER: Final = re.compile(r"(?P<host>[^:,\s/]+|\[[0-9a-fA-F:]+\]):[0-9]{1,5}")
_LOOPBACK: Final = {"localhost", "127.0.0.1", "[::1]"}
_OURS: Final = {
    "bootstrap.servers",
    "metadata.broker.list",
    "acks",
    "request.required.acks",
    "enable.idempotence",
    "message.timeout.ms",
    "delivery.timeout.ms",
    "delivery.report.only.error",
}
"""Options on which receipts rest, with their other names."""

MIN_RECORD_BYTES: Final = 10_000


def _check_topic(topic: str) -> None:
    if not _TOPIC.fullmatch(topic):
        rule = "1 to 249 letters, digits, dots, underscores or hyphens"
        raise FieldError("kafka.topic", rule, topic)


def _hosts(servers: str) -> set[str]:
    found = [_SERVER.fullmatch(each.strip()) for each in servers.split(",")]
    hosts = {match["host"] for match in found if match}
    if None in found:
        rule = "host:port, or several with commas between them"
        raise FieldError("kafka.servers", rule, servers)
    return hosts


@dataclass(frozen=True)
class KafkaSection:
    """``[kafka]``: a topic that holds the log in place of segment files."""

    servers: str | None = key(
        KeyRule(
            "Brokers of a Kafka cluster, host:port with commas between them; absent: "
            "the log is files in backend.data.",
            check=lambda servers: servers is None or _hosts(servers),
        ),
        None,
    )
    topic: str = key(
        KeyRule(
            "Topic of the log, which must exist; never delete and create it again "
            "under the same name.",
            check=_check_topic,
        ),
        "yamamori-log",
    )
    options_file: str | None = key(
        KeyRule(
            "File of options of librdkafka, name=value in each line, such as "
            "security.protocol and sasl.password; without security.protocol, brokers "
            "on other machines are reached by TLS."
        ),
        None,
    )
    max_record_bytes: int = key(
        KeyRule(
            "Largest record, at most max.message.bytes of the topic; a larger message "
            "goes to quarantine.",
            "bytes",
            MIN_RECORD_BYTES,
            10**8,
        ),
        900_000,
    )
    timeout_s: float = key(
        KeyRule(
            "Time after which a request to read from the cluster fails.", "s", 1, 600
        ),
        30.0,
    )


def client_options(section: KafkaSection) -> dict[str, str]:
    """Options of a client of the cluster.

    Raises:
        SettingsError: The file of options cannot be read or breaks a rule.
    """
    assert section.servers is not None  # noqa: S101 - callers have a cluster
    is_local = _hosts(section.servers) <= _LOOPBACK
    options = {
        "security.protocol": "plaintext" if is_local else "ssl",
        "bootstrap.servers": section.servers,
    }
    if section.options_file is not None:
        options |= _read_options(Path(section.options_file))
    return options


def _read_options(path: Path) -> dict[str, str]:
    field = "kafka.options_file"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        problem = Problem(field, f"cannot be read: {error}", part=str(path))
        raise SettingsError([problem]) from error
    options = {}
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue
        name, equals, value = (part.strip() for part in line.partition("="))
        # The value is not shown: it may be a password.
        if not equals or name in _OURS:
            rule = "name=value, and none of " + ", ".join(sorted(_OURS))
            shown = f"{name}=..." if equals else "a line without ="
            mistake = FieldError(f"{field}, line {number}", rule, shown, "remove it")
            raise SettingsError([Problem.of(mistake)])
        options[name] = value
    return options
