"""Decoding of JSON and MessagePack into msgspec types, in any thread.

msgspec collects what it knows of a type at its first use. When two threads use a new
type at the same time, one finds the half-built information and the process ends with
SIGSEGV (0.22.0; seen when three Managers answered a gateway at once). Here the first
use of each type is under a lock.
"""

import threading
from functools import cache
from typing import Any, Final, TypeVar

import msgspec

T = TypeVar("T")

DECODE_ERRORS: Final = (msgspec.MsgspecError, ValueError, RecursionError)
"""What the functions here raise: of another form, not UTF-8, or nested too deeply."""

_LOCK = threading.Lock()


@cache
def _json_decoder(form: Any) -> msgspec.json.Decoder[Any]:  # noqa: ANN401 - any type
    with _LOCK:
        return msgspec.json.Decoder(form)


@cache
def _msgpack_decoder(form: Any) -> msgspec.msgpack.Decoder[Any]:  # noqa: ANN401
    with _LOCK:
        return msgspec.msgpack.Decoder(form)


def decode_json(payload: bytes | str, form: type[T]) -> T:
    """Decode JSON into a type.

    Raises:
        DECODE_ERRORS: It is no JSON of that type, or nested too deeply.
    """
    decoded: T = _json_decoder(form).decode(payload)  # type: ignore[arg-type]
    return decoded


def decode_msgpack(payload: bytes | msgspec.Raw, form: type[T]) -> T:
    """Decode MessagePack into a type.

    Raises:
        DECODE_ERRORS: It is no MessagePack of that type, or nested too deeply.
    """
    decoded: T = _msgpack_decoder(form).decode(payload)  # type: ignore[arg-type]
    return decoded


def convert(value: object, form: Any) -> Any:  # noqa: ANN401 - also a union of types
    """Convert a decoded value into a type.

    Raises:
        msgspec.ValidationError: It has another form.
    """
    _json_decoder(form)  # the first use of the type
    return msgspec.convert(value, form)  # noqa: TID251 - under the lock before
