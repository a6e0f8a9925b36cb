"""Decoding into msgspec types."""

import subprocess
import sys

import msgspec
import pytest

from service_runtime.decoding import decode_json, decode_msgpack

RACE = """
import sys, threading
from msgspec import json, msgpack
from service_runtime.decoding import decode_json, decode_msgpack

TYPES = '''
from msgspec import Struct
class Address(Struct):
    host: str
    port: int
class Entry(Struct):
    topic: str
    address: Address
    more: dict[str, Address] = {}
class Table(Struct):
    version: int
    entries: list[Entry]
    others: tuple[Address, ...] = ()
'''
sys.setswitchinterval(1e-6)
address = {"host": "a", "port": 1}
value = {"version": 1, "entries": [{"topic": "/", "address": address}]}
pairs = (
    (json.encode(value), decode_json),
    (msgpack.encode(value), decode_msgpack),
)
for number in range(100):
    scope = {}
    exec(TYPES, scope)
    start = threading.Barrier(8)

    def decode(form, text, decoder):
        start.wait()
        decoder(text, form)

    text, decoder = pairs[number % 2]
    form = scope["Table"]
    threads = [
        threading.Thread(target=decode, args=(form, text, decoder)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print("done")
"""


class Reading(msgspec.Struct):
    """A type with a field."""

    value: float


def test_types_are_decoded() -> None:
    """Values and lists, from JSON in bytes or text, and from MessagePack."""
    assert decode_json(b'{"value": 1}', Reading) == Reading(1.0)
    assert decode_json('[{"value": 1}]', list[Reading]) == [Reading(1.0)]
    assert decode_msgpack(msgspec.msgpack.encode(Reading(2.0)), Reading).value == 2.0


def test_other_types_are_rejected() -> None:
    """The error is msgspec's."""
    with pytest.raises(msgspec.ValidationError, match="float"):
        decode_json(b'{"value": "x"}', Reading)


def test_first_use_in_many_threads_ends_no_process() -> None:
    """Msgspec itself ends with SIGSEGV, once in seven times."""
    done = subprocess.run(
        [sys.executable, "-c", RACE], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr[-500:]
