"""Reasons of a level: a code with typed parameters, its stored form, its sentence.

A reason may contain another one: "in 30 min, by JMA's forecast: <reason>". The
parameters of each code are in `reason_codes`, the templates in `reason_catalogue`.

Encoded form, for messages and tables: a JSON list of the code and the values of its
parameters, without those at the end that are absent or have their default, such as
``["speed","n1 crack",4.21,4]``. A contained reason is a list within the list.
"""

import json
import math
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

from slope_science import JST, ScienceError
from slope_science.reason_catalogue import CATALOGUE, CHOICES
from slope_science.reason_codes import (
    REASON_PARAMS,
    RESTRICTIONS,
    ParamKind,
    ReasonCode,
    ReasonParam,
)

__all__ = [
    "Language",
    "Reason",
    "ReasonCode",
    "ReasonError",
    "decode_reason",
    "decode_reasons",
    "describe_reason",
    "encode_reason",
    "find_restrictions",
    "level_reasons",
    "reason_from_json",
    "reason_to_json",
    "render",
    "render_english",
    "render_english_list",
    "render_japanese",
]

MAX_DEPTH = 8
"""Reasons within reasons; the rules of this version need four."""

MAX_REASONS = 64
"""Maximum number of reasons in a list that is decoded."""

_MAX_SHOWN = 80
_MAX_EXACT = 2**53  # beyond, JSON readers may round an integer
_MAX_WHOLE = 2**63 - 1
_MAX_TIME_S = 253_402_300_800  # 10000-01-01


class ReasonError(ScienceError):
    """A reason or its encoded form breaks a rule; names field, rule and value."""

    def __init__(self, field: str, rule: str, value: object) -> None:
        super().__init__(field, rule, _short(value))


@dataclass(frozen=True, init=False)
class Reason:
    """Reason for a level, a flag or another judgement.

    ``Reason(ReasonCode.SHOCKS, sensor="n1 vib", count=40, limit=12)``

    Attributes:
        code: A `ReasonCode`; a text for a code of a newer program.
        values: Values of all parameters, in the order of `REASON_PARAMS`; absent ones
            have their default. Of an unknown code as received.
    """

    code: ReasonCode | str
    values: tuple[Any, ...]

    def __init__(self, code: ReasonCode, /, **params: object) -> None:
        """Check and round the parameters.

        Raises:
            ReasonError: A parameter is missing, unknown, or not of its type.
        """
        object.__setattr__(self, "code", code)
        object.__setattr__(self, "values", _checked(code, params))

    @classmethod
    def unknown(cls, code: str, values: Sequence[Any]) -> "Reason":
        """A reason whose code is unknown to this version."""
        made = cls.__new__(cls)
        object.__setattr__(made, "code", code)
        object.__setattr__(made, "values", tuple(values))
        return made

    @property
    def is_known(self) -> bool:
        """Whether the code, and those of all reasons in it, are known here."""
        return isinstance(self.code, ReasonCode) and all(
            reason.is_known
            for value in self.values
            for reason in (value if isinstance(value, tuple) else (value,))
            if isinstance(reason, Reason)
        )

    @property
    def params(self) -> dict[str, Any]:
        """Values by name; of an unknown code by place, from "1"."""
        if isinstance(self.code, ReasonCode):
            names = [param.name for param in REASON_PARAMS[self.code]]
        else:
            names = [str(place) for place in range(1, len(self.values) + 1)]
        return dict(zip(names, self.values, strict=True))

    def changed(self, **params: object) -> "Reason":
        """A reason of the same code with other values of some parameters."""
        return Reason(self.code, **{**self.params, **params})  # type: ignore[arg-type]  # unknown codes have no names


def level_reasons(reasons: Sequence[Reason]) -> tuple[Reason, ...]:
    """The reason that gives a level, which is the first, and the notes before it."""
    for at, reason in enumerate(reasons, 1):
        if reason.code != ReasonCode.SUSPECT_RAIN:
            return tuple(reasons[:at])
    return tuple(reasons)


def find_restrictions(reasons: Iterable[Reason]) -> tuple[str, ...]:
    """Codes of `RESTRICTIONS` in reasons and in the reasons within them, sorted."""
    return tuple(
        sorted({str(code) for each in reasons for code in _restrictions(each)})
    )


def _restrictions(reason: Reason) -> Iterator[ReasonCode]:
    if reason.code in RESTRICTIONS:
        yield ReasonCode(reason.code)
    for value in reason.values:
        for within in value if isinstance(value, tuple) else (value,):
            if isinstance(within, Reason):
                yield from _restrictions(within)


def encode_reason(reason: Reason) -> list[Any]:
    """A reason as a list that JSON and CBOR can carry."""
    values = list(reason.values)
    if isinstance(reason.code, ReasonCode):
        params = list(REASON_PARAMS[reason.code])
        while params and params[-1].is_optional and values[-1] == params[-1].default:
            del params[-1], values[-1]
    return [str(reason.code), *map(_encoded, values)]


def decode_reason(encoded: object) -> Reason:
    """The reason of what `encode_reason` gave; `Reason.unknown` of a newer version's.

    Raises:
        ReasonError: It is no reason.
    """
    return _decoded(encoded, 1)


def decode_reasons(encoded: object) -> tuple[Reason, ...]:
    """The reasons of a list of encoded forms; see `decode_reason`."""
    if not isinstance(encoded, list | tuple) or len(encoded) > MAX_REASONS:
        raise ReasonError("reasons", f"a list of at most {MAX_REASONS}", encoded)
    return tuple(map(decode_reason, encoded))


def reason_to_json(reason: Reason) -> str:
    """A reason as compact JSON, for a column of text."""
    return json.dumps(encode_reason(reason), ensure_ascii=False, separators=(",", ":"))


def reason_from_json(text: str) -> Reason:
    """The reason of compact JSON; see `decode_reason`."""
    try:
        encoded = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ReasonError("reason", "JSON", text) from error
    return decode_reason(encoded)


def _checked(code: ReasonCode, given: Mapping[str, object]) -> tuple[Any, ...]:
    params = REASON_PARAMS[code]
    names = [param.name for param in params]
    for name, value in given.items():
        if name not in names:
            rule = f"one of {', '.join(names)}" if names else "absent"
            raise ReasonError(f"{code}.{name}", rule, value)
    return tuple(_value(code, param, given.get(param.name)) for param in params)


def _value(code: ReasonCode, param: ReasonParam, value: object) -> Any:  # noqa: ANN401 - typed by the parameter
    if value is None:
        if param.is_optional:
            return param.default
        raise ReasonError(f"{code}.{param.name}", "given", value)
    try:
        return _CHECKS[param.kind](param, value)
    except (TypeError, ValueError, OverflowError) as error:
        rule = param.kind.value
        if param.kind is ParamKind.CHOICE:
            rule = f"one of {', '.join(param.choices)}"
        raise ReasonError(f"{code}.{param.name}", rule, value) from error


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    return float(value)


def _rounded(param: ReasonParam, value: object) -> float:
    number = _number(value)
    if math.isnan(number):
        # One object, because a tuple with nan equals itself only by identity.
        return math.nan
    return float(format(number, param.form))


def _whole(_param: ReasonParam, value: object) -> int:
    whole = value if type(value) is int else round(_number(value))
    if abs(whole) > _MAX_WHOLE:
        raise ValueError
    return whole


def _minute(_param: ReasonParam, value: object) -> int:
    seconds = int(_number(value) // 60) * 60
    if not 0 <= seconds < _MAX_TIME_S:
        raise ValueError
    return seconds


def _text(_param: ReasonParam, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return str(value)


def _choice(param: ReasonParam, value: object) -> str:
    if value not in param.choices:
        raise ValueError
    return str(value)


def _reason(_param: ReasonParam, value: object) -> Reason:
    if not isinstance(value, Reason):
        raise TypeError
    return value


def _texts(param: ReasonParam, value: object) -> tuple[str, ...]:
    return tuple(_text(param, each) for each in _items(value))


def _reasons(param: ReasonParam, value: object) -> tuple[Reason, ...]:
    return tuple(_reason(param, each) for each in _items(value))


def _items(value: object) -> Sequence[object]:
    if not isinstance(value, list | tuple):
        raise TypeError
    return value


_CHECKS = {
    ParamKind.TEXT: _text,
    ParamKind.NUMBER: _rounded,
    ParamKind.WHOLE: _whole,
    ParamKind.MINUTE: _minute,
    ParamKind.CHOICE: _choice,
    ParamKind.REASON: _reason,
    ParamKind.TEXTS: _texts,
    ParamKind.REASONS: _reasons,
}


def _encoded(value: Any) -> Any:  # noqa: ANN401 - what JSON can carry
    if isinstance(value, Reason):
        return encode_reason(value)
    if isinstance(value, tuple):
        return [_encoded(each) for each in value]
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return str(value)
    is_short = value.is_integer() and abs(value) < _MAX_EXACT
    return int(value) if is_short and str(value) != "-0.0" else value


def _decoded(encoded: object, depth: int) -> Reason:
    if depth > MAX_DEPTH:
        raise ReasonError("reason", f"at most {MAX_DEPTH} deep", encoded)
    if not isinstance(encoded, list | tuple) or not encoded:
        raise ReasonError("reason", "a list that begins with a code", encoded)
    code, *values = encoded
    if not isinstance(code, str):
        raise ReasonError("reason", "a list that begins with a code", encoded)
    if code in _CODES:
        return _known(_CODES[code], values, depth)
    return Reason.unknown(code, [_foreign(each, depth + 1) for each in values])


def _short(value: object) -> object:
    """A value as an error can show it, whatever a hostile peer put into it."""
    if isinstance(value, str):
        return value if len(value) <= _MAX_SHOWN else value[: _MAX_SHOWN - 3] + "..."
    if value is None or isinstance(value, float | bool):
        return value
    try:
        return value if isinstance(value, int) and str(value) else reprlib.repr(value)
    except ValueError:  # an integer of more digits than Python will print
        return f"an unprintable {type(value).__name__}"


_CODES = {str(code): code for code in ReasonCode}
_NOT_FINITE = ("inf", "-inf", "nan")


def _known(code: ReasonCode, values: Sequence[object], depth: int) -> Reason:
    # A newer version may have added parameters; they come last.
    given: dict[str, object] = {}
    for param, value in zip(REASON_PARAMS[code], values, strict=False):
        known: object = value
        if param.kind is ParamKind.REASON and value is not None:
            known = _decoded(value, depth + 1)
        elif param.kind is ParamKind.REASONS and isinstance(value, list | tuple):
            known = [_decoded(each, depth + 1) for each in value]
        elif param.kind is ParamKind.NUMBER and value in _NOT_FINITE:
            known = float(str(value))
        given[param.name] = known
    return Reason(code, **given)


def _foreign(value: object, depth: int) -> Any:  # noqa: ANN401 - what a newer version wrote
    """A value of an unknown code; a known reason in it is decoded."""
    if depth > MAX_DEPTH:
        raise ReasonError("reason", f"at most {MAX_DEPTH} deep", value)
    if value is None or isinstance(value, str | int | float):
        return value
    if not isinstance(value, list | tuple):
        raise ReasonError("reason", "of texts, numbers and lists", value)
    if value and isinstance(value[0], str) and value[0] in _CODES:
        try:
            return _decoded(value, depth)
        except ReasonError:
            pass  # a list of texts whose first one is also the name of a code
    return tuple(_foreign(each, depth + 1) for each in value)


Language = Literal["en", "ja"]

_LANGUAGES: Final = ("en", "ja")
_UNKNOWN: Final = (
    ("unknown reason {} ({})", ", "),
    ("この版では表示できない理由 {}（{}）", "、"),
)
_JOINTS: Final = ("; ", "；")
# The English is stored; a Japanese sentence has Japan time, as the text around it.
_CLOCKS: Final = ((UTC, " UTC"), (JST, ""))


def render_english(reason: Reason) -> str:
    """The sentence that tables and nodes have."""
    return render(reason, "en")


def render_japanese(reason: Reason) -> str:
    """The sentence in Japanese."""
    return render(reason, "ja")


def render_english_list(reasons: Iterable[Reason]) -> str:
    """The English sentences of several reasons, joined as in messages and tables."""
    return "; ".join(map(render_english, reasons))


def describe_reason(reason: Reason) -> dict[str, Any]:
    """Code, parameters by name and English sentence, for output as JSON.

    A parameter that is a reason is described likewise.
    """
    params = {name: _described(value) for name, value in reason.params.items()}
    text = render_english(reason)
    return {"code": str(reason.code), "params": params, "text": text}


def _described(value: object) -> object:
    if isinstance(value, Reason):
        return describe_reason(value)
    if isinstance(value, tuple | list):
        return [_described(each) for each in value]
    return value


def render(reason: Reason, language: Language) -> str:
    """The sentence of a reason.

    Of a code that is unknown here, or without the parameters that its templates need,
    the name and the values: a reason is never hidden.
    """
    return _render(reason, _LANGUAGES.index(language))


def _render(reason: Reason, at: int) -> str:
    if isinstance(reason.code, ReasonCode):
        shown = _shown(REASON_PARAMS[reason.code], reason.values, at)
        forms = CATALOGUE[reason.code][at]
        for form in (forms,) if isinstance(forms, str) else forms:
            with suppress(KeyError):
                return _filled(form, shown)
    unknown, joint = _UNKNOWN[at]
    return unknown.format(reason.code, joint.join(_values(reason.values, at)))


def _filled(template: str, shown: Mapping[str, str]) -> str:
    """A template with its parameters.

    Raises:
        KeyError: One outside brackets is absent.
    """
    first, *others = template.split("[")
    text = first.format_map(shown)
    for other in others:
        part, _, after = other.partition("]")
        with suppress(KeyError):
            text += part.format_map(shown)
        text += after.format_map(shown)
    return text


def _shown(
    params: Iterable[ReasonParam], values: Iterable[Any], at: int
) -> dict[str, str]:
    """Parameters that are given, by name, as a sentence has them."""
    shown = {}
    for param, value in zip(params, values, strict=True):
        if value is not None and value != ():
            name, kind = param.name, param.kind
            shown[name] = _SHOW[kind](param, value, at)
            if kind is ParamKind.WHOLE:
                shown[f"{name}_s"] = "" if value == 1 else "s"
            elif kind is ParamKind.NUMBER and value < 0:
                shown[f"{name}_minus"] = ""
    return shown


def _show_minute(_param: ReasonParam, value: int, at: int) -> str:
    zone, mark = _CLOCKS[at]
    time = datetime.fromtimestamp(value, UTC)
    with suppress(OverflowError):  # the year 10000 in Japan, which no datetime has
        time = time.astimezone(zone)
    return f"{time:%Y-%m-%d %H:%M}{mark}"


def _show_reasons(_param: ReasonParam, value: Iterable[Reason], at: int) -> str:
    return _JOINTS[at].join(_render(each, at) for each in value)


_SHOW: Final[Mapping[ParamKind, Callable[[ReasonParam, Any, int], str]]] = {
    ParamKind.TEXT: lambda _param, value, _at: str(value),
    ParamKind.NUMBER: lambda param, value, _at: format(value, param.form),
    ParamKind.WHOLE: lambda _param, value, _at: str(value),
    ParamKind.MINUTE: _show_minute,
    ParamKind.CHOICE: lambda _param, value, at: CHOICES[value][at],
    ParamKind.REASON: lambda _param, value, at: _render(value, at),
    ParamKind.TEXTS: lambda _param, value, _at: ", ".join(value),
    ParamKind.REASONS: _show_reasons,
}


def _values(values: Iterable[Any], at: int) -> Iterator[str]:
    """What is given of a code without a sentence."""
    for value in values:
        if isinstance(value, Reason):
            yield _render(value, at)
        elif isinstance(value, tuple):
            yield f"({', '.join(_values(value, at))})"
        elif value is not None:
            yield f"{value:g}" if isinstance(value, float) else str(value)
