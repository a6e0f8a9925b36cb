"""From values to a level with its reasons."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slope_science.levels import (
    Criteria,
    Finding,
    Judgement,
    combine_findings,
    judge_rain,
)
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason, render_english

TABLE = Criteria(150.0, 112.5, 277.125, assumed=False)
TEXTS = st.text(min_size=1).map(lambda text: Reason(ReasonCode.TEXT, text=text))
FINDINGS = st.one_of(st.none(), st.builds(Finding, st.integers(1, 5), TEXTS))


def level_and_text(finding: Finding | None) -> tuple[int, str] | None:
    """Level and English sentence of a finding."""
    return None if finding is None else (finding.level, render_english(finding.reason))


def free_text(text: str) -> Reason:
    """A reason of free text."""
    return Reason(ReasonCode.TEXT, text=text)


@pytest.mark.parametrize(
    ("swi_mm", "level", "reason"),
    [
        (112.5, 2, "soil water index 112.5 mm >= advisory criterion 112.5 mm"),
        (149.9, 2, "soil water index 149.9 mm >= advisory criterion 112.5 mm"),
        (150.0, 3, "soil water index 150.0 mm >= warning criterion 150.0 mm"),
        (221.5, 3, "soil water index 221.5 mm >= warning criterion 150.0 mm"),
        (
            221.7,
            4,
            (
                "soil water index 221.7 mm >= critical line at 0.0 mm/h 221.6 mm "
                "(assumed line)"
            ),
        ),
        (
            277.125,
            5,
            "soil water index 277.1 mm >= special-warning criterion 277.1 mm",
        ),
    ],
)
def test_rain_reaches_each_level(swi_mm: float, level: int, reason: str) -> None:
    """A criterion applies from its exact value, and the reason shows both numbers."""
    assert level_and_text(judge_rain(0.0, swi_mm, TABLE)) == (level, reason)


@pytest.mark.parametrize("swi_mm", [0.0, 112.4])
def test_rain_below_the_advisory_is_no_finding(swi_mm: float) -> None:
    """Below all criteria there is no finding."""
    assert judge_rain(0.0, swi_mm, TABLE) is None


def test_hard_rain_lowers_the_critical_line() -> None:
    """The same soil is critical in heavy rain, and the reason names the rain."""
    quiet, downpour = (judge_rain(r60, 160.0, TABLE) for r60 in (0.0, 80.0))

    assert quiet is not None
    assert downpour is not None
    assert (quiet.level, downpour.level) == (3, 4)
    assert "critical line at 80.0 mm/h 145." in render_english(downpour.reason)


@given(swi_mm=st.floats(100, 400), r60_mm=st.floats(0, 150))
def test_assumed_criteria_are_marked_in_the_reason(
    swi_mm: float, r60_mm: float
) -> None:
    """Default criteria are marked, criteria of the prefecture's table are not."""
    assumed = judge_rain(r60_mm, swi_mm, Criteria(150.0, 100.0, 277.0, assumed=True))
    sure = judge_rain(r60_mm, swi_mm, Criteria(150.0, 100.0, 277.0, assumed=False))

    assert assumed is not None
    assert sure is not None
    words = render_english(sure.reason).removesuffix(" (assumed line)")
    assert level_and_text(assumed) == (sure.level, words + " (assumed criteria)")


@given(
    swi_mm=st.floats(0, 500),
    more_mm=st.floats(0, 500),
    r60_mm=st.floats(0, 150),
    harder_mm=st.floats(0, 150),
)
def test_more_water_never_lowers_the_level(
    swi_mm: float, more_mm: float, r60_mm: float, harder_mm: float
) -> None:
    """The level is monotone in the index and in the rain."""
    less = combine_findings([judge_rain(r60_mm, swi_mm, TABLE)])
    more = combine_findings([judge_rain(r60_mm + harder_mm, swi_mm + more_mm, TABLE)])

    assert less.level <= more.level


def test_index_that_is_not_a_number_is_refused() -> None:
    """A missing value never counts as zero."""
    with pytest.raises(ValueError, match="swi_mm must be"):
        judge_rain(0.0, math.nan, TABLE)


def test_no_finding_gives_the_lowest_level() -> None:
    """Level 1 without a reason."""
    assert combine_findings([]) == combine_findings([None, None]) == Judgement(1, ())


@given(findings=st.lists(FINDINGS))
def test_most_serious_finding_sets_the_level(findings: list[Finding | None]) -> None:
    """All reasons are kept, the most serious first."""
    fired = [finding for finding in findings if finding]
    judgement = combine_findings(findings)

    assert judgement.level == max((f.level for f in fired), default=1)
    assert sorted(map(render_english, judgement.reasons)) == sorted(
        render_english(f.reason) for f in fired
    )
    assert not fired or judgement.reasons[0] in {
        f.reason for f in fired if f.level == judgement.level
    }


def test_reasons_of_equal_level_keep_their_order() -> None:
    """That is the order in which the sensors were read."""
    findings = [
        Finding(2, free_text("a")),
        Finding(4, free_text("b")),
        None,
        Finding(2, free_text("c")),
        Finding(4, free_text("d")),
    ]

    assert combine_findings(findings) == Judgement(4, tuple(map(free_text, "bdac")))
