"""Health texts: what nodes report of their sensors, rules, settings and disk.

A node sends such a text when it changes, and again after each start. The newest one may
be months old, so that the table `nodes` keeps it.
"""

import json
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

NAME_PATTERN: Final = r"^(.+/(health|rule)|config/mistake/[0-9]+)$"
"""Names of the readings with such a text."""

OK: Final = "ok"
MAX_TEXTS: Final = 100
"""Names of one node at most; the newest are kept."""

MAX_LENGTH: Final = 300
"""Characters of a text; the rest is cut off."""

_is_name = re.compile(NAME_PATTERN).match


class HealthText(NamedTuple):
    """A text of a node; the newest of a name is the greatest.

    Attributes:
        at_us: Unix time in microseconds.
        boot: Boot id of its message.
        text: ``ok``, or what is wrong.
    """

    at_us: int
    boot: str
    text: str


HealthTexts = dict[str, HealthText]
"""Newest text of each name of one node."""


def is_health_name(name: str) -> bool:
    """Whether the text of a reading of this name is a health text."""
    return _is_name(name) is not None


def add_health_text(texts: HealthTexts, name: str, new: HealthText) -> None:
    """Add a text, unless a newer one of the name is known."""
    new = new._replace(text=new.text[:MAX_LENGTH])
    texts[name] = max(new, texts.get(name, new))
    if len(texts) > MAX_TEXTS:
        del texts[min(texts, key=lambda each: (texts[each].at_us, each))]


def encode_health_texts(texts: HealthTexts) -> list[str] | None:
    """Encode texts as a column of the table `nodes`; None without any."""
    return [json.dumps([name, *texts[name]]) for name in sorted(texts)] or None


def decode_health_texts(encoded: Iterable[str] | None) -> HealthTexts:
    """Decode that column."""
    rows = map(json.loads, encoded or ())
    return {name: HealthText(*row) for name, *row in rows}


def list_faults(texts: HealthTexts, boot: str) -> dict[str, str]:
    """Texts that are not ``ok``; each mistake of the settings last.

    Args:
        texts: Of one node.
        boot: Its newest boot id. After a start a node reports all that is wrong, so
            that a text of an earlier one is over.
    """
    names = sorted(texts, key=lambda name: (name.startswith("config/mistake"), name))
    return {
        name: text
        for name in names
        for _, text_boot, text in [texts[name]]
        if text != OK and text_boot == boot
    }
