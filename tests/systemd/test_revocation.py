"""A stolen card's link ends, by the units that watch a broker's files."""

from pathlib import Path

import pytest
from conftest import wait_until
from machine import Machine

pytestmark = pytest.mark.container

CA = ("gateway-daemon", "ca", "--folder", "/var/lib/yamamori-ca")
FILES = "/etc/mosquitto/yamamori"
CELL = "/3/1/1/2"
WATCHED = ("mosquitto-reload", "mosquitto-restart")


def write_files(machine: Machine) -> None:
    words = ("broker-config", "gateway", "gw-1", "--out", FILES, "--owner", "mosquitto")
    machine.run(*CA, *words)


def ups(machine: Machine, name: str) -> int:
    return machine.journal(name).splitlines().count("up")


@pytest.fixture
def town(machine: Machine) -> Machine:
    """An authority and its broker; two nodes hold a link each."""
    machine.run(*CA, "init", "Otoyo")
    machine.run(*CA, "issue", "broker", "gw-1-broker", "--host", "127.0.0.1")
    for name in ("stolen", "other"):
        machine.run(*CA, "issue", "node", name, "--cell", CELL)
    write_files(machine)
    config = machine.inside("/etc/mosquitto/mosquitto.conf")
    config.write_text(f"include_dir {FILES}\n")
    machine.run("systemctl", "restart", "mosquitto")
    machine.run("systemctl", "start", *(f"{each}.path" for each in WATCHED))
    script = (Path(__file__).parent / "linked.py").read_text("utf-8")
    machine.inside("/opt/linked.py").write_text(script)
    for name in ("stolen", "other"):
        command = ("/opt/yamamori/bin/python", "/opt/linked.py", name)
        machine.run("systemd-run", f"--unit={name}", *command, "/var/lib/yamamori-ca")
        wait_until(lambda name=name: ups(machine, name))
    return machine


def test_revocation_ends_a_live_link_and_no_new_certificate_does(
    town: Machine,
) -> None:
    """The files alone do it: nobody types anything on the broker's machine."""
    pid = town.show("mosquitto", "MainPID")
    town.run(*CA, "issue", "node", "new", "--cell", CELL)
    write_files(town)
    wait_until(lambda: "Finished" in town.journal("mosquitto-reload"))
    assert town.show("mosquitto", "MainPID") == pid
    assert (ups(town, "stolen"), ups(town, "other")) == (1, 1)

    town.run(*CA, "revoke", "stolen")
    write_files(town)
    wait_until(lambda: "our certificate was revoked" in town.journal("stolen"))
    wait_until(lambda: ups(town, "other") == 2)
    assert ups(town, "stolen") == 1
    assert town.show("mosquitto", "MainPID") != pid
