"""JMA's warning telegrams, parsed to the official level of a municipality."""

import logging
import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from backend_spark.criteria.cell_rules import CellRuleProvider
from backend_spark.criteria.tables import CriteriaRow, CriteriaTable
from backend_spark.criteria.telegrams import (
    MAX_LEVEL_AGE_S,
    Telegram,
    find_official_level,
    parse_telegram,
)
from backend_spark.errors import TelegramError
from backend_spark.scoring.observation import Observation
from backend_spark.scoring.score import score_cell
from slope_science.levels import Criteria

KOCHI, AKI = "3920100", "3920300"
T0 = 1_780_000_200.0  # 2026-05-29 05:30 in Japan


def xml(
    items: str, status: str = "通常", when: str = "2026-05-29T05:30:00+09:00"
) -> bytes:
    """A report in the format of JMA's feed."""
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
    """Warnings in force for one municipality."""
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
def test_code_of_the_kind_gives_the_level(codes: list[str], level: int) -> None:
    """39, 49, 09 and 29 are landslide codes; 14 (thunder) is not."""
    telegram = parse_telegram("x_VPWW56_390000.xml", xml(item(KOCHI, *codes)))

    assert telegram == Telegram("高知地方気象台", "VPWW56", T0, {KOCHI: level})


def test_lifted_warnings_and_drills_do_not_count() -> None:
    """By the status of the kind and of the report."""
    lifted = parse_telegram("VPWW56.xml", xml(item(KOCHI, "49", status="解除")))
    drill = parse_telegram("VPWW56.xml", xml(item(KOCHI, "49"), status="訓練"))

    assert lifted.levels == {KOCHI: 1}
    assert not drill.counts
    assert find_official_level([drill], KOCHI, T0) is None


def test_newest_report_of_each_type_counts_until_it_expires() -> None:
    """An old full report does not add to a newer partial one."""
    full = Telegram("k", "VPWS50", T0, {KOCHI: 4, AKI: 2})
    partial = Telegram("k", "VPWW56", T0 + 600, {KOCHI: 2})
    later = replace(partial, reported_s=T0 + 1200, levels={KOCHI: 3})
    telegrams = [later, full, partial]

    assert find_official_level(telegrams, KOCHI, T0 - 1) is None
    assert find_official_level(telegrams, KOCHI, T0 + 600) == (4, T0)
    assert find_official_level(telegrams, KOCHI, T0 + MAX_LEVEL_AGE_S) == (3, T0 + 1200)
    assert find_official_level(telegrams, AKI, T0 + MAX_LEVEL_AGE_S) is None
    assert find_official_level(telegrams, "0110000", T0 + 600) is None


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
def test_file_that_is_no_telegram_is_rejected(
    name: str, raw: bytes, problem: str
) -> None:
    """The error states the rule."""
    with pytest.raises(TelegramError, match=problem):
        parse_telegram(name, raw)


def test_rows_have_the_official_level(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By the municipality in the table; an invalid file is logged once and skipped."""
    (tmp_path / "1_VPWW56_390000.xml").write_bytes(xml(item(KOCHI, "49")))
    (tmp_path / "2_VPWW56_390000.xml").write_bytes(b"broken")
    row = CriteriaRow(90, 120, municipality=KOCHI)
    table = CriteriaTable(Criteria.assumed_from(150.0), {"355a9c44": row})
    provider = CellRuleProvider(table, telegrams=tmp_path)
    with caplog.at_level(logging.WARNING):
        rules = provider.rules_of(["355a9c44"])["355a9c44"]
        again = provider.rules_of(["355a9c44", "aa"])
    rain = [Observation(T0 + n * 600, "n", "rain", "mm", 0.0, seq=n) for n in (-1, 2)]
    columns = [row.more for row in score_cell(rain, rules).rows]

    assert [m["official_level"] for m in columns] == [None, 4, 4, 4]
    assert columns[-1]["official_at"] == T0 * 1_000_000
    assert "official_level" not in score_cell(rain, again["aa"]).rows[-1].more
    (warning,) = [record.message for record in caplog.records]
    assert warning.startswith("telegram 2_VPWW56_390000.xml: must be XML: syntax")
    assert warning.endswith("; move it out of the folder")


def test_spark_tasks_of_a_process_parse_a_file_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless it is written again; a deleted one does not count any more."""
    first, second = (tmp_path / f"{n}_VPWW56_390000.xml" for n in (1, 2))
    first.write_bytes(xml(item(KOCHI, "49")))
    second.write_bytes(xml(item(KOCHI, "29"), when="2026-05-29T05:40:00+09:00"))
    table = CriteriaTable(Criteria(), {"355a9c44": CriteriaRow(municipality=KOCHI)})
    provider = CellRuleProvider(table, telegrams=tmp_path)
    parsed = []

    def parse(name: str, raw: bytes) -> Telegram:
        parsed.append(name)
        return parse_telegram(name, raw)

    monkeypatch.setattr("backend_spark.criteria.telegrams.parse_telegram", parse)

    def level() -> object:
        task = pickle.loads(pickle.dumps(provider))  # noqa: S301 - as Spark does
        rules = task.rules_of(["355a9c44"])["355a9c44"]
        return rules.official_columns(T0 + 900)["official_level"]

    assert [level(), level()] == [2, 2]
    second.write_bytes(xml(item(KOCHI, "09"), when="2026-05-29T05:40:00+09:00") + b" ")
    assert level() == 3
    second.unlink()
    assert level() == 4
    assert parsed == [first.name, second.name, second.name]
