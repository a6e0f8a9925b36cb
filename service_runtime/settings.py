"""Settings: TOML parsed into typed dataclasses, with all mistakes reported at once.

A program describes its settings as frozen dataclasses whose fields are made by `key`:
type, unit, bounds, default and one sentence. `build_settings` checks a whole file and
raises one `SettingsError` with a `Problem` for each mistake; `describe_settings` makes
the rows of the reference from the same fields.
"""

import dataclasses
import difflib
import math
import re
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from service_runtime.errors import FieldError, YamamoriError, shortened

T = TypeVar("T")


NOT_GIVEN: Final = object()


@dataclass(frozen=True)
class Problem:
    """A rule that a settings file breaks; `str` gives one sentence for a person.

    Attributes:
        field: Dotted key in the file, such as ``alarm[2].pin``; elements of a list
            are numbered from 1.
        rule: Verb and rule, such as ``must be at least 0`` or ``is not a known key``.
        value: The value that was given; `NOT_GIVEN` is not shown.
        remedy: What to do; None when the rule implies it.
        part: What of the field breaks the rule, when it is not the field as a whole.
    """

    field: str
    rule: str
    value: object = NOT_GIVEN
    remedy: str | None = None
    part: str = ""

    @classmethod
    def of(cls, error: FieldError, field: str = "") -> "Problem":
        """The problem that a check raised.

        Args:
            error: The error of the check.
            field: Key in the file that was checked; empty when the error names it.
        """
        path, part = (field, error.field) if field else (error.field, "")
        return cls(path, f"must be {error.rule}", error.value, error.remedy, part)

    def under(self, path: str) -> "Problem":
        """The same problem, with a field that begins at a path."""
        return dataclasses.replace(self, field=_dot(path, self.field))

    @property
    def path(self) -> tuple[str | int, ...]:
        """`field` as keys and indices from 0, such as ``("alarm", 1, "pin")``."""
        return tuple(
            int(number) - 1 if number else name
            for number, name in re.findall(r"\[(\d+)\]|([^.\[]+)", self.field)
        )

    def __str__(self) -> str:
        """The sentence: field, rule, value and remedy."""
        subject = f"{self.field}: {self.part}" if self.part else self.field
        shown = "" if self.value is NOT_GIVEN else f", got {shortened(self.value)}"
        remedy = f"; {self.remedy}" if self.remedy else ""
        return f"{subject} {self.rule}{shown}{remedy}"


class SettingsError(YamamoriError, ValueError):
    """A settings file breaks one rule or more.

    Attributes:
        problems: Every rule that is broken.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


@dataclass(frozen=True)
class KeyRule:
    """Documentation and bounds of a key.

    Attributes:
        doc: One sentence for the reference.
        unit: Unit of the number, such as ``s`` or ``bytes``.
        low: Least value allowed.
        high: Greatest value allowed.
        choices: The allowed values; empty for any.
        check: Raises `FieldError` for values that bounds cannot exclude.
    """

    doc: str
    unit: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[object, ...] = ()
    check: Callable[[Any], object] | None = None


@dataclass(frozen=True)
class KeyRow:
    """One row of the reference.

    Attributes:
        path: Dotted key, such as ``uplink.rate_bytes_per_s``.
        kind: Type, as text.
        rule: Bounds, unit and meaning.
        default: As TOML, or ``required``.
    """

    path: str
    kind: str
    rule: KeyRule
    default: str


def key(rule: KeyRule, default: Any = MISSING) -> Any:
    """A settings field; without a default the key is required."""
    if isinstance(default, (list, dict, set)):
        raise TypeError("a default must be immutable")
    if default is MISSING:
        return dataclasses.field(metadata={"rule": rule}, kw_only=True)
    return dataclasses.field(default=default, metadata={"rule": rule}, kw_only=True)


_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


def check_folder(folder: str) -> None:
    """Refuse the URL of an object store: it would become a folder of that name.

    Raises:
        FieldError: It is a URL.
    """
    if _URL.match(folder):
        remedy = "the log needs a disk; give the URL to backend.tables"
        raise FieldError("folder", "on this machine, not a URL", folder, remedy)


def read_toml(path: Path) -> dict[str, Any]:
    """Read the TOML of a settings file, with or without a byte order mark.

    Raises:
        SettingsError: It is not UTF-8, or is not TOML.
        OSError: The file cannot be read.
    """
    try:
        return parse_toml(path.read_text(encoding="utf-8-sig"), str(path))
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        byte = error.object[error.start]
        rule = f"must be text in UTF-8, got byte 0x{byte:02x} in line {line}"
        remedy = "save it as UTF-8 in the editor"
        raise SettingsError([Problem(str(path), rule, remedy=remedy)]) from error


def parse_toml(text: str, name: str = "the file") -> dict[str, Any]:
    """Parse TOML text.

    Args:
        text: The text.
        name: Name of the file in errors.

    Raises:
        SettingsError: It is not TOML.
    """
    try:
        return tomllib.loads(text)
    # Also a number of 5000 digits, and lists nested too deeply.
    except (ValueError, RecursionError) as error:
        raise SettingsError([_not_toml(name, text, str(error))]) from error


_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")

_ONCE: Final = "give each key and [section] once; several of a kind are [[section]]"
_CLOSE_TEXT: Final = "close the text with the quote that it begins with"
_TOML_REMEDIES: Final = (
    ("Invalid value", "write text in straight quotes, true and false in lower case"),
    ("Expected newline", "write one value: text in quotes, a number as 1.5, no unit"),
    ("Expected '=' after", "write key = value; a comment begins with #"),
    ("Invalid statement", "begin the line with a key, a [section], or # for a comment"),
    ("Cannot overwrite", _ONCE),
    ("Cannot declare", _ONCE),
    ("Duplicate", _ONCE),
    ("Expected ']", "close the name of the section, as in [node] or [[sensor]]"),
    ("Unclosed array", "separate elements by commas, and close the list with ]"),
    ("Unclosed inline table", "separate keys by commas, and close the table with }"),
    ("Unescaped", r"write \\ for \, or the text in single quotes"),
    (r"Illegal character '\n'", _CLOSE_TEXT),
    ("Illegal character", "remove this character, which may be invisible"),
    ("Found invalid character", "remove this character, which may be invisible"),
    ("Expected", _CLOSE_TEXT),
    ("Unterminated string", _CLOSE_TEXT),
    ("", "write this part anew"),
)
"""Beginnings of what tomllib says, and what to do."""


def _not_toml(name: str, text: str, message: str) -> Problem:
    """The problem of a text that is not TOML.

    Without the line itself: it may be an address with a password.
    """
    place, part = _PLACE.search(message), ""
    if place is not None:
        *before, last = text.rstrip().split("\n")
        line, column = place[1] or len(before) + 1, place[2] or len(last) + 1
        part, message = f"line {line}, column {column}", message[: place.start()]
    remedy = next(r for start, r in _TOML_REMEDIES if message.startswith(start))
    return Problem(name, f"must be TOML ({message})", remedy=remedy, part=part)


def read_settings_table(path: Path) -> dict[str, Any]:
    """Read the TOML of a settings file.

    Raises:
        SettingsError: The file is missing, or is not TOML.
    """
    try:
        return read_toml(path)
    except OSError as error:
        raise SettingsError([Problem(str(path), f"cannot be read: {error}")]) from error


def build_settings(form: type[T], table: Mapping[str, Any], path: str = "") -> T:
    """Make settings of a form from a TOML table.

    Raises:
        SettingsError: The table has mistakes; lists all of them.
    """
    problems: list[Problem] = []
    settings = _table(form, table, path, problems)
    if problems or settings is None:
        raise SettingsError(problems)
    return settings


def describe_settings(form: type, path: str = "") -> Iterator[KeyRow]:
    """Yield the rows of the reference for a form and its tables."""
    hints = typing.get_type_hints(form)
    for spec in dataclasses.fields(form):
        inner = _inner_form(hints[spec.name]) or _element_form(hints[spec.name])
        dotted = _dot(path, spec.name)
        if inner is not None:
            yield from describe_settings(inner, dotted)
        else:
            default = "required" if spec.default is MISSING else repr(spec.default)
            yield KeyRow(
                dotted, _kind(hints[spec.name]), spec.metadata["rule"], default
            )


def _table(
    form: type[T], table: object, path: str, problems: list[Problem]
) -> T | None:
    if not isinstance(table, Mapping):
        problems.append(Problem(path, "must be a table", table))
        return None
    hints = typing.get_type_hints(form)
    specs = {spec.name: spec for spec in dataclasses.fields(form)}  # type: ignore[arg-type]
    before = len(problems)
    unknown = [name for name in table if name not in specs]
    problems += [_unknown(_dot(path, name), name, specs) for name in unknown]
    values = {}
    for name, spec in specs.items():
        dotted = _dot(path, name)
        if name in table:
            values[name] = _value(hints[name], table[name], spec, dotted, problems)
        elif spec.default is MISSING:
            values[name] = _absent(hints[name], spec, dotted, problems)
    if len(problems) > before:
        return None
    try:
        return form(**values)
    except ValueError as error:
        problems.append(_broken(error, path))
        return None


def _broken(error: ValueError, path: str) -> Problem:
    """The problem that a check of a whole table raised.

    Packages without settings raise errors of their own, with the same attributes.
    """
    if isinstance(error, FieldError):
        return Problem.of(error, path)
    parts = [getattr(error, name, None) for name in ("field", "rule", "value")]
    if None in parts[:2]:
        raise error
    field, rule, value = parts
    remedy = getattr(error, "remedy", None)
    return Problem.of(FieldError(str(field), str(rule), value, remedy), path)


def _absent(
    hint: Any, spec: dataclasses.Field[Any], path: str, problems: list[Problem]
) -> object:
    """Read an absent table as empty, as it may have only defaults; report a key."""
    inner = _inner_form(hint)
    if inner is not None:
        return _table(inner, {}, path, problems)
    problems.append(_missing(path, hint, spec.metadata["rule"]))
    return None


def _value(
    hint: Any,
    value: object,
    spec: dataclasses.Field[Any],
    path: str,
    problems: list[Problem],
) -> object:
    inner = _inner_form(hint)
    if inner is not None:
        return _table(inner, value, path, problems)
    element = _element_form(hint)
    if element is not None and isinstance(value, list):
        numbered = enumerate(value, start=1)
        return tuple(_table(element, x, f"{path}[{n}]", problems) for n, x in numbered)
    rule: KeyRule = spec.metadata["rule"]
    try:
        value = _typed(hint, value, path, rule)
        _bounded(value, path, rule)
        if rule.check is not None:
            rule.check(value)
    except FieldError as error:
        is_named = error.field.startswith(path)
        problems.append(Problem.of(error, "" if is_named else path))
        return None
    return value


def _typed(hint: Any, value: object, path: str, rule: KeyRule) -> object:
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for option in options:
        if option is float and type(value) in {int, float}:
            return _double(value, path)  # type: ignore[arg-type]
        if option in {int, str, bool} and type(value) is option:
            return value
        if typing.get_origin(option) is tuple and isinstance(value, list):
            element = typing.get_args(option)[0]
            return tuple(_typed(element, item, path, rule) for item in value)
    unit = f" in {rule.unit}" if rule.unit else ""
    remedy = None
    if isinstance(value, str) and set(options) & {int, float}:
        remedy = "write the bare number, without quotes and without a unit"
    raise FieldError(path, _kind(hint) + unit, value, remedy)


def _double(value: float, path: str) -> float:
    try:
        return float(value)
    except OverflowError as error:  # an integer beyond the range of a double
        raise FieldError(path, "a finite number", value) from error


def _bounded(value: object, path: str, rule: KeyRule) -> None:
    if rule.choices and value not in rule.choices:
        choices = ", ".join(repr(choice) for choice in rule.choices)
        raise FieldError(path, f"one of {choices}", value)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return
    low = -math.inf if rule.low is None else rule.low
    high = math.inf if rule.high is None else rule.high
    if not low <= value <= high and (rule.low, rule.high) != (None, None):
        raise FieldError(path, _bounds(rule), value)
    if not math.isfinite(value):
        raise FieldError(path, "a finite number", value)


def _bounds(rule: KeyRule) -> str:
    unit = f" {rule.unit}" if rule.unit else ""
    if rule.low is None:
        return f"at most {rule.high:g}{unit}"
    if rule.high is None:
        return f"at least {rule.low:g}{unit}"
    return f"between {rule.low:g} and {rule.high:g}{unit}"


def _unknown(path: str, name: str, known: Mapping[str, Any]) -> Problem:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    remedy = f"did you mean {near[0]!r}?" if near else "remove it"
    remedy += f" (known here: {', '.join(sorted(known))})"
    return Problem(path, "is not a known key", remedy=remedy)


def _missing(path: str, hint: Any, rule: KeyRule) -> Problem:
    unit = f" in {rule.unit}" if rule.unit else ""
    return Problem(path, f"must be given: {_kind(hint)}{unit}", remedy=rule.doc)


def _inner_form(hint: Any) -> type | None:
    """The form of a table, also of an optional one."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    forms = [x for x in options if dataclasses.is_dataclass(x) and isinstance(x, type)]
    return forms[0] if forms else None


def _element_form(hint: Any) -> type | None:
    """The form of the tables in an array of tables."""
    if typing.get_origin(hint) is not tuple:
        return None
    return _inner_form(typing.get_args(hint)[0])


def _kind(hint: Any) -> str:
    if isinstance(hint, types.UnionType):
        return " or ".join(
            _kind(x) for x in typing.get_args(hint) if x is not types.NoneType
        )
    if typing.get_origin(hint) is tuple:
        return f"a list of {_kind(typing.get_args(hint)[0]).removeprefix('a ')}"
    if dataclasses.is_dataclass(hint):
        return "tables"
    names = {
        int: "a whole number",
        float: "a number",
        str: "text",
        bool: "true or false",
    }
    return names.get(hint, str(hint))


def _dot(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
