"""The image from power-on to the archive, and through what happens on a mountain."""

import contextlib
import sqlite3
import time
from pathlib import Path

import pytest
from conftest import wait_until
from image.conftest import Slope
from image.forms import is_long, note, only_long
from image.office import Office, TimeServer
from image.settings import node
from image.vm import Pi

pytestmark = [pytest.mark.system, pytest.mark.broker, pytest.mark.image]

BOOT_S = 900.0
"""What a busy machine may take; `make image-test` holds the bar of 90 s."""
URGENT_FROM = 4


@pytest.mark.skipif(is_long(), reason="the long form begins with the same")
def test_flash_power_done(slope: Slope) -> None:
    """From a fresh card to tips in the archive, with the settings of the card."""
    slope.pi.on()
    wait_until(slope.office.archived, BOOT_S)
    note(power_on_to_archive_cpu_s=slope.pi.cpu_s())
    slope.pi.tip(3)
    wait_until(lambda: slope.office.count() == 3, 120)
    assert max(slope.office.archived().values()) == 5


@only_long
def test_nothing_promised_is_lost(slope: Slope) -> None:
    """Clock in the past, then a power cut with urgent messages waiting.

    The card's queue is read as the power cut left it: what priority 4 and 5 it holds
    comes out of the archive after the next start, and counter and numbers go on.
    """
    office, pi = slope.office, slope.pi
    first_life(office, pi)
    promised = urgent_in(slope.card.state("/var/lib/yamamori/queue.db", slope.folder))
    before = office.archived()
    report = slope.card.read("node-report.txt")
    assert "RESULT: TAKEN" in report
    assert "active now: kochi-0001" in report
    assert slope.card.data_bytes() > 1 << 30
    assert promised - before.keys(), "urgent messages waited when the power went"

    office.brokers["local"].start()
    pi.on()
    second_life(office, pi, promised)
    assert max(office.archived()) > max(*before, *promised)
    assert office.duplicates() == 0, "no number is used twice"


@only_long
def test_hardware_watchdog_restarts_a_kernel_that_hangs(slope: Slope) -> None:
    """A crashed kernel that does not restart by itself is reset."""
    slope.pi.on("panic=0", "sysrq_always_enabled", has_watchdog=True)
    wait_until(lambda: slope.pi.said("Starting edge-agent.service"), BOOT_S)
    starts = slope.pi.said("yamamori: slot a (good)")
    slope.pi.hang()
    wait_until(lambda: slope.pi.said("Kernel panic - not syncing: sysrq"), 60)

    wait_until(lambda: slope.pi.said("yamamori: slot a (good)") > starts, 180)


def first_life(office: Office, pi: Pi) -> None:
    """Until the plug is pulled while tips wait for a gateway."""
    pi.on()
    wait_until(office.archived, BOOT_S)
    note(power_on_to_archive_s=pi.age_s(), power_on_to_archive_cpu_s=pi.cpu_s())
    pi.tip(3)
    wait_until(lambda: office.count() == 3, 120)
    assert not office.packs()[0].synchronised
    time_jumps(office)
    office.brokers["local"].kill()
    pi.tip(4)
    time.sleep(8)
    pi.pull_the_plug()


def second_life(office: Office, pi: Pi, promised: set[int]) -> None:
    """Everything promised comes, and the counter goes on."""
    wait_until(lambda: promised <= office.archived().keys(), BOOT_S)
    seen = office.count()
    assert seen >= 4
    pi.tip(2)
    wait_until(lambda: office.count() == seen + 2, 120)


def time_jumps(office: Office) -> None:
    """A time server appears; the clock jumps, and the readings say so."""
    server = TimeServer()
    server.start()
    wait_until(lambda: office.packs()[-1].synchronised, 300)
    server.close()
    assert abs(office.packs()[-1].time_s - time.time()) < 60


def urgent_in(queue: Path) -> set[int]:
    """Numbers of the messages of priority 4 and 5 in a queue's file."""
    query = "SELECT origin_seq FROM message WHERE priority >= ?"
    with contextlib.closing(sqlite3.connect(queue)) as db:
        return {seq for (seq,) in db.execute(query, (URGENT_FROM,))}


@only_long
def test_wrong_file_is_reported_on_the_card_and_the_node_is_heard(
    slope: Slope,
) -> None:
    """One sensor is wrong: the other measures, and the mistake is told on both ways."""
    wrong = '[[sensor]]\r\nkind = "wire"\r\nname = "span"\r\npin = 99\r\n'
    slope.configure(node(slope.office.node_url) + wrong)
    slope.pi.on()
    wait_until(lambda: "config/health" in slope.office.names(), BOOT_S)
    slope.pi.tip(1)
    wait_until(lambda: slope.office.count() == 1, 120)
    slope.pi.pull_the_plug()
    report = slope.card.read("node-report.txt")

    assert "RESULT: REFUSED" in report
    assert "active now: safe mode" in report
    assert "pin" in report.partition("to correct:")[2]
