"""Two network namespaces connected by one slow link, removed at the end.

Linux and root only. Changes nothing outside the two namespaces.
"""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

NEAR_ADDRESS = "10.231.77.1"
FAR_ADDRESS = "10.231.77.2"
NETWORK = "10.231.77.0/30"
NEAR_ADDRESS_6 = "fd77:231::1"
FAR_ADDRESS_6 = "fd77:231::2"
NETWORK_6 = "fd77:231::/64"
PREFIX = "yamamori"
ROOT = Path(__file__).resolve().parents[2]

FRAME_BURST_BYTES = 1600
"""One Ethernet frame: the link never sends faster than its rate."""

MODEM_BYTES = 65536
"""Buffer of a modem; a message in it cannot be overtaken."""


@dataclass(frozen=True)
class Shape:
    """Properties of a link.

    Attributes:
        rate_bps: Bits per second of each direction.
        data_delay_s: Additional delay from the sending side.
        answer_delay_s: Additional delay in the opposite direction.
        burst_bytes: What passes at line speed after a pause: one Ethernet frame for a
            link that never sends faster than its rate; more for cellular schedulers,
            routers and policers.
    """

    rate_bps: float
    data_delay_s: float = 0.0
    answer_delay_s: float = 0.0
    burst_bytes: int = FRAME_BURST_BYTES

    @property
    def rate_bytes_per_s(self) -> float:
        """Bytes per second."""
        return self.rate_bps / 8


@dataclass(frozen=True)
class Traffic:
    """Frames on the link since it was shaped.

    Attributes:
        up_bytes: From the near side, Ethernet headers included.
        down_bytes: From the far side.
        up_frames: From the near side.
        down_frames: From the far side.
    """

    up_bytes: int
    down_bytes: int
    up_frames: int
    down_frames: int

    def since(self, earlier: "Traffic") -> "Traffic":
        """Return the difference from an earlier count."""
        return Traffic(
            self.up_bytes - earlier.up_bytes,
            self.down_bytes - earlier.down_bytes,
            self.up_frames - earlier.up_frames,
            self.down_frames - earlier.down_frames,
        )


class Net:
    """The namespaces ``near`` and ``far``; a context manager.

    Args:
        delay_s: Delay of every frame, TCP's acknowledgements included. Without it
            only a relay may add delays.
        has_ipv6: Whether both sides have an IPv6 address too; its neighbour discovery
            is counted as traffic.
    """

    def __init__(self, delay_s: float = 0.0, *, has_ipv6: bool = False) -> None:
        self.near = f"{PREFIX}-{os.getpid()}-near"
        self.far = f"{PREFIX}-{os.getpid()}-far"
        self._delay_s = delay_s
        self._has_ipv6 = has_ipv6
        self._distance: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Create both namespaces and the link between them."""
        sweep()
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Remove both namespaces."""
        self._remove()

    def shape(self, shape: Shape) -> None:
        """Set the rate of both directions; delays are added by a relay."""
        for namespace in (self.near, self.far):
            tbf = f"tbf rate {shape.rate_bps:.0f}bit burst {shape.burst_bytes}"
            tc = f"tc -n {namespace} qdisc replace dev slow root {tbf}"
            run_command(f"{tc} limit {MODEM_BYTES}")

    def cut(self, *, is_cut: bool) -> None:
        """Lose every frame of both directions, or none; the links stay up."""
        for namespace in (self.near, self.far):
            self._filter(namespace, "drop" if is_cut else None)

    def lose_larger_than(self, size_bytes: int) -> None:
        """Lose larger packets of both directions, without an error to the sender.

        As a tunnel with a smaller MTU, behind which somebody discards ICMP.
        """
        for namespace in (self.near, self.far):
            self._filter(namespace, f"meta length > {size_bytes} drop")

    def refuse(self, *, is_refused: bool) -> None:
        """Let the far machine refuse and reset all connections, or none."""
        self._filter(self.far, "reject with tcp reset" if is_refused else None)

    def sent_bytes(self) -> int:
        """Return the bytes of frames that the near side has sent so far."""
        return self._counted(self.near, "bytes")

    def traffic(self) -> Traffic:
        """Return the frames that both sides have sent so far."""
        sides = (self.near, self.far)
        counts = [self._counted(s, w) for w in ("bytes", "packets") for s in sides]
        return Traffic(*counts)

    def settle(self, timeout_s: float = 30.0) -> None:
        """Wait until the modems' buffers are empty."""
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s and (
            self._counted(self.near, "backlog") + self._counted(self.far, "backlog")
        ):
            time.sleep(0.1)

    @staticmethod
    def _filter(namespace: str, verdict: str | None) -> None:
        inside = f"ip netns exec {namespace} nft"
        run_command(f"{inside} flush ruleset")
        if verdict is not None:
            match = "meta l4proto tcp " if "tcp" in verdict else ""
            chain = "{ type filter hook input priority 0; policy accept; }"
            run_command(f"{inside} add table inet cut")
            run_command(f"{inside} add chain inet cut input {chain}")
            run_command(
                f"{inside} add rule inet cut input iifname slow {match}{verdict}"
            )

    @staticmethod
    def _counted(namespace: str, what: str) -> int:
        result = json.loads(run_command(f"tc -n {namespace} -s -j qdisc show dev slow"))
        return int(result[0].get(what, 0))

    def _make(self) -> None:
        for namespace in (self.near, self.far):
            run_command(f"ip netns add {namespace}")
            run_command(f"ip -n {namespace} link set lo up")
        if self._delay_s > 0:
            self._make_distance()
        else:
            ends = f"slow type veth peer name slow netns {self.far}"
            run_command(f"ip -n {self.near} link add {ends}")
        sides = ((self.near, NEAR_ADDRESS), (self.far, FAR_ADDRESS))
        for namespace, address in sides:
            run_command(f"ip -n {namespace} addr add {address}/30 dev slow")
            # No IPv6: its greetings would be counted as traffic.
            run_command(f"ip -n {namespace} link set slow addrgenmode none")
            # Whole segments, as a modem sees them.
            run_command(f"ip -n {namespace} link set slow up gso_max_segs 1")
        for namespace, address in sides:
            # The usual congestion control, whatever this machine's default is.
            run_command(
                f"ip -n {namespace} route change {NETWORK} dev slow proto kernel "
                f"scope link src {address} congctl cubic"
            )
        if self._has_ipv6:
            self._add_ipv6()

    def _add_ipv6(self) -> None:
        sides = ((self.near, NEAR_ADDRESS_6), (self.far, FAR_ADDRESS_6))
        for namespace, address in sides:
            run_command(f"ip -n {namespace} -6 addr add {address}/64 dev slow nodad")
            run_command(
                f"ip -n {namespace} -6 route replace {NETWORK_6} dev slow "
                "proto kernel metric 256 congctl cubic"
            )

    def _make_distance(self) -> None:
        inside = f"setpriv --pdeathsig KILL ip netns exec {self.near}".split()
        module = ["-m", "experiments.bench.distance", "--delay", str(self._delay_s)]
        ends = ["--near", "slow", "--far", "other"]
        self._distance = subprocess.Popen(
            [*inside, sys.executable, *module, *ends], stdout=subprocess.PIPE, cwd=ROOT
        )
        if self._distance.stdout is None or not self._distance.stdout.readline():
            raise OSError("the far end did not come up; /dev/net/tun is needed")
        run_command(f"ip -n {self.near} link set other netns {self.far} name slow")

    def _remove(self) -> None:
        if self._distance is not None:
            self._distance.kill()
            self._distance.communicate()
        for namespace in (self.near, self.far):
            subprocess.run(
                ["ip", "netns", "del", namespace], check=False, capture_output=True
            )


def sweep() -> None:
    """Remove namespaces that a killed run left behind."""
    for line in run_command("ip netns list").splitlines():
        name = line.split()[0]
        parts = name.split("-")
        is_ours = parts[0] == PREFIX and len(parts) == 3  # noqa: PLR2004 - name-pid-side
        if is_ours and not Path(f"/proc/{parts[1]}").exists():
            run_command(f"ip netns del {name}")


def run_command(command: str) -> str:
    """Run a command and return its output.

    Raises:
        OSError: The command failed.
    """
    done = subprocess.run(command.split(), check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"{command} failed: {done.stderr.strip()}; root is needed")
    return done.stdout
