"""Fixtures: real brokers, repeatable randomness, and stored measurements."""

import atexit
import gc
import json
import os
import random
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path

import pytest
from attack_table import MEASURED
from hypothesis import settings
from java_start import java_options, make_archive
from scheduling import arrange, starts_java

from service_runtime.tls import Endpoint

# The time of an example depends on the load of the machine, not on the code.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

assert sqlite3.sqlite_version_info > (3, 35), "loaded before ecCodes brings an old one"

MOSQUITTO = shutil.which("mosquitto") or "/usr/sbin/mosquitto"

# Collected tests and imported modules stay to the end. Each garbage collection would go
# through these millions of objects, while they are made and later.
gc.disable()


def pytest_collection_finish() -> None:
    """Collect garbage from here on, but not among what has been loaded until here."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Free all at the end: extension modules print what is left then."""
    gc.unfreeze()


def pytest_configure(config: pytest.Config) -> None:
    """Free descriptors, and end a process of pytest-xdist without freeing its objects.

    It has reported everything then. To free millions of objects takes seconds of a
    processor, and libraries of C that are unloaded end some processes with a signal.
    """
    config.pluginmanager.register(DescriptorLimit())
    if hasattr(config, "workerinput"):
        atexit.register(os._exit, 0)  # called after what is registered later


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Group the tests for pytest-xdist, in whose processes this is called, too."""
    for item in filter(starts_java, items):
        # Not insert(): the tests of one function share the list.
        names = item.fixturenames  # type: ignore[attr-defined]
        item.fixturenames = ["quick_java", *names]  # type: ignore[attr-defined]
    if hasattr(config, "workerinput"):
        arrange(items)


def list_descriptors() -> Counter[str]:
    """Open descriptors of this process; select() of paho takes none above 1023."""
    kinds: Counter[str] = Counter()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            kinds[re.sub(r"\d+", "", link.readlink().name)] += 1
    return kinds


@dataclass(eq=False)  # a plugin must be hashable
class DescriptorLimit:
    """Frees descriptors that finished tests left to the garbage collector.

    Python collects old objects the more rarely the more there are, and each collected
    test is some: 80 consoles of finished tests had 900 descriptors open.

    Attributes:
        most: Descriptors above which garbage is collected.
    """

    most: int = 400

    def pytest_runtest_teardown(self) -> None:
        """Collect, which takes a second, only after many more were opened."""
        if self._count() > self.most:
            gc.collect()
            self.most = max(400, self._count() + 200)

    @staticmethod
    def _count() -> int:
        return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the state of the test process, and logs of programs, beside a failure."""
    report = yield
    if report.failed:
        threads = ", ".join(thread.name for thread in threading.enumerate())
        state = f"descriptors: {dict(list_descriptors())}\nthreads: {threads}"
        report.sections.append(("test process", state))
        folder = getattr(item, "funcargs", {}).get("tmp_path", Path("/nowhere"))
        for path in sorted(folder.glob("*.log")):
            lines = path.read_text(errors="replace").splitlines()[-LOG_LINES:]
            report.sections.append((f"end of {path.name}", "\n".join(lines)))
    return report


LOG_LINES = 30
PORTS = range(10000, 32768)
"""Below the range of ports that Linux uses for outgoing connections."""

PORT_CHANCE = random.Random()
_claims: deque[socket.socket] = deque()
MAX_CLAIMS = 200
"""Ports claimed at a time; select() of paho takes no descriptor above 1023."""


def free_port() -> int:
    """A free TCP port that is not given to another test on this machine.

    Another test process may call this before the port is bound, so each port is claimed
    by an abstract socket with its number. It is closed after `MAX_CLAIMS` other ports,
    when the port is in use or the test is over.
    """
    for _ in range(1000):
        port = PORT_CHANCE.choice(PORTS)
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        with socket.socket() as sock:
            try:
                claim.bind(f"\0yamamori-test-port-{port}")
                sock.bind(("127.0.0.1", port))
            except OSError:
                claim.close()
                continue
        _claims.append(claim)
        if len(_claims) > MAX_CLAIMS:
            _claims.popleft().close()
        return port
    raise RuntimeError("no TCP port is free")


def wait_until(is_true: Callable[[], object], timeout_s: float = 60.0) -> None:
    """Return as soon as a condition holds; fail when it does not in time.

    A condition that takes long, because it reads tables, is checked more rarely: it
    takes at most a fifth of a processor from the programs that it waits for. Where
    other programs wait for the processors too, a second counts for less.
    """
    waited_s, last_s = 0.0, time.monotonic()
    while True:
        began_s = time.monotonic()
        if is_true():
            return
        now_s = time.monotonic()
        waited_s += (now_s - last_s) * _share_of_processors()
        last_s = now_s
        assert waited_s < timeout_s, "did not become true in time"
        time.sleep(min(max(0.01, 4 * (now_s - began_s)), 2.0))


def _share_of_processors() -> float:
    """Part of the processors that a program gets at the present load."""
    return min(1.0, (os.cpu_count() or 1) / max(1.0, os.getloadavg()[0]))


class Broker:
    """One Mosquitto process."""

    def __init__(self, folder: Path, *more: str) -> None:
        self.port = free_port()
        self.endpoint = Endpoint("127.0.0.1", self.port)
        self.url = f"mqtt://{self.endpoint}"
        self._config = folder / f"mosquitto-{self.port}.conf"
        self._config.write_text(
            f"listener {self.port} 127.0.0.1\nallow_anonymous true\n"
            "max_queued_messages 0\nmax_inflight_messages 0\n" + "\n".join(more) + "\n"
        )
        self.start()

    def start(self) -> None:
        """Start or restart it, and wait until it listens."""
        with self._config.with_suffix(".log").open("ab") as log:
            self._process = subprocess.Popen(
                [MOSQUITTO, "-c", str(self._config)],
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        wait_until(self._listens)

    def kill(self) -> None:
        """Kill it with SIGKILL: everything in its memory is lost."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, such as SIGSTOP or SIGCONT."""
        self._process.send_signal(number)

    def _listens(self) -> bool:
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", self.port)) == 0


@pytest.fixture
def make_broker(tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    """Start brokers that end with the test."""
    brokers: list[Broker] = []

    def make(*more: str) -> Broker:
        brokers.append(Broker(tmp_path, *more))
        return brokers[-1]

    yield make
    for broker in brokers:
        broker.kill()


@pytest.fixture
def broker(make_broker: Callable[[], Broker]) -> Broker:
    """One broker."""
    return make_broker()


@pytest.fixture
def chance() -> random.Random:
    """Randomness whose seed is printed, and can be set to repeat a run."""
    seed = int(os.environ.get("SOAK_SEED") or time.time_ns() % 1_000_000)
    sys.stdout.write(f"SOAK_SEED={seed}\n")
    return random.Random(seed)


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Print the measurements of a test, and append them to ``SOAK_REPORT``.

    The table of `attack_table` shows those of `MEASURED`, too.
    """

    def keep(**numbers: object) -> None:
        plain = {k: asdict(v) if is_dataclass(v) else v for k, v in numbers.items()}
        measured = [(key, plain[key]) for key in MEASURED if key in plain]
        request.node.user_properties.extend(measured)
        line = json.dumps({"part": request.node.name, **plain})
        sys.stdout.write(f"{line}\n")
        if path := os.environ.get("SOAK_REPORT"):
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    return keep


@pytest.fixture(scope="session")
def quick_java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Options for a fast start of JVMs, here and in processes that tests start."""
    make_archive(tmp_path_factory.mktemp("java"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", java_options())
        yield
