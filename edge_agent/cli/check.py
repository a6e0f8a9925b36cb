"""The command ``check``: tests settings, sensors and link before an installer leaves.

Composition of a check: beside `edge_agent.app`, this module names clocks and files.
"""

import dataclasses
import difflib
import json
import math
import os
import platform
import secrets
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import click
from gpiozero.exc import BadPinFactory

from edge_agent import app, quantities
from edge_agent.cli._options import (
    EXIT_FAILED,
    config_option,
    json_option,
    no_pins,
    print_error,
    read_settings,
)
from edge_agent.cli.first_boot import encode_text
from edge_agent.cli.link_check import (
    HANDSHAKE_BYTES,
    TLS_BYTES,
    LinkReport,
    LinkTester,
    TestIdentity,
    find_serving_area,
    query_managers,
)
from edge_agent.cli.live_check import (
    LiveCheck,
    LiveSensor,
    Screen,
    with_few_samples,
)
from edge_agent.cli.sensor_check import (
    CheckReport,
    NodeIdentification,
    SensorCheck,
    check_sensors,
    find_mounting_notes,
    format_table,
)
from edge_agent.config import NodeSettings
from edge_agent.notices import check_notice_keys
from edge_agent.quantities import GAUGE, find_sent_names
from edge_agent.queue.file_lifecycle import find_damage, processes_using
from edge_agent.sensor_reader import SensorReader
from edge_agent.sensors.base import Hardware, SensorConfig
from edge_agent.sensors.generic_probe import ProbeSettings, ScaledSettings
from edge_agent.triage.engine import DEFAULT_SECTION, RULE_BY_QUANTITY, find_rule
from edge_agent.triage.settings import CriteriaSection, TriageSection
from edge_agent.uplink.gateway_selection import FixedGateway
from service_runtime import lifecycle
from service_runtime.files import write_atomic
from service_runtime.machine_check import (
    STATE_FOLDER,
    FindingState,
    MachineFinding,
    ServiceUser,
    check_data_folder,
    check_disk,
    check_libraries,
    check_programs,
    check_tls_files,
    find_service_user,
    finding,
    read_drop_ins,
    texts_of,
)
from slope_science.evidence.settings import TiltRuleSettings
from slope_science.movement import tilt_resolution_deg_per_h
from spatial_mqtt.certificates import check_certificate_areas
from spatial_mqtt.topics import cell_topic


@dataclass(frozen=True)
class CheckOptions:
    """Options of the command line."""

    as_json: bool
    live: bool
    seconds: float | None
    link: bool
    burst: int | None
    no_sensors: bool
    report: Path | None


@click.command()
@config_option
@json_option
@click.option(
    "--live",
    is_flag=True,
    help="Read sensors repeatedly while you tip, tug and tilt them.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=1),
    help="How long --live lasts; without it, until Ctrl-C.",
)
@click.option("--link", is_flag=True, help="Test the link: one message, one receipt.")
@click.option(
    "--burst",
    type=click.IntRange(0, 1_000_000),
    help="Bytes by which --link measures the rate; 0 for none.  [default: 16000, or "
    "4000 where the settings limit the link]",
)
@click.option("--no-sensors", is_flag=True, help="Do not open the sensors.")
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the output also to a file that Windows can show, such as on the card.",
)
def check(path: Path, **arguments: object) -> None:
    """Check the settings, read every sensor, test the link. The queue is only read.

    The status is 0 when everything passes, 1 when something fails, 78 when the
    settings are wrong.
    """
    node, options = read_settings(path), CheckOptions(**arguments)  # type: ignore[arg-type]  # click checked them
    if not options.as_json:
        click.echo(f"{path}: settings are valid")
    machine = _check_machine(node, find_service_user(path))
    problems = texts_of(machine, FindingState.MEND)
    obstacles = [] if options.no_sensors else _obstacles(node)
    problems += obstacles
    checks: list[SensorCheck] | None = None
    moves: dict[str, int] = {}
    if not options.no_sensors and not obstacles:
        try:
            checks, moves = _check_sensors(node, options)
        except BadPinFactory as error:
            problems.append(no_pins(error))
    link_report = _check_link(node, options) if options.link else None
    report = CheckReport(_machine(node), checks, link_report, moves, problems)
    notes = [*_find_notes(node, machine), *find_mounting_notes(checks or ())]
    shown = [f"note: {note}" for note in notes]
    lines = [*(format_table(checks) if checks else ()), *shown, *report.format_box()]
    as_dict = report.to_dict() | {"notes": notes}
    click.echo(json.dumps(as_dict) if options.as_json else "\n".join(lines))
    if options.report is not None:
        _write(options.report, lines)
    raise SystemExit(0 if report.is_passed else EXIT_FAILED)


def _find_notes(node: NodeSettings, machine: Sequence[MachineFinding]) -> list[str]:
    """Settings and machine facts that are valid but may be unintended."""
    rules = node.settings
    has_periods = rules.uplink.period or rules.update.period
    now_s = app.make_node_clock(node).wall_s()
    return [
        *([rules.uplink.describe_zone(now_s)] if has_periods else ()),
        *advise_on_rules(rules.triage, rules.criteria, node.sensors),
        *check_notice_keys(rules.notices.keys),
        *texts_of(machine, FindingState.NOTE),
    ]


def _check_sensors(
    node: NodeSettings, options: CheckOptions
) -> tuple[list[SensorCheck] | None, dict[str, int]]:
    if not options.live:
        return _read_sensors(node), {}
    is_terminal = sys.stdout.isatty() and not options.as_json

    def write(text: str) -> None:
        click.echo(text, nl=False, err=options.as_json)

    with _live_check(node, Screen(is_terminal, write)) as live:
        lifecycle.call_on_stop_signals(live.stop)
        return live.run(options.seconds or math.inf), live.change_counts


def _check_link(node: NodeSettings, options: CheckOptions) -> LinkReport:
    size = _default_burst_bytes(node) if options.burst is None else options.burst
    click.echo(f"trying the link with a burst of {size} bytes ...", err=options.as_json)
    return _test_link(node, size)


def _write(path: Path, lines: Sequence[str]) -> None:
    try:
        write_atomic(path, encode_text(lines))
    except OSError as error:
        raise SystemExit(print_error(error)) from error


BURST_BYTES, LIMITED_BURST_BYTES = 16_000, 4_000
MAX_GATEWAYS = 3
_MODEL = Path("/proc/device-tree/model")
UNIT = "edge-agent.service"
_STOP_AGENT = "stop it with 'systemctl stop edge-agent', check, and start it again"


def _obstacles(node: NodeSettings) -> list[str]:
    """Why the sensors cannot be opened: a running agent owns them."""
    found = processes_using(Path(node.settings.queue.path))
    if not found:
        return []
    processes = ", ".join(map(str, found))
    agent = f"the agent runs (process {processes}) and owns pins and buses"
    return [f"{agent}: {_STOP_AGENT}; --no-sensors leaves them alone"]


def _check_machine(
    node: NodeSettings, user: ServiceUser | None
) -> list[MachineFinding]:
    """What the node needs beside sensors and link. The box names an unset clock."""
    tls, queue = node.settings.tls, Path(node.settings.queue.path)
    # Without its certificate yet: the first start makes the request for it.
    has_certificate = Path(tls.certificate or tls.renewed or "").is_file()
    place, areas = "node.latitude and longitude", [cell_topic(app.find_node_cell(node))]
    return [
        *check_libraries("edge"),
        *check_programs("node", os.environ["PATH"]),
        *check_data_folder("queue.path", queue.parent, f"{queue.name}*"),
        *(check_queue_place(user, queue) if user is not None else ()),
        *(user.check_tls(tls) if user is not None else ()),
        *check_queue_file(queue),
        *check_disk(queue.parent),
        *(check_tls_files(tls, datetime.now(UTC)) if has_certificate else ()),
        *check_certificate_areas(tls, place, areas),
    ]


def check_queue_place(
    user: ServiceUser, queue: Path, state_folder: Path = STATE_FOLDER
) -> Iterator[MachineFinding]:
    """Check that the service may write its queue file; nothing if it may.

    The folder that systemd makes for it is the only one that it may write.
    """
    rule = "be in a folder that the service may write"
    has_more_folders = "ReadWritePaths=" in read_drop_ins(user.units / f"{UNIT}.d")
    if not queue.is_relative_to(state_folder) and not has_more_folders:
        remedy = (
            f"set a file in {state_folder}, or name the folder by "
            f"ReadWritePaths= (systemctl edit {UNIT})"
        )
        yield finding("queue.path", rule, str(queue), remedy)
        return
    found = next(each for each in queue.absolute().parents if each.exists())
    is_made = found in state_folder.parents
    if not is_made and found.stat().st_uid != user.uid:
        remedy = f"install -d -o {user.uid} -g {user.uid} {queue.parent}"
        yield finding("queue.path", rule, str(queue), remedy)


def check_queue_file(queue: Path) -> Iterator[MachineFinding]:
    """Check that the queue file is sound; nothing if it is, or cannot be read."""
    with suppress(OSError):  # the check of its folder names that
        is_in_use = bool(processes_using(queue))
        if damage := find_damage(queue, is_in_use=is_in_use):
            remedy = "restart the agent, which recovers what can be read; see runbook 8"
            yield finding("queue.path", "be sound", str(queue), f"{damage}: {remedy}")


def _machine(node: NodeSettings) -> NodeIdentification:
    """The node and the machine that it runs on."""
    section = node.settings.node
    clock = app.make_node_clock(node)
    now = node.settings.uplink.local_time(clock.wall_s())
    try:
        board = _MODEL.read_text(encoding="utf-8").rstrip("\0\n")
    except OSError:
        board = platform.machine()
    return NodeIdentification(
        section.id,
        section.latitude,
        section.longitude,
        cell_topic(app.find_node_cell(node)),
        now.isoformat(timespec="seconds"),
        clock.is_synchronised(),
        {
            "yamamori": version("yamamori"),
            "python": platform.python_version(),
            "kernel": platform.release(),
            "board": board,
        },
    )


def _read_sensors(node: NodeSettings) -> list[SensorCheck]:
    """Check each sensor, and close it."""
    bench = app.open_hardware(node)
    sensors = app.open_node_sensors(node, bench)
    reader = SensorReader(sensors, bench.clock.mono_s)
    now_s = bench.clock.wall_s()
    checks = check_sensors(node.sensors, sensors, reader, now_s, bench.sleep)
    for sensor in sensors:
        sensor.close()
    return checks


def _test_link(node: NodeSettings, burst_bytes: int) -> LinkReport:
    """Query the Managers, then try gateways until one serves, as the agent would."""
    gateways, topic = (
        app.make_gateway_source(node),
        cell_topic(app.find_node_cell(node)),
    )
    trial = LinkTester(_test_identity(node, burst_bytes))
    if isinstance(gateways, FixedGateway):
        tried = [trial.try_gateway(gateways.endpoint, None)]
        return LinkReport((), tried, trial.used_bytes)
    asked, entries, tls = query_managers(
        gateways.managers, gateways.fetch, app.make_node_clock(node).mono_s
    )
    tried = []
    for gateway in gateways.rank(entries, tls)[:MAX_GATEWAYS]:
        tried.append(
            trial.try_gateway(gateway, find_serving_area(entries, gateway, topic))
        )
        if tried[-1].problem is None:
            break
    used = trial.used_bytes + sum(
        HANDSHAKE_BYTES + TLS_BYTES * m.tls for m in gateways.managers
    )
    return LinkReport(asked, tried, used)


def _default_burst_bytes(node: NodeSettings) -> int:
    """Default size of the burst: small on a limited link, which is paid by the byte."""
    uplink = node.settings.uplink
    is_limited = uplink.rate_bytes_per_s is not None or uplink.period
    return LIMITED_BURST_BYTES if is_limited else BURST_BYTES


def _test_identity(node: NodeSettings, burst: int) -> TestIdentity:
    settings, clock = node.settings, app.make_node_clock(node)
    return TestIdentity(
        dataclasses.replace(app.make_sender(node), gather_s=0.0),
        app.find_node_cell(node),
        settings.tls,
        secrets.token_hex(4),
        clock.mono_s,
        clock.wall_s,
        lambda characters: secrets.token_urlsafe(characters)[:characters],
        burst,
    )


@contextmanager
def _live_check(node: NodeSettings, screen: Screen) -> Iterator[LiveCheck]:
    """Open a live check of the node's sensors; closes them at the end."""
    quick = dataclasses.replace(
        node, sensors=tuple(map(with_few_samples, node.sensors))
    )
    bench = app.open_hardware(quick)
    board, clock = bench.board, bench.clock
    wakes = {each.name: threading.Event() for each in quick.sensors}
    hardware = Hardware(
        bench.pin_factory,
        bench.sleep,
        on_event=lambda name: wakes[name].set(),
        buses=bench.buses,
        edge_lines=bench.lines,
    )
    sensors = app.open_node_sensors(quick, bench, hardware)

    def advance() -> None:
        if board is not None:
            board.advance(clock.wall_s())

    slots = [
        LiveSensor(settings, sensor, wakes[settings.name])
        for settings, sensor in zip(quick.sensors, sensors, strict=True)
    ]
    try:
        yield LiveCheck(slots, clock.mono_s, clock.wall_s, screen, advance)
    finally:
        for sensor in sensors:
            sensor.close()


_HOUR_S = 3600.0
_SURGE_S = 600.0  # change within 10 minutes, by triage.rules.water_level
_AXES = ("x", "y")


def advise_on_rules(
    section: TriageSection, criteria: CriteriaSection, sensors: Sequence[SensorConfig]
) -> list[str]:
    """One sentence for each rule or sensor that cannot be used as configured.

    Args:
        section: The rules.
        criteria: Criteria for rain.
        sensors: The node's sensors.
    """
    advice = [*_unused_rules(section, sensors), *_unsent_rain(sensors)]
    for sensor in sensors:
        found = [
            *_unmatched_sensor(sensor, section),
            *_repeated_rain(sensor),
            *_below_noise_floor(sensor, section.rules.tilt),
            *_seldom_read(sensor),
        ]
        advice += [f"sensor {sensor.name}: {sentence}" for sentence in found]
    if criteria.criteria().assumed and "rain" in map(find_rule, sensors):
        advice.append(
            "criteria are assumed: give warning_mm, advisory_mm and special_mm of the "
            "prefecture's table in [criteria], or send them by notice"
        )
    return advice


def _unused_rules(
    section: TriageSection, sensors: Sequence[SensorConfig]
) -> Iterator[str]:
    """Changed rules without a matching sensor."""
    known = {find_rule(sensor) for sensor in sensors}
    for quantity, rule in RULE_BY_QUANTITY.items():
        is_changed = getattr(section.rules, rule) != getattr(
            DEFAULT_SECTION.rules, rule
        )
        if is_changed and rule not in known:
            yield f"triage.rules.{rule} is set, but no sensor here measures {quantity}"


def _unmatched_sensor(sensor: SensorConfig, section: TriageSection) -> Iterator[str]:
    """Sensors without a rule."""
    quantity = quantities.judged_quantity(sensor.quantity)
    is_limited = any(
        limit.applies_to(sensor.name, quantities.canonical_quantity(sensor.quantity))
        or (limit.sensor or "").partition("/")[0] == sensor.name
        for limit in section.limit
    )
    if quantity in quantities.INFORMATIONAL or is_limited:
        return
    if quantity not in quantities.JUDGED:
        near = difflib.get_close_matches(quantity, quantities.JUDGED, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}? " if near else ""
        remedy = f"{hint}write a [[triage.limit]] if one should"
        yield f"no rule judges {sensor.quantity!r}; {remedy}"
    elif find_rule(sensor) is None:
        units = ", ".join(map(repr, quantities.convertible_units(quantity)))
        yield f"no rule judges {quantity} in {sensor.senml_unit!r}, but in {units}"
    elif find_rule(sensor) == "tilt" and not _has_axes(sensor):
        yield (
            f"no rule judges the tilt of a {sensor.kind}: it gives no x and y, or "
            "drifts as a slope creeps"
        )


def _repeated_rain(sensor: SensorConfig) -> Iterator[str]:
    """A probe's rain that may be a total, which each reading would add again."""
    is_gauge = isinstance(sensor, ProbeSettings) and find_rule(sensor) == "rain"
    is_total = isinstance(sensor, ScaledSettings) and sensor.counter
    if is_gauge and not is_total:
        yield (
            "each reading counts as new rain; set counter = true if the probe "
            "gives a total"
        )


def _unsent_rain(sensors: Sequence[SensorConfig]) -> Iterator[str]:
    """Gauges that the backend does not judge, and other sensors of a gauge's name."""
    for name, sent in find_sent_names(sensors).items():
        if sent != GAUGE:
            yield (
                f"sensor {name}: the backend judges one gauge of a node, the first or "
                f"that named {GAUGE!r}, and stores this one as {sent!r}; give it a "
                "node of its own"
            )
    for sensor in sensors:
        quantity = quantities.judged_quantity(sensor.quantity)
        if sensor.name == GAUGE and quantity != quantities.RAIN:
            yield f"sensor {GAUGE}: the backend expects rain by this name; rename it"


def _below_noise_floor(sensor: SensorConfig, rules: TiltRuleSettings) -> Iterator[str]:
    """Rates below the noise given by the data sheet."""
    sigma_deg = getattr(sensor, "sigma_deg", None)
    if sigma_deg is None or not _has_axes(sensor):
        return
    span_s = 6 * _HOUR_S if rules.six_hours else _HOUR_S
    count = int(span_s / sensor.interval_s) + 1
    times_h = [at * sensor.interval_s / _HOUR_S for at in range(count)]
    finest = tilt_resolution_deg_per_h(sigma_deg, times_h)
    for level, limit in rules.thresholds:
        if limit < finest:
            yield (
                f"rule tilt cannot be used for level {level}: with a noise of "
                f"{sigma_deg:.4f} deg the lowest measurable rate is {finest:.3f} "
                f"deg/h, not {limit:g}; raise samples, or shorten interval_s"
            )


def _seldom_read(sensor: SensorConfig) -> Iterator[str]:
    """A water level whose surges look like floods."""
    if find_rule(sensor) == "water_level" and sensor.interval_s > _SURGE_S:
        yield (
            "a surge between two readings counts as a flood, up to level 2; set "
            f"interval_s to {_SURGE_S:g} or less"
        )


def _has_axes(sensor: SensorConfig) -> bool:
    is_probe = isinstance(sensor, ProbeSettings)
    return not is_probe and getattr(sensor, "angles", _AXES) == _AXES
