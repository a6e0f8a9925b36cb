"""What our packs look like, for the deflater: a small pack shrinks to half.

Both ends must have the very same bytes. They belong to the content type ``parcel``:
other bytes need another name.
"""

from typing import Final


def _text(words: str) -> bytes:
    """A short text as CBOR writes it."""
    return bytes([0x60 + len(words)]) + words.encode()


_UNITS: Final = ("V", "Cel", "%RH", "hPa", "count", "/", "m", "mm", "deg")
_NAMES: Final = (
    "gnss/moved", "node/cpu", "node/disk", "node/memory", "node/uptime", "battery",
    "air/temp", "air/humidity", "air/pressure", "span/health", "level", "vibration",
    "extensometer", "piezometer", "tilt/temp", "tilt/sigma", "tilt/y", "tilt/x",
    "moisture", "soil", "wire", "span", "rain",
)  # fmt: skip
_REASONS: Final = (
    "is cut: a flow may have occurred, unconfirmed", " deg/h >= 0.01", " tilts 0.0",
    "special-warning criterion ", "critical line at ", "warning criterion ",
    "advisory criterion ", " mm (assumed criteria)", "soil water index ",
    " (a while ago)", "ok",
)  # fmt: skip

# A reading: a map of name (0), unit (1) and value (2), a double, or of a sum (5) too.
_READINGS: Final = b"".join(
    b"\xa3\x00" + _text(name) + b"\x01" + _text(unit) + b"\x02\xfb\x3f"
    for name, unit in (
        ("air/temp", "Cel"), ("battery", "V"), ("level", "m"), ("soil", "/"),
        ("tilt/temp", "Cel"), ("tilt/sigma", "deg"), ("tilt/y", "deg"),
        ("tilt/x", "deg"),
    )
)  # fmt: skip
_WIRE: Final = b"\xa2\x00" + _text("span") + b"\x04\xf4"
_HEAD: Final = (
    b"\x21" + _text("node-0001/") + b"\x22\xfb\x41\xda" + _text("boot")
    + b"\x68" + _text("seq") + b"\x1a\x00\x00" + _text("pri") + b"\x01"
    + _text("tq") + b"\x00" + _text("mono") + b"\xfb\x40\xf4" + _text("why") + b"\x78"
    + b"\x00" + _text("rain") + b"\x01" + _text("mm")
    + b"\x02\xfb\x00\x00\x00\x00\x00\x00\x00\x00\x05\xfb\x40"
)  # fmt: skip

DICTIONARY: Final = b"".join((
    *(_text(unit) for unit in _UNITS),
    *(_text(name) for name in _NAMES),
    *(reason.encode() for reason in _REASONS),
    _WIRE,
    _READINGS,
    _HEAD,
))
"""The likeliest last, where a reference to it is shortest."""
