"""The command ``check``: what a gateway or one of its companions needs here."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from gateway_daemon import config
from gateway_daemon.cli._options import (
    EXIT_FAILED,
    PROGRAM,
    config_option,
    json_option,
    read_settings,
)
from service_runtime.machine_check import (
    MachineFinding,
    are_well,
    check_broker,
    check_clock,
    check_data_folder,
    check_disk,
    check_libraries,
    check_port,
    check_programs,
    check_tls_files,
    format_findings,
    is_clock_synchronised,
    ok,
)
from service_runtime.metrics import parse_listen_address
from service_runtime.settings import parse_toml, read_settings_text
from service_runtime.tls import Endpoint

EXTRA: Final = "gateway"
MOSQUITTO: Final = "mosquitto"
FORMS: Final[Mapping[str, Callable[[Path], object]]] = {
    "gateway": config.read_gateway_settings,
    "manager": config.read_manager_settings,
    "signer": config.read_signer_settings,
    "broker": config.read_broker_settings,  # last: a Manager's file has it, too
}
"""Reads a settings file, by the first of these sections that it has."""


@click.command()
@config_option
@json_option
def check(path: Path, *, is_json: bool) -> None:
    """Check what a gateway, Manager, signer or broker needs on this machine.

    Which of them it is follows from the settings. The status is 0 when nothing must be
    mended, 1 when something must, 78 when the settings are wrong.
    """
    table = read_settings(lambda path: parse_toml(read_settings_text(path)), path)
    kind = next((each for each in FORMS if each in table), "gateway")
    settings = read_settings(FORMS[kind], path)
    findings = [ok(f"{path}: settings of a {kind} are valid"), *check_libraries(EXTRA)]
    findings += _check_settings(kind, settings)
    click.echo(format_findings(findings, as_json=is_json))
    raise SystemExit(0 if are_well(findings) else EXIT_FAILED)


def _check_settings(kind: str, settings: Any) -> Iterator[MachineFinding]:  # noqa: ANN401 - one of three forms
    section = getattr(settings, kind)
    brokers = list(_brokers(kind, settings))
    is_here = Endpoint.parse(brokers[0][1]).is_loopback
    without = () if is_here else (MOSQUITTO,)
    yield from check_programs(EXTRA, os.environ["PATH"], without=without)
    yield from check_clock(is_synchronised=is_clock_synchronised())
    if kind in {"gateway", "manager"}:
        yield from check_data_folder(f"{kind}.data", Path(section.data))
        yield from check_disk(Path(section.data))
    if kind != "broker" and settings.metrics.listen is not None:
        address = parse_listen_address(settings.metrics.listen)
        yield from check_port("metrics.listen", *address, PROGRAM)
    yield from check_tls_files(settings.tls, datetime.now(UTC))
    for setting, url in brokers:
        yield from check_broker(setting, url, settings.tls)


def _brokers(kind: str, settings: Any) -> Iterable[tuple[str, str]]:  # noqa: ANN401 - the same
    """Keys and URLs of all brokers that the settings name, the own one first."""
    section = getattr(settings, kind)
    own = "local" if kind == "broker" else "broker"
    yield f"{kind}.{own}", getattr(section, own)
    if kind in {"gateway", "broker"}:
        yield from ((f"{kind}.managers", url) for url in section.managers)
    if kind == "gateway":
        yield from (("overlay.peers", url) for url in settings.overlay.peers)
    if kind == "manager":
        yield from (("manager.peers", url) for url in section.peers)
        yield from (("broker.url", each.url) for each in settings.broker)
