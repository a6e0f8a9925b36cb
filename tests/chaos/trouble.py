"""How each fault begins and is undone."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from chaos.house import PEERS, House
from chaos.oracle import Away
from chaos.schedule import Act, Fault
from chaos.words import Words
from soak.disk import fill

KEEPS_FROM_WORKING = {Fault.KILL, Fault.STOP, Fault.CUT, Fault.LONG, Fault.FULL}
"""Under the others a part goes on, and owes everything that it promises."""


class Trouble:
    """Lets faults happen to a house.

    Args:
        house: Which runs.
        words: What administrators say while the Managers are parted.

    Attributes:
        away: What did nothing when.
    """

    def __init__(self, house: House, words: Words) -> None:
        self.away: list[Away] = []
        self._house = house
        self._words = words
        self._since_s: dict[str, float] = {}
        self._fillers: dict[str, Path] = {}

    def play(self, acts: list[Act], meanwhile: Callable[[], None]) -> None:
        """Let all faults happen at their times."""
        begins = [(act.from_s, self.begin, act) for act in acts]
        ends = [(act.until_s, self.end, act) for act in acts]
        start_s = time.monotonic()
        # Stable: of one moment, what begins comes before what ends.
        for at_s, happens, act in sorted(begins + ends, key=lambda each: each[0]):
            while (left_s := start_s + at_s - time.monotonic()) > 0:
                self._house.bring_back()
                meanwhile()
                time.sleep(min(left_s, 0.3))
            happens(act)

    def begin(self, act: Act) -> None:
        """Let a fault happen."""
        house, part = self._house, act.part
        self._since_s[part] = time.monotonic()
        match act.fault:
            case Fault.KILL:
                house.kill(part)
            case Fault.STOP:
                house.signal(part, signal.SIGSTOP)
            case Fault.CUT | Fault.LONG:
                self._cut(part)
            case Fault.SLOW:
                house.links[part].slow(act.size)
            case Fault.FULL:
                self._fillers[part] = fill(house.disks[part])
            case Fault.JUMP:
                house.shifts[part].write_text(str(act.size))
            case Fault.WORKER:
                _kill_workers(house.processes.pid(part))

    def end(self, act: Act) -> None:
        """Undo it, and note how long it lasted if it kept the part from working."""
        house, part = self._house, act.part
        match act.fault:
            case Fault.KILL:
                house.start(part)
            case Fault.STOP:
                house.signal(part, signal.SIGCONT)
            case Fault.CUT | Fault.LONG | Fault.SLOW:
                self._mend(part)
            case Fault.FULL:
                self._fillers.pop(part).unlink()
            case Fault.JUMP:
                house.shifts[part].write_text("0")
        from_s = self._since_s.pop(part)
        if act.fault in KEEPS_FROM_WORKING:
            killed = act.fault is Fault.KILL
            self.away.append(Away(part, from_s, time.monotonic(), killed))

    def _cut(self, link: str) -> None:
        for relay in self._house.relays(link):
            relay.cut()
        if link == PEERS:
            self._words.say()

    def _mend(self, link: str) -> None:
        if link == PEERS:
            self._words.note()
        for relay in self._house.relays(link):
            relay.mend()


def _kill_workers(leader: int) -> None:
    """Kill -9 the Python processes that work for a Spark of ours."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            is_worker = b"pyspark.daemon" in (folder / "cmdline").read_bytes()
            pid = int(folder.name)
            if is_worker and os.getsid(pid) == leader:
                os.kill(pid, signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
