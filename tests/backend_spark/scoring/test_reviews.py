"""Reviews of readings: what a person's decision does to flags and levels."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pyarrow as pa
import pytest
from msgspec.structs import replace
from scored_levels import make_levels_table

from backend_spark.scoring.observation import Observation, ReviewMark
from backend_spark.scoring.quality import flag_with_neighbours
from backend_spark.scoring.reviews import (
    AppliedReviews,
    ReadingReview,
    ReadingReviews,
    read_report,
    reviewed_verdict,
)
from backend_spark.scoring.revisions import NewReadings, merge_news, revise_rows
from backend_spark.scoring.rules import CellRules
from backend_spark.scoring.score import CellScores, score_cell
from backend_spark.tables.schemas import LEVEL_KEY, LEVELS, REVISIONS
from slope_science.levels import Criteria
from slope_science.quality import Flag, Verdict
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason

T0 = 1_700_000_400
RULES = CellRules(Criteria.assumed_from(100.0))
DAY = "2023-11-15"


def review(number: int = 1, **more: Any) -> ReadingReview:  # noqa: ANN401 - fields
    """A review of the whole series of node n1, made at `T0`."""
    known: dict[str, Any] = {
        "cell": "c",
        "node": "n1",
        "name": "tilt/x",
        "from_s": T0,
        "to_s": 2e9,
        "verdict": "bad",
        "person": "suzuki",
        "at_s": float(T0),
    }
    return ReadingReview(number, **known | more)


def series(name: str, unit: str, values: Sequence[float]) -> list[Observation]:
    """Readings of a sensor every ten minutes."""
    return [
        Observation(T0 + n * 600, "n1", name, unit, value, seq=n)
        for n, value in enumerate(values)
    ]


def gauge(depths: Sequence[float], node: str = "n1") -> list[Observation]:
    """Reports of a rain gauge every ten minutes."""
    total, made = 0.0, []
    for n, depth in enumerate(depths):
        total += depth
        at_s = T0 + n * 600
        received_us = (at_s + 2) * 1_000_000
        made.append(
            Observation(
                *(at_s, node, "rain", "mm", depth, None, total, received_us),
                seq=n,
            )
        )
    return made


def flagged(
    readings: Sequence[Observation], *reviews: ReadingReview
) -> list[tuple[int | None, str | None]]:
    """Flags and reasons under some reviews."""
    marked = ReadingReviews(reviews).mark(readings)
    return [(o.flag, o.why) for o in flag_with_neighbours(marked)]


def scored(readings: Sequence[Observation], *reviews: ReadingReview) -> CellScores:
    """The cell under some reviews."""
    return score_cell(ReadingReviews(reviews).mark(readings), RULES)


KNOCK = series("tilt/x", "deg", [0.0, 0.1, 2.0, 2.1, 2.0])


def test_rejected_doubt_makes_a_reading_good() -> None:
    """The flag names the person and the day; other readings stay as they were."""
    before = flagged(KNOCK)
    after = flagged(KNOCK, review(verdict="good", codes=("step",)))

    assert before[2][0] == 3
    assert after[2] == (1, f"doubt rejected by suzuki on {DAY}")
    assert [*after[:2], *after[3:]] == [*before[:2], *before[3:]]


def test_doubt_of_another_kind_still_counts() -> None:
    """A review rejects the doubts that its author saw, and no others."""
    far = series("tilt/x", "deg", [0.0, 0.1, 2.0, 95.0])
    after = flagged(far, review(verdict="good", codes=("step",)))

    assert [flag for flag, _ in after] == [1, 1, 1, 4]
    assert after[3][1] == "range: 95 is not within -90 to 90"


def test_other_doubt_of_the_same_reading_still_counts() -> None:
    """Also where both make it doubtful."""
    marked = replace(KNOCK[2], review=ReviewMark("suzuki", DAY, ("step",)))
    step = Verdict(Flag.SUSPECT, (Reason(ReasonCode.STEP, size=2.0, limit=1.0),))
    for flag in (Flag.SUSPECT, Flag.FAIL):
        other = Verdict(
            flag, (Reason(ReasonCode.RANGE, value=95.0, low=-90.0, high=90.0),)
        )
        assert reviewed_verdict(marked, [step, other]) == other


def test_accepted_doubt_stays_as_it_is() -> None:
    """Accepting changes no flag, and ends no other decision about the readings."""
    accepted = review(9, verdict="accepted", codes=("step",))
    good = review(8, verdict="good", codes=("step",))

    assert flagged(KNOCK, accepted) == flagged(KNOCK)
    assert flagged(KNOCK, good, accepted) == flagged(KNOCK, good)


def test_missing_number_cannot_be_rejected() -> None:
    """There is no value that could count."""
    gone = [replace(o, value=None) for o in KNOCK]
    codes = ("no_number", "marked_bad", "clock_implausible")

    assert flagged(gone, review(verdict="good", codes=codes)) == flagged(gone)


def test_bad_reading_is_no_neighbour_of_others() -> None:
    """The reading after it is compared with the one before, and nothing is deleted."""
    high = series("tilt/x", "deg", [0.0, 0.1, 3.0, 3.1, 3.0])
    before = flagged(high)
    after = flagged(high, review(from_s=high[2].at_s, to_s=high[2].at_s))

    assert [flag for flag, _ in before] == [1, 1, 3, 1, 1]
    assert [flag for flag, _ in after] == [1, 1, 4, 3, 1]
    assert after[2][1] == f"marked as bad by suzuki on {DAY}"


@pytest.mark.parametrize("unit", [None, "count"])
def test_any_kind_of_reading_can_be_bad(unit: str | None) -> None:
    """Also those that no test judges."""
    readings = series("wire", unit or "", [0.0, 1.0])

    assert [flag for flag, _ in flagged(readings, review(name="wire"))] == [4, 4]


def test_newest_of_several_reviews_counts() -> None:
    """In whatever order they are read."""
    both = (review(7), review(8, verdict="good", codes=("step",)))

    assert flagged(KNOCK, *both) == flagged(KNOCK, both[1])
    assert flagged(KNOCK, *both[::-1]) == flagged(KNOCK, both[1])


CLOUDBURST = [0.0] * 6 + [22.0] * 12 + [0.0] * 3
"""132 mm an hour at one gauge: in doubt until another gauge has half of it."""


def test_rejected_rain_counts_in_full_and_the_reasons_say_so() -> None:
    """Doubtful rain alone gives level 3; a person may state that it fell."""
    before = scored(gauge(CLOUDBURST)).rows
    rain = review(name="rain", verdict="good", codes=("extreme",))
    after = scored(gauge(CLOUDBURST), rain).rows
    highest = [max(row.level or 0 for row in rows) for rows in (before, after)]
    notes = [s for row in after for s in row.sentences if "review" in s]

    assert highest == [3, 5]
    assert set(notes) == {"counted after a person's review: n1 rain"}


def test_rain_that_is_marked_as_bad_is_unknown_and_not_zero() -> None:
    """The level before is held; the counter does not bring the rain back."""
    rows = scored(gauge([*CLOUDBURST, *[0.0] * 6]), review(name="rain", to_s=T0 + 12e3))

    assert all(not row.rain.is_known for row in rows.rows[:20])
    assert max(row.rain.r60_mm or 0.0 for row in rows.rows) == 0.0
    assert {row.level for row in rows.rows} <= {None, 1}


def test_bad_movement_of_one_sensor_ends_its_level() -> None:
    """The rules of evidence judge what is left; no second engine gives a level."""
    creep = [0.3 * n for n in range(24)]
    axes = series("tilt/x", "deg", creep) + series("tilt/y", "deg", creep)
    before = scored(axes).rows[-1]
    after = scored(axes, review(), review(2, name="tilt/y")).rows[-1]

    assert (before.level or 0) >= 3
    assert after.level is None
    assert before.more["notice_level"] == 3


ROW = {"cell": "c", "at": T0 * 1_000_000, "level": 3, "reasons": ["rain"]}


def _table(schema: pa.Schema, **more: object) -> pa.Table:
    return pa.Table.from_pylist([ROW | more], schema=schema)


def revise(cause: NewReadings, level: int) -> tuple[list[Any], list[Any]]:
    """The rows that replace a stored one, and the replaced ones."""
    old = _table(LEVELS, version=1)
    news = {"c": [cause]}
    found = revise_rows(_table(LEVELS, level=level), old, LEVEL_KEY, news, REVISIONS)
    return found.changed.to_pylist(), found.superseded.to_pylist()


def test_review_within_the_hour_keeps_the_level_before_it() -> None:
    """Unlike new readings: a replay as known then must not show the decision."""
    soon_us = (T0 + 60) * 1_000_000
    by_person = revise(NewReadings("suzuki", soon_us, is_review=True), 4)
    by_readings = revise(NewReadings("n1", soon_us), 4)

    assert [row["version"] for row in by_person[0]] == [2]
    assert by_person[0][0]["revised_because"] == "review of readings by suzuki"
    assert [(row["version"], row["level"]) for row in by_person[1]] == [(1, 3)]
    assert [row["version"] for row in by_readings[0]] == [1]
    assert by_readings[1] == []


def test_person_with_the_name_of_a_node_is_not_the_node() -> None:
    """Causes of both kinds stay apart."""
    causes = [NewReadings("n1", 5), NewReadings("n1", 7, is_review=True)]

    assert merge_news([*causes, *causes]) == causes


@pytest.fixture
def console(tmp_path: Path) -> Callable[..., None]:
    """Function that writes the console's file."""

    def write(*reviews: ReadingReview) -> None:
        (tmp_path / "new.json").write_bytes(msgspec.json.encode(reviews))
        (tmp_path / "new.json").replace(tmp_path / "reviews.json")

    return write


def test_job_applies_each_review_once_and_ends_it_when_reverted(
    tmp_path: Path, console: Callable[..., None]
) -> None:
    """Also after a restart, and with the time of the first pass."""
    file = tmp_path / "reviews.json"
    job = AppliedReviews(tmp_path, file, lambda: 77.0)
    assert not job.changes().has_changes
    console(review())
    first = job.changes()
    assert [r.id for r in first.begun] == [1]
    causes = [(cause.node, cause.received_us) for _, cause in first.causes()]
    assert causes == [("suzuki", T0 * 1_000_000)]
    assert job.changes() == first  # until the pass has ended
    job.finish(first)
    assert not job.changes().has_changes

    again = AppliedReviews(tmp_path, file, lambda: 99.0)
    console(review(), review(2))
    second = again.changes()
    again.finish(second)
    assert [r.id for r in second.begun] == [2]
    assert _applied(tmp_path, file) == [(1, 77.0), (2, 99.0)]

    console(review(reverted_s=T0 + 60.0, reverted_by="sato"), review(2))
    last = again.changes()
    assert [r.id for r in last.in_force] == [2]
    (cause,) = (cause for _, cause in last.causes())
    assert (cause.node, cause.received_us) == ("sato", (T0 + 60) * 1_000_000)


def _applied(folder: Path, file: Path) -> list[tuple[int, float]]:
    """Reviews of a file that a job has applied, and when."""
    report = read_report(folder)
    assert report is not None
    assert report.path == str(file)
    return [(each.review.id, each.at_s) for each in report.applied]


def test_later_reviews_are_unknown_to_a_replay(
    tmp_path: Path, console: Callable[..., None]
) -> None:
    """A slice of the past sees the reviews of its time, also reverted ones."""
    job = AppliedReviews(tmp_path, tmp_path / "reviews.json", lambda: 0.0)
    console(review(reverted_s=T0 + 500.0), review(2, at_s=T0 + 1000.0))
    seen = [
        [r.id for r in job.changes((T0 + s) * 1_000_000).in_force]
        for s in (-1, 0, 499, 500, 1000)
    ]

    assert seen == [[], [1], [1], [], [2]]
    assert [r.id for r in job.changes().in_force] == [2]


def test_reviews_end_when_their_setting_is_removed(
    tmp_path: Path, console: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    """Revisions name the person who reviewed, since nobody has reverted."""
    job = AppliedReviews(tmp_path, tmp_path / "reviews.json", lambda: 0.0)
    assert not job.changes().has_changes
    assert not caplog.records  # no review was lost
    console(review())
    job.finish(job.changes())

    again = AppliedReviews(tmp_path, None, lambda: 0.0)
    last = again.changes()
    assert (last.in_force, last.ended) == ([], [review()])
    ((_, cause),) = last.causes()
    assert (cause.node, cause.received_us) == ("suzuki", T0 * 1_000_000)
    again.finish(last)
    report = read_report(tmp_path)
    assert report
    assert (report.path, report.applied) == (None, ())


def test_file_that_could_not_be_read_is_read_at_the_next_pass(
    tmp_path: Path, console: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rights that are corrected change neither its inode nor its time."""
    job = AppliedReviews(tmp_path, tmp_path / "reviews.json", lambda: 0.0)
    console(review())
    with monkeypatch.context() as denied:
        error = PermissionError(13, "Permission denied")
        denied.setattr(Path, "read_bytes", Mock(side_effect=error))
        assert not job.changes().has_changes

    assert [r.id for r in job.changes().begun] == [1]


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("damage", ["garbled", "lost"])
def test_damage_of_the_file_ends_no_review(
    tmp_path: Path,
    console: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
    damage: str,
    is_restarted: bool,
) -> None:
    """Its loss must not lower a level; the job logs an error that names the file."""
    file = tmp_path / "reviews.json"
    job = AppliedReviews(tmp_path, file, lambda: 0.0)
    console(review())
    job.finish(job.changes())
    if damage == "lost":
        file.unlink()
    else:
        file.write_text('[{"id": 1}]')
    if is_restarted:
        job = AppliedReviews(tmp_path, file, lambda: 0.0)

    for _ in range(3):
        assert not job.changes().has_changes
        assert [r.id for r in job.changes().in_force] == [1]
    assert caplog.text.count("reviews stay as they were") == 1
    assert str(file) in caplog.text


def test_rows_without_reviews_are_those_of_before() -> None:
    """An empty set of reviews changes nothing."""
    known = gauge(CLOUDBURST)
    plain = score_cell(known, RULES)

    assert make_levels_table("c", scored(known).rows) == make_levels_table(
        "c", plain.rows
    )
