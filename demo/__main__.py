"""``python -m demo``: run the storm, print the table and whether messages were lost."""

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

import click

from backend_spark.tables.reader import open_tables
from demo import report, scenario
from demo.console import NAME
from demo.processes import STOP_SIGNALS
from demo.scenario import Storm
from demo.system import WARM_UP_S, System
from edge_agent.simulator.slope import RainFileError, find_wettest_window, read_rain_csv
from slope_science import JST

DRAIN_S = 120.0
RECORD_HOURS = 72.0
REAL_DURATION_S = 150.0
EXIT_LOST = 1


@click.command()
@click.option("--rain", type=click.Path(path_type=Path), help="CSV of recorded rain.")
@click.option(
    "--station", help="Its column of depths; by default the first that ends in _mm."
)
@click.option("--from", "first", help="First time of the record, ISO.")
@click.option("--to", "last", help="Last time of the record, ISO.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("out/demo"))
@click.option("--forever", is_flag=True, help="Go on until Ctrl-C.")
def main(  # noqa: PLR0917 - one for each option
    rain: Path | None,
    station: str | None,
    first: str | None,
    last: str | None,
    out: Path,
    forever: bool,
) -> None:
    """Run the whole system through a storm on this machine."""
    try:
        storm = (
            scenario.INVENTED
            if rain is None
            else _recorded(rain, station or _first_depths(rain), first, last)
        )
    except (RainFileError, ValueError) as error:
        raise SystemExit(f"demo: {error}") from error
    for number in STOP_SIGNALS:
        signal.signal(number, _interrupt_once)
    folder = Path(tempfile.mkdtemp(prefix="yamamori-demo-"))
    system = System(folder, storm)
    status = EXIT_LOST
    try:
        status = _play(system, out, forever)
    except KeyboardInterrupt:
        print("\nstopping everything ...")
        status = 130
    finally:
        system.stop()
        _keep_logs(folder, out)
    sys.exit(status)


def _interrupt_once(_number: int, _frame: FrameType | None) -> None:
    """End the demo; further signals must not interrupt the end of its processes."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _first_depths(rain: Path) -> str:
    """Return the first column that ends in _mm, or rain_mm if there is none."""
    try:
        with rain.open(encoding="utf-8-sig") as file:
            names = file.readline().strip().split(",")
    except OSError as error:
        raise ValueError(f"{rain} cannot be read: {error.strerror}") from error
    return next((name for name in names if name.endswith("_mm")), "rain_mm")


def _recorded(rain: Path, station: str, first: str | None, last: str | None) -> Storm:
    """Return the requested period of a record, or its wettest 72 hours."""
    series = read_rain_csv(rain, station, dates=(first, last))
    if first is None and last is None:
        hours = min(RECORD_HOURS, len(series.depths_mm) * series.step_s / 3600)
        series = find_wettest_window(series, hours)
    begin, end = (
        datetime.fromtimestamp(t, UTC) for t in (series.start_s, series.end_s)
    )
    hours = (end - begin).total_seconds() / 3600
    print(
        f"{rain.name}, {station}: {series.total_mm:.1f} mm "
        f"from {begin} to {end}, {series.gaps} gaps"
    )
    path = (rain.resolve(), station, begin.isoformat(), end.isoformat())
    return Storm(begin, hours, max(REAL_DURATION_S, hours * 3600 / 1800), csv=path)


def _play(system: System, out: Path, forever: bool) -> int:
    print(f"logs and data: {system.folder}")
    print("starting brokers, Manager, gateways, ingest and Spark ...")
    system.start_backbone()
    _wait(system, "warming up", system.is_ready, WARM_UP_S)
    if forever:
        _open_console(system)
    storm = system.storm
    print(
        f"{storm.hours:g} h of storm in {storm.real_duration_s:g} s, "
        "two valleys, eight nodes"
    )
    system.start_nodes()
    _storm(system)
    if forever:
        _run_forever(system)
    done = _wait(system, "draining", lambda: _is_drained(system), DRAIN_S)
    _stop_nodes(system)
    _open_console(system)
    return _report_results(system, out, done)


def _open_console(system: System) -> None:
    system.start_console()
    _wait(system, "opening the console", system.is_console_up, WARM_UP_S)
    console = system.console
    console.add_overlays()
    _line(f"console: {console.address}  name {NAME}, password {console.password}")


def _storm(system: System) -> None:
    """Run the storm, with the planned faults at their times."""
    faults: list[tuple[float, str, Callable[[], None]]] = [
        (scenario.LINK_DOWN_AT, f"{scenario.CUT} loses its link", system.cut_link),
        (scenario.KILL_AT, f"{scenario.KILLED} is killed -9", lambda: _kill(system)),
        (scenario.LINK_UP_AT, f"{scenario.CUT} is back, at 50 kbps", system.mend_link),
    ]
    while system.elapsed < 1.0:
        if faults and system.elapsed >= faults[0][0]:
            _, description, inject = faults.pop(0)
            _line(f"  {_clock(system)}  {description}")
            inject()
        _progress(system, "storm")
        _check_alive(system)
        time.sleep(0.5)


def _kill(system: System) -> None:
    system.processes.kill(scenario.KILLED)
    time.sleep(scenario.RESTART_AFTER_S)
    system.start_node(scenario.KILLED)


def _is_drained(system: System) -> bool:
    put = system.put()
    return system.waiting() == 0 and len(set(system.scored()) & put.keys()) >= len(put)


def _run_forever(system: System) -> None:
    print("\nthe storm is over; the system keeps running until Ctrl-C")
    while True:
        _check_alive(system)
        time.sleep(1)


def _stop_nodes(system: System) -> None:
    system.processes.stop(*(plan.id for _, plan in scenario.nodes()))


def _report_results(system: System, out: Path, done: bool) -> int:
    verdict = system.verdict()
    levels = open_tables(system.backend).levels().to_pylist()
    cells = report.cell_reports(levels)
    summary = report.summary(verdict, cells, len(list(scenario.nodes())))
    summary["console"] = system.console.ask()
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(summary, ensure_ascii=False, indent=2)
    (out / "summary.json").write_text(text, encoding="utf-8")
    (out / "map.html").write_text(report.map_page(cells, summary), encoding="utf-8")
    print(report.table(summary, cells))
    print(f"\n  {out / 'summary.json'}\n  {out / 'map.html'}  (open it in a browser)\n")
    if verdict.is_clean and done:
        print("  nothing was lost, nothing was doubled")
        return 0
    print(
        f"  FAILED: lost {sorted(verdict.lost)[:5]}, "
        f"not scored {sorted(verdict.unscored)[:5]}"
    )
    return EXIT_LOST


def _wait(
    system: System, what: str, is_done: Callable[[], bool], timeout_s: float
) -> bool:
    deadline_s = time.monotonic() + timeout_s
    while not is_done():
        _check_alive(system)
        if time.monotonic() > deadline_s:
            _line(f"  {what}: not done after {timeout_s:g} s")
            return False
        _progress(system, what)
        time.sleep(0.5)
    return True


def _check_alive(system: System) -> None:
    dead = system.processes.dead()
    if dead:
        tails = "\n".join(_tail(system.folder / f"{name}.log") for name in dead)
        raise SystemExit(f"\n{', '.join(dead)} ended by itself:\n{tails}")


def _tail(log: Path, lines: int = 15) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def _clock(system: System) -> str:
    moment = system.storm.start.timestamp() + system.elapsed * system.storm.hours * 3600
    return datetime.fromtimestamp(moment, JST).strftime("%m-%d %H:%M")


def _progress(system: System, what: str) -> None:
    """Print the progress in one line that is overwritten; every 10 s if not a TTY."""
    if system.epoch_s == 0.0:
        text = f"  {what} ..."
    else:
        share = min(1.0, max(0.0, system.elapsed))
        bar = "#" * int(share * 24)
        counts = f"{len(system.put())} sent, {system.waiting()} wait on nodes"
        text = f"  {_clock(system)} [{bar:<24}] {what}: {counts}"
    if sys.stdout.isatty():
        print(f"\r{text:<100}", end="", flush=True)
    elif int(time.monotonic() * 2) % 20 == 0:
        print(text, flush=True)


def _line(text: str) -> None:
    print(f"\r{text:<100}" if sys.stdout.isatty() else text, flush=True)


def _keep_logs(folder: Path, out: Path) -> None:
    """Copy logs and settings to the result folder, and delete the data."""
    logs = out / "logs"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    for pattern in ("*.log", "*.toml"):
        for path in folder.glob(pattern):
            shutil.copy(path, logs / path.name)
    if "KEEP_DEMO_DATA" not in os.environ:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
