"""``python -m experiments.landslide_benchmark``: skill, coverage and reliability.

One page of figures, each printed by the code of the product. Seattle is in the shared
folder; the other data sets are downloaded by the user (docs/benchmarks/landslides.md
has addresses and licences) and their sections appear when their files are given:

* skill: ``backend-spark evaluate`` on each data set, with the days and landslides that
  count and those that do not;
* coverage: of the intervals of the calibration, over synthetic climates with a known
  probability, and of times of failure (`experiments.failure_time`);
* reliability: Brier skill score with each year left out, classes of days, diagram.

``--write docs/benchmarks/landslides.md`` replaces what is between the marks there.
"""

import json
import math
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final

import click
from click.testing import CliRunner

from backend_spark.cli.evaluate import evaluate
from backend_spark.errors import CalibrationError, RainTableError
from backend_spark.evaluation.calibration import CalibrationDays, calibrate
from backend_spark.evaluation.calibration_file import Calibration
from backend_spark.evaluation.skill import DayBootstrap

ROOT: Final = Path(__file__).parents[1]
SEATTLE: Final = ROOT.parent / "shared" / "data" / "usgs_mukilteo_seattle"
SEATTLE_WORDS: Final = (
    "--time", "time_local_end", "--column", "KPAE_mm", "--from", "2010-08-15",
    "--to", "2011-12-31", "--threshold", "seattle=0",
    "--place", "Mukilteo",
)  # fmt: skip
BEGIN, END = "<!-- begin of the figures -->", "<!-- end of the figures -->"
CLIMATES: Final = 20
COVERAGE_BAR: Final = 0.95
FAILURE_TIME: Final = "experiments.failure_time"


@dataclass(frozen=True)
class Case:
    """One data set of the page.

    Attributes:
        name: Title of its rows.
        rain: File of its rain.
        landslides: File of its landslides.
        words: Options of the command.
    """

    name: str
    rain: Path
    landslides: Path
    words: tuple[str, ...]

    def run(self, *more: str) -> dict[str, Any]:
        """Result of the command.

        Raises:
            click.ClickException: It refused the files.
            RainTableError: The same.
            CalibrationError: There is too little to calibrate.
        """
        words = [str(self.rain), str(self.landslides), *self.words, *more, "--json"]
        result = CliRunner().invoke(evaluate, words)
        if isinstance(result.exception, RainTableError | CalibrationError):
            raise result.exception
        if result.exit_code:
            raise click.ClickException(result.output)
        report: dict[str, Any] = json.loads(result.output)
        return report


def skill_lines(name: str, report: dict[str, Any]) -> Iterator[str]:
    """Rows of the table of skill, and what does not count."""
    for each in report["predictors"]:
        low, high = each["auc_interval"] or (math.nan, math.nan)
        cases, scores = each["cases"] or {}, each["scores"]
        mark = "\\*" if each["is_fitted"] else ""
        yield (
            f"| {name} | {each['name']} | {each['auc']:.3f} | {low:.3f} to {high:.3f} "
            f"| {each['threshold_mm']:.1f}{mark} | {cases['hits']} "
            f"| {cases['false_alarms']} | {cases['misses']} | {cases['quiet']} "
            f"| {scores['pod']:.3f} | {scores['far']:.3f} | {scores['tss']:.3f} |"
        )


def case_line(name: str, report: dict[str, Any]) -> str:
    """Row of the table of days."""
    return (
        f"| {name} | {report['days']} | {report['event_days']} "
        f"| {report['incomplete_days']} | {len(report['days_without_data'])} "
        f"| {len(report['lines_outside'])} "
        f"| {len(report['lines_on_days_without_data'])} "
        f"| {len(report['lines_that_repeat'])} | {len(report['lines_not_counted'])} |"
    )


def reliability_lines(name: str, made: dict[str, Any]) -> Iterator[str]:
    """Classes, points of the diagram and skill of one calibration."""
    skill = made["each_year_left_out"]
    low, high = skill["low"], skill["high"]
    ends = "-" if low is None else f"{low:.3f} to {high:.3f}"
    years = len(skill["years"])
    yield (
        f"**{name}**, {', '.join(made['predictors'])}, {made['days_with_landslide']} "
        f"landslide days of {made['days']}, {years} years: Brier skill score with each "
        f"year left out **{skill['skill_score']:.3f}** (95 %: {ends}); on the days "
        f"that made the classes {skill['skill_score_same_days']:.3f}."
    )
    yield ""
    yield "| class | days | with landslide | of 100 such days | 95 % |"
    yield "|---|---|---|---|---|"
    for each in made["classes"]:
        top = "or more" if each["to_score"] is None else f"to {each['to_score']:g}"
        yield (
            f"| {each['from_score']:g} {top} | {each['days']} "
            f"| {each['days_with_landslide']} | {each['of_100']:g} "
            f"| {each['low_of_100']:g} to {each['high_of_100']:g} |"
        )
    yield ""
    yield "| stated, of 100 | days | with landslide | observed, of 100 | 95 % |"
    yield "|---|---|---|---|---|"
    for each in skill["reliability"]:
        share = 100 * each["days_with_landslide"] / each["days"]
        yield (
            f"| {each['stated_of_100']:.1f} | {each['days']} "
            f"| {each['days_with_landslide']} | {share:.1f} "
            f"| {each['low_of_100']:g} to {each['high_of_100']:g} |"
        )
    yield ""


def interval_coverage(years: int) -> tuple[int, int]:
    """Classes whose interval holds the true probability, and all classes.

    Synthetic climates: independent days, a gamma distribution of the predictor, and a
    logistic probability of a landslide.
    """
    held = classes = 0
    for seed in range(CLIMATES):
        draw = Random(seed)  # noqa: S311 - simulation
        scores = [draw.gammavariate(0.6, 25) for _ in range(365 * years)]
        events = [draw.random() < _probability(score) for score in scores]
        made = _calibrated(scores, events)
        for each in made.classes:
            top = math.inf if each.to_score is None else each.to_score
            true = [_probability(s) for s in scores if each.from_score <= s < top]
            share = 100 * sum(true) / len(true)
            classes += 1
            held += each.low_of_100 - 0.05 <= share <= each.high_of_100 + 0.05
    return held, classes


def _probability(score: float) -> float:
    return 1 / (1 + math.exp(-(score - 90) / 12))


def _calibrated(scores: list[float], events: Sequence[bool]) -> Calibration:
    days = [date(2000, 1, 1) + timedelta(days=at) for at in range(len(scores))]
    bootstrap = DayBootstrap(len(days), 1)
    cases = CalibrationDays(days, events, {"swi": scores}, bootstrap, 0, 1.0, "")
    return calibrate(cases)


def coverage_lines(years: Sequence[int], seeds: int) -> Iterator[str]:
    """Coverage of the intervals of classes, and of times of failure."""
    yield f"| years of a synthetic climate | classes of {CLIMATES} climates | interval holds the true probability | bar |"  # noqa: E501
    yield "|---|---|---|---|"
    for each in years:
        held, classes = interval_coverage(each)
        yield f"| {each} | {classes} | {100 * held / classes:.1f} % | {100 * COVERAGE_BAR:g} % |"  # noqa: E501
    yield ""
    yield f"Times of failure, by `python -m {FAILURE_TIME} --seeds {seeds}`:"
    yield ""
    yield "```text"
    found = subprocess.run(
        [sys.executable, "-m", FAILURE_TIME, "--seeds", str(seeds)],
        cwd=ROOT, check=False, capture_output=True, text=True,
    )  # fmt: skip
    yield (found.stdout or found.stderr).rstrip()
    yield "```"


def page_lines(
    cases: Sequence[Case], years: Sequence[int], seeds: int
) -> Iterator[str]:
    """The figures of the page."""
    with TemporaryDirectory() as folder:
        path = str(Path(folder) / "calibration.json")
        reports = [(case, case.run()) for case in cases]
        yield "### Days\n"
        yield "| data | days | with landslide | incomplete | without data, excluded | lines outside | on days without data | repeated | not usable |"  # noqa: E501
        yield "|---|---|---|---|---|---|---|---|---|"
        yield from (case_line(case.name, report) for case, report in reports)
        yield "\n### Skill\n"
        yield "| data | predictor | AUC | 95 % | at mm | TP | FP | FN | TN | POD | FAR | TSS |"  # noqa: E501
        yield "|---|---|---|---|---|---|---|---|---|---|---|---|"
        for case, report in reports:
            yield from skill_lines(case.name, report)
        yield "\n\\* fitted to these very days.\n"
        yield "### Coverage\n"
        yield from coverage_lines(years, seeds)
        yield "\n### Reliability\n"
        for case, _ in reports:
            try:
                made = case.run("--calibrate", path)["calibration"]
                yield from reliability_lines(case.name, made)
            except CalibrationError as error:
                yield f"**{case.name}**: refused, {error}.\n"


@click.command()
@click.option("--seattle", type=click.Path(path_type=Path), default=SEATTLE)
@click.option("--hong-kong", nargs=2, type=Path, help="Daily rain; incidents.")
@click.option("--sitka", type=Path, help="00_sitkalandslidedays.csv.")
@click.option("--sao-paulo", nargs=2, type=Path, help="Daily rain; landslides.")
@click.option("--italica", nargs=2, type=Path, help="Rain of a gauge; ITALICA_v4.csv.")
@click.option("--near", help="For --italica: latitude and longitude of the gauge.")
@click.option("--years", multiple=True, type=int, default=(3, 10), show_default=True)
@click.option("--seeds", default=40, show_default=True, help="Of times of failure.")
@click.option("--write", "page", type=Path, help="Page to write the figures into.")
def main(
    page: Path | None,
    years: tuple[int, ...],
    seeds: int,
    **files: Any,  # noqa: ANN401 - paths
) -> None:
    """Print the figures of the data sets that are given."""
    lines = "\n".join(page_lines(list(_cases(**files)), years, seeds))
    if page is None:
        click.echo(lines)
        return
    head, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, tail = rest.partition(END)
    page.write_text(f"{head}{BEGIN}\n\n{lines}\n\n{END}{tail}", encoding="utf-8")


def _cases(
    *,
    seattle: Path,
    hong_kong: tuple[Path, Path] | None,
    sitka: Path | None,
    sao_paulo: tuple[Path, Path] | None,
    italica: tuple[Path, Path] | None,
    near: str | None,
) -> Iterator[Case]:
    if seattle.is_dir():
        rain = seattle / "nws_hourly_rain_2010_2011.csv"
        yield Case("Seattle", rain, seattle / "raw/dates2011Muk.txt", SEATTLE_WORDS)
    if hong_kong:
        first = ("--dataset", "hong-kong", "--from", "1984-01-01", "--to", "2020-12-31")
        yield Case("Hong Kong", *hong_kong, (*first, "--place", "Hong Kong"))
    if sitka:
        yield Case("Sitka", sitka, sitka, ("--dataset", "sitka", "--place", "Sitka"))
    if sao_paulo:
        yield Case("Cubatão", *sao_paulo, ("--dataset", "sao-paulo"))
    if italica:
        if near is None:
            raise click.UsageError("--italica needs --near LAT,LON")
        yield Case("Italy", *italica, ("--dataset", "italica", "--near", near))


if __name__ == "__main__":
    main()
