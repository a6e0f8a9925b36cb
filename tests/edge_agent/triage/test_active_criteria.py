"""Criteria from notices: applied, refused with a reason, kept through a restart."""

import re

import pytest
from triage_readings import RAIN, START_S, rain

from edge_agent.triage.engine import SnapshotError, Triage
from edge_agent.triage.settings import CriteriaSection
from service_runtime.errors import FieldError
from slope_science.levels import Criteria, judge_rain
from slope_science.rain_and_soil_water import SoilWater
from spatial_mqtt.announcements import CriteriaNotice, Notice
from spatial_mqtt.errors import NoticeError

NOTICE = CriteriaNotice(90.0, 120.0, 240.0, version=1_700_000_000.0)
SOIL = SoilWater(30.0, 40.0, 60.0)


def node() -> Triage:
    """A gauge on wet soil, below the criteria of its settings."""
    return Triage([RAIN], criteria=Criteria(150.0, 140.0, 277.0), soil=SOIL)


def test_new_criteria_apply_to_the_next_reading() -> None:
    """130 mm of soil water are level 1 by the old criteria and a warning by the new."""
    triage = node()
    assert triage.assess([rain(0.0, 0.0)], START_S).level == 1
    assert triage.active_criteria.apply(NOTICE)
    result = triage.assess([rain(0.0, 0.0)], START_S + 600)
    assert result.level == 3
    assert ">= warning criterion 120.0 mm" in (result.why or "")
    assert "assumed" not in (result.why or "")


def test_criteria_survive_a_restart_and_can_be_reverted() -> None:
    """They are part of the snapshot; only a revert returns to the settings."""
    before, after = node(), node()
    before.active_criteria.apply(NOTICE)
    after.restore(before.snapshot())
    assert after.assess([rain(0.0, 0.0)], START_S).level == 3
    assert not after.active_criteria.apply(NOTICE)
    assert after.active_criteria.revert()
    assert not after.active_criteria.revert()
    assert after.active_criteria.criteria == Criteria(150.0, 140.0, 277.0)


def test_older_criteria_are_refused_unless_accepted_explicitly() -> None:
    """A broker restored from a backup may still retain last year's criteria."""
    triage, older = node(), CriteriaNotice(60.0, 80.0, 160.0, version=1.0)
    triage.active_criteria.apply(NOTICE)
    with pytest.raises(NoticeError, match=r"no older than the one in force .*, got 1"):
        triage.active_criteria.apply(older)
    assert triage.active_criteria.criteria.warning_mm == 120.0
    assert triage.active_criteria.apply(older, accepts_older=True)
    assert triage.active_criteria.criteria.warning_mm == 80.0


def test_critical_line_of_the_prefecture_is_used() -> None:
    """The level 4 line comes with the notice, so no criterion is assumed."""
    line = ((0.0, 200.0), (10.0, 128.0), (50.0, 125.0))
    triage = node()
    triage.active_criteria.apply(CriteriaNotice(90.0, 120.0, 240.0, 1.0, line))
    triage.assess([rain(0.0, 0.0)], START_S)
    result = triage.assess([rain(12.0, 12.0)], START_S + 600)
    assert result.level == 4
    assert re.search(r">= critical line at 12\.0 mm/h 127\.8 mm, ", result.why or "")


def test_level_that_is_not_judged_is_null_in_a_notice() -> None:
    """The prefecture judges level 2 only: no index gives more, no default applies."""
    triage = node()
    notice = Notice.decode(
        b'{"criteria": {"advisory_mm": 90, "warning_mm": null, "special_mm": null, '
        b'"version": 1, "line": null}}'
    )
    assert notice.criteria
    assert triage.active_criteria.apply(notice.criteria)
    restarted = node()
    restarted.restore(triage.snapshot())
    for each in (triage, restarted):
        assert each.active_criteria.criteria.not_judged == (3, 4, 5)
        each.assess([rain(0.0, 0.0)], START_S)
        assert each.assess([rain(200.0, 200.0)], START_S + 600).level == 2


def test_level_that_is_not_judged_in_the_settings() -> None:
    """999 in the prefecture's table; the other levels keep their criteria."""
    found = CriteriaSection(advisory_mm=98.0, not_judged=(3, 4, 5)).criteria()

    assert (found.advisory_mm, found.assumed) == (98.0, False)
    assert found.not_judged == (3, 4, 5)
    assert judge_rain(100.0, 900.0, found).level == 2  # type: ignore[union-attr]
    for wrong in ((6,), (1,), (2,)):
        with pytest.raises(FieldError, match="not_judged must be levels from 2 to 5"):
            CriteriaSection(advisory_mm=98.0, not_judged=wrong)


def test_absent_criteria_of_the_settings_follow_from_the_warning() -> None:
    """The line of the prefecture is used as it is, and is judged."""
    line = ((0.0, 200.0), (10.0, 128.0), (50.0, 125.0))
    found = CriteriaSection(warning_mm=100.0, line=line).criteria()
    assert (found.warning_mm, found.advisory_mm, found.assumed) == (100.0, 75.0, True)
    assert (found.line, found.not_judged) == (line, ())
    assert CriteriaSection(warning_mm=100.0, not_judged=(4,)).criteria().not_judged == (
        4,
    )
    with pytest.raises(FieldError, match="without a criterion beside it"):
        CriteriaSection(line=line, not_judged=(4,))


def test_rising_critical_line_is_refused() -> None:
    """A higher limit at harder rain means that the table was read the wrong way."""
    triage = node()
    wrong = CriteriaNotice(90.0, 120.0, 240.0, 1.0, ((0.0, 100.0), (50.0, 200.0)))
    with pytest.raises(NoticeError, match=r"criteria\.line must be rising in r60"):
        triage.active_criteria.apply(wrong)
    assert triage.active_criteria.criteria == Criteria(150.0, 140.0, 277.0)


@pytest.mark.parametrize("entry", ["3", "[]", '{"warning_mm":1}', '{"version":"x"}'])
def test_damaged_criteria_in_a_snapshot_are_an_error(entry: str) -> None:
    """An error is raised, and nothing has changed."""
    triage = node()
    damaged = triage.snapshot().replace('"criteria":null', f'"criteria":{entry}')
    assert damaged != triage.snapshot()
    with pytest.raises(SnapshotError, match="triage snapshot must be"):
        triage.restore(damaged)
    assert triage.active_criteria.criteria == Criteria(150.0, 140.0, 277.0)
