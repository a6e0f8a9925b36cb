"""Starts and ends faults."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from chaos.admin_changes import AdminChanges
from chaos.oracle import Outage
from chaos.schedule import Fault, PlannedFault
from chaos.whole_system import PEERS, WholeSystem
from soak.disk import fill

OUTAGE_FAULTS = {Fault.KILL, Fault.STOP, Fault.CUT, Fault.LONG, Fault.FULL}
"""Faults that stop a part; under the others it must keep all promises."""


class FaultInjector:
    """Injects faults into a system.

    Args:
        system: The running system.
        changes: Changes made while the Managers are partitioned.

    Attributes:
        outages: Periods in which a part did nothing.
    """

    def __init__(self, system: WholeSystem, changes: AdminChanges) -> None:
        self.outages: list[Outage] = []
        self._system = system
        self._changes = changes
        self._since_s: dict[str, float] = {}
        self._fillers: dict[str, Path] = {}

    def play(self, events: list[PlannedFault], meanwhile: Callable[[], None]) -> None:
        """Inject all faults at their times, calling `meanwhile` in between."""
        starts = [(event.from_s, self.begin, event) for event in events]
        ends = [(event.until_s, self.end, event) for event in events]
        start_s = time.monotonic()
        # A stable sort: at the same time, starts come before ends.
        for at_s, action, event in sorted(starts + ends, key=lambda each: each[0]):
            while (left_s := start_s + at_s - time.monotonic()) > 0:
                self._system.bring_back()
                meanwhile()
                time.sleep(min(left_s, 0.3))
            action(event)

    def begin(self, event: PlannedFault) -> None:
        """Start a fault."""
        system, part = self._system, event.part
        self._since_s[part] = time.monotonic()
        match event.fault:
            case Fault.KILL:
                system.kill(part)
            case Fault.STOP:
                system.signal(part, signal.SIGSTOP)
            case Fault.CUT | Fault.LONG:
                self._cut(part)
            case Fault.SLOW:
                system.links[part].slow(event.size)
            case Fault.FULL:
                self._fillers[part] = fill(system.disks[part])
            case Fault.JUMP:
                system.shifts[part].write_text(str(event.size))
            case Fault.WORKER:
                _kill_workers(system.processes.pid(part))

    def end(self, event: PlannedFault) -> None:
        """End a fault, and record the outage if it stopped the part."""
        system, part = self._system, event.part
        match event.fault:
            case Fault.KILL:
                system.start(part)
            case Fault.STOP:
                system.signal(part, signal.SIGCONT)
            case Fault.CUT | Fault.LONG | Fault.SLOW:
                self._restore(part)
            case Fault.FULL:
                self._fillers.pop(part).unlink()
            case Fault.JUMP:
                system.shifts[part].write_text("0")
        from_s = self._since_s.pop(part)
        if event.fault in OUTAGE_FAULTS:
            killed = event.fault is Fault.KILL
            self.outages.append(Outage(part, from_s, time.monotonic(), killed))

    def _cut(self, link: str) -> None:
        for relay in self._system.relays(link):
            relay.cut()
        if link == PEERS:
            self._changes.publish()

    def _restore(self, link: str) -> None:
        if link == PEERS:
            self._changes.record()
        for relay in self._system.relays(link):
            relay.restore()


def _kill_workers(leader: int) -> None:
    """Kill -9 the Python workers of our Spark session."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            is_worker = b"pyspark.daemon" in (folder / "cmdline").read_bytes()
            pid = int(folder.name)
            if is_worker and os.getsid(pid) == leader:
                os.kill(pid, signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just exited
