"""compose.yaml with images that are built here: a warning, a stop, a restart.

The images start from a Debian made by mmdebstrap, so that no registry of images is
needed. Volumes and containers have names of this test; the images are those that
`make containers` builds. They take minutes and 3 GB: ``make containers-test`` runs it.
"""

import json
import os
import re
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any, Final

import pytest
from conftest import wait_until

from demo.processes import free_port
from service_runtime.tls import Endpoint
from spatial_mqtt.cells import Cell
from spatial_mqtt.connection import Connection
from spatial_mqtt.senml import MessageId, Pack, Reading, encode_cbor
from spatial_mqtt.topics import cell_topic
from spatial_mqtt.transport import BaseConnectionHandler, Publication, Session

pytestmark = [pytest.mark.long, pytest.mark.container]

ROOT: Final = Path(__file__).parents[2]
BASE: Final = "localhost/yamamori-debian-bookworm"
PROJECT: Final = "yamamoritest"
PROGRAMS: Final = ("ingest", "alerts", "score", "console", "notify", "manager")
BROKERS: Final = ("broker", "manager-broker")
DATA: Final = "/var/lib/yamamori/backend"
PASSWORD: Final = "a-password-of-the-test"  # noqa: S105
START_S: Final = 600.0
GRACE_S: Final = "120"
"""As the page says: podman-compose 1.0 does not know stop_grace_period."""

IDS: Final = f"""
from backend_spark import open_tables
table = open_tables({DATA!r}).messages()
print(sorted(table["seq"].to_pylist()) if table else [])
"""


def environment() -> dict[str, str]:
    """Variables for an engine that works also without systemd and with low limits."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "yamamori"
    cache.mkdir(parents=True, exist_ok=True)
    # crun refuses a mixture of both versions of control groups.
    is_mixed = Path("/sys/fs/cgroup/unified").is_dir()
    runtime = "runc" if is_mixed and shutil.which("runc") else "crun"
    conf = cache / "containers.conf"
    conf.write_text(
        '[containers]\ndefault_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]\n'
        f'[engine]\nruntime = "{runtime}"\n'
    )
    return {**os.environ, "CONTAINERS_CONF": str(conf)}


def podman(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        ["podman", *words],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert not check or done.returncode == 0, f"{words}: {done.stderr}"
    return done


def require_engine() -> None:
    """Skip where no container can be made, with the reason."""
    if "CONTAINERS_TEST" not in os.environ:
        pytest.skip("run by make containers-test")
    if os.geteuid() != 0:
        pytest.skip("mmdebstrap and the networks of podman need root")
    for program in ("podman", "podman-compose", "mmdebstrap"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is missing; run apt install {program}")


def make_base() -> None:
    """A Debian of this machine's sources, which trusts what this machine trusts."""
    if podman("image", "exists", BASE, check=False).returncode == 0:
        return
    trusted = "/usr/local/share/ca-certificates"
    command = [
        *("mmdebstrap", "--quiet", "--variant=minbase", "--include=ca-certificates"),
        f'--customize-hook=cp -r {trusted}/. "$1{trusted}/"',
        '--customize-hook=chroot "$1" update-ca-certificates',
        *("bookworm", "-"),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as debian:
        done = subprocess.run(
            ["podman", "import", "-", BASE],
            env=environment(),
            stdin=debian.stdout,
            capture_output=True,
            text=True,
            check=False,
        )
    if debian.returncode:
        pytest.skip("no Debian could be fetched by mmdebstrap")
    if done.returncode:
        pytest.skip(f"podman cannot store images here: {done.stderr}")
    tried = podman("run", "--rm", "--network=none", BASE, "true", check=False)
    if tried.returncode:
        pytest.skip(f"podman cannot run containers here: {tried.stderr}")


def build_images() -> None:
    """The images of this checkout, by the script that builds them."""
    pip = Path("/etc/pip.conf")
    options = "--network=host" + f" --volume={pip}:{pip}:ro" * pip.is_file()
    done = subprocess.run(
        [ROOT / "scripts/containers"],
        env={**environment(), "BASE": BASE, "BUILD": options},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]


class ComposedSystem:
    """The services of a copy of compose.yaml, on free ports."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.said = folder / "containers", ""
        shutil.copytree(ROOT / "containers", self.folder)
        self.ports = {"1885": free_port(), "1883": free_port(), "8088": free_port()}
        path = self.folder / "compose.yaml"
        text = path.read_text()
        for port, free in self.ports.items():
            text = text.replace(f"127.0.0.1:{port}:", f"127.0.0.1:{free}:")
        path.write_text(text)

    def compose(self, *words: str) -> None:
        """Call podman-compose, which succeeds also where a container fails."""
        done = subprocess.run(
            ["podman-compose", "-p", PROJECT, *words],
            env=environment(),
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        self.said = done.stdout[-2000:] + done.stderr[-4000:]

    def name(self, service: str) -> str:
        """Name of a container; versions of podman-compose separate words otherwise."""
        names = podman("ps", "--all", "--format", "{{.Names}}").stdout.split()
        form = rf"{PROJECT}[_-]{service}[_-]1"
        return next(name for name in names if re.fullmatch(form, name))

    def is_healthy(self, service: str) -> bool:
        """Run the health check of a service, as the engine does by a timer."""
        name = self.name(service)
        return podman("healthcheck", "run", name, check=False).returncode == 0

    def wait_healthy(self) -> None:
        for service in (*BROKERS, *PROGRAMS):
            deadline_s = time.monotonic() + START_S
            while not self.is_healthy(service):
                if time.monotonic() > deadline_s:
                    log = podman("logs", "--tail", "40", self.name(service))
                    pytest.fail(f"{service}: {log.stderr}{self.said}")
                time.sleep(1)

    def add_account(self) -> None:
        """As on the page, before the first start."""
        podman(
            *("run", "--rm", "--network=none", "--read-only", "--volume"),
            *(f"{PROJECT}_backend:{DATA}", "yamamori-backend", "backend-spark"),
            *("console-account", "add", f"{DATA}/accounts", "chief", "--role", "chief"),
            *("--password", PASSWORD),
        )

    def send(self, seqs: range) -> None:
        """Publish warnings of a cut wire, as a gateway does; waits for all PUBACKs."""
        endpoint = Endpoint("127.0.0.1", self.ports["1885"])
        handler = AckCounter()
        connection = Connection(endpoint, Session("gw", ()), handler)
        connection.start()
        wait_until(lambda: connection.is_up)
        for seq in seqs:
            pack = Pack(
                MessageId("node-1", "b", seq),
                5,
                time.time(),
                (Reading("wire", None, True), Reading("rain", "mm", 1.0, float(seq))),
            )
            topic = cell_topic(Cell.at(33.56, 133.53))
            assert connection.publish(Publication(topic, encode_cbor(pack)))
        wait_until(lambda: handler.count == len(seqs))
        connection.stop()

    def stored(self) -> list[int]:
        """Numbers of the messages in the tables, with every repetition."""
        name = self.name("ingest")
        done = podman("exec", name, "python3", "-c", IDS, check=False)
        found: list[int] = json.loads(done.stdout) if done.returncode == 0 else []
        return found

    def highest_level(self) -> int:
        """What the console shows to a user who has logged in."""
        address = f"http://127.0.0.1:{self.ports['8088']}/api"
        cookies = urllib.request.HTTPCookieProcessor(CookieJar())
        opener = urllib.request.build_opener(cookies)
        login = json.dumps({"name": "chief", "password": PASSWORD}).encode()
        opener.open(f"{address}/login", login, timeout=60).close()
        with opener.open(f"{address}/events", timeout=60) as answer:
            events: list[dict[str, Any]] = json.load(answer)["events"]
        return max((each["peak"] for each in events), default=0)


class AckCounter(BaseConnectionHandler):
    """Counts the publications that the broker has acknowledged."""

    def __init__(self) -> None:
        self.count = 0

    def on_published(self, token: int, refused: str | None) -> None:
        self.count += refused is None


@pytest.fixture
def system(tmp_path: Path) -> Iterator[ComposedSystem]:
    """The system with healthy services; nothing of it is left afterwards."""
    require_engine()
    make_base()
    build_images()
    made = ComposedSystem(tmp_path)
    try:
        podman("volume", "create", f"{PROJECT}_backend", check=False)
        made.add_account()
        made.compose("up", "-d")
        made.wait_healthy()
        yield made
    finally:
        made.compose("down", "-v")
        names = podman("volume", "ls", "-q").stdout.split()
        for name in names:
            if name.startswith(f"{PROJECT}_"):
                podman("volume", "rm", "--force", name)


def test_nothing_is_lost_when_the_containers_stop(system: ComposedSystem) -> None:
    """A warning reaches the console; messages of a stop wait in the broker's volume."""
    system.send(range(1, 11))
    wait_until(lambda: system.stored() == [*range(1, 11)], START_S)
    wait_until(lambda: system.highest_level() >= 3, START_S)
    system.compose("stop", "-t", GRACE_S, *PROGRAMS)
    codes = {
        name: podman(
            "inspect", "--format", "{{.State.ExitCode}}", system.name(name)
        ).stdout.strip()
        for name in PROGRAMS
    }
    system.send(range(11, 21))
    system.compose("stop", "-t", GRACE_S, *BROKERS)
    for name in (*BROKERS, *PROGRAMS):
        podman("start", system.name(name))
    system.wait_healthy()
    wait_until(lambda: len(system.stored()) >= 20, START_S)

    assert system.stored() == [*range(1, 21)]
    # 143: uvicorn raises SIGTERM again after its end; 137 would be a kill.
    assert set(codes.values()) <= {"0", "143"}, codes
    assert system.highest_level() >= 3
