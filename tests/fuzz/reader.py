"""A reader of external input, and its inputs."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import cbor2

MEMORY = Path("/dev/shm")  # noqa: S108 - the folder itself is made safely
FOLDER = TemporaryDirectory(prefix="fuzz-", dir=MEMORY if MEMORY.exists() else None)
"""For readers that need a file; removed when the process ends."""


@dataclass(frozen=True)
class Reader:
    """A reader of external input.

    Attributes:
        name: Id of the test case.
        read: Reads bytes.
        refuses: Exceptions that it may raise; any other would end a daemon.
        seeds: Valid inputs.
        is_remote: Whether the input comes over a network, not from a file or a bus.
    """

    name: str
    read: Callable[[bytes], object]
    refuses: tuple[type[Exception], ...]
    seeds: tuple[bytes, ...]
    is_remote: bool = True


def of_json(*values: object) -> tuple[bytes, ...]:
    return tuple(json.dumps(each).encode() for each in values)


def of_cbor(*values: object) -> tuple[bytes, ...]:
    return tuple(cbor2.dumps(each) for each in values)


def text(read_text: Callable[[str], object]) -> Callable[[bytes], object]:
    """A reader of text, with invalid bytes replaced as for MQTT and files."""
    return lambda data: read_text(data.decode(errors="replace"))


def file(read_file: Callable[[Path], object], name: str) -> Callable[[bytes], object]:
    """A reader of a file with that name and these bytes."""
    path = Path(FOLDER.name) / name

    def read(data: bytes) -> object:
        path.write_bytes(data)
        return read_file(path)

    return read
