"""Open data sets in the forms that they are published in, written here with few rows.

The forms are those of the files that docs/benchmarks/landslides.md names; numbers are
made up.
"""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from backend_spark.cli import cli
from backend_spark.errors import RainTableError
from backend_spark.evaluation.datasets import (
    DATA_SETS,
    Nearby,
    read_dataset_text,
    read_hko_rain,
    read_sao_paulo_rain,
    read_sitka_rain,
)
from backend_spark.rain_table import RainText

HKO = """\
\ufeff日總雨量(毫米) - 天文台
Daily Total Rainfall (mm) at the Hong Kong Observatory
年/Year,月/Month,日/Day,數值/Value,數據完整性/data Completeness
1984,5,1,0.0,C
1984,5,2,Trace,C
1984,5,3,***,
1984,5,4,12.5,#
1984,5,5,210.4,C
1984,5,6,3.1,C

*** 沒有數據/unavailable
# 數據不完整/data incomplete
微量表示少於 0.05 毫米/Trace means rainfall less than 0.05 mm
C 數據完整/data Complete
"""

GEO = """\
INCID,OGDINCID,CALLDATE,FAILDATE,LOCATION,FEATTYPE,DEATHNO,CONSEC - X,,
1,-,05/05/1984,05/05/1984,Castle Peak Rd,Soil cut,0,-,,
2,-,06/05/1984,-,Caf\u00e9 slope,Soil Cut,0,-,,
3,-,-,05-May-1984,Shek O,Rock cut,0,-,,
4,-,-,04/1984,Tai Po,Soil cut,0,-,,
5,-,-,-,Sha Tin,Soil cut,0,-,,
"""

SITKA = """\
"","X","day","precip_mm_day","precip_mm_maxhr","precip_mm_max3hr",\
"precip_mm_max6hr","precip_mm_max12hr","event","lscount","lscat"
"1",1,"2002-11-12",7.1,3.5,6.6,7.1,7.1,0,0,1
"2",2,"2002-11-13",91.4,12.2,35.0,57.3,80.1,1,4,3
"3",3,"2002-11-14",NA,NA,NA,NA,NA,0,0,1
"4",4,"2002-11-16",0.5,0.5,0.5,0.5,0.5,0,0,1
"""

SAO_PAULO = "\n".join([
    "Dia;jan-00;fev-00;Dia;mar-00",
    *(
        f"{day};{day}.5;{'0.0' if day <= 29 else ''};{day};{day if day < 31 else ''}"
        for day in range(1, 32)
    ),
])

ITALICA = (
    "id;information_source;landslide_type;lon;lat;municipality;province;region;"
    "geographic_accuracy;land_cover;elevation;slope;day;month;year;local_time;"
    "local_date;utc_date;temporal_accuracy;lon_raingauge;lat_raingauge;duration;"
    "cumulated_rainfall;;;;;;;\n"
    "ITA_1;IR;RF;16.17;40.59;A;B;C;P0;2.1.1;439;12.7;13;11;2004;00:01;"
    "13/11/2004 00:01;12/11/2004 23:01;T1;16.2;40.6;33;49.8;;;;;;;\n"
    "ITA_2;NR;SL;7.00;45.00;A;B;C;P1;2.4.3;427;10.2;19;5;2002;12:00;"
    "19/05/2002 12:00;19/05/2002 10:00;T2;;;;;;;;;;;\n"
    "ITA_3;NR;SL;16.18;40.60;A;B;C;P1;2.4.3;427;10.2;14;11;2004;;;;T3;;;;;;;;;;;\n"
)


def run(*words: object) -> Result:
    """Run the command with arguments."""
    return CliRunner().invoke(cli, ["evaluate", *map(str, words)])


def files(folder: Path, *texts: str | bytes) -> list[Path]:
    """Files with texts, or bytes in another encoding."""
    paths = []
    for at, text in enumerate(texts):
        path = folder / f"{at}.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        paths.append(path)
    return paths


def test_hong_kong_days(tmp_path: Path) -> None:
    """Missing and incomplete days are unknown, a trace is zero, notes are no rows."""
    rain, slides = files(tmp_path, HKO, GEO.encode("latin-1"))
    series = read_hko_rain(read_dataset_text(str(rain)))
    assert series.depth_mm == [0.0, 0.0, None, None, 210.4, 3.1]
    report = json.loads(run(rain, slides, "--dataset", "hong-kong", "--json").output)
    assert (report["days"], report["event_days"]) == (4, 2)
    assert report["days_without_data"] == ["1984-05-03", "1984-05-04"]
    assert report["lines_that_repeat"] == [[4, 2]]
    assert report["lines_not_counted"] == [
        [5, "no day: '04/1984'"], [6, "no day: '-'"],
    ]  # fmt: skip
    output = run(rain, slides, "--dataset", "hong-kong").output
    assert "2 lines are not counted: line 5, no day: '04/1984'" in output


def test_sitka_days_have_predictors_of_their_own(tmp_path: Path) -> None:
    """The greatest rain of 1, 3, 6 and 12 hours of each day."""
    (path,) = files(tmp_path, SITKA)
    series = read_sitka_rain(read_dataset_text(str(path)))
    assert series.depth_mm == [7.1, 91.4, None, None, 0.5]
    assert list(series.given["max3h"]) == [6.6, 35.0, None, None, 0.5]
    report = json.loads(run(path, path, "--dataset", "sitka", "--json").output)
    areas = {each["name"]: each["auc"] for each in report["predictors"]}
    assert areas["max3h"] == 1.0
    assert (report["days"], report["event_days"]) == (3, 1)


def test_sao_paulo_months_are_columns(tmp_path: Path) -> None:
    """Leap years have a 29 February; days that do not exist are empty."""
    slides = "date;landslides\n31/01/2000;Grot\u00e3o\n31/01/2000;Cota 95\n"
    rain, events = files(tmp_path, SAO_PAULO, slides)
    series = read_sao_paulo_rain(read_dataset_text(str(rain)))
    assert len(series.ends) == 31 + 29 + 31
    assert (series.depth_mm[30], series.depth_mm[-2:]) == (31.5, [30, None])
    report = json.loads(run(rain, events, "--dataset", "sao-paulo", "--json").output)
    assert (report["days"], report["event_days"]) == (90, 1)
    assert report["days_without_data"] == ["2000-03-31"]


def test_italica_near_the_gauge(tmp_path: Path) -> None:
    """The local day without a zone; that of the zone with one."""
    (path,) = files(tmp_path, ITALICA)
    text = read_dataset_text(str(path))
    read = DATA_SETS["italica"].read_landslides
    near = Nearby(40.6, 16.2, 20.0)
    table = read(text, None, near)
    assert [slide.from_s for slide in table.slides] == [1_100_304_000.0]  # 13 Nov
    assert table.unusable == [(4, "no day: ''")]
    assert len(read(text, None, Nearby(45.0, 7.0, 1.0)).slides) == 1
    rows = [f"2004-11-{day:02}T00:00+00:00,{day}" for day in range(1, 20)]
    (rain,) = files(tmp_path, "\n".join(["time,rain_mm", *rows]))
    (tmp_path / "it.csv").write_text(ITALICA, encoding="utf-8")
    output = run(
        rain, tmp_path / "it.csv", "--dataset", "italica", "--near", "40.6,16.2",
        "--json",
    ).output  # fmt: skip
    assert json.loads(output)["event_days"] == 1
    refused = run(rain, tmp_path / "it.csv", "--dataset", "italica")
    assert isinstance(refused.exception, RainTableError)
    assert "give --near" in str(refused.exception)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (SAO_PAULO.replace("jan-00", "gen-00"), "months such as jan-00, got 'gen-00'"),
        (SAO_PAULO.replace("30;30.5;;", "30;30.5;4;"), "2/2000 has no day '30'"),
        (SAO_PAULO.replace("Dia;mar-00", "Dia;fev-00"), "must give 2000-02-01 once"),
        (SAO_PAULO.replace("1;1.5;", "1;dry;", 1), "2000-01-01 must be a number of mm"),
    ],
)
def test_other_form_of_sao_paulo_is_refused(text: str, problem: str) -> None:
    """The error names line, rule and value."""
    with pytest.raises(RainTableError, match=problem):
        read_sao_paulo_rain(RainText("r.csv", text))


def test_other_forms_are_refused() -> None:
    """A file of another data set has no column of this one."""
    for name, problem in [("hong-kong", "FAILDATE"), ("sitka", "no column 'day'")]:
        with pytest.raises(RainTableError, match=problem):
            DATA_SETS[name].read_landslides(RainText("x", ITALICA), None, None)
    with pytest.raises(RainTableError, match="line 2: Year, Month, Day must be"):
        read_hko_rain(RainText("x", SITKA))
    with pytest.raises(RainTableError, match="event must be 0 or 1"):
        DATA_SETS["sitka"].read_landslides(
            RainText("x", SITKA.replace(",1,4,3", ",yes,4,3")), None, None
        )


def test_distance_is_on_the_sphere() -> None:
    """One degree of latitude is 111 km."""
    assert Nearby(40.0, 16.0, 112.0).holds(41.0, 16.0)
    assert not Nearby(40.0, 16.0, 110.0).holds(41.0, 16.0)
