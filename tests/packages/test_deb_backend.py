"""The packages of a backend and its console in a booted Debian, next to a node's.

`make deb-test` builds two versions and runs this; DEB_TEST names their folder.
"""

import csv
import io
import json
from collections.abc import Iterator

import pytest
from conftest import wait_until
from debian_packages import AGENT, FOLDER, GATEWAY, NEW, OLD, SETTINGS, Operator
from machine import DebianMachine

ROLES = ("node", "gateway", "backend", "console")
DAEMONS = tuple(
    f"backend-{name}" for name in ("ingest", "alerts", "score", "notify", "console")
)
DATA = "/var/lib/yamamori/backend"
CONFIG = "/etc/yamamori/backend.toml"
BACKEND = f"""[backend]
data = "{DATA}"
[ingest]
broker = "mqtt://127.0.0.1:1885"
[score]
master = "local[1]"
[notify]
brokers = ["mqtt://127.0.0.1:1883"]
[console]
place = "大谷町"
port = 8088
"""
WIRE = """[[sensor]]
kind = "wire"
name = "span"
pin = 27
interval_s = 10
"""
START_S = 600.0
"""Spark's first start on a busy machine."""
pytestmark = [
    pytest.mark.container,
    pytest.mark.skipif(not FOLDER.name, reason="needs packages: run make deb-test"),
]


class Office(Operator):
    """A machine with every role, and what its tables and console contain."""

    def start_all(self) -> None:
        """Write the settings, and enable the daemons of each role."""
        self.start_gateway()
        self.machine.put(CONFIG, BACKEND)
        self.machine.run("systemctl", "enable", "--now", *DAEMONS)
        node = SETTINGS["/etc/yamamori/node.toml"]
        node = node.replace("[simulation]", "[simulation]\nwire_break_after_h = 0.1")
        self.machine.put("/etc/yamamori/node.toml", node + WIRE)
        self.machine.run("systemctl", "enable", "--now", AGENT)

    def stored(self) -> list[str]:
        """Ids of the messages in the tables, with every repetition."""
        query = "select node || ':' || boot || ':' || seq as id from messages"
        output = self.machine.run(
            *("backend-spark", "sql", "--config", CONFIG, "--format", "csv", query),
            check=False,
        )
        return [row["id"] for row in csv.DictReader(io.StringIO(output))]

    def peak(self) -> int:
        """The highest level of an event that the console shows."""
        program = (
            "import urllib.request as request; "
            "print(request.urlopen('http://127.0.0.1:8088/api/events').read().decode())"
        )
        output = self.machine.run("python3", "-c", program, check=False)
        events = json.loads(output)["events"] if output else []
        return max((each["peak"] for each in events), default=0)

    def states(self) -> dict[str, str]:
        return {name: self.machine.show(name, "ActiveState") for name in DAEMONS}


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    """A booted Debian with Java and the older packages."""
    machine = DebianMachine(
        tmp_path_factory.mktemp("deb"), ",default-jre-headless", "5g"
    )
    machine.put("/etc/hosts", "127.0.0.1 localhost\n")  # and not the machine's name
    machine.boot(FOLDER)
    made = Office(machine)
    made.install(OLD, *ROLES)
    yield made
    machine.power_off()


def test_installation_starts_no_daemon(office: Office) -> None:
    """And `check` names the setting that is missing."""
    output = office.machine.run(
        "sh", "-c", f"backend-spark check --config {CONFIG} 2>&1; echo $?"
    )

    assert set(office.states().values()) == {"inactive"}
    assert "ingest.broker must be given" in output
    assert output.endswith("78")


def test_cut_wire_is_an_event_of_the_console(office: Office) -> None:
    """From the sensor over gateway, log and Spark to the pages, all as units."""
    office.start_all()
    wait_until(lambda: office.peak() >= 4, START_S)

    assert set(office.states().values()) == {"active"}


def test_upgrade_restarts_what_ran_and_nothing_is_lost(office: Office) -> None:
    """Messages put before, during and after it are in the tables, each once."""
    machine = office.machine
    before = {name: machine.show(name, "MainPID") for name in DAEMONS}
    office.install(NEW, *ROLES)
    ids = office.put_ids()
    wait_until(lambda: len(office.put_ids()) > len(ids) + 10)
    machine.run("systemctl", "stop", AGENT)
    ids = office.put_ids()
    machine.run("systemctl", "start", AGENT)
    wait_until(lambda: set(ids) <= set(office.stored()), START_S)
    stored = office.stored()

    assert len(stored) == len(set(stored))
    assert office.version("yamamori-console") == f"{NEW} installed"
    assert set(office.states().values()) == {"active"}
    for name in DAEMONS:
        assert machine.show(name, "MainPID") not in {"0", before[name]}
    assert office.peak() >= 4


def test_removal_keeps_the_tables_and_purge_removes_them(office: Office) -> None:
    """The other roles of the machine go on."""
    machine = office.machine
    done = office.apt("remove", "yamamori-console", "yamamori-backend")
    assert done.returncode == 0, done.stdout
    assert not {"active", "activating"} & set(office.states().values())
    assert machine.inside(f"{DATA}/tables/levels").exists()
    assert machine.inside(CONFIG).exists()
    assert not machine.inside("/usr/lib/yamamori/backend").exists()
    done = office.apt("purge", "yamamori-console", "yamamori-backend")

    assert done.returncode == 0, done.stdout
    assert not machine.inside(DATA).exists()
    assert not machine.inside(CONFIG).exists()
    assert machine.show(GATEWAY, "ActiveState") == "active"
