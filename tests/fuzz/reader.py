"""One reader of what comes from outside, and how it is fed."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import cbor2

MEMORY = Path("/dev/shm")  # noqa: S108 - the folder itself is made safely
FOLDER = TemporaryDirectory(prefix="fuzz-", dir=MEMORY if MEMORY.exists() else None)
"""For readers that want a file; it goes with the process."""


@dataclass(frozen=True)
class Reader:
    """One reader.

    Attributes:
        name: For people.
        read: Reads some bytes.
        refuses: What it may raise; anything else would end a daemon.
        seeds: What it is meant for.
        is_remote: Whether it comes over a network, and not from a file or a wire here.
    """

    name: str
    read: Callable[[bytes], object]
    refuses: tuple[type[Exception], ...]
    seeds: tuple[bytes, ...]
    is_remote: bool = True


def of_json(*told: object) -> tuple[bytes, ...]:
    return tuple(json.dumps(each).encode() for each in told)


def of_cbor(*told: object) -> tuple[bytes, ...]:
    return tuple(cbor2.dumps(each) for each in told)


def text(read_text: Callable[[str], object]) -> Callable[[bytes], object]:
    """A reader of text: MQTT and files give it decoded, whatever it is."""
    return lambda data: read_text(data.decode(errors="replace"))


def file(read_file: Callable[[Path], object], name: str) -> Callable[[bytes], object]:
    """A reader of a file: there is one of that name, with these bytes."""
    path = Path(FOLDER.name) / name

    def read(data: bytes) -> object:
        path.write_bytes(data)
        return read_file(path)

    return read
