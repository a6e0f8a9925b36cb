"""Calibration: counts, honest intervals, each year left out, and refusals."""

import json
import math
from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner
from measurements import seattle

from backend_spark.cli import cli
from backend_spark.errors import CalibrationError
from backend_spark.evaluation.calibration_file import Calibration, read_calibration
from backend_spark.evaluation.skill import DayBootstrap

FIRST = date(2000, 1, 1)
MIN_CLASS_DAYS = 20


def chance(score: float) -> float:
    """Probability of a landslide on a day of the synthetic climate."""
    return 1 / (1 + math.exp(-(score - 90) / 12))


def climate(years: int, seed: int) -> tuple[list[float], list[bool]]:
    """Scores and landslides of independent days with a known probability."""
    draw = Random(seed)
    scores = [draw.gammavariate(0.6, 25) for _ in range(365 * years)]
    return scores, [draw.random() < chance(score) for score in scores]


def calibrate(
    values: dict[str, list[float]], events: Sequence[bool], step_h: float = 1.0
) -> Calibration:
    """Calibration of days from 2000 on."""
    from backend_spark.evaluation import calibration  # noqa: PLC0415 - scikit-learn is slow

    assert calibration.MIN_CLASS_DAYS == MIN_CLASS_DAYS
    days = [FIRST + timedelta(days=at) for at in range(len(events))]
    made = calibration.CalibrationDays(
        days, events, values, DayBootstrap(len(days), 1), 3, step_h, "Otani"
    )
    return calibration.calibrate(made)


@pytest.fixture(scope="module")
def made() -> Calibration:
    """Calibration of four years."""
    scores, events = climate(3, 1)
    return calibrate({"swi": scores}, events)


def true_share(scores: list[float], found: Calibration, at: int) -> float:
    """Mean probability of the days of a class."""
    each = found.classes[at]
    top = math.inf if each.to_score is None else each.to_score
    inside = [chance(s) for s in scores if each.from_score <= s < top]
    assert len(inside) == each.days
    return 100 * sum(inside) / len(inside)


@pytest.mark.parametrize(
    ("years", "climates"), [(8, 1), pytest.param(20, 20, marks=pytest.mark.long)]
)
def test_intervals_hold_the_true_probability(years: int, climates: int) -> None:
    """Over synthetic climates at least 95 of 100 classes do, and the shares rise.

    In the short form, of some ten classes, all but one.
    """
    held = classes = 0
    for seed in range(climates):
        scores, events = climate(years, seed)
        found = calibrate({"swi": scores}, events)
        shares = [each.of_100 for each in found.classes]
        assert shares == sorted(shares)
        assert all(each.days >= MIN_CLASS_DAYS for each in found.classes)
        assert sum(each.days for each in found.classes) == len(events)
        assert sum(each.days_with_landslide for each in found.classes) == sum(events)
        for at, each in enumerate(found.classes):
            truth = true_share(scores, found, at)
            classes += 1
            held += each.low_of_100 - 0.05 <= truth <= each.high_of_100 + 0.05
        assert found.each_year_left_out.skill_score > 0.1
    assert held >= min(0.95 * classes, classes - 1)


def test_a_predictor_without_skill_has_no_skill_score() -> None:
    """On the days that made the classes it looks skilled, in years left out not."""
    draw = Random(2)
    noise = [draw.random() for _ in range(365 * 3)]
    events = [draw.random() < 0.03 for _ in noise]
    skill = calibrate({"swi": noise}, events).each_year_left_out
    assert skill.skill_score_same_days > 0
    assert skill.skill_score < skill.skill_score_same_days
    assert skill.skill_score < 0.01
    assert [year.year for year in skill.years] == [2000, 2001, 2002]
    assert sum(bin_.days for bin_ in skill.reliability) == len(events)


def test_several_predictors_make_one_score(tmp_path: Path) -> None:
    """Both matter; the file gives the same class without scikit-learn."""
    draw = Random(5)
    swi = [draw.gammavariate(0.6, 25) for _ in range(365 * 3)]
    wet = [draw.gammavariate(0.6, 25) for _ in swi]
    events = [draw.random() < chance(a + b) for a, b in zip(swi, wet, strict=True)]
    found = calibrate({"swi": swi, "antecedent": wet}, events)
    assert found.log_odds is not None
    assert all(slope > 0 for slope in found.log_odds.coefficients.values())
    path = tmp_path / "c.json"
    found.write(path)
    again = read_calibration(path)
    for at in range(0, len(swi), 97):
        row = {
            "swi_mm": swi[at], "antecedent_mm_per_day": wet[at], "lower_bound": False,
        }  # fmt: skip
        told = again.statement(row)
        assert told is not None
        expected = found.class_of(found.score({"swi": swi[at], "antecedent": wet[at]}))
        assert told[0] == expected
        assert (
            "soil water index and antecedent rain index like now"
            in (again.sentences(row)[0]["en"])
        )


@pytest.mark.parametrize(
    ("events", "predictors", "problem"),
    [
        ([at < 9 for at in range(900)], 1, "must be 10 or more .*got 9"),
        ([at % 50 == 0 for at in range(900)], 2, "must be 20 or more .*got 18"),
        ([at < 300 for at in range(399)], 1, "without a landslide must be 100 or more"),
        ([at < 300 for at in range(900)], 1, "in 2 calendar years or more"),
    ],
)
def test_too_few_cases_are_refused(
    events: list[bool], predictors: int, problem: str
) -> None:
    """The error states the rule, the count and the remedy."""
    names = ["swi", "effective72"][:predictors]
    values = {name: [float(at % 37) for at in range(len(events))] for name in names}
    with pytest.raises(CalibrationError, match=problem):
        calibrate(values, events)


def test_statement_about_a_row(made: Calibration) -> None:
    """Unknown rain and lower bounds have none; what exceeds all days is marked."""
    known = {"swi_mm": 500.0, "lower_bound": False}
    told = made.statement(known)
    assert told is not None
    assert told[1] > made.highest_score
    assert told[0].to_score is None
    assert any("higher now" in each["en"] for each in made.sentences(known))
    low = made.statement({"swi_mm": 0.0, "lower_bound": False})
    assert low is not None
    assert low[0].of_100 <= told[0].of_100
    unknown = [{"lower_bound": True}, {"swi_mm": None}, {"state": "held"}]
    for change in unknown:
        assert made.sentences(known | change) == []
    assert made.sentences(known | {"state": "judged"})


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"form": "other"}, "must be of form"),
        ({"predictors": ["rain72"]}, "made with swi, effective72.*got rain72"),
        ({"step_h": 24.0}, "steps of an hour or less.*got 24 h"),
        ({"classes": []}, "with predictors and classes"),
        ({"days": "many"}, "the JSON of a calibration"),
    ],
)
def test_file_that_the_console_cannot_use_is_refused(
    tmp_path: Path, made: Calibration, change: dict[str, Any], problem: str
) -> None:
    """The error states the rule and the remedy."""
    path = tmp_path / "c.json"
    made.write(path)
    text = json.loads(path.read_text(encoding="utf-8")) | change
    path.write_text(json.dumps(text), encoding="utf-8")
    with pytest.raises(CalibrationError, match=problem):
        read_calibration(path)
    with pytest.raises(CalibrationError, match="must be a readable file"):
        read_calibration(tmp_path / "none.json")


def test_seattle_is_counted_but_not_proven(tmp_path: Path) -> None:
    """11 landslide days: wide intervals, no skill in the year left out, and it says so.

    The figures are those of docs/benchmarks/landslides.md.
    """
    path, diagram = tmp_path / "c.json", tmp_path / "c.svg"
    words = [
        "evaluate", str(seattle("nws_hourly_rain_2010_2011.csv")),
        str(seattle("raw/dates2011Muk.txt")), "--time", "time_local_end",
        "--column", "KPAE_mm", "--from", "2010-08-15", "--to", "2011-12-31",
        "--calibrate", str(path), "--diagram", str(diagram), "--place", "Mukilteo",
    ]  # fmt: skip
    output = CliRunner().invoke(cli, words).output
    found = read_calibration(path)
    top = found.classes[-1]
    assert (top.days, top.days_with_landslide) == (21, 7)
    assert top.low_of_100 < 5
    assert top.high_of_100 > 55
    assert found.each_year_left_out.skill_score == pytest.approx(-0.016, abs=0.002)
    assert "of 100 such days, 33.3 had landslides here" in output
    assert "were no better than the mean share of all days" in output
    assert diagram.read_text(encoding="utf-8").startswith("<?xml")
    for option in (path, diagram):
        wrong = [
            str(tmp_path / "nowhere/x.svg") if w == str(option) else w for w in words
        ]
        done = CliRunner().invoke(cli, wrong)
        assert done.exit_code == 2, done.exception
        assert f"must be writable, got {tmp_path}" in " ".join(done.output.split())
