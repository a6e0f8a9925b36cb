"""When a message that was put is on the disk, by priority; and how old it may get."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Durability:
    """What `put` promises for each priority.

    Only the process that leases may open a window; any other finds the file
    owned and puts every message on the disk. A message that came with an id is
    on the disk at once whatever its priority: whoever gave the id was promised it.

    Attributes:
        urgent_from: From this priority up, a message is on the disk before `put`
            returns.
        window_s: A less urgent one may wait this long in memory alone; 0 lets none
            wait. The window ends with a note or a commit, see `notes`.
        batch: So many less urgent ones never wait together.
        removal_s: What was delivered waits this long for a put to take its removal
            along, which halves the commits; a crash before that sends it again
            under the same id, and other processes still see it. 0 removes it
            before `ack` returns. Where there is a window, that counts instead.
    """

    urgent_from: int = 4
    window_s: float = 2.0
    batch: int = 50
    removal_s: float = 0.0


EVERY_PUT = Durability(window_s=0.0)
"""Every message is on the disk before `put` returns, and gone when `ack` does."""

WITH_NEXT_PUT = Durability(window_s=0.0, removal_s=0.5)
"""Every message is on the disk before `put` returns; that also removes others."""


@dataclass(frozen=True)
class Ageing:
    """How long messages stay worth sending.

    Attributes:
        mono_s: Seconds since the machine started; never set back.
        ttl_s: Oldest age by priority; a priority without one never expires.
    """

    mono_s: Callable[[], float]
    ttl_s: Mapping[int, float] = field(default_factory=dict)


class QueueClock:
    """Milliseconds of the queue's life: runs while its machine runs.

    After a reboot it goes on from the last commit, so a message from an earlier
    boot keeps the age that was known then. What passed between that commit and
    the reboot is not counted: no monotonic clock knows it.

    Args:
        ageing: The machine's clock; None gives a queue without ages.
        machine_boot: Id of the machine's boot.
        remembered: What `text` said at the last commit.
    """

    def __init__(
        self, ageing: Ageing | None, machine_boot: str, remembered: str | None
    ) -> None:
        self._ageing = ageing
        self._boot = machine_boot
        self._offset_ms = 0
        if ageing is None or remembered is None:
            return
        boot, offset_ms, last_ms = remembered.rsplit(" ", 2)
        mono_ms = int(ageing.mono_s() * 1000)
        self._offset_ms = (
            int(offset_ms) if boot == machine_boot else int(last_ms) - mono_ms
        )

    def now_ms(self) -> int | None:
        """The queue's time; None when it has no clock."""
        if self._ageing is None:
            return None
        return int(self._ageing.mono_s() * 1000) + self._offset_ms

    def text(self) -> dict[str, str]:
        """What to remember with each commit."""
        now_ms = self.now_ms()
        if now_ms is None:
            return {}
        return {"queue/clock": f"{self._boot} {self._offset_ms} {now_ms}"}

    def is_expired(self, priority: int, born_ms: int | None) -> bool:
        """Whether a message outlived its priority's time."""
        now_ms = self.now_ms()
        if self._ageing is None or now_ms is None or born_ms is None:
            return False
        ttl_s = self._ageing.ttl_s.get(priority)
        return ttl_s is not None and now_ms - born_ms > ttl_s * 1000

    @property
    def mortal(self) -> tuple[int, ...]:
        """Priorities whose messages expire."""
        return tuple(self._ageing.ttl_s) if self._ageing else ()
