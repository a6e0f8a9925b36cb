"""Every certificate that was issued, and whether it still counts. No I/O."""

import math
from collections.abc import Iterator
from typing import Self

import msgspec
from msgspec import structs

from gateway_daemon.ca.errors import RefusedError
from gateway_daemon.ca.identity import Identity


class Issued(msgspec.Struct, frozen=True):
    """One certificate.

    Attributes:
        serial: Its number, in hexadecimal.
        identity: Whom it names.
        until_s: Unix time at which it ends.
        revoked_s: Unix time of its revocation; None when it counts.
    """

    serial: str
    identity: Identity
    until_s: float
    revoked_s: float | None = None


class Register(msgspec.Struct, frozen=True):
    """All certificates, oldest first."""

    issued: tuple[Issued, ...] = ()

    def find(self, serial: str) -> Issued | None:
        """The certificate with a number; None when we gave none."""
        return next((each for each in self.issued if each.serial == serial), None)

    def holder(self, name: str, now_s: float) -> Identity | None:
        """Who has a name now, by its newest certificate that counts."""
        found = [e for e in self._counting(now_s) if e.identity.name == name]
        return found[-1].identity if found else None

    def holders(self, now_s: float) -> list[Identity]:
        """Everybody with a certificate that counts, by name."""
        newest = {e.identity.name: e.identity for e in self._counting(now_s)}
        return [newest[name] for name in sorted(newest)]

    def places(self, now_s: float) -> dict[str, tuple[str, ...]]:
        """Where everybody with places may speak from, by name."""
        return {who.name: who.cells for who in self.holders(now_s) if who.cells}

    def revoked(self) -> list[Issued]:
        """Certificates that were taken back."""
        return [each for each in self.issued if each.revoked_s is not None]

    def with_issued(self, issued: Issued, now_s: float) -> Self:
        """With one certificate more.

        Raises:
            RefusedError: Somebody of another role has the name.
        """
        identity = issued.identity
        other = self.holder(identity.name, now_s)
        if other is not None and other.role != identity.role:
            raise RefusedError(
                f"name {identity.name!r} belongs to a {other.role}; "
                "take another, or revoke that one first"
            )
        return structs.replace(self, issued=(*self.issued, issued))

    def without(self, name: str, now_s: float) -> Self:
        """With all certificates of a name taken back.

        Raises:
            RefusedError: Nobody has the name.
        """
        if self.holder(name, now_s) is None:
            raise RefusedError(f"no certificate that counts has the name {name!r}")
        taken = tuple(
            structs.replace(each, revoked_s=now_s)
            if each.identity.name == name and each.revoked_s is None
            else each
            for each in self.issued
        )
        return structs.replace(self, issued=taken)

    def until_s(self, name: str, now_s: float) -> float:
        """When the last certificate of a name ends; the past when it has none."""
        ends = [e.until_s for e in self._counting(now_s) if e.identity.name == name]
        return max(ends, default=-math.inf)

    def _counting(self, now_s: float) -> Iterator[Issued]:
        return (e for e in self.issued if e.revoked_s is None and e.until_s > now_s)
