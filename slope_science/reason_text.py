"""A reason as a sentence, in English or Japanese."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, Literal

from slope_science import JST
from slope_science.reason_catalogue import CATALOGUE, CHOICES
from slope_science.reason_codes import REASON_PARAMS, ParamKind, ReasonCode, ReasonParam
from slope_science.reasons import Reason

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


def _minute(_param: ReasonParam, value: int, at: int) -> str:
    zone, mark = _CLOCKS[at]
    time = datetime.fromtimestamp(value, UTC)
    with suppress(OverflowError):  # the year 10000 in Japan, which no datetime has
        time = time.astimezone(zone)
    return f"{time:%Y-%m-%d %H:%M}{mark}"


def _reasons(_param: ReasonParam, value: Iterable[Reason], at: int) -> str:
    return _JOINTS[at].join(_render(each, at) for each in value)


_SHOW: Final[Mapping[ParamKind, Callable[[ReasonParam, Any, int], str]]] = {
    ParamKind.TEXT: lambda _param, value, _at: str(value),
    ParamKind.NUMBER: lambda param, value, _at: format(value, param.form),
    ParamKind.WHOLE: lambda _param, value, _at: str(value),
    ParamKind.MINUTE: _minute,
    ParamKind.CHOICE: lambda _param, value, at: CHOICES[value][at],
    ParamKind.REASON: lambda _param, value, at: _render(value, at),
    ParamKind.TEXTS: lambda _param, value, _at: ", ".join(value),
    ParamKind.REASONS: _reasons,
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
