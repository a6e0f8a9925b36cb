"""The command group ``admin``: lists and changes areas, brokers and gateways."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec

from gateway_daemon.admin_client import (
    AdminClient,
    ChangeRefusedError,
    PublishedDirectory,
    format_decision,
)
from gateway_daemon.cli._options import EXIT_USAGE, fail, json_option, tls_option
from gateway_daemon.config import parse_broker_info
from gateway_daemon.manager.autoscaler import AreaReport
from service_runtime.errors import FieldError
from service_runtime.lifecycle import EXIT_CONFIG
from service_runtime.settings import SettingsError
from service_runtime.tls import Endpoint, check_link
from spatial_mqtt.certificate_renewal import read_tls_settings
from spatial_mqtt.directory import (
    AreaSetting,
    BrokerEntry,
    BrokerInfo,
    GatewayReference,
    encode_directory_message,
)
from spatial_mqtt.errors import BrokerError
from spatial_mqtt.topics import (
    BROKER_ADD,
    BROKER_REMOVE,
    GATEWAY_FORGET,
    GATEWAY_SET,
    check_area,
)


@click.group(name="admin")
@click.option(
    "--manager",
    "managers",
    required=True,
    multiple=True,
    help="mqtt://host:port of a Manager; several are tried in turn.",
)
@tls_option
@json_option
@click.pass_context
def admin_commands(
    context: click.Context, managers: tuple[str, ...], path: Path | None, is_json: bool
) -> None:
    """Inspect and change a running system."""
    endpoints = _checked(lambda: [Endpoint.parse(url) for url in managers])
    tls = _checked(lambda: read_tls_settings(path)) if path else None
    for endpoint in endpoints:
        _checked(partial(check_link, endpoint, tls))
    errors = []
    for endpoint in endpoints:
        try:
            context.obj = (context.with_resource(AdminClient(endpoint, tls)), is_json)
        except BrokerError as error:
            errors.append(str(error))
        else:
            return
    fail("; ".join(errors))


@admin_commands.command()
@click.pass_obj
def gateways(session: tuple[AdminClient, bool]) -> None:
    """List the gateways that are up, with their areas."""
    _show(session, lambda d: d.gateways, ("area", "gateway"))


@admin_commands.command()
@click.pass_obj
def brokers(session: tuple[AdminClient, bool]) -> None:
    """List the distributed brokers, with their areas."""
    _show(session, lambda d: d.table.brokers, ("area", "broker"))


@admin_commands.command()
@click.pass_obj
def load(session: tuple[AdminClient, bool]) -> None:
    """Show the load of every area and the decisions of the autoscaler."""
    client, is_json = session
    try:
        report = client.wait_for_report()
    except BrokerError as error:
        fail(error)
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
        click.echo(format_decision(decision))


@admin_commands.command()
@click.argument("topic")
@click.pass_obj
def why(session: tuple[AdminClient, bool], topic: str) -> None:
    """Show the gateway and the broker of a TOPIC, with recent decisions."""
    client, is_json = session
    sentences = _checked(lambda: client.directory.explain_route(check_area(topic)))
    click.echo(json.dumps(sentences) if is_json else "\n".join(sentences))


@admin_commands.command(name="add-broker")
@click.argument("area")
@click.argument("url")
@click.pass_obj
def add_broker(session: tuple[AdminClient, bool], area: str, url: str) -> None:
    """Give an AREA to the broker at URL; gateways take it over without a gap."""
    entry = _checked(lambda: BrokerEntry(area, parse_broker_info(url)))
    _change(
        session,
        BROKER_ADD,
        encode_directory_message(entry),
        lambda d: entry in d.table.brokers,
    )


@admin_commands.command(name="remove-broker")
@click.argument("area")
@click.argument("url")
@click.pass_obj
def remove_broker(session: tuple[AdminClient, bool], area: str, url: str) -> None:
    """Take an AREA from the broker at URL; its waiting messages move."""
    entry = _checked(lambda: BrokerEntry(area, parse_broker_info(url)))
    before = session[0].directory.table.version
    _change(
        session,
        BROKER_REMOVE,
        encode_directory_message(entry),
        lambda d: d.table.version > before,
    )


@admin_commands.command(name="set-area")
@click.argument("url")
@click.argument("areas", nargs=-1, required=True)
@click.pass_obj
def set_area(
    session: tuple[AdminClient, bool], url: str, areas: tuple[str, ...]
) -> None:
    """Give the gateway at URL these AREAS and no others."""
    gateway = _checked(lambda: parse_broker_info(url))
    setting = _checked(lambda: AreaSetting(gateway, topics=areas))
    wanted = set(areas)
    payload = encode_directory_message(setting)
    if not _areas(session[0].directory, gateway):
        # It is not listed, so only a refusal can be detected.
        _change(session, GATEWAY_SET, payload, None)
        click.echo(f"{gateway} is away: it gets these areas when it returns", err=True)
        return
    _change(session, GATEWAY_SET, payload, lambda d: _areas(d, gateway) == wanted)


@admin_commands.command(name="unset-area")
@click.argument("url")
@click.argument("area")
@click.pass_obj
def unset_area(session: tuple[AdminClient, bool], url: str, area: str) -> None:
    """Take one AREA from the gateway at URL; without an area it serves everything."""
    gateway = _checked(lambda: parse_broker_info(url))
    before = _areas(session[0].directory, gateway)
    if area not in before:
        fail(f"{gateway} serves {', '.join(sorted(before)) or 'nothing'}, not {area}")
    after = tuple(sorted(before - {area})) or ("/",)
    payload = encode_directory_message(AreaSetting(gateway, topics=after))
    _change(session, GATEWAY_SET, payload, lambda d: _areas(d, gateway) == set(after))


@admin_commands.command()
@click.argument("url")
@click.pass_obj
def forget(session: tuple[AdminClient, bool], url: str) -> None:
    """Remove the gateway at URL permanently, with its areas."""
    gateway = _checked(lambda: parse_broker_info(url))
    # A gateway that is down is not listed anyway, so only a refusal can be detected.
    _change(
        session,
        GATEWAY_FORGET,
        encode_directory_message(GatewayReference(gateway)),
        None,
    )


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


def _areas(directory: PublishedDirectory, gateway: BrokerInfo) -> set[str]:
    return {e.topic for e in directory.gateways if e.broker_info == gateway}


def _show(
    session: tuple[AdminClient, bool],
    entries_of: Callable[[PublishedDirectory], Sequence[BrokerEntry]],
    head: tuple[str, str],
) -> None:
    client, is_json = session
    entries = entries_of(client.directory)
    if is_json:
        click.echo(encode_directory_message(list(entries)))
        return
    width = max(len(head[0]), *(len(e.topic) for e in entries), 0) + 2
    click.echo(f"{head[0]:<{width}}{head[1]}")
    for entry in entries:
        click.echo(f"{entry.topic:<{width}}{entry.broker_info}")


def _change(
    session: tuple[AdminClient, bool],
    topic: str,
    payload: bytes,
    is_done: Callable[[PublishedDirectory], bool] | None,
) -> None:
    client, is_json = session
    try:
        directory = client.request_change(topic, payload, is_done)
    except (ChangeRefusedError, BrokerError) as error:
        fail(error)
    version = directory.table.version
    click.echo(json.dumps({"version": version}) if is_json else "done")


def _checked(call: Callable[[], Any]) -> Any:  # noqa: ANN401 - result of the call
    try:
        return call()
    except SettingsError as error:
        fail(error, EXIT_CONFIG)
    except (FieldError, ValueError, OSError) as error:
        fail(error, EXIT_USAGE)
