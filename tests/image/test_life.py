"""One node from its first start on, through what happens on a mountain.

Each start takes most of a minute, so that each one answers several questions: a wrong
file on a fresh card, a power cut with urgent messages waiting, a broken update, a good
one with a clock that jumps, and a kernel that hangs.
"""

import contextlib
import sqlite3
import subprocess
import time
from pathlib import Path

import pytest
from conftest import wait_until
from image.conftest import BOOT_S, Slope
from image.forms import note, only_long
from image.office import Office, TimeServer
from image.settings import node
from image.vm import Pi, built

from image.bundle import about, make

pytestmark = [pytest.mark.system, pytest.mark.broker, pytest.mark.image, only_long]

URGENT_FROM = 4
WRONG = '[[sensor]]\r\nkind = "wire"\r\nname = "span"\r\npin = 99\r\n'


def test_a_node_comes_through(slope: Slope) -> None:
    """What was promised arrives, what is broken is undone, what works stays."""
    office, pi, card = slope.office, slope.pi, slope.card
    updates(slope)
    slope.configure(node(office.node_url) + WRONG)
    safe_mode_until_the_plug_is_pulled(office, pi)
    assert_refused(card.read("node-report.txt"))
    assert card.data_bytes() > 1 << 30
    promised = urgent_in(card.state("/var/lib/yamamori/queue.db", slope.folder))
    before = office.archived()
    assert promised - before.keys(), "urgent messages waited when the power went"

    slope.configure(node(office.node_url))
    for name in ("broken.update", "working.update"):
        card.put(slope.folder / name, name)
    office.brokers["local"].start()
    pi.on()
    wait_until(lambda: promised <= office.archived().keys(), BOOT_S)
    both_updates_are_tried(pi)
    the_clock_jumps_while_the_good_one_is_on_trial(office, pi)
    assert max(office.archived()) > max(*before, *promised)
    assert office.duplicates() == 0, "no number is used twice"
    pi.pull_the_plug()
    assert "RESULT: TAKEN" in card.read("node-report.txt")
    told = card.read("update-report.txt")
    assert "given up: edge-agent is failed" in told
    assert "RESULT: ON TRIAL" in told

    a_hung_kernel_is_reset(pi)


def updates(slope: Slope) -> None:
    """Two bundles: one whose agent refuses its settings, and the image's own."""
    image = built("node")
    root = slope.folder / "root"
    unpack = ["unsquashfs", "-q", "-n", "-d", root, image / "root.squashfs"]
    subprocess.run(unpack, check=True, stdout=subprocess.DEVNULL)
    (root / "usr/bin/edge-agent").write_text("#!/bin/sh\nexit 78\n")
    packed = slope.folder / "broken.squashfs"
    quick = "-noappend -quiet -no-progress -comp zstd -Xcompression-level 1"
    subprocess.run(["mksquashfs", root, packed, *quick.split()], check=True)
    facts = about(root / "etc/yamamori-image")
    key = image.parent / "keys/update.key"
    make(packed, facts, key, slope.folder / "broken.update")
    working = slope.folder / "working.update"
    working.symlink_to(image / "yamamori-node.update")


def safe_mode_until_the_plug_is_pulled(office: Office, pi: Pi) -> None:
    """One sensor is wrong: the other measures, and the mistake is told, too."""
    pi.on()
    wait_until(office.archived, BOOT_S)
    note(power_on_to_archive_s=pi.age_s(), power_on_to_archive_cpu_s=pi.cpu_s())
    wait_until(lambda: "config/health" in office.names(), BOOT_S)
    pi.tip(3)
    wait_until(lambda: office.count() == 3, 120)
    assert not office.packs()[0].synchronised
    office.brokers["local"].kill()
    pi.tip(4)
    time.sleep(8)
    pi.pull_the_plug()


def assert_refused(report: str) -> None:
    """The installer reads what is to be corrected."""
    assert "RESULT: REFUSED" in report
    assert "active now: safe mode" in report
    assert "pin" in report.partition("to correct:")[2]


def both_updates_are_tried(pi: Pi) -> None:
    """The broken one is given up for the version before, the next one is taken."""
    wait_until(lambda: pi.said("yamamori: slot b (trial)") == 1, BOOT_S)
    wait_until(lambda: pi.said("slot b is given up"), BOOT_S)
    wait_until(lambda: pi.said("yamamori: slot a (good)") == 3, BOOT_S)
    wait_until(lambda: pi.said("yamamori: slot b (trial)") == 2, BOOT_S)


def the_clock_jumps_while_the_good_one_is_on_trial(office: Office, pi: Pi) -> None:
    """The counter goes on through it all; a time server appears, and packs say so."""
    heard = len(office.packs())
    wait_until(lambda: len(office.packs()) > heard, BOOT_S)
    seen = office.count()
    assert seen >= 4
    server = TimeServer()
    server.start()
    pi.tip(2)
    wait_until(lambda: office.count() == seen + 2, 120)
    wait_until(lambda: office.packs()[-1].synchronised, 300)
    server.close()
    assert abs(office.packs()[-1].time_s - time.time()) < 60
    wait_until(lambda: pi.said("slot b is good"), BOOT_S)


def a_hung_kernel_is_reset(pi: Pi) -> None:
    """A crashed kernel that does not restart by itself is, in the version kept."""
    starts = pi.said("yamamori: slot b (good)")
    pi.on("panic=0", "sysrq_always_enabled", "loglevel=7", has_watchdog=True)
    wait_until(lambda: pi.said("Watchdog running with a hardware timeout"), BOOT_S)
    assert pi.said("yamamori: slot b (good)") == starts + 1
    pi.hang()
    wait_until(lambda: pi.said("Kernel panic - not syncing: sysrq"), 60)
    wait_until(lambda: pi.said("yamamori: slot b (good)") == starts + 2, 180)


def urgent_in(queue: Path) -> set[int]:
    """Numbers of the messages of priority 4 and 5 in a queue's file."""
    query = "SELECT origin_seq FROM message WHERE priority >= ?"
    with contextlib.closing(sqlite3.connect(queue)) as db:
        return {seq for (seq,) in db.execute(query, (URGENT_FROM,))}
