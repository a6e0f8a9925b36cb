"""The Debian packages in a booted Debian: install, upgrade, go back, remove, purge.

`make deb-test` builds two versions and runs this; DEB_TEST names their folder.
"""

from collections.abc import Iterator

import pytest
from conftest import wait_until
from debian_packages import AGENT, FOLDER, GATEWAY, NEW, OLD, QUEUE, Operator
from machine import DebianMachine

MAX_NODE_BYTES = 40_000_000
NEWER_FORMAT = 0x02020202
pytestmark = [
    pytest.mark.container,
    pytest.mark.skipif(not FOLDER.name, reason="needs packages: run make deb-test"),
]


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """A booted Debian with the older packages, as after the manual's three lines."""
    machine = DebianMachine(tmp_path_factory.mktemp("deb"))
    machine.boot(FOLDER)
    made = Operator(machine)
    made.install(OLD, "node", "gateway")
    yield made
    machine.power_off()


def test_install_starts_nothing_and_settings_are_asked_for(operator: Operator) -> None:
    """No daemon runs before its settings are written; conffiles name what is needed."""
    machine = operator.machine
    for unit in (AGENT, GATEWAY, "gateway-manager"):
        assert machine.show(unit, "ActiveState") == "inactive"
        assert machine.show(unit, "UnitFileState") == "disabled"
    command = f"{AGENT} check --config /etc/yamamori/node.toml 2>&1; echo $?"
    output = machine.run("sh", "-c", command)
    files = machine.run("dpkg-query", "-W", "-f", "${Conffiles}", "yamamori-node")

    assert "node.id must be given" in output
    assert output.endswith("78")
    assert "/etc/yamamori/node.toml" in files
    assert (
        machine.run("stat", "-c", "%U:%G %a", "/etc/yamamori") == "root:yamamori 2750"
    )


def test_installed_node_is_small(operator: Operator) -> None:
    """With the compiled files that the installation makes."""
    used = operator.machine.run("du", "-sb", "/usr/lib/yamamori/node").split()[0]

    assert int(used) <= MAX_NODE_BYTES


def test_message_goes_from_the_node_to_a_subscriber(operator: Operator) -> None:
    """After `systemctl enable --now`, over two brokers and a gateway."""
    machine = operator.machine
    operator.start_gateway()
    machine.run(
        *("systemd-run", "--unit=listener", "-E", "PYTHONUNBUFFERED=1"),
        *("spatial-mqtt", "sub", "--manager", "mqtt://127.0.0.1:1883"),
        *("--id", "listener", "--around", "33.5588,133.5312"),
    )
    wait_until(lambda: "listening on" in operator.received())
    machine.run("systemctl", "enable", "--now", AGENT)

    ledger = machine.inside("/var/lib/yamamori/ledger")
    wait_until(ledger.exists)
    wait_until(lambda: operator.has_received(operator.put_ids()[:10]))


def test_upgrade_keeps_a_full_queue_and_restarts_what_ran(operator: Operator) -> None:
    """Messages that wait for a gateway are delivered by the new version."""
    machine = operator.machine
    machine.run("systemctl", "stop", GATEWAY)
    wait_until(lambda: operator.queued() > 20)
    before, pid = operator.queued(), machine.show(AGENT, "MainPID")
    operator.install(NEW, "node", "gateway")
    wait_until(lambda: operator.queued() >= before)

    assert operator.version("yamamori-node") == f"{NEW} installed"
    assert machine.show(AGENT, "MainPID") != pid
    assert machine.show(AGENT, "UnitFileState") == "enabled"
    assert machine.show(GATEWAY, "ActiveState") == "inactive", "it was stopped"
    ids = operator.put_ids()
    machine.run("systemctl", "start", GATEWAY)
    wait_until(lambda: operator.has_received(ids), timeout_s=300)
    machine.run("systemctl", "stop", AGENT)


def test_downgrade_behind_the_format_of_the_queue_is_refused(
    operator: Operator,
) -> None:
    """With words, and nothing is changed; without a newer format it is allowed."""
    operator.set_format(NEWER_FORMAT)
    refused = operator.try_install(OLD, "node", "gateway")
    for package in ("common", "node", "gateway"):
        assert operator.version(f"yamamori-{package}") == f"{NEW} installed"
    operator.set_format(0x01010101)
    operator.install(OLD, "node", "gateway")

    assert refused.returncode != 0
    assert f"has written {QUEUE} in format 2, and {OLD} reads up to 1" in refused.stdout
    assert operator.version("yamamori-node") == f"{OLD} installed"


def test_removal_keeps_data_and_purge_removes_it(operator: Operator) -> None:
    """Queue, settings and keys remain until the purge; another role's remain then."""
    machine = operator.machine
    machine.run("systemctl", "start", AGENT)
    machine.put("/etc/yamamori/tls/key.pem", "secret")
    assert operator.apt("remove", "yamamori-node").returncode == 0
    assert machine.show(AGENT, "ActiveState") in {"inactive", "failed"}
    for path in (QUEUE, "/etc/yamamori/node.toml"):
        assert machine.inside(path).exists()
    assert not machine.inside("/usr/lib/yamamori/node").exists()
    assert operator.apt("purge", "yamamori-node").returncode == 0
    assert not machine.inside(QUEUE).exists()
    assert not machine.inside("/etc/yamamori/node.toml").exists()
    assert machine.inside("/var/lib/yamamori/gateway").exists()
    machine.inside("/var/lib/yamamori/ledger").unlink()  # no file of the package
    assert machine.show(GATEWAY, "ActiveState") == "active"
    done = operator.apt("purge", "yamamori-gateway", "yamamori-common")

    assert done.returncode == 0, done.stdout
    assert not machine.inside("/var/lib/yamamori").exists()
    assert not machine.inside("/etc/yamamori").exists()
