"""Crash guard: a message that ended the program twice is put aside as a dead letter.

Before a consumer decodes a message, it writes the message into a slot, a file of fixed
size in memory (mmap), and clears the slot afterwards. The kernel keeps the slot when
the process is killed. A slot that is set at the start of the program names the message
that was being decoded when the program ended. The second time in a row the message is
not decoded again: its bytes are written to the folder of dead letters.

In the slot is a copy of the message, which takes less time than its digest; of a large
one, and while messages are suspected or put aside, it is the digest.

One handling without a crash clears the message. The slot is set for the microseconds of
decoding only, so that two kills by an operator hardly ever hit the same message. A
power cut is no fault of a message: the slot of an earlier boot of the machine is
ignored, and nothing is fsynced per message.
"""

import base64
import json
import logging
import mmap
import os
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final, ParamSpec, Self, TypeVar

from service_runtime.files import make_folder, write_atomic

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

KERNEL_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
CRASHES: Final = 2
"""Crashes in a row after which a message is put aside."""

MAX_SUSPECTS: Final = 128

_FILE_BYTES: Final = 4096
_MAGIC: Final = b"yamguard"
_DIGEST_BYTES: Final = 16
_BOOT: Final = slice(8, 24)
_STATE: Final = 24
_COPY_LENGTH: Final = slice(26, 28)
"""0 if the slot has the digest."""

_DIGEST: Final = slice(32, 32 + _DIGEST_BYTES)
_SUSPECTS_AT: Final = 64
_SUSPECT_BYTES: Final = _DIGEST_BYTES + 1
_COPY_AT: Final = _SUSPECTS_AT + MAX_SUSPECTS * _SUSPECT_BYTES
_COPY_BYTES: Final = _FILE_BYTES - _COPY_AT

_HEX: Final = re.compile(f"[0-9a-f]{{{2 * _DIGEST_BYTES}}}")

_IDLE, _MESSAGE, _GROUP, _MESSAGE_OF_GROUP = range(4)
"""States of the slot; a group is handled as a whole, without a slot per message."""


@dataclass(frozen=True)
class DeadLetters:
    """Folder of the messages that were put aside, one file each; never deleted here.

    A program decodes a message again after its file was removed and it was restarted.

    Attributes:
        folder: The folder; made when the first message is put aside.
    """

    folder: Path

    def digests(self) -> set[bytes]:
        """Digests of the messages."""
        names = (path.stem for path in self.folder.glob("*.json"))
        return {bytes.fromhex(name) for name in names if _HEX.fullmatch(name)}

    def keep(self, digest: bytes, topic: str, payload: bytes) -> bool:
        """Write a message to the folder, once; returns whether it is there.

        A full disk is logged. A sender whose message got no receipt still has it.
        """
        path = self.folder / f"{digest.hex()}.json"
        if path.exists():
            return True
        encoded = base64.b64encode(payload).decode()
        text = json.dumps({"topic": topic, "payload": encoded})
        try:
            make_folder(self.folder)
            write_atomic(path, text.encode())
        except OSError as error:
            log.error("cannot write %s: %s", path, error)  # noqa: TRY400 - no bug
            return False
        log.error(
            "a message on %.80r (%d bytes) ended this program %d times and is put "
            "aside in %s",
            topic,
            len(payload),
            CRASHES,
            path,
        )
        return True


class CrashGuard:
    """Slot of one consumer of messages, for one thread.

    Before `open` it protects nothing: a process that waits for the lock of its data
    folder must not touch the slot of the one that holds it.

    Args:
        path: File of the slot; `open` makes its folder.
        letters: Where messages are put aside.
        boot: Id of the machine's boot, from `KERNEL_BOOT_ID`.

    Attributes:
        is_cautious: Whether the program ended while it handled a group; its messages
            are to be tried one by one.
        put_aside: Messages put aside since the start, repetitions included.
    """

    def __init__(self, path: Path, letters: DeadLetters, boot: str) -> None:
        self._path = path
        self._letters = letters
        self._boot = _digest_of(boot.encode())
        self._suspects: OrderedDict[bytes, int] = OrderedDict()
        self._refused: set[bytes] = set()
        self.is_cautious = False
        self.put_aside = 0
        self._slot = mmap.mmap(-1, _FILE_BYTES)
        self._digest = b""

    def open(self) -> Self:
        """Read what the last process left in the file, and use it from now on."""
        self._slot = _open_slot(self._path)
        self._recover()
        return self

    def begin(self, topic: str, payload: bytes) -> bool:
        """Mark a message as being decoded.

        Returns:
            Whether to decode it; False: it is put aside, and `end` is not called.
        """
        content = payload + b"\0" + topic.encode(errors="replace")
        length = len(content)
        if length <= _COPY_BYTES and not self._refused and not self._suspects:
            self._slot[_COPY_AT : _COPY_AT + length] = content
            self._slot[_COPY_LENGTH] = length.to_bytes(2)
        else:
            self._digest = _digest_of(content)
            if self._digest in self._refused:
                self._put_aside(topic, payload)
                return False
            self._slot[_DIGEST] = self._digest
            self._slot[_COPY_LENGTH] = bytes(2)
        self._slot[_STATE] = _MESSAGE_OF_GROUP if self.is_cautious else _MESSAGE
        return True

    def end(self) -> None:
        """The message was decoded, or refused, without a crash."""
        self._slot[_STATE] = _IDLE
        if self._suspects and self._suspects.pop(self._digest, None) is not None:
            self._write_suspects()

    def decode(
        self,
        topic: str,
        payload: bytes,
        decode: Callable[P, T],
        *args: P.args,
        **options: P.kwargs,
    ) -> T | None:
        """Decode a message between `begin` and `end`; None if it is put aside."""
        if not self.begin(topic, payload):
            return None
        decoded = decode(*args, **options)
        self.end()
        return decoded

    def begin_group(self) -> None:
        """Mark a group of messages as being handled together."""
        self._slot[_STATE] = _GROUP

    def end_group(self) -> None:
        """The group was handled without a crash."""
        self._slot[_STATE] = _IDLE
        self.is_cautious = False

    def has_refused(self) -> bool:
        """Whether any message is put aside."""
        return bool(self._refused)

    def close(self) -> None:
        """Close the file."""
        self._slot.close()

    def _put_aside(self, topic: str, payload: bytes) -> None:
        self.put_aside += 1
        # From then on its file says that it is refused.
        if self._letters.keep(self._digest, topic, payload) and (
            self._suspects.pop(self._digest, None) is not None
        ):
            self._write_suspects()

    def _recover(self) -> None:
        """Read what an earlier process left, and begin with an empty slot."""
        slot = self._slot
        if slot[:8] == _MAGIC:
            self._read_suspects()
            if slot[_BOOT] == self._boot:
                self._blame(slot[_STATE])
        slot[:8] = _MAGIC
        slot[_BOOT] = self._boot
        slot[_STATE] = _IDLE
        self._write_suspects()
        self._refused = self._letters.digests()
        self._refused |= {d for d, n in self._suspects.items() if n >= CRASHES}

    def _blame(self, state: int) -> None:
        self.is_cautious = state in {_GROUP, _MESSAGE_OF_GROUP}
        if state not in {_MESSAGE, _MESSAGE_OF_GROUP}:
            return
        digest = self._slot[_DIGEST]
        if length := int.from_bytes(self._slot[_COPY_LENGTH]):
            digest = _digest_of(self._slot[_COPY_AT : _COPY_AT + length])
        # The crash of its group was the first one.
        crashes = CRASHES if state == _MESSAGE_OF_GROUP else 1
        crashes += self._suspects.pop(digest, 0)
        self._suspects[digest] = min(crashes, CRASHES)
        log.warning(
            "%s: the program ended while it decoded message %s (%d of %d times)",
            self._path,
            digest.hex(),
            self._suspects[digest],
            CRASHES,
        )
        while len(self._suspects) > MAX_SUSPECTS:
            self._suspects.popitem(last=False)

    def _read_suspects(self) -> None:
        for number in range(MAX_SUSPECTS):
            at = _SUSPECTS_AT + number * _SUSPECT_BYTES
            *digest, crashes = self._slot[at : at + _SUSPECT_BYTES]
            if crashes:
                self._suspects[bytes(digest)] = crashes

    def _write_suspects(self) -> None:
        rows = b"".join(d + bytes((n,)) for d, n in self._suspects.items())
        table = rows.ljust(MAX_SUSPECTS * _SUSPECT_BYTES, b"\0")
        self._slot[_SUSPECTS_AT : _SUSPECTS_AT + len(table)] = table


def make_crash_guard(data: Path, consumer: str) -> CrashGuard:
    """The guard of a consumer of a program, in the program's data folder; not open.

    Args:
        data: Folder of the program's state.
        consumer: Name of the consumer, unique in the folder.
    """
    return CrashGuard(
        data / "crash-guard" / consumer,
        DeadLetters(data / "dead-letters"),
        KERNEL_BOOT_ID.read_text(encoding="ascii").strip(),
    )


def _open_slot(path: Path) -> mmap.mmap:
    """Map the file, or only memory when it cannot be made: alarms must go on."""
    try:
        return _map_file(path)
    except OSError as error:
        log.error("%s cannot be made, no message is put aside: %s", path, error)  # noqa: TRY400 - no bug
        return mmap.mmap(-1, _FILE_BYTES)


def _map_file(path: Path) -> mmap.mmap:
    """Map the file, which has all its blocks, and of which each can be read.

    Else a full disk or a read error would end the process by a signal.
    """
    make_folder(path.parent)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if len(os.pread(descriptor, _FILE_BYTES + 1, 0)) != _FILE_BYTES:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, bytes(_FILE_BYTES), 0)
            os.fsync(descriptor)
        return mmap.mmap(descriptor, _FILE_BYTES)
    finally:
        os.close(descriptor)


def _digest_of(content: bytes) -> bytes:
    # Not a checksum: a sender could give its message the checksum of another's.
    return blake2b(content, digest_size=_DIGEST_BYTES).digest()
