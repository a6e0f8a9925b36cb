"""Syntax of MQTT: texts that a broker accepts as a topic or as a filter."""

import re

_MAX_TEXT_BYTES = 65535
_MAX_SLASHES = 200
_FORBIDDEN = re.compile(
    "[\0-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef"
    + "".join(chr(plane << 16 | low) for plane in range(17) for low in (0xFFFE, 0xFFFF))
    + "]"
)
_FILTER = re.compile(r"(?:(?:\+|[^+#/]*)/)*(?:\+|#|[^+#/]*)")


def may_be_sent(text: str) -> bool:
    """Whether a broker accepts a topic or filter; its wildcards are not checked.

    Mosquitto ends the connection at any other.

    Source:
        MQTT 5.0 sections 1.5.4 and 4.7.3; TOPIC_HIERARCHY_LIMIT of Mosquitto.
    """
    is_short = text.count("/") <= _MAX_SLASHES and bool(text)
    is_text = is_short and _FORBIDDEN.search(text) is None
    return is_text and len(text.encode()) <= _MAX_TEXT_BYTES


def is_filter(text: str) -> bool:
    """Whether a text is a filter that a broker accepts."""
    return may_be_sent(text) and _FILTER.fullmatch(text) is not None
