"""JMA's warning telegrams as a level to compare with."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from backend_spark.criteria.cell_rules import CellRuleProvider
from backend_spark.criteria.jma import (
    MAX_LEVEL_AGE_S,
    Telegram,
    find_official_level,
    parse_telegram,
)
from backend_spark.criteria.tables import CriteriaRow, CriteriaTable
from backend_spark.errors import TelegramError
from backend_spark.scoring.observation import Observation
from backend_spark.scoring.score import score_cell
from slope_science.criteria import Criteria

KOCHI, AKI = "3920100", "3920300"
T0 = 1_780_000_200.0  # 2026-05-29 05:30 in Japan


def xml(
    items: str, status: str = "通常", when: str = "2026-05-29T05:30:00+09:00"
) -> bytes:
    """A report as JMA's feed has it."""
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<Report xmlns="http://xml.kishou.go.jp/jmaxml1/">
<Control><Title>t</Title><Status>{status}</Status>
<PublishingOffice>高知地方気象台</PublishingOffice></Control>
<Head xmlns="http://xml.kishou.go.jp/jmaxml1/informationBasis1/">
<ReportDateTime>{when}</ReportDateTime><InfoType>発表</InfoType></Head>
<Body xmlns="http://xml.kishou.go.jp/jmaxml1/body/meteorology1/">
<Warning type="気象警報・注意報（府県予報区等）"><Item><Kind><Code>39</Code></Kind>
<Area><Name>高知県</Name><Code>390000</Code></Area></Item></Warning>
<Warning type="気象警報・注意報（市町村等）">{items}</Warning></Body></Report>
""".encode()


def item(area: str, *codes: str, status: str = "発表") -> str:
    """What is in force for one municipality."""
    kinds = "".join(
        f"<Kind><Name>n</Name><Code>{c}</Code><Status>{status}</Status></Kind>"
        for c in codes
    )
    return f"<Item>{kinds}<Area><Name>a</Name><Code>{area}</Code></Area></Item>"


@pytest.mark.parametrize(
    ("codes", "level"),
    [
        (["39"], 5),
        (["49"], 4),
        (["09"], 3),
        (["29"], 2),
        (["14"], 1),
        (["29", "49"], 4),
    ],
)
def test_kind_gives_the_level(codes: list[str], level: int) -> None:
    """39, 49, 09 and 29 are the landslide series; thunder is not."""
    told = parse_telegram("x_VPWW56_390000.xml", xml(item(KOCHI, *codes)))

    assert told == Telegram("高知地方気象台", "VPWW56", T0, {KOCHI: level})


def test_what_was_lifted_drilled_or_tested_does_not_count() -> None:
    """A drill is no warning, and one that was called off is none any more."""
    lifted = parse_telegram("VPWW56.xml", xml(item(KOCHI, "49", status="解除")))
    drill = parse_telegram("VPWW56.xml", xml(item(KOCHI, "49"), status="訓練"))

    assert lifted.levels == {KOCHI: 1}
    assert not drill.counts
    assert find_official_level([drill], KOCHI, T0) is None


def test_newest_report_of_each_type_counts_until_it_expires() -> None:
    """An old level of a full report does not stand beside a fresh partial one."""
    full = Telegram("k", "VPWS50", T0, {KOCHI: 4, AKI: 2})
    partial = Telegram("k", "VPWW56", T0 + 600, {KOCHI: 2})
    later = replace(partial, reported_s=T0 + 1200, levels={KOCHI: 3})
    told = [later, full, partial]

    assert find_official_level(told, KOCHI, T0 - 1) is None
    assert find_official_level(told, KOCHI, T0 + 600) == (4, T0)
    assert find_official_level(told, KOCHI, T0 + MAX_LEVEL_AGE_S) == (3, T0 + 1200)
    assert find_official_level(told, AKI, T0 + MAX_LEVEL_AGE_S) is None
    assert find_official_level(told, "0110000", T0 + 600) is None


@pytest.mark.parametrize(
    ("name", "raw", "problem"),
    [
        ("a.xml", b"", "name must hold its type such as VPWW56"),
        ("VPWW56.xml", b"<a", "must be XML"),
        ("VPWW56.xml", b"<!DOCTYPE a []><a/>", "must be XML in UTF-8 without DTD"),
        ("VPWW56.xml", "<!DOCTYPE a []><a/>".encode("utf-16"), "must be XML in UTF-8"),
        (
            "VPWW56.xml",
            b"<?xml version='1.0' encoding='shift_jis'?><a/>",
            "must be XML",
        ),
        ("VPWW56.xml", b"<?xml version='1.0' encoding='bogus'?><a/>", "must be XML"),
        (
            "VPWW56.xml",
            xml("", when="today"),
            "must be a time with its zone, got 'today'",
        ),
        ("VPWW56.xml", xml("", when="2026-05-29T05:30:00"), "must have a zone"),
    ],
)
def test_file_that_is_no_telegram_is_refused(
    name: str, raw: bytes, problem: str
) -> None:
    """With its name, the rule and what to do."""
    with pytest.raises(TelegramError, match=problem):
        parse_telegram(name, raw)


def test_levels_stand_beside_jmas(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By the municipality that the table names; a bad file is told once and left."""
    (tmp_path / "1_VPWW56_390000.xml").write_bytes(xml(item(KOCHI, "49")))
    (tmp_path / "2_VPWW56_390000.xml").write_bytes(b"broken")
    row = CriteriaRow(90, 120, municipality=KOCHI)
    table = CriteriaTable(Criteria.assumed_from(150.0), {"355a9c44": row})
    judging = CellRuleProvider(table, telegrams=tmp_path)
    with caplog.at_level(logging.WARNING):
        rules = judging.rules_of(["355a9c44"])["355a9c44"]
        again = judging.rules_of(["355a9c44", "aa"])
    rain = [Observation(T0 + n * 600, "n", "rain", "mm", 0.0, seq=n) for n in (-1, 2)]
    told = [row.more for row in score_cell(rain, rules).rows]

    assert [m["official_level"] for m in told] == [None, 4, 4, 4]
    assert told[-1]["official_at"] == T0 * 1_000_000
    assert "official_level" not in score_cell(rain, again["aa"]).rows[-1].more
    (told_once,) = [record.message for record in caplog.records]
    assert told_once.startswith("telegram 2_VPWW56_390000.xml: must be XML: syntax")
    assert told_once.endswith("; move it out of the folder")
