"""``python -m experiments.evidence.replays``: what is shown while evidence is missing.

Draws level, notice, siren and console minute by minute: three deaths of gauges, an
outage of the network for 6 h in a storm, and a backend that is down for 12 h.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from experiments.bench.chart import load_pyplot
from experiments.evidence import faults
from experiments.evidence.path import Outcome, run_path
from experiments.evidence.series import (
    Series,
    gauge,
    storm,
    tilt_meter,
)

FOLDER: Final = Path(__file__).parents[2] / "docs" / "images"
COLOURS: Final = {"judged": "tab:blue", "held": "tab:orange", "unknown": "tab:red"}
DPI: Final = 70


@dataclass(frozen=True)
class Replay:
    """One replay.

    Attributes:
        title: What happens.
        truth: The series without the fault.
        fault: Makes the series with it.
        mark_h: Begin and end of the fault.
        down_h: Hours between which the backend is down.
        hours: Length.
    """

    title: str
    truth: Callable[[Series], Series]
    fault: Callable[[Series], Series]
    mark_h: tuple[float, float]
    down_h: tuple[float, float] = (0.0, 0.0)
    hours: float = 30.0


def _storm(series: Series) -> Series:
    return tilt_meter(gauge(series, storm(30.0, 2.0, 22.0)))


def _death(at_h: float) -> Replay:
    return Replay(
        f"the gauge dies at {at_h:g} h",
        _storm,
        lambda s: faults.die(_storm(s), "rain", at_h),
        (at_h, 30.0),
    )


OUTAGE: Final = Replay(
    "no network from 8 to 14 h",
    _storm,
    lambda s: faults.delay_network(_storm(s), 8.0, 14.0),
    (8.0, 14.0),
)
BACKEND_DOWN: Final = Replay(
    "the backend is down from 8 to 20 h",
    _storm,
    lambda s: faults.delay_network(_storm(s), 8.0, 20.0),
    (8.0, 20.0),
    down_h=(8.0, 20.0),
)
FIGURES: Final = {
    "evidence-gauge-deaths": (_death(6.0), _death(11.0), _death(16.0)),
    "evidence-outage": (OUTAGE,),
    "evidence-backend-down": (BACKEND_DOWN,),
}


@dataclass(frozen=True)
class Minute:
    """What is seen in one minute.

    Attributes:
        at_h: The minute.
        true_level: Final level of the series without the fault.
        node: Level of the node.
        console: Level of the console; None: unknown.
        state: Its state.
        notice: Level of the notice in force.
        siren: Whether the siren is on.
    """

    at_h: float
    true_level: int
    node: int
    console: int | None
    state: str
    notice: int
    siren: bool


def run(replay: Replay) -> list[Minute]:
    """Run a replay, minute by minute."""
    base = Series(hours=replay.hours)
    truth = run_path(replay.truth(base), spacing_s=21_600)
    seen = run_path(replay.fault(base), down_h=replay.down_h)
    return list(_minutes(truth, seen, replay.hours))


def _minutes(truth: Outcome, seen: Outcome, hours: float) -> Sequence[Minute]:
    steps = [step["level"] or 1 for step in truth.steps]
    siren = {round(at_h * 60) for at_h in seen.siren_on_h}
    found = []
    for minute in range(round(hours * 60)):
        at_h = minute / 60
        console = seen.shown_at(at_h)
        node = [each.level for each in seen.node if each.at_h <= at_h]
        found.append(
            Minute(
                at_h,
                steps[min(minute // 10, len(steps) - 1)],
                node[-1] if node else 1,
                console.level,
                console.state,
                seen.notice_level(at_h),
                minute in siren,
            )
        )
    return found


def draw(name: str, replays: Sequence[Replay], folder: Path) -> Path | None:
    """Draw the replays of a figure below each other; None without matplotlib."""
    plot = load_pyplot()
    if plot is None:
        return None
    size = (10.0, 2.8 * len(replays) + 0.6)
    figure, axes = plot.subplots(len(replays), 1, figsize=size, squeeze=False)
    for at, replay in enumerate(replays):
        _draw(axes[at][0], replay, run(replay))
    axes[0][0].legend(fontsize="small", ncols=7, loc="upper left")
    axes[-1][0].set_xlabel("hours; rain of 30 mm/h from 2 to 22 h")
    figure.tight_layout()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.png"
    figure.savefig(path, dpi=DPI)
    plot.close(figure)
    return path


def _draw(axes: Any, replay: Replay, minutes: Sequence[Minute]) -> None:  # noqa: ANN401
    hours = [m.at_h for m in minutes]
    axes.axvspan(*replay.mark_h, color="0.93")
    axes.step(hours, [m.true_level for m in minutes], color="0.6", label="truth")
    axes.step(
        hours, [m.node - 0.06 for m in minutes], color="tab:green", label="node", lw=1
    )
    axes.step(
        hours, [m.notice + 0.06 for m in minutes], color="black", label="notice", lw=1
    )
    for state, colour in COLOURS.items():
        shown = [
            (m.console or 0.5) if m.state == state else float("nan") for m in minutes
        ]
        axes.step(
            hours, shown, color=colour, lw=3, alpha=0.6, label=f"console: {state}"
        )
    is_on = [0.15 if m.siren else 0.0 for m in minutes]
    axes.fill_between(hours, is_on, step="post", color="tab:red", label="siren")
    axes.set(ylim=(0, 6.4), yticks=range(1, 6), ylabel="level", title=replay.title)
    axes.set_xlim(0, replay.hours)


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=FOLDER)
def main(out: Path) -> None:
    """Draw all replays."""
    for name, replays in FIGURES.items():
        click.echo(f"{draw(name, replays, out)}")


if __name__ == "__main__":
    main()
