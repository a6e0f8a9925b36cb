"""Where a broker listens, as settings name it."""

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from spatial_mqtt.errors import FieldError
from spatial_mqtt.settings import Rule, key

SCHEMES: Final = {"mqtt": 1883, "mqtts": 8883}


@dataclass(frozen=True)
class TlsFiles:
    """Files of a mutually authenticated TLS link, as settings name them."""

    ca: str = key(
        Rule("File of the certificates that may sign the broker's."),
        "/etc/ssl/certs/ca-certificates.crt",
    )
    certificate: str | None = key(Rule("File of our own certificate."), None)
    renewed: str | None = key(
        Rule(
            "File where `spatial-mqtt renew` keeps a newer certificate and its key; "
            "used when it ends later than ours."
        ),
        None,
    )
    signer: str | None = key(
        Rule(
            "Where certificates are renewed, mqtts://host:port of a Manager's broker.",
            check=lambda url: url is None or Endpoint.parse(url),
        ),
        None,
    )
    key: str | None = key(Rule("File of its private key."), None)

    def __post_init__(self) -> None:
        """Refuse a key without its certificate."""
        if self.key is not None and self.certificate is None:
            raise FieldError("certificate", "given beside key", self.certificate)

    @property
    def name_us(self) -> bool:
        """Whether we have a certificate, so that brokers know our name."""
        return self.certificate is not None or self.renewed is not None


@dataclass(frozen=True, order=True)
class Endpoint:
    """Where a broker listens, and how.

    Attributes:
        host: Name or address.
        port: TCP port.
        tls: Whether to speak TLS.
    """

    host: str
    port: int
    tls: bool = False

    @classmethod
    def parse(cls, url: str) -> "Endpoint":
        """Parse ``mqtt://host:port`` or ``mqtts://host:port``.

        Raises:
            FieldError: The URL has another form.
        """
        rule = "mqtt://host:port or mqtts://host:port"
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise FieldError("broker url", rule, url) from error
        host = parts.hostname
        more = (parts.path.strip("/"), parts.query, parts.fragment, parts.username)
        if parts.scheme not in SCHEMES or port == 0 or any(more):
            raise FieldError("broker url", rule, url)
        if not host:
            raise FieldError("broker url", rule, url)
        return cls(host, port or SCHEMES[parts.scheme], parts.scheme == "mqtts")

    def __str__(self) -> str:
        """``host:port``, or ``[address]:port`` for IPv6."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"
