"""A message that ended the program twice is put aside; every other one is decoded."""

import base64
import errno
import json
import os
import signal
import subprocess
import sys
import time
from hashlib import blake2b
from pathlib import Path

import pytest

from service_runtime.crash_guard import CrashGuard, DeadLetters

TOPIC = "/3/1"
POISON, PLAIN = b"poison", b"plain"


def guard(folder: Path, boot: str = "boot-1") -> CrashGuard:
    return CrashGuard(folder / "slot", DeadLetters(folder / "letters"), boot).open()


def crash(folder: Path, payload: bytes = POISON, boot: str = "boot-1") -> None:
    """The program ends while it decodes a message."""
    with_slot = guard(folder, boot)
    assert with_slot.begin(TOPIC, payload)


def test_message_is_put_aside_after_two_crashes_in_a_row(tmp_path: Path) -> None:
    """Its bytes are kept, once, however often it is delivered."""
    crash(tmp_path)
    crash(tmp_path)
    restarted = guard(tmp_path)
    assert not restarted.begin(TOPIC, POISON)
    assert not restarted.begin(TOPIC, POISON)
    assert restarted.begin(TOPIC, PLAIN)

    (letter,) = (tmp_path / "letters").iterdir()
    stored = json.loads(letter.read_text())
    assert base64.b64decode(stored["payload"]) == POISON
    assert stored["topic"] == TOPIC
    assert restarted.put_aside == 2


@pytest.mark.parametrize("length", range(1775, 1830))
def test_message_of_any_size_is_put_aside(tmp_path: Path, length: int) -> None:
    """Up to some 1,800 bytes the slot has a copy of the message, above its digest."""
    poison, like_it = bytes(length), bytes(length - 1) + b"\1"
    crash(tmp_path, poison)
    crash(tmp_path, poison)
    restarted = guard(tmp_path)
    assert not restarted.begin(TOPIC, poison)
    assert restarted.begin(TOPIC, like_it)


def test_copy_in_the_slot_is_of_the_last_message_only(tmp_path: Path) -> None:
    """A longer message that was decoded before leaves bytes behind it."""
    for _ in range(2):
        busy = guard(tmp_path)
        assert busy.begin(TOPIC, bytes(500))
        busy.end()
        crash(tmp_path)
    restarted = guard(tmp_path)
    assert not restarted.begin(TOPIC, POISON)
    assert restarted.begin(TOPIC, bytes(500))


def test_slot_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """It had the digest of each message, small ones too: here of the first crash."""
    digests = [
        blake2b(content, digest_size=16).digest()
        for content in (b"boot-1", POISON + b"\0" + TOPIC.encode())
    ]
    slot = b"yamguard" + digests[0] + b"\1" + bytes(7) + digests[1]
    (tmp_path / "slot").write_bytes(slot.ljust(4096, b"\0"))
    crash(tmp_path)
    assert not guard(tmp_path).begin(TOPIC, POISON)


def test_dead_letter_is_recognised_after_further_starts(tmp_path: Path) -> None:
    """The file remembers the message; it does not get two crashes per start."""
    crash(tmp_path)
    crash(tmp_path)
    for _ in range(3):
        assert not guard(tmp_path).begin(TOPIC, POISON)


def test_message_is_decoded_again_after_its_file_was_removed(tmp_path: Path) -> None:
    """As an operator does after an update of the decoder."""
    crash(tmp_path)
    crash(tmp_path)
    assert not guard(tmp_path).begin(TOPIC, POISON)
    (letter,) = (tmp_path / "letters").iterdir()
    letter.unlink()
    assert guard(tmp_path).begin(TOPIC, POISON)


def test_one_handling_without_a_crash_clears_a_message(tmp_path: Path) -> None:
    """Kills that hit an innocent message now and then never put it aside."""
    for _ in range(3):
        crash(tmp_path)
        survived = guard(tmp_path)
        assert survived.begin(TOPIC, POISON)
        survived.end()


def test_crashes_at_different_messages_put_none_aside(tmp_path: Path) -> None:
    """A program that dies of something else blames each message once."""
    for n in range(10):
        crash(tmp_path, b"message %d" % n)
    restarted = guard(tmp_path)
    assert all(restarted.begin(TOPIC, b"message %d" % n) for n in range(10))


def test_same_payload_on_another_topic_is_another_message(tmp_path: Path) -> None:
    """Only what the program died of is put aside."""
    crash(tmp_path)
    crash(tmp_path)
    assert guard(tmp_path).begin("/3/2", POISON)


def test_slot_of_an_earlier_boot_is_ignored(tmp_path: Path) -> None:
    """Power cuts are no fault of a message, however many hit the same one."""
    for n in range(5):
        crash(tmp_path, boot=f"boot-{n}")
    assert guard(tmp_path, "boot-9").begin(TOPIC, POISON)


def test_group_makes_the_next_start_cautious_until_it_succeeds(tmp_path: Path) -> None:
    """The crash of the group is the first one of the message that caused it."""
    guard(tmp_path).begin_group()
    cautious = guard(tmp_path)
    assert cautious.is_cautious
    assert cautious.begin(TOPIC, POISON)
    again = guard(tmp_path)
    assert again.is_cautious
    assert not again.begin(TOPIC, POISON)
    again.begin_group()
    again.end_group()
    assert not again.is_cautious
    assert not guard(tmp_path).is_cautious


def test_slot_survives_kill(tmp_path: Path) -> None:
    """A process that is really killed leaves its slot to the next one."""
    script = (
        "import sys, os, signal; from pathlib import Path\n"
        "from service_runtime.crash_guard import CrashGuard, DeadLetters\n"
        "f = Path(sys.argv[1])\n"
        "g = CrashGuard(f / 'slot', DeadLetters(f / 'letters'), 'boot-1').open()\n"
        f"g.begin({TOPIC!r}, {POISON!r})\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path)], check=False
        )
        assert done.returncode == -signal.SIGKILL
    assert not guard(tmp_path).begin(TOPIC, POISON)


@pytest.mark.parametrize("content", [b"", b"x" * 17, b"yamguard", b"\xff" * 4096])
def test_damaged_file_does_not_stop_the_program(tmp_path: Path, content: bytes) -> None:
    """It is written anew, and works."""
    (tmp_path / "slot").write_bytes(content)
    assert guard(tmp_path).begin(TOPIC, PLAIN)
    crash(tmp_path)
    crash(tmp_path)
    assert not guard(tmp_path).begin(TOPIC, POISON)


def test_folder_that_cannot_be_made_does_not_stop_the_program(tmp_path: Path) -> None:
    """As on a full disk at the first start: alarms go on without the guard."""
    (tmp_path / "file").write_text("no folder")
    assert guard(tmp_path / "file").begin(TOPIC, PLAIN)


def test_process_that_waits_for_its_turn_does_not_touch_the_slot(
    tmp_path: Path,
) -> None:
    """A standby must neither clear nor blame what the active process decodes."""
    active = guard(tmp_path)
    active.begin(TOPIC, POISON)
    standby = CrashGuard(tmp_path / "slot", DeadLetters(tmp_path / "letters"), "boot-1")
    assert standby.begin(TOPIC, PLAIN)
    crash(tmp_path)
    assert not standby.open().begin(TOPIC, POISON)


def test_suspects_are_bounded(tmp_path: Path) -> None:
    """The file keeps its size; the latest messages are remembered."""
    size_bytes = None
    for n in range(200):
        crash(tmp_path, b"message %d" % n)
        size_bytes = size_bytes or (tmp_path / "slot").stat().st_size
    assert (tmp_path / "slot").stat().st_size == size_bytes
    crash(tmp_path, b"message 199")
    assert not guard(tmp_path).begin(TOPIC, b"message 199")


def test_guard_costs_microseconds_per_message(tmp_path: Path) -> None:
    """In CPU time, with room for a slow machine; about 3 us on the build machine."""
    busy = guard(tmp_path)
    payload = os.urandom(300)
    began_s = time.thread_time()
    for _ in range(10_000):
        busy.begin(TOPIC, payload)
        busy.end()
    assert time.thread_time() - began_s < 10_000 * 50e-6


def test_slot_on_a_bad_block_is_not_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first access to its map would end the program by SIGBUS, at each start."""
    guard(tmp_path).close()

    def fail(*_: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pread", fail)
    assert guard(tmp_path).begin(TOPIC, PLAIN)
    assert "no message is put aside: [Errno 5]" in caplog.text
