"""Virtual LAN: each machine is a network namespace with its own byte counter.

Linux and root only. Changes nothing outside the namespaces.
"""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from experiments.bench.net import MODEM_BYTES, PREFIX, Shape, run_command, sweep

SUBNET = "10.231.78"
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


class Lan:
    """Machines on one switch; a context manager.

    Args:
        machines: Names of the machines.
    """

    def __init__(self, machines: Sequence[str]) -> None:
        self._names = list(machines)
        self._switch = self.namespace("switch")
        self._has_link = False

    def __enter__(self) -> Self:
        """Create the switch and connect every machine."""
        sweep()
        try:
            self._create()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Remove all namespaces."""
        self._remove()

    @staticmethod
    def namespace(machine: str) -> str:
        """Return the namespace of a machine."""
        return f"{PREFIX}-{os.getpid()}-{machine}"

    def address(self, machine: str) -> str:
        """Return the IPv4 address of a machine."""
        return f"{SUBNET}.{self._names.index(machine) + 1}"

    def bytes(self, machine: str, device: str = "lan") -> int:
        """Return the bytes of frames that a machine has sent so far.

        Args:
            machine: Its name.
            device: ``lan``, or ``slow`` for the link that `shape` made.
        """
        path = f"/sys/class/net/{device}/statistics/tx_bytes"
        return int(run_command(f"ip netns exec {self.namespace(machine)} cat {path}"))

    def shape(self, one: str, other: str, shape: Shape) -> None:
        """Set the rate of both directions between two machines, without a delay.

        The first call gives the two a link of their own, which their connections take
        from then on.
        """
        sides = ((one, other), (other, one))
        if not self._has_link:
            self._has_link = True
            ends = f"slow type veth peer name slow netns {self.namespace(other)}"
            run_command(f"ip -n {self.namespace(one)} link add {ends}")
            for here, there in sides:
                space = self.namespace(here)
                # Whole segments, and the usual congestion control, as in `Net`.
                run_command(f"ip -n {space} link set slow addrgenmode none")
                run_command(f"ip -n {space} link set slow up gso_max_segs 1")
                run_command(
                    f"ip -n {space} route add {self.address(there)}/32 dev slow "
                    f"src {self.address(here)} congctl cubic"
                )
        for here, _ in sides:
            run_command(
                f"tc -n {self.namespace(here)} qdisc replace dev slow root tbf rate "
                f"{shape.rate_bps:.0f}bit burst {shape.burst_bytes} limit {MODEM_BYTES}"
            )

    def _create(self) -> None:
        run_command(f"ip netns add {self._switch}")
        run_command(f"ip -n {self._switch} link add hub type bridge")
        run_command(f"ip -n {self._switch} link set hub up")
        for number, name in enumerate(self._names):
            space, port = self.namespace(name), f"port{number}"
            run_command(f"ip netns add {space}")
            run_command(f"ip -n {space} link set lo up")
            run_command(
                f"ip -n {self._switch} link add {port} type veth peer name lan "
                f"netns {space}"
            )
            run_command(f"ip -n {self._switch} link set {port} master hub up")
            run_command(f"ip -n {space} addr add {self.address(name)}/24 dev lan")
            run_command(f"ip -n {space} link set lan up")

    def _remove(self) -> None:
        for name in (*map(self.namespace, self._names), self._switch):
            subprocess.run(
                ["ip", "netns", "del", name], check=False, capture_output=True
            )


def cpu_s(pid: int) -> float:
    """Return the user and system CPU time of a process, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS
