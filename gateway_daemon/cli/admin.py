"""``gateway-daemon admin``: what serves what, and changes while all runs."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click
import msgspec

from gateway_daemon.admin_client import Desk, Directory, RefusedError, words
from gateway_daemon.manager.autoscaler import AreaReport
from service_runtime.errors import FieldError
from service_runtime.lifecycle import EXIT_CONFIG
from service_runtime.settings import SettingsError
from service_runtime.tls import Endpoint
from spatial_mqtt.certificate_renewal import tls_of
from spatial_mqtt.directory import AreaSetting, BrokerInfo, Entry, Named, encode
from spatial_mqtt.errors import BrokerError
from spatial_mqtt.topics import (
    BROKER_ADD,
    BROKER_REMOVE,
    GATEWAY_FORGET,
    GATEWAY_SET,
    check_area,
)

EXIT_FAILED, EXIT_USAGE = 1, 64

Command = Callable[..., Any]


@click.group(name="admin")
@click.option(
    "--manager",
    "managers",
    required=True,
    multiple=True,
    help="mqtt://host:port of a Manager; several are tried in turn.",
)
@click.option(
    "--config",
    "path",
    type=click.Path(path_type=Path),
    help="Settings whose [tls] names the certificates for mqtts://.",
)
@click.option("--json", "is_json", is_flag=True, help="JSON instead of tables.")
@click.pass_context
def admin_commands(
    context: click.Context, managers: tuple[str, ...], path: Path | None, is_json: bool
) -> None:
    """Look at a running system and change it."""
    endpoints = _checked(lambda: [Endpoint.parse(url) for url in managers])
    tls = _checked(lambda: tls_of(path)) if path else None
    errors = []
    for endpoint in endpoints:
        try:
            context.obj = (context.with_resource(Desk(endpoint, tls)), is_json)
        except BrokerError as error:
            errors.append(str(error))
        else:
            return
    _fail("; ".join(errors))


@admin_commands.command()
@click.pass_obj
def gateways(told: tuple[Desk, bool]) -> None:
    """List gateways that are there, with their areas."""
    _show(told, lambda d: d.gateways, ("area", "gateway"))


@admin_commands.command()
@click.pass_obj
def brokers(told: tuple[Desk, bool]) -> None:
    """List distributed brokers, with their areas."""
    _show(told, lambda d: d.table.brokers, ("area", "broker"))


@admin_commands.command()
@click.pass_obj
def load(told: tuple[Desk, bool]) -> None:
    """Show the load of every area, and what was decided for it."""
    desk, is_json = told
    try:
        report = desk.wait_for_report()
    except BrokerError as error:
        _fail(str(error))
    if is_json:
        click.echo(msgspec.json.encode(report))
        return
    head = ("part", "area", "server", "msgs/s", "peak", "oldest s", "CPU", "heat")
    rows = [head, *(_load_row(area) for area in report.areas)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(head))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())
    click.echo(f"autoscale is {report.mode}, decided by manager {report.manager}")
    for decision in report.decisions:
        click.echo(words(decision))


@admin_commands.command()
@click.argument("topic")
@click.pass_obj
def why(told: tuple[Desk, bool], topic: str) -> None:
    """Say who serves a TOPIC and who holds it, and what was decided for it."""
    desk, is_json = told
    sentences = _checked(lambda: desk.directory.why(check_area(topic)))
    click.echo(json.dumps(sentences) if is_json else "\n".join(sentences))


@admin_commands.command(name="add-broker")
@click.argument("area")
@click.argument("url")
@click.pass_obj
def add_broker(told: tuple[Desk, bool], area: str, url: str) -> None:
    """Give an AREA to the broker at URL; gateways take it over without a gap."""
    entry = _checked(lambda: Entry(area, _broker(url)))
    _ask(told, BROKER_ADD, encode(entry), lambda d: entry in d.table.brokers)


@admin_commands.command(name="remove-broker")
@click.argument("area")
@click.argument("url")
@click.pass_obj
def remove_broker(told: tuple[Desk, bool], area: str, url: str) -> None:
    """Take an AREA from the broker at URL; what waits for it moves."""
    entry = _checked(lambda: Entry(area, _broker(url)))
    before = told[0].directory.table.version
    _ask(told, BROKER_REMOVE, encode(entry), lambda d: d.table.version > before)


@admin_commands.command(name="set-area")
@click.argument("url")
@click.argument("areas", nargs=-1, required=True)
@click.pass_obj
def set_area(told: tuple[Desk, bool], url: str, areas: tuple[str, ...]) -> None:
    """Give the gateway at URL these AREAS and no others."""
    gateway = _checked(lambda: _broker(url))
    setting = _checked(lambda: AreaSetting(gateway, topics=areas))
    wanted = set(areas)
    _ask(
        told,
        GATEWAY_SET,
        encode(setting),
        lambda d: _areas(d, gateway) == wanted,
    )


@admin_commands.command(name="unset-area")
@click.argument("url")
@click.argument("area")
@click.pass_obj
def unset_area(told: tuple[Desk, bool], url: str, area: str) -> None:
    """Take one AREA from the gateway at URL; without any it serves the whole world."""
    gateway = _checked(lambda: _broker(url))
    before = _areas(told[0].directory, gateway)
    if area not in before:
        _fail(f"{gateway} serves {', '.join(sorted(before)) or 'nothing'}, not {area}")
    left = tuple(sorted(before - {area})) or ("/",)
    payload = encode(AreaSetting(gateway, topics=left))
    _ask(told, GATEWAY_SET, payload, lambda d: _areas(d, gateway) == set(left))


@admin_commands.command()
@click.argument("url")
@click.pass_obj
def forget(told: tuple[Desk, bool], url: str) -> None:
    """Take the gateway at URL out for good, with its areas."""
    gateway = _checked(lambda: _broker(url))
    # One that is away is not listed already: only a refusal would be seen.
    _ask(told, GATEWAY_FORGET, encode(Named(gateway)), None)


def _load_row(area: AreaReport) -> tuple[str, ...]:
    is_broker = area.part == "broker"
    return (
        area.part + (" (spare)" if area.is_spare else ""),
        area.area,
        str(area.who),
        f"{area.per_s:.1f}",
        f"{area.peak_per_s:.1f}",
        f"{area.age_s:.1f}" if is_broker else "-",
        "-" if is_broker else f"{area.cpu:.0%}",
        f"{area.heat:.2f}",
    )


def _areas(directory: Directory, gateway: BrokerInfo) -> set[str]:
    return {e.topic for e in directory.gateways if e.broker_info == gateway}


def _broker(url: str) -> BrokerInfo:
    endpoint = Endpoint.parse(url)
    return BrokerInfo(endpoint.host, endpoint.port)


def _show(
    told: tuple[Desk, bool],
    entries_of: Callable[[Directory], Sequence[Entry]],
    head: tuple[str, str],
) -> None:
    desk, is_json = told
    entries = entries_of(desk.directory)
    if is_json:
        click.echo(encode(list(entries)))
        return
    width = max(len(head[0]), *(len(e.topic) for e in entries), 0) + 2
    click.echo(f"{head[0]:<{width}}{head[1]}")
    for entry in entries:
        click.echo(f"{entry.topic:<{width}}{entry.broker_info}")


def _ask(
    told: tuple[Desk, bool],
    topic: str,
    payload: bytes,
    is_done: Callable[[Directory], bool] | None,
) -> None:
    desk, is_json = told
    try:
        directory = desk.ask(topic, payload, is_done)
    except (RefusedError, BrokerError) as error:
        _fail(str(error))
    version = directory.table.version
    click.echo(json.dumps({"version": version}) if is_json else "done")


def _checked(make: Callable[[], Any]) -> Any:  # noqa: ANN401 - what it makes
    try:
        return make()
    except SettingsError as error:
        _fail(str(error), EXIT_CONFIG)
    except (FieldError, ValueError, OSError) as error:
        _fail(str(error), EXIT_USAGE)


def _fail(words: str, code: int = EXIT_FAILED) -> NoReturn:
    click.echo(f"gateway-daemon: {words}", err=True)
    raise SystemExit(code)
