"""Who a certificate names: common name, role, places and hosts. No I/O.

The common name is the id that a program has in its settings; Mosquitto takes it for
the user name. The role is the organisational unit; the places are URIs beside it,
``urn:yamamori:cell:/1/2/2``, the hosts of a broker its DNS names and addresses.

Source: RFC 5280 section 4.2.1.6.
"""

import ipaddress
from contextlib import suppress
from typing import Final

import msgspec
from cryptography import x509
from cryptography.x509.oid import NameOID

from gateway_daemon.ca.errors import RefusedError
from spatial_mqtt.errors import TopicError
from spatial_mqtt.topics import cell_of, check_area, check_node_id

NODE: Final = "node"
GATEWAY: Final = "gateway"
ROLES: Final = (NODE, GATEWAY, "backend", "manager", "admin", "client", "signer")
BROKER: Final = "broker"
EVERY_ROLE: Final = (*ROLES, BROKER)

CELL_URN = "urn:yamamori:cell:"

SESSION_TAILS: Final = (
    "-asks", "-ear", "-local", "-notices", "-out", "-overlay", "-pieces", "-presence",
    "-update", "-updates", "-watch",
)  # fmt: skip
"""What our programs put behind their name for a second session."""


class Identity(msgspec.Struct, frozen=True):
    """What a certificate says of its holder.

    Attributes:
        role: One of `EVERY_ROLE`.
        name: Its id; no two holders share one, whatever their roles.
        cells: Areas that it may speak for; of a node its one cell.
        hosts: Names and addresses under which a broker is reached.
    """

    role: str
    name: str
    cells: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()

    def check(self) -> "Identity":
        """Return it if a certificate may be made of it.

        Raises:
            RefusedError: It may not; says why.
        """
        try:
            check_node_id(self.name)
            for cell in self.cells:
                check_area(cell)
            if self.role == NODE:
                for cell in self.cells:
                    cell_of(cell)
        except TopicError as error:
            raise RefusedError(str(error)) from error
        if self.name.endswith(SESSION_TAILS):
            tails = ", ".join(SESSION_TAILS)
            raise RefusedError(
                f"name must not end like a second session ({tails}), got {self.name!r}"
            )
        self._check_role()
        return self

    def _check_role(self) -> None:
        if self.role not in EVERY_ROLE:
            choices = ", ".join(EVERY_ROLE)
            raise RefusedError(f"role must be one of {choices}, got {self.role!r}")
        if self.role == NODE and len(self.cells) != 1:
            raise RefusedError(f"a node must have one cell, got {list(self.cells)}")
        if self.role == GATEWAY and not self.cells:
            raise RefusedError("a gateway must have areas; / is the whole world")
        if self.role == BROKER and not self.hosts:
            raise RefusedError(
                "a broker must have the hosts under which clients reach it, got none"
            )

    def subject(self) -> x509.Name:
        """Common name and role as a distinguished name."""
        return x509.Name([
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, self.role),
            x509.NameAttribute(NameOID.COMMON_NAME, self.name),
        ])

    def beside(self) -> x509.SubjectAlternativeName:
        """Places and hosts as the subject's other names."""
        uris = [f"urn:yamamori:{self.role}:{self.name}"]
        uris += [CELL_URN + cell for cell in self.cells]
        names: list[x509.GeneralName] = [
            x509.UniformResourceIdentifier(uri) for uri in uris
        ]
        return x509.SubjectAlternativeName(names + [_host(h) for h in self.hosts])


def name_of(certificate: x509.Certificate) -> str:
    """The common name of a certificate's holder; empty without one."""
    found = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else ""


def _host(host: str) -> x509.GeneralName:
    with suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise RefusedError(
            f"host must be a name or an address, got {host!r}"
        ) from error
