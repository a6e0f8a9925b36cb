"""A complete system on a LAN: a Manager, distributed brokers, gateways and clients.

Every broker and every gateway runs on its own machine, optionally with a CPU limit. The
clients are in four areas, as in the Gamma paper. Without gateways it is one plain
broker.
"""

import contextlib
import json
import os
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from experiments.bench.gateway import LOW_DELAY, NO_LIMITS, SUBSCRIPTION_LOG
from experiments.bench.lan import Lan, cpu_s
from experiments.bench.site import Site

ROOTS = (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup"))
PERIOD_US = 10_000
"""Short, so that a machine is evenly slow instead of stopped for long intervals."""

MIN_QUOTA_US = 1000
"""The kernel's minimum quota per period; lower limits get longer periods."""

REMOVE_TIMEOUT_S = 5.0

PORT = 1883
ALLOW_PLAIN = "[tls]\nallow_plain_mqtt = true\n"
AREAS = ("/1/2/2/0", "/1/2/2/1", "/1/2/2/2", "/1/2/2/3")
MAX_GATEWAYS, MAX_BROKERS = 8, 3
MACHINES = (
    "clients",
    "manager",
    *(f"broker{n}" for n in range(1, MAX_BROKERS + 1)),
    *(f"gateway{n}" for n in range(1, MAX_GATEWAYS + 1)),
)
CELL_BELOW = "/2/1/3/0"
READY_TIMEOUT_S = 40.0
PUBLISHERS = SUBSCRIBERS = 100
RATE = 5.0
"""Messages/s of each publisher: half of the paper's rate, on machines half as fast."""

FLOODERS = 32
SETTLE_S = 4.5
"""Time until every subscription is at every broker and custody is negotiated."""

CLIENT_MODULES = {"subscribers": "subscribers", "load": "traffic_generator"}
"""Module of `experiments.bench` that each client program runs."""


class CpuLimit:
    """Control group with a CPU quota; a context manager that removes it at the end.

    Uses the kernel's CPU bandwidth control (cgroups version 1 or 2); root only.

    Args:
        name: Name of the group.
        cores: Limit for all processes together, in cores; None for no limit.
    """

    def __init__(self, name: str, cores: float | None) -> None:
        self._cores = cores
        root = next(root for root in ROOTS if (root / "cgroup.procs").exists())
        self._folder = root / f"yamamori-{os.getpid()}-{name}"

    def __enter__(self) -> Self:
        """Create the group."""
        if self._cores is None:
            return self
        period_us = max(PERIOD_US, round(MIN_QUOTA_US / self._cores))
        quota_us = round(self._cores * period_us)
        root = self._folder.parent
        if (root / "cgroup.subtree_control").exists():
            (root / "cgroup.subtree_control").write_text("+cpu")
            self._folder.mkdir()
            (self._folder / "cpu.max").write_text(f"{quota_us} {period_us}")
        else:
            self._folder.mkdir()
            (self._folder / "cpu.cfs_period_us").write_text(str(period_us))
            (self._folder / "cpu.cfs_quota_us").write_text(str(quota_us))
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the group once its processes have ended."""
        deadline_s = time.monotonic() + REMOVE_TIMEOUT_S
        while self._folder.exists() and time.monotonic() < deadline_s:
            with contextlib.suppress(OSError):  # a process is still ending
                self._folder.rmdir()
            time.sleep(0.02)

    def add(self, pid: int) -> None:
        """Add a process to the group; processes that it starts belong to it too."""
        if self._cores is not None:
            (self._folder / "cgroup.procs").write_text(str(pid))


@dataclass(frozen=True)
class Shape:
    """Composition of a system.

    Attributes:
        gateways: Number of gateways; 0 is one plain broker with all clients on it.
        brokers: Number of distributed brokers.
        has_areas: Whether each gateway serves its own areas; otherwise each serves all.
        gateway_cores: CPU limit of a gateway machine, its broker included.
        broker_cores: CPU limit of a distributed or the plain broker.
    """

    gateways: int
    brokers: int = 1
    has_areas: bool = True
    gateway_cores: float | None = None
    broker_cores: float | None = None


class Federation:
    """Runs one system; a context manager.

    Args:
        lan: The machines.
        shape: Composition of the system.
    """

    def __init__(self, lan: Lan, shape: Shape) -> None:
        self.lan = lan
        self.shape = shape
        self.site = Site(lan)
        self._stack = ExitStack()
        self._ended_cpu_s: dict[str, float] = {}
        self._limits: dict[str, CpuLimit] = {}
        self._programs: list[str] = []

    def __enter__(self) -> Self:
        """Start everything except the clients."""
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End all programs."""
        self.site.__exit__()
        self._stack.close()

    def gateway_of(self, client: int) -> str:
        """Return the machine to which a client connects."""
        shape = self.shape
        if shape.gateways == 0:
            return "broker1"
        if not shape.has_areas:
            return f"gateway{client // len(AREAS) % shape.gateways + 1}"
        return f"gateway{self._server(client, shape.gateways)}"

    @staticmethod
    def area_of(client: int) -> str:
        """Return the area of a client; clients are distributed evenly."""
        return AREAS[client % len(AREAS)]

    def load_plan(self, publishers: int) -> list[dict[str, object]]:
        """Return the plan of the publishers for `traffic_generator`."""
        prefix = "/forward" if self.shape.gateways else ""
        return [
            {
                "host": self.lan.address(self.gateway_of(n)),
                "port": PORT,
                "topic": f"{prefix}{self.area_of(n)}{CELL_BELOW}",
                "priority": 1,
            }
            for n in range(publishers)
        ]

    def subscribers_plan(
        self, subscribers: int, publishers: int
    ) -> list[dict[str, object]]:
        """Return the plan for `subscribers`: each subscribes to all of its area."""
        return [
            {
                "host": self.lan.address(self.gateway_of(n)),
                "port": PORT,
                "filters": [f"{self.area_of(n)}/#"],
                "expects": [p for p in range(publishers) if p % 4 == n % 4],
            }
            for n in range(subscribers)
        ]

    def start_clients(
        self, name: str, plan: list[dict[str, object]], *more: object
    ) -> None:
        """Start publishers (``load``) or ``subscribers`` by a plan."""
        path = self.site.folder / f"{name}.plan"
        path.write_text(json.dumps(plan))
        module = f"experiments.bench.{CLIENT_MODULES[name]}"
        self.site.python(
            name, self.lan.namespace("clients"), module,
            "--plan", path, "--out", self.site.path(name), *more,
        )  # fmt: skip
        self.site.wait_for_words(name, "ready")

    def cpu_s(self, kind: str = "") -> float:
        """Return the CPU time that programs have used so far, in seconds.

        Args:
            kind: ``broker``, ``own`` (a gateway's broker), ``daemon`` or ``manager``;
                empty for all.
        """
        ended = self._ended_cpu_s.items()
        return sum(s for name, s in ended if name.startswith(kind)) + sum(
            cpu_s(self.site.pid(name))
            for name in self._programs
            if name.startswith(kind)
        )

    def sent_bytes(self) -> int:
        """Return the bytes that all brokers and gateways have sent on the LAN."""
        return sum(self.lan.bytes(m) for m in self._machines())

    def kill(self, name: str) -> None:
        """End a program with SIGKILL."""
        number = len(self._ended_cpu_s)
        self._ended_cpu_s[f"{name} {number}"] = cpu_s(self.site.pid(name))
        self._programs.remove(name)
        self.site.kill(name)

    def start_broker(self, number: int) -> None:
        """Start a distributed broker; it is unused until the Manager assigns areas."""
        machine = f"broker{number}"
        self._limit(machine, self.shape.broker_cores)
        self._start_broker(machine, machine)

    def start_daemon(self, number: int) -> None:
        """Start or restart the daemon of a gateway."""
        name, machine = f"daemon{number}", f"gateway{number}"
        self._start_daemon(name, machine, "run")

    def start_manager(self) -> None:
        """Start or restart the Manager."""
        self._start_daemon("manager", "manager", "manager")

    def broker_entries(self, brokers: int) -> list[tuple[str, str]]:
        """Return area and machine of each distributed broker."""
        if brokers <= 1:
            return [("/", "broker1")]
        served = [(a, self._server(n, brokers)) for n, a in enumerate(AREAS)]
        entries = [(area, f"broker{number}") for area, number in served if number > 1]
        return [("/", "broker1"), *entries]

    def _machines(self) -> list[str]:
        shape = self.shape
        return [
            *(f"broker{n}" for n in range(1, max(1, shape.brokers) + 1)),
            *(f"gateway{n}" for n in range(1, shape.gateways + 1)),
        ]

    @staticmethod
    def _server(client: int, servers: int) -> int:
        """Return the number of the server of a client's area; servers may share one."""
        area = client % len(AREAS)
        if servers <= len(AREAS):
            return area * servers // len(AREAS) + 1
        sharing = [n for n in range(servers) if n % len(AREAS) == area]
        return sharing[client // len(AREAS) % len(sharing)] + 1

    def _areas(self, number: int) -> list[str]:
        if not self.shape.has_areas:
            return []
        count = max(len(AREAS), self.shape.gateways)
        clients = range(count * len(AREAS))
        own = {c % 4 for c in clients if self._server(c, self.shape.gateways) == number}
        return [AREAS[at] for at in sorted(own)]

    def _start(self) -> None:
        shape = self.shape
        for number in range(1, shape.brokers + 1):
            self.start_broker(number)
        if shape.gateways == 0:
            return
        self._start_broker("managers", "manager")
        self._configure_manager()
        self.start_manager()
        self.site.wait_for_words("manager", "manager is up")
        for number in range(1, shape.gateways + 1):
            self._start_gateway(number)
        for number in range(1, shape.gateways + 1):
            for _, machine in self.broker_entries(shape.brokers):
                words = f"uplink to {self.lan.address(machine)}:{PORT} is up"
                self.site.wait_for_words(f"daemon{number}", words, READY_TIMEOUT_S)
            self.site.wait_for_words(f"daemon{number}", "is up on", READY_TIMEOUT_S)

    def _configure_manager(self) -> None:
        data = self.site.folder / "manager"
        brokers = "".join(
            f'[[broker]]\ntopic = "{area}"\n'
            f'url = "mqtt://{self.lan.address(machine)}:{PORT}"\n'
            for area, machine in self.broker_entries(self.shape.brokers)
        )
        (self.site.folder / "manager.toml").write_text(
            f'[manager]\nbroker = "mqtt://127.0.0.1:{PORT}"\ndata = "{data}"\n'
            f"{ALLOW_PLAIN}{brokers}"
        )

    def _start_gateway(self, number: int) -> None:
        machine = f"gateway{number}"
        self._limit(machine, self.shape.gateway_cores)
        self._start_broker(f"own{number}", machine, *SUBSCRIPTION_LOG)
        data = self.site.folder / machine
        public = f"mqtt://{self.lan.address(machine)}:{PORT}"
        manager = f"mqtt://{self.lan.address('manager')}:{PORT}"
        (self.site.folder / f"daemon{number}.toml").write_text(
            f'[gateway]\nid = "gw-{number}"\nbroker = "mqtt://127.0.0.1:{PORT}"\n'
            f'public = "{public}"\nmanagers = ["{manager}"]\n'
            f'areas = {json.dumps(self._areas(number))}\ndata = "{data}"\n'
            f"{ALLOW_PLAIN}"
        )
        self.start_daemon(number)

    def _limit(self, machine: str, cores: float | None) -> None:
        self._limits[machine] = self._stack.enter_context(CpuLimit(machine, cores))

    def _start_broker(self, name: str, machine: str, *more: str) -> None:
        space = self.lan.namespace(machine)
        self.site.mosquitto(name, space, PORT, *NO_LIMITS, *LOW_DELAY, *more)
        self._register(name, machine)

    def _start_daemon(self, name: str, machine: str, command: str) -> None:
        config = self.site.folder / f"{name}.toml"
        space = self.lan.namespace(machine)
        self.site.python(name, space, "gateway_daemon", command, "--config", config)
        self._register(name, machine)

    def _register(self, name: str, machine: str) -> None:
        self._programs.append(name)
        if machine in self._limits:
            self._limits[machine].add(self.site.pid(name))


def start_clients(
    system: Federation, seconds: float, timeout_s: float, *, by_id: bool = False
) -> None:
    """Start the paper's subscribers, then its publishers, which wait for `go`.

    Args:
        system: Brokers and gateways.
        seconds: Duration of the publications.
        timeout_s: How long the subscribers wait for all messages.
        by_id: Whether they drop messages with a known id.
    """
    each = round(RATE * seconds)
    subscribers = system.subscribers_plan(SUBSCRIBERS, PUBLISHERS)
    for subscriber in subscribers:
        subscriber["by_id"] = by_id
    system.start_clients(
        "subscribers", subscribers, "--each", each, "--timeout", timeout_s
    )
    load = system.load_plan(PUBLISHERS)
    start = system.site.folder / "go"
    system.start_clients("load", load, "--each", each, "--rate", RATE, "--go", start)
    time.sleep(SETTLE_S)


def go(system: Federation) -> None:
    """Start the publications."""
    (system.site.folder / "go").touch()


def start_flood(system: Federation, messages: int) -> None:
    """Start one subscriber of each area on each gateway, and publishers for `go`."""
    publishers = FLOODERS
    served = {
        (system.gateway_of(n), system.area_of(n)): n for n in range(4 * MAX_GATEWAYS)
    }
    subscribers = [
        system.subscribers_plan(n + 1, publishers)[n] for n in served.values()
    ]
    each = messages // publishers
    system.start_clients("subscribers", subscribers, "--each", each, "--quiet", 30)
    start = system.site.folder / "go"
    load = system.load_plan(publishers)
    system.start_clients("load", load, "--each", each, "--go", start)
    time.sleep(SETTLE_S)


def wait_for_result(site: Site[Any], name: str, timeout_s: float) -> None:
    """Wait until a program has written its result.

    Raises:
        TimeoutError: It has not, or has ended without one.
    """
    deadline_s = time.monotonic() + timeout_s
    while not site.path(name).exists():
        if time.monotonic() > deadline_s or site.wait_for_end(name, 0.0):
            if site.path(name).exists():
                return
            raise TimeoutError(f"no result of {name}:\n{site.last_words()}")
        time.sleep(0.02)
