"""A whole system on a LAN: a Manager, distributed brokers, gateways, and its clients.

Every broker and every gateway is a machine of its own, and may be a slow one. Four
areas hold the clients, as in the paper. Without gateways it is one plain broker.
"""

import json
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Self

from experiments.bench.caps import Cap
from experiments.bench.gateway import LOW_DELAY, NO_LIMITS, TELLS
from experiments.bench.lan import Lan, cpu_s
from experiments.bench.site import Site

PORT = 1883
AREAS = ("/1/2/2/0", "/1/2/2/1", "/1/2/2/2", "/1/2/2/3")
MOST_GATEWAYS, MOST_BROKERS = 8, 3
MACHINES = (
    "clients",
    "manager",
    *(f"broker{n}" for n in range(1, MOST_BROKERS + 1)),
    *(f"gateway{n}" for n in range(1, MOST_GATEWAYS + 1)),
)
CELL_BELOW = "/2/1/3/0"
READY_S = 40.0
PUBLISHERS = SUBSCRIBERS = 100
RATE = 5.0
"""Messages/s of each publisher: half of the paper's, on machines half as fast."""

FLOODERS = 32
SETTLE_S = 4.5
"""Until every subscription is at every broker, and each link knows its custody."""


@dataclass(frozen=True)
class Shape:
    """What a system is made of.

    Attributes:
        gateways: How many; 0 is one plain broker with all clients on it.
        brokers: Distributed brokers.
        has_areas: Whether each gateway has areas of its own, or all serve everybody.
        gateway_cores: What a gateway machine may use, its broker included.
        broker_cores: What a distributed or the plain broker may use.
    """

    gateways: int
    brokers: int = 1
    has_areas: bool = True
    gateway_cores: float | None = None
    broker_cores: float | None = None


class Federation:
    """Runs one system; a context manager.

    Args:
        lan: Its machines.
        shape: What it is made of.
    """

    def __init__(self, lan: Lan, shape: Shape) -> None:
        self.lan = lan
        self.shape = shape
        self.site = Site(lan)
        self._stack = ExitStack()
        self._gone_s: dict[str, float] = {}
        self._caps: dict[str, Cap] = {}
        self._programs: list[str] = []

    def __enter__(self) -> Self:
        """Start everything but the clients."""
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End everything."""
        self.site.__exit__()
        self._stack.close()

    def gateway_of(self, client: int) -> str:
        """The machine that a client hangs on."""
        shape = self.shape
        if shape.gateways == 0:
            return "broker1"
        if not shape.has_areas:
            return f"gateway{client // len(AREAS) % shape.gateways + 1}"
        return f"gateway{self._server(client, shape.gateways)}"

    @staticmethod
    def area_of(client: int) -> str:
        """The area of a client: they are spread evenly."""
        return AREAS[client % len(AREAS)]

    def load_plan(self, publishers: int) -> list[dict[str, object]]:
        """Publishers, for `experiments.bench.load`."""
        before = "/forward" if self.shape.gateways else ""
        return [
            {
                "host": self.lan.address(self.gateway_of(n)),
                "port": PORT,
                "topic": f"{before}{self.area_of(n)}{CELL_BELOW}",
                "priority": 1,
            }
            for n in range(publishers)
        ]

    def ears_plan(self, subscribers: int, publishers: int) -> list[dict[str, object]]:
        """Subscribers, each to all of its area, for `experiments.bench.ears`."""
        return [
            {
                "host": self.lan.address(self.gateway_of(n)),
                "port": PORT,
                "filters": [f"{self.area_of(n)}/#"],
                "hears": [p for p in range(publishers) if p % 4 == n % 4],
            }
            for n in range(subscribers)
        ]

    def clients(self, kind: str, plan: list[dict[str, object]], *more: object) -> None:
        """Start publishers (``load``) or subscribers (``ears``) by a plan."""
        path = self.site.folder / f"{kind}.plan"
        path.write_text(json.dumps(plan))
        self.site.python(
            kind, self.lan.namespace("clients"), f"experiments.bench.{kind}",
            "--plan", path, "--out", self.site.path(kind), *more,
        )  # fmt: skip
        self.site.wait_for_words(kind, "ready")

    def cpu_s(self, kind: str = "") -> float:
        """Seconds of CPU that programs have used so far.

        Args:
            kind: ``broker``, ``own`` (a gateway's broker), ``daemon`` or ``manager``;
                empty is all.
        """
        gone_s = sum(s for name, s in self._gone_s.items() if name.startswith(kind))
        return gone_s + sum(
            cpu_s(self.site.pid(name))
            for name in self._programs
            if name.startswith(kind)
        )

    def sent_bytes(self) -> int:
        """Bytes that all brokers and gateways have put on the LAN."""
        return sum(self.lan.bytes(m) for m in self._machines())

    def kill(self, name: str) -> None:
        """End a program by kill -9."""
        self._gone_s[f"{name} {len(self._gone_s)}"] = cpu_s(self.site.pid(name))
        self._programs.remove(name)
        self.site.kill(name)

    def start_broker(self, number: int) -> None:
        """Start a distributed broker; nobody uses it before the Manager says so."""
        machine = f"broker{number}"
        self._cap(machine, self.shape.broker_cores)
        self._broker(machine, machine)

    def start_daemon(self, number: int) -> None:
        """Start the daemon of a gateway, again perhaps."""
        name, machine = f"daemon{number}", f"gateway{number}"
        self._python(name, machine, "run")

    def start_manager(self) -> None:
        """Start the Manager, again perhaps."""
        self._python("manager", "manager", "manager")

    def broker_entries(self, brokers: int) -> list[tuple[str, str]]:
        """Area and machine of the distributed brokers."""
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
        """Which of some servers has a client's area; several may share one."""
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
        self._broker("managers", "manager")
        self._configure_manager()
        self.start_manager()
        self.site.wait_for_words("manager", "manager is up")
        for number in range(1, shape.gateways + 1):
            self._gateway(number)
        for number in range(1, shape.gateways + 1):
            for _, machine in self.broker_entries(shape.brokers):
                words = f"uplink to {self.lan.address(machine)}:{PORT} is up"
                self.site.wait_for_words(f"daemon{number}", words, READY_S)
            self.site.wait_for_words(f"daemon{number}", "is up on", READY_S)

    def _configure_manager(self) -> None:
        data = self.site.folder / "manager"
        brokers = "".join(
            f'[[broker]]\ntopic = "{area}"\n'
            f'url = "mqtt://{self.lan.address(machine)}:{PORT}"\n'
            for area, machine in self.broker_entries(self.shape.brokers)
        )
        (self.site.folder / "manager.toml").write_text(
            f'[manager]\nbroker = "mqtt://127.0.0.1:{PORT}"\ndata = "{data}"\n{brokers}'
        )

    def _gateway(self, number: int) -> None:
        machine = f"gateway{number}"
        self._cap(machine, self.shape.gateway_cores)
        self._broker(f"own{number}", machine, *TELLS)
        data = self.site.folder / machine
        public = f"mqtt://{self.lan.address(machine)}:{PORT}"
        manager = f"mqtt://{self.lan.address('manager')}:{PORT}"
        (self.site.folder / f"daemon{number}.toml").write_text(
            f'[gateway]\nid = "gw-{number}"\nbroker = "mqtt://127.0.0.1:{PORT}"\n'
            f'public = "{public}"\nmanagers = ["{manager}"]\n'
            f'areas = {json.dumps(self._areas(number))}\ndata = "{data}"\n'
        )
        self.start_daemon(number)

    def _cap(self, machine: str, cores: float | None) -> None:
        self._caps[machine] = self._stack.enter_context(Cap(machine, cores))

    def _broker(self, name: str, machine: str, *more: str) -> None:
        space = self.lan.namespace(machine)
        self.site.mosquitto(name, space, PORT, *NO_LIMITS, *LOW_DELAY, *more)
        self._started(name, machine)

    def _python(self, name: str, machine: str, command: str) -> None:
        config = self.site.folder / f"{name}.toml"
        space = self.lan.namespace(machine)
        self.site.python(name, space, "gateway_daemon", command, "--config", config)
        self._started(name, machine)

    def _started(self, name: str, machine: str) -> None:
        self._programs.append(name)
        if machine in self._caps:
            self._caps[machine].add(self.site.pid(name))


def start_clients(
    system: Federation, seconds: float, most_s: float, *, by_id: bool = False
) -> None:
    """Start the paper's subscribers, then its publishers, who wait for `go`.

    Args:
        system: Which has everything else.
        seconds: How long they will publish.
        most_s: How long the subscribers wait for all of it.
        by_id: Whether they drop messages whose id they know.
    """
    each = round(RATE * seconds)
    ears = system.ears_plan(SUBSCRIBERS, PUBLISHERS)
    for ear in ears:
        ear["by_id"] = by_id
    system.clients("ears", ears, "--each", each, "--most", most_s)
    load = system.load_plan(PUBLISHERS)
    start = system.site.folder / "go"
    system.clients("load", load, "--each", each, "--rate", RATE, "--go", start)
    time.sleep(SETTLE_S)


def go(system: Federation) -> None:
    """Let the publishers begin."""
    (system.site.folder / "go").touch()


def start_flood(system: Federation, messages: int) -> None:
    """Start one subscriber of each area on each gateway, and publishers for `go`."""
    publishers = FLOODERS
    served = {
        (system.gateway_of(n), system.area_of(n)): n for n in range(4 * MOST_GATEWAYS)
    }
    ears = [system.ears_plan(n + 1, publishers)[n] for n in served.values()]
    each = messages // publishers
    system.clients("ears", ears, "--each", each, "--quiet", 30)
    start = system.site.folder / "go"
    load = system.load_plan(publishers)
    system.clients("load", load, "--each", each, "--go", start)
    time.sleep(SETTLE_S)


def wait_for_result(site: Site[Any], name: str, timeout_s: float) -> None:
    """Wait until a program has written its result.

    Raises:
        TimeoutError: It has not, or has ended without one.
    """
    until_s = time.monotonic() + timeout_s
    while not site.path(name).exists():
        if time.monotonic() > until_s or site.wait_for_end(name, 0.0):
            if site.path(name).exists():
                return
            raise TimeoutError(f"no result of {name}:\n{site.last_words()}")
        time.sleep(0.02)
