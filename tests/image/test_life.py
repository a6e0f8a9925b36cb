"""One node from its first boot through the faults of a remote site.

Each boot takes most of a minute, so one test covers several cases: invalid settings on
a fresh card, a power cut with queued urgent messages, a broken update, a working one
with a clock step, and a kernel that hangs.
"""

import contextlib
import sqlite3
import subprocess
import time
from pathlib import Path

import pytest
from conftest import wait_until
from image.backbone import Backbone, TimeServer
from image.conftest import BOOT_S, NodeSetup
from image.forms import only_long, record
from image.settings import node
from image.vm import Pi, built

from image.bundle import about, make

pytestmark = [pytest.mark.system, pytest.mark.broker, pytest.mark.image, only_long]

URGENT_FROM = 4
WRONG = '[[sensor]]\r\nkind = "wire"\r\nname = "span"\r\npin = 99\r\n'


def test_node_survives_power_cut_updates_clock_step_and_hang(setup: NodeSetup) -> None:
    """Receipted messages arrive, the broken update is undone, the working one stays."""
    backbone, pi, card = setup.backbone, setup.pi, setup.card
    build_updates(setup)
    setup.configure(node(backbone.node_url) + WRONG)
    run_safe_mode_until_power_cut(backbone, pi)
    assert_refused(card.read("node-report.txt"))
    assert card.data_bytes() > 1 << 30
    promised = urgent_in(card.state("/var/lib/yamamori/queue.db", setup.folder))
    before = backbone.archived()
    assert promised - before.keys(), "urgent messages waited when the power went"

    setup.configure(node(backbone.node_url))
    for name in ("broken.update", "working.update"):
        card.put(setup.folder / name, name)
    backbone.brokers["local"].start()
    pi.on()
    wait_until(lambda: promised <= backbone.archived().keys(), BOOT_S)
    wait_for_both_updates(pi)
    step_clock_during_trial(backbone, pi)
    assert max(backbone.archived()) > max(*before, *promised)
    assert backbone.duplicates() == 0, "no number is used twice"
    pi.cut_power()
    assert "RESULT: TAKEN" in card.read("node-report.txt")
    report = card.read("update-report.txt")
    assert "given up: edge-agent is failed" in report
    assert "RESULT: ON TRIAL" in report

    check_watchdog_reset(pi)


def build_updates(setup: NodeSetup) -> None:
    """Build two bundles: one whose agent refuses its settings, and the image's own."""
    image = built("node")
    root = setup.folder / "root"
    unpack = ["unsquashfs", "-q", "-n", "-d", root, image / "root.squashfs"]
    subprocess.run(unpack, check=True, stdout=subprocess.DEVNULL)
    (root / "usr/bin/edge-agent").write_text("#!/bin/sh\nexit 78\n")
    packed = setup.folder / "broken.squashfs"
    quick = "-noappend -quiet -no-progress -comp zstd -Xcompression-level 1"
    subprocess.run(["mksquashfs", root, packed, *quick.split()], check=True)
    facts = about(root / "etc/yamamori-image")
    key = image.parent / "keys/update.key"
    make(packed, facts, key, setup.folder / "broken.update")
    working = setup.folder / "working.update"
    working.symlink_to(image / "yamamori-node.update")


def run_safe_mode_until_power_cut(backbone: Backbone, pi: Pi) -> None:
    """One sensor is misconfigured: the other one samples, and the error is reported."""
    pi.on()
    wait_until(backbone.archived, BOOT_S)
    record(power_on_to_archive_s=pi.age_s(), power_on_to_archive_cpu_s=pi.cpu_s())
    wait_until(lambda: "config/health" in backbone.names(), BOOT_S)
    pi.tip(3)
    wait_until(lambda: backbone.count() == 3, 120)
    assert not backbone.packs()[0].synchronised
    backbone.brokers["local"].kill()
    pi.tip(4)
    time.sleep(8)
    pi.cut_power()


def assert_refused(report: str) -> None:
    """The report lists the settings to correct."""
    assert "RESULT: REFUSED" in report
    assert "active now: safe mode" in report
    assert "pin" in report.partition("to correct:")[2]


def wait_for_both_updates(pi: Pi) -> None:
    """The broken one is rolled back, then the next one is tried."""
    wait_until(lambda: pi.count_in_console("yamamori: slot b (trial)") == 1, BOOT_S)
    wait_until(lambda: pi.count_in_console("slot b is given up"), BOOT_S)
    wait_until(lambda: pi.count_in_console("yamamori: slot a (good)") == 3, BOOT_S)
    wait_until(lambda: pi.count_in_console("yamamori: slot b (trial)") == 2, BOOT_S)


def step_clock_during_trial(backbone: Backbone, pi: Pi) -> None:
    """The counter continues; packs are marked as synchronised by a time server."""
    received = len(backbone.packs())
    wait_until(lambda: len(backbone.packs()) > received, BOOT_S)
    seen = backbone.count()
    assert seen >= 4
    server = TimeServer()
    server.start()
    pi.tip(2)
    wait_until(lambda: backbone.count() == seen + 2, 120)
    wait_until(lambda: backbone.packs()[-1].synchronised, 300)
    server.close()
    assert abs(backbone.packs()[-1].time_s - time.time()) < 60
    wait_until(lambda: pi.count_in_console("slot b is good"), BOOT_S)


def check_watchdog_reset(pi: Pi) -> None:
    """The hardware watchdog resets a hung kernel, which boots the kept version."""
    starts = pi.count_in_console("yamamori: slot b (good)")
    pi.on("panic=0", "sysrq_always_enabled", "loglevel=7", has_watchdog=True)
    wait_until(
        lambda: pi.count_in_console("Watchdog running with a hardware timeout"), BOOT_S
    )
    assert pi.count_in_console("yamamori: slot b (good)") == starts + 1
    pi.hang()
    wait_until(lambda: pi.count_in_console("Kernel panic - not syncing: sysrq"), 60)
    wait_until(
        lambda: pi.count_in_console("yamamori: slot b (good)") == starts + 2, 180
    )


def urgent_in(queue: Path) -> set[int]:
    """Sequence numbers of the messages of priority 4 and 5 in a queue file."""
    query = "SELECT origin_seq FROM message WHERE priority >= ?"
    with contextlib.closing(sqlite3.connect(queue)) as db:
        return {seq for (seq,) in db.execute(query, (URGENT_FROM,))}
