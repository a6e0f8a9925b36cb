"""Reasons as codes: parameters, encoded form, sentences in both languages."""

import json
import pickle
import re
from string import Formatter
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from slope_science.reason_catalogue import CATALOGUE, CHOICES
from slope_science.reason_codes import REASON_PARAMS, ParamKind, ReasonCode, ReasonParam
from slope_science.reason_compat import parse_english, parse_why
from slope_science.reasons import (
    MAX_DEPTH,
    MAX_REASONS,
    Reason,
    ReasonError,
    decode_reason,
    decode_reasons,
    encode_reason,
    reason_from_json,
    reason_to_json,
    render,
    render_english,
    render_japanese,
)

C = ReasonCode
UNITS = {"mm", "km", "hPa", "kPa", "CL", "m", "m3", "h", "R", "C"}
LATIN_WORDS = re.compile(r"[A-Za-z]+[0-9]*")
WRAPPERS = {C.HELD, C.CONFIRMED, C.UNCONFIRMED, C.LONG_AGO, C.RULE, C.DOUBTFUL_RAIN}
AHEAD = {C.AHEAD_SAME_RAIN, C.AHEAD_FORECAST, C.GRID_SOIL_WATER}
BASES = {C.ASSUMED_CRITERIA, C.ASSUMED_LINE, C.ASSUMED_CRITERION, C.SET_BY}
QUALITY = tuple(list(C)[list(C).index(C.RANGE) : list(C).index(C.SOURCE_FLAG) + 1])
MEASURED = tuple(list(C)[: list(C).index(C.LIMIT) + 1])
PLAIN = tuple(code for code in C if code not in {*WRAPPERS, *AHEAD, C.TEXT})

NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,32}", fullmatch=True)
SENSORS = NAMES | st.builds("{} {}".format, NAMES, NAMES)
NUMBERS = st.floats(allow_nan=False) | st.floats(-1000, 1000) | st.integers(-9, 9)
VALUES: dict[ParamKind, st.SearchStrategy[Any]] = {
    ParamKind.TEXT: SENSORS,
    ParamKind.NUMBER: NUMBERS,
    ParamKind.WHOLE: st.integers(-(2**63) + 1, 2**63 - 1) | st.integers(0, 100),
    ParamKind.MINUTE: st.floats(0, 253_402_300_799),
    ParamKind.TEXTS: st.lists(SENSORS, min_size=1, max_size=4),
}


def templates(code: ReasonCode) -> tuple[str, ...]:
    """English templates of a code."""
    found = CATALOGUE[code].en
    return (found,) if isinstance(found, str) else found


def parameter_names(text: str) -> set[str]:
    """Parameters that a template names."""
    return {name for _, name, _, _ in Formatter().parse(text) if name}


def value_of(param: ReasonParam) -> st.SearchStrategy[Any]:
    """Valid values of a parameter."""
    if param.kind is ParamKind.CHOICE:
        return st.sampled_from(param.choices)
    if param.kind is ParamKind.REASONS:
        return st.lists(
            st.sampled_from(QUALITY).flatmap(reasons_of), min_size=1, max_size=3
        )
    if param.kind is ParamKind.REASON:
        # Only criteria have a basis; reasons with a nested reason are built below.
        bases = st.sampled_from(sorted(BASES)).flatmap(reasons_of)
        return bases | st.builds(lambda text: Reason(C.TEXT, text=text), NAMES)
    return VALUES[param.kind]


def reasons_of(code: ReasonCode) -> st.SearchStrategy[Reason]:
    """Reasons of a code with the parameters of one of its sentences."""

    def of(form: str) -> st.SearchStrategy[Reason]:
        outside = parameter_names(re.sub(r"\[.*?\]", "", form))
        params = {
            p.name: p for p in REASON_PARAMS[code] if p.name in parameter_names(form)
        }
        needed = {n: value_of(p) for n, p in params.items() if n in outside}
        others = {n: value_of(p) for n, p in params.items() if n not in outside}
        given = st.fixed_dictionaries(needed, optional=others)
        return given.map(lambda params: Reason(code, **params))

    return st.sampled_from(templates(code)).flatmap(of)


def node_reasons() -> st.SearchStrategy[Reason]:
    """Reasons as built by a node's rules, from the innermost outwards."""
    found = st.sampled_from(MEASURED).flatmap(reasons_of)
    doubtful = reasons_of(C.SOIL_WATER).map(
        lambda r: Reason(C.DOUBTFUL_RAIN, because=r)
    )
    rule = st.builds(
        lambda rule, because: Reason(C.RULE, rule=rule, because=because),
        st.sampled_from(REASON_PARAMS[C.RULE][0].choices),
        found | doubtful,
    )
    limit = st.builds(
        lambda number, because: Reason(
            C.RULE, rule="limit", because=because, number=number
        ),
        st.integers(1, 99),
        reasons_of(C.LIMIT),
    )
    detection = rule | limit
    confirmed = st.builds(
        lambda because, by: Reason(C.CONFIRMED, because=because, by=by),
        detection,
        NAMES,
    )
    unconfirmed = detection.map(lambda r: Reason(C.UNCONFIRMED, because=r))
    fired = detection | confirmed | unconfirmed
    return fired | fired.map(lambda r: Reason(C.HELD, because=r))


def backend_reasons() -> st.SearchStrategy[Reason]:
    """Reasons of levels as built by the backend."""
    old = reasons_of(C.WIRE_CUT).map(lambda r: Reason(C.LONG_AGO, because=r))
    wire = reasons_of(C.WIRE_CUT).map(lambda r: Reason(C.UNCONFIRMED, because=r))
    ahead = st.builds(
        lambda minutes, because: Reason(
            C.AHEAD_SAME_RAIN, minutes=minutes, because=because
        ),
        st.integers(10, 120),
        reasons_of(C.SOIL_WATER),
    )
    forecast = st.builds(
        lambda because, source, issued_s: Reason(
            C.AHEAD_FORECAST,
            minutes=50,
            because=because,
            source=source,
            issued_s=issued_s,
        ),
        reasons_of(C.SOIL_WATER),
        NAMES,
        VALUES[ParamKind.MINUTE],
    )
    return old | wire | ahead | forecast


REASONS = (
    st.sampled_from(PLAIN).flatmap(reasons_of) | node_reasons() | backend_reasons()
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(list(map(str, C))),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(), inner),
)


@pytest.mark.parametrize("code", C)
def test_every_code_has_parameters_and_sentences_in_both_languages(
    code: ReasonCode,
) -> None:
    """Every parameter is shown in both languages, and no other name occurs."""
    names = {param.name for param in REASON_PARAMS[code]}
    plurals = {f"{p.name}_s" for p in REASON_PARAMS[code] if p.kind is ParamKind.WHOLE}
    signs = {f"{name}_minus" for name in names}
    for templates in CATALOGUE[code]:
        found = (templates,) if isinstance(templates, str) else templates
        assert all(found)
        shown = parameter_names("".join(found)) - plurals - signs
        assert shown in (names - {"how"}, names)


def test_every_choice_has_a_text_in_both_languages() -> None:
    """And no text is left for a removed choice."""
    choices = {
        c for params in REASON_PARAMS.values() for p in params for c in p.choices
    }

    assert choices == CHOICES.keys()
    assert all(all(words) for words in CHOICES.values())


@pytest.mark.parametrize("code", C)
def test_optional_parameters_come_last(code: ReasonCode) -> None:
    """So a newer version can add one at the end, which an older one ignores."""
    optional = [param.is_optional for param in REASON_PARAMS[code]]

    assert optional == sorted(optional)


@pytest.mark.parametrize("code", C)
def test_japanese_has_no_english_words(code: ReasonCode) -> None:
    """Except units; names are shown as given."""
    found = CATALOGUE[code].ja
    for template in (found,) if isinstance(found, str) else found:
        assert set(LATIN_WORDS.findall(re.sub(r"\{\w+\}", "", template))) <= UNITS


def test_japanese_choices_have_no_latin_letters() -> None:
    """Choices contain no units."""
    assert not LATIN_WORDS.findall(
        "".join(japanese for _, japanese in CHOICES.values())
    )


@given(REASONS)
def test_every_reason_has_two_sentences(reason: Reason) -> None:
    """Neither uses the fallback for unknown reasons."""
    assert not render_english(reason).startswith("unknown reason")
    assert not render_japanese(reason).startswith("未対応")
    assert render_english(reason) != render_japanese(reason)


@given(REASONS)
def test_encoded_reason_decodes_to_itself(reason: Reason) -> None:
    """As lists, as JSON, in a list, and pickled."""
    assert decode_reason(encode_reason(reason)) == reason
    assert reason_from_json(reason_to_json(reason)) == reason
    assert decode_reasons(json.loads(json.dumps([encode_reason(reason)]))) == (reason,)
    assert pickle.loads(pickle.dumps(reason)) == reason  # noqa: S301 - our own bytes
    assert hash(reason_from_json(reason_to_json(reason))) == hash(reason)


def has_free_text(reason: Reason) -> bool:
    """Whether a reason is or contains a free text, which is never parsed."""
    inner = [value for value in reason.values if isinstance(value, Reason)]
    return reason.code is C.TEXT or any(map(has_free_text, inner))


@given(REASONS)
def test_english_sentence_parses_to_its_reason(reason: Reason) -> None:
    """The sentence holds all information of the code."""
    assume(not has_free_text(reason))
    assert parse_english(render_english(reason)) == reason


@given(st.lists(node_reasons(), min_size=1, max_size=4))
def test_joined_sentences_of_a_node_are_parsed(reasons: list[Reason]) -> None:
    """Nodes join several sentences by semicolons."""
    assert parse_why("; ".join(map(render_english, reasons))) == tuple(reasons)


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_numbers_are_rounded_as_they_are_shown(speed: float, limit: float) -> None:
    """Rounding twice changes no digit, so a sentence stays byte for byte."""
    reason = Reason(C.SPEED, sensor="n1 E", mm_per_h=speed, limit_mm_per_h=limit)

    assert render_english(reason) == f"n1 E moves {speed:.2f} mm/h >= {limit:g}"


def test_rounding_errors_make_no_different_reason() -> None:
    """A different order of summation must not look like a revision."""
    one = Reason(C.RELEASED, rain_mm=0.1 + 0.2)
    other = Reason(C.RELEASED, rain_mm=0.3)

    assert one == other
    assert reason_to_json(one) == '["released",0.3]'


@pytest.mark.parametrize(
    ("code", "params", "problem"),
    [
        (C.SHOCKS, {"sensor": "v", "count": 3}, "shocks.limit must be given, got None"),
        (C.SHOCKS, {"force": 3}, "shocks.force must be one of sensor, count, limit"),
        (C.LOWER_BOUND, {"x": 1}, "lower_bound.x must be absent, got 1"),
        (C.RELEASED, {"rain_mm": "5"}, "released.rain_mm must be a number, got '5'"),
        (C.RELEASED, {"rain_mm": True}, "released.rain_mm must be a number, got True"),
        (C.READINGS, {"node": 5}, "readings.node must be text, got 5"),
        (C.NODE_FLAG, {"flag": "odd"}, "must be one of suspect, failed, missing"),
        (C.DRY_START, {"days": 2**63}, "dry_start.days must be a whole number"),
        (C.DRY_START, {"days": float("inf")}, "dry_start.days must be a whole number"),
        (C.HELD, {"because": "rain"}, "held.because must be a reason, got 'rain'"),
        (C.SUSPECT, {"sensors": "n1"}, "suspect.sensors must be a list of texts"),
    ],
)
def test_invalid_parameter_is_reported(
    code: ReasonCode, params: dict[str, Any], problem: str
) -> None:
    """With field, rule and value."""
    with pytest.raises(ReasonError, match=re.escape(problem)):
        Reason(code, **params)


def test_long_value_is_shortened_in_the_error() -> None:
    """A hostile message must not fill the log."""
    with pytest.raises(ReasonError, match="must be a number") as caught:
        Reason(C.RELEASED, rain_mm="5" * 1_000_000)

    assert len(str(caught.value)) < 200


def test_unknown_code_of_a_newer_version_is_readable() -> None:
    """With its values; a known nested reason has its sentence."""
    known = encode_reason(Reason(C.LOWER_BOUND))
    reason = decode_reason(["snow_melt", "n1 snow", 12.5, None, ["a", 1], known])

    assert not reason.is_known
    assert reason.params["1"] == "n1 snow"
    assert render_english(reason) == (
        "unknown reason snow_melt (n1 snow, 12.5, (a, 1), soil water index is a lower "
        "bound: rain data were missing)"
    )
    assert render_japanese(reason).startswith(
        "この版では表示できない理由 snow_melt（n1 snow、12.5、(a, 1)"
    )
    assert decode_reason(encode_reason(reason)) == reason


def test_unknown_code_is_shown_within_a_known_reason() -> None:
    """The note that contains it is still understood."""
    held = decode_reason(["held", ["snow_melt"]])
    assert render_english(held) == "unknown reason snow_melt () (a while ago)"


def test_additional_parameters_of_a_newer_version_are_ignored() -> None:
    """They come last and do not change the meaning of the others."""
    newer = [*encode_reason(Reason(C.FROST, air_cel=-2)), "new"]

    assert decode_reason(newer) == Reason(C.FROST, air_cel=-2)


def test_reason_without_a_template_is_shown_as_unknown() -> None:
    """Its templates need one of two parameters that are both optional."""
    wet = Reason(C.SOIL_WET, sensor="s", water_content=0.4, rise=0.01, rain_mm=2)

    assert render_english(wet) == "unknown reason soil_wet (s, 0.4, 0.01, 2)"


def nested(depth: int) -> object:
    """A reason nested to a depth."""
    found: list[object] = ["lower_bound"]
    for _ in range(depth - 1):
        found = ["held", found]
    return found


@pytest.mark.parametrize(
    ("encoded", "problem"),
    [
        (None, "reason must be a list that begins with a code"),
        ([], "reason must be a list that begins with a code"),
        ([5], "reason must be a list that begins with a code"),
        ({"code": "frost"}, "reason must be a list that begins with a code"),
        (["frost"], "frost.air_cel must be given"),
        (["frost", "cold"], "frost.air_cel must be a number, got 'cold'"),
        (["frost", ["inf"]], "frost.air_cel must be a number"),
        (["dry_start", 10**5000], "dry_start.days must be a whole number, got 'an unp"),
        (["suspect", {}], "suspect.sensors must be a list of texts"),
        (nested(MAX_DEPTH + 1), "reason must be at most 8 deep"),
        (["new", nested(2000)], "reason must be at most 8 deep"),
        (["new", {"a": 1}], "reason must be of texts, numbers and lists"),
    ],
)
def test_malformed_reason_is_refused(encoded: object, problem: str) -> None:
    """With `ReasonError`."""
    with pytest.raises(ReasonError, match=problem):
        decode_reason(encoded)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "5"])
def test_malformed_json_is_refused(text: str) -> None:
    """With `ReasonError`."""
    with pytest.raises(ReasonError, match="reason must be"):
        reason_from_json(text)


@pytest.mark.parametrize("encoded", [None, "frost", [["lower_bound"]] * 65, [5]])
def test_malformed_list_is_refused(encoded: object) -> None:
    """Also one that is too long."""
    assert len(decode_reasons([["lower_bound"]] * MAX_REASONS)) == MAX_REASONS
    with pytest.raises(ReasonError, match="must be a list"):
        decode_reasons(encoded)


@given(JSON)
def test_any_data_decodes_or_is_refused(encoded: object) -> None:
    """What decodes can be rendered."""
    try:
        reason = decode_reason(encoded)
    except ReasonError:
        return
    assert render(reason, "en")
    assert render(reason, "ja")
