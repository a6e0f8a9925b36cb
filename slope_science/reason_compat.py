"""Reasons of English sentences, for tables and nodes of the version before codes.

This module goes with the next version, when every node and every table that is still
read has codes.

The patterns are made from the English templates, so that they cannot differ from what
is written. Where a sentence allows more than one reading, a remark on a reason
("confirmed by", "a while ago") contains the reason, as rules make it.
"""

import re
from collections.abc import Iterator
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from slope_science.reason_catalogue import CATALOGUE, CHOICES
from slope_science.reason_codes import REASON_PARAMS, ParamKind, ReasonCode, ReasonParam
from slope_science.reasons import MAX_DEPTH, Reason, ReasonError

_FIRST: Final = (
    ReasonCode.NODE_LEVEL,
    ReasonCode.NODE_LEVEL_LOWERED,
    ReasonCode.LEVEL_HELD,
    ReasonCode.HELD,
    ReasonCode.CONFIRMED,
    ReasonCode.UNCONFIRMED_LONG,
    ReasonCode.UNCONFIRMED,
    ReasonCode.MAYBE_WARMTH,
    ReasonCode.LONG_AGO,
    ReasonCode.RULE,
    ReasonCode.AHEAD_SAME_RAIN,
    ReasonCode.AHEAD_FORECAST,
    ReasonCode.DOUBTFUL_RAIN,
    ReasonCode.GRID_SOIL_WATER,
)
"""Reasons that contain another one, the outermost first."""

_FREE: Final = (ReasonCode.SOIL_WATER, "basis")
"""The version of a table of criteria may be any text."""

MAX_CHARS: Final = 8192
"""Of a sentence that is parsed; a hostile one must not cost seconds."""

_NOT_FINITE: Final = "inf|nan"
_NAME: Final = re.compile(r"\{(\w+)\}")


@lru_cache(maxsize=4096)
def parse_english(sentence: str) -> Reason | None:
    """The reason that a sentence states; None when it has no known form.

    A free text is no form: `ReasonCode.TEXT` is never given.
    """
    return _parsed(sentence, 1) if len(sentence) <= MAX_CHARS else None


def parse_or_text(sentence: str) -> Reason:
    """The reason that a sentence states, or the sentence as a free text."""
    return parse_english(sentence) or Reason(ReasonCode.TEXT, text=sentence)


def parse_why(why: str) -> tuple[Reason, ...]:
    """The reasons of a message of an old node: sentences, joined by semicolons.

    Without any known form it is one free text. A sentence that was cut is one, too.
    """
    parts = why.split("; ")
    known = [parse_english(part) for part in parts]
    if not any(known):
        return (Reason(ReasonCode.TEXT, text=why),) if why else ()
    return tuple(
        reason or Reason(ReasonCode.TEXT, text=part)
        for part, reason in zip(parts, known, strict=True)
    )


def _parsed(sentence: str, depth: int) -> Reason | None:
    """The reason of a sentence that is within others as deep as that."""
    if depth > MAX_DEPTH:
        return None
    for code, pattern in _forms():
        found = pattern.fullmatch(sentence)
        reason = _reason(code, found, depth) if found else None
        if reason is not None:
            return reason
    return None


@lru_cache(maxsize=1)
def _forms() -> tuple[tuple[ReasonCode, re.Pattern[str]], ...]:
    """Patterns of all codes, in the order in which they are tried."""
    others = [code for code in ReasonCode if code not in {*_FIRST, ReasonCode.TEXT}]
    return tuple(
        (code, re.compile(_pattern(code, template), re.DOTALL))
        for code in (*_FIRST, *others)
        for template in _templates(code)
    )


def _templates(code: ReasonCode) -> tuple[str, ...]:
    english = CATALOGUE[code].en
    return (english,) if isinstance(english, str) else english


def _pattern(code: ReasonCode, template: str) -> str:
    first, *others = template.split("[")
    text = _part(code, first)
    for other in others:
        part, after = other.split("]")
        text += f"(?:{_part(code, part)})?{_part(code, after)}"
    return text


def _part(code: ReasonCode, text: str) -> str:
    params = {param.name: param for param in REASON_PARAMS[code]}
    made, end = "", 0
    for found in _NAME.finditer(text):
        made += re.escape(text[end : found.start()])
        name, end = found[1], found.end()
        # A name that is no parameter is the plural of one.
        made += f"(?P<{name}>{_values(params[name])})" if name in params else "s?"
    return made + re.escape(text[end:])


def _values(param: ReasonParam) -> str:
    """What the text of a parameter can be."""
    match param.kind:
        case ParamKind.NUMBER if param.form == "g":
            pattern = rf"-?(?:\d+(?:\.\d+)?(?:e[+-]\d+)?|{_NOT_FINITE})"
        case ParamKind.NUMBER:
            sign = "[+-]" if param.form.startswith("+") else "-?"
            decimals = param.form.strip("+.f")
            pattern = rf"{sign}(?:\d+\.\d{{{decimals}}}|{_NOT_FINITE})"
        case ParamKind.WHOLE:
            pattern = r"-?\d+"
        case ParamKind.MINUTE:
            pattern = r"\d{4}-\d\d-\d\d \d\d:\d\d UTC"
        case ParamKind.CHOICE:
            pattern = "|".join(re.escape(CHOICES[each][0]) for each in param.choices)
        case _:
            pattern = ".*"
    return pattern


def _reason(code: ReasonCode, found: re.Match[str], depth: int) -> Reason | None:
    """The reason of a sentence of its form; None if a reason in it has none."""
    try:
        return Reason(code, **dict(_given(code, found, depth)))
    except (ReasonError, ValueError):
        return None


def _given(
    code: ReasonCode, found: re.Match[str], depth: int
) -> Iterator[tuple[str, Any]]:
    texts = found.groupdict()
    for param in REASON_PARAMS[code]:
        text = texts.get(param.name)
        if text is not None:
            value = _value(param, text, depth)
            if value is None and (code, param.name) == _FREE:
                value = Reason(ReasonCode.TEXT, text=text)
            yield param.name, value


def _value(param: ReasonParam, text: str, depth: int) -> Any:  # noqa: ANN401 - typed by the parameter
    """The value of a parameter; of a reason without a known form None."""
    value: Any = text
    match param.kind:
        case ParamKind.NUMBER:
            value = float(text)
        case ParamKind.WHOLE:
            value = int(text)
        case ParamKind.MINUTE:
            utc = text.replace("UTC", "+0000")
            value = datetime.strptime(utc, "%Y-%m-%d %H:%M %z").timestamp()
        case ParamKind.CHOICE:
            value = next(c for c in param.choices if CHOICES[c][0] == text)
        case ParamKind.REASON:
            value = _parsed(text, depth + 1)
        case ParamKind.REASONS:
            value = [_parsed(each, depth + 1) for each in text.split("; ")]
        case ParamKind.TEXTS:
            value = text.split(", ")
        case _:
            pass
    return value
