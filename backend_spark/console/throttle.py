"""Throttle of logins: how soon a name, an address or a device may try again.

A device is a browser that has logged in before, for the same name. Its attempts are
counted by themselves, so that guesses from elsewhere never delay it.
"""

from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final

FREE_ATTEMPTS: Final = 5
MAX_WAIT_S: Final = 900.0
FORGET_S: Final = 3600.0
SET_BACK_S: Final = 60.0
"""A clock that is earlier by more than this was set back."""


class TooManyAttemptsError(Exception):
    """A login attempt came too soon after others.

    Attributes:
        wait_s: Seconds until the next attempt.
    """

    def __init__(self, wait_s: float) -> None:
        super().__init__(f"too many tries: wait {wait_s:.0f} s")
        self.wait_s = wait_s


@dataclass
class FailedAttempts:
    """Wrong passwords in a row.

    Attributes:
        count: Number of them.
        last_s: Unix time of the last one.
    """

    count: int = 0
    last_s: float = 0.0

    def wait_s(self, now_s: float) -> float:
        """Seconds until the next attempt; the pause doubles from the sixth on."""
        over = self.count - FREE_ATTEMPTS
        if over < 0:
            return 0.0
        pause_s = min(MAX_WAIT_S, 2.0 ** min(over, 20) * 5)
        return max(0.0, self.last_s + pause_s - now_s)


@dataclass(frozen=True)
class AttemptRate:
    """Failed attempts that are allowed.

    Attributes:
        burst: At once.
        interval_s: One more after this time.
    """

    burst: int
    interval_s: float


NAME_RATE: Final = AttemptRate(20, 120.0)
"""Guesses at one name, from all addresses: 720 a day."""

SITE_RATE: Final = AttemptRate(30, 10.0)
"""Guesses from one site, at all names; an office shares one address."""

GLOBAL_RATE: Final = AttemptRate(100, 1.0)
"""Guesses from everywhere: each costs a hash."""


@dataclass
class AttemptBudget:
    """Token bucket of failed attempts.

    Attributes:
        rate: That refills it.
        spent: Failed attempts that are not refilled yet.
        at_s: Unix time of `spent`.
    """

    rate: AttemptRate
    spent: float = 0.0
    at_s: float = 0.0

    def spent_at(self, now_s: float) -> float:
        """Failed attempts that are not refilled at a time."""
        refilled = max(0.0, now_s - self.at_s) / self.rate.interval_s
        return max(0.0, self.spent - refilled)

    def wait_s(self, now_s: float) -> float:
        """Seconds until the next attempt."""
        over = self.spent_at(now_s) + 1 - self.rate.burst
        return max(0.0, over * self.rate.interval_s)

    def add(self, attempts: int, now_s: float) -> None:
        """Spend attempts, or give them back if negative."""
        self.spent = max(0.0, self.spent_at(now_s) + attempts)
        self.at_s = max(self.at_s, now_s)


@dataclass(frozen=True)
class CountedAttempt:
    """An attempt that counts as failed until it is forgiven.

    Attributes:
        key: Of its failed attempts in a row.
        budgets: Keys of the budgets that it spent.
    """

    key: tuple[str, ...]
    budgets: tuple[tuple[str, ...], ...]


@dataclass
class LoginThrottle:
    """Counts failed logins; for one thread."""

    _latest_s: float = 0.0
    _failed: dict[tuple[str, ...], FailedAttempts] = field(default_factory=dict)
    _budgets: dict[tuple[str, ...], AttemptBudget] = field(default_factory=dict)

    def count(
        self, name: str, address: str, device: str | None, now_s: float
    ) -> CountedAttempt:
        """Count an attempt as failed, before its password is checked.

        So parallel guesses cannot all pass before the first one is counted.

        Args:
            name: Of the account.
            address: That the attempt comes from.
            device: That has logged in with this name before; None for any other.
            now_s: Unix time.

        Raises:
            TooManyAttemptsError: It came too soon. It is not counted.
        """
        now_s = self._forget(now_s)
        site = site_of(address)
        key = ("device", device, name) if device else ("site", site, name)
        rates = {} if device else _rates(name, site)
        failed = self._failed.get(key, FailedAttempts())
        budgets = {k: self._budgets.get(k, AttemptBudget(r)) for k, r in rates.items()}
        waits_s = [budget.wait_s(now_s) for budget in budgets.values()]
        wait_s = max(failed.wait_s(now_s), *waits_s, 0.0)
        if wait_s > 0:
            raise TooManyAttemptsError(wait_s)
        failed.count, failed.last_s = failed.count + 1, now_s
        self._failed[key] = failed
        for budget in budgets.values():
            budget.add(1, now_s)
        self._budgets.update(budgets)
        return CountedAttempt(key, tuple(budgets))

    def forgive(self, attempt: CountedAttempt, now_s: float) -> None:
        """Take back an attempt that was successful."""
        self._failed.pop(attempt.key, None)
        for key in attempt.budgets:
            if key in self._budgets:
                self._budgets[key].add(-1, now_s)

    def _forget(self, now_s: float) -> float:
        """Forget what is over; returns the time that counts for an attempt."""
        if now_s < self._latest_s - SET_BACK_S:  # no pause lasts until then
            self._failed, self._budgets = {}, {}
        elif now_s < self._latest_s:  # an attempt that came in at the same time
            now_s = self._latest_s
        self._latest_s = now_s
        self._failed = {
            key: failed
            for key, failed in self._failed.items()
            if now_s - failed.last_s < FORGET_S
        }
        self._budgets = {
            key: budget
            for key, budget in self._budgets.items()
            if budget.spent_at(now_s) > 0
        }
        return now_s


def _rates(name: str, site: str) -> dict[tuple[str, ...], AttemptRate]:
    """Rates that hold for an unknown device."""
    return {
        ("name", name): NAME_RATE,
        ("site", site): SITE_RATE,
        ("all",): GLOBAL_RATE,
    }


def site_of(address: str) -> str:
    """Site of an address: itself, or the /48 network of an IPv6 address.

    A site has 2^80 addresses of IPv6; guesses from all of them are one guesser's.
    """
    try:
        ip = ip_address(address)
    except ValueError:
        return "unknown"
    if not isinstance(ip, IPv6Address):
        return str(ip)
    mapped = ip.ipv4_mapped
    return str(mapped or ip_network((int(ip), 48), strict=False))
