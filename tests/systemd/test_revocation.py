"""Units that watch a broker's files end the connection of a revoked certificate.

They also make the broker use its own new certificate.
"""

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
    command = ("broker-config", "gateway", "gw-1", "--out", FILES)
    machine.run(*CA, *command, "--owner", "mosquitto")


def count_ups(machine: Machine, name: str) -> int:
    return machine.journal(name).splitlines().count("up")


def served_certificate(machine: Machine) -> str:
    """The certificate that the broker shows, as PEM."""
    ask = "openssl s_client -connect 127.0.0.1:8883 </dev/null 2>/dev/null"
    shown = machine.run("sh", "-c", ask, check=False)
    return shown.partition("-----BEGIN")[2].partition("-----END")[0]


@pytest.fixture(scope="module")
def host(machine: Machine) -> Machine:
    """A certificate authority and its broker; two nodes hold a connection each."""
    machine.run(*CA, "init", "Otoyo")
    machine.run(*CA, "issue", "broker", "gw-1-broker", "--host", "127.0.0.1")
    for name in ("stolen", "other"):
        machine.run(*CA, "issue", "node", name, "--cell", CELL)
    write_files(machine)
    config = machine.inside("/etc/mosquitto/mosquitto.conf")
    config.write_text(f"include_dir {FILES}\n")
    machine.run("systemctl", "restart", "mosquitto")
    machine.run("systemctl", "start", *(f"{each}.path" for each in WATCHED))
    script = (Path(__file__).parent / "hold_link.py").read_text("utf-8")
    machine.inside("/opt/hold_link.py").write_text(script)
    for name in ("stolen", "other"):
        command = ("/opt/yamamori/bin/python", "/opt/hold_link.py", name)
        machine.run("systemd-run", f"--unit={name}", *command, "/var/lib/yamamori-ca")
        wait_until(lambda name=name: count_ups(machine, name))
    return machine


def test_revocation_ends_a_live_connection_but_a_new_certificate_does_not(
    host: Machine,
) -> None:
    """The changed files are enough; no command runs on the broker's machine."""
    pid = host.show("mosquitto", "MainPID")
    host.run(*CA, "issue", "node", "new", "--cell", CELL)
    write_files(host)
    wait_until(lambda: "Finished" in host.journal("mosquitto-reload"))
    assert host.show("mosquitto", "MainPID") == pid
    assert (count_ups(host, "stolen"), count_ups(host, "other")) == (1, 1)

    host.run(*CA, "revoke", "stolen")
    write_files(host)
    wait_until(lambda: "our certificate was revoked" in host.journal("stolen"))
    wait_until(lambda: count_ups(host, "other") == 2)
    assert count_ups(host, "stolen") == 1
    assert host.show("mosquitto", "MainPID") != pid


def test_new_certificate_of_the_broker_is_used_without_a_restart(host: Machine) -> None:
    """It was copied, and the old one served until it ended."""
    pid, before = host.show("mosquitto", "MainPID"), served_certificate(host)
    host.run(*CA, "issue", "broker", "gw-1-broker", "--host", "127.0.0.1")
    write_files(host)

    wait_until(lambda: served_certificate(host) not in {"", before})
    assert host.show("mosquitto", "MainPID") == pid
