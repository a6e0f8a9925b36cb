"""The command ``check``: what a gateway or one of its companions needs here."""

import os
from collections.abc import Callable, Iterable, Mapping
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
    MachineNeeds,
    are_well,
    check_machine,
    format_findings,
    ok,
)
from service_runtime.metrics import parse_listen_address
from service_runtime.settings import parse_toml, read_settings_text
from service_runtime.tls import Endpoint

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
    now = datetime.now(UTC)
    findings = [
        ok(f"{path}: settings of a {kind} are valid"),
        *check_machine(_needs(kind, settings), os.environ, now),
    ]
    if isinstance(settings, config.GatewaySettings) and settings.uplink.period:
        findings.append(ok(settings.uplink.describe_zone(now.timestamp())))
    click.echo(format_findings(findings, as_json=is_json))
    raise SystemExit(0 if are_well(findings) else EXIT_FAILED)


def _needs(kind: str, settings: Any) -> MachineNeeds:  # noqa: ANN401 - one of four forms
    brokers = list(_brokers(kind, settings))
    is_here = Endpoint.parse(brokers[0][1]).is_loopback
    listens = []
    if kind != "broker" and settings.metrics.listen is not None:
        address = parse_listen_address(settings.metrics.listen)
        listens = [("metrics.listen", *address)]
    folder = None
    if kind in {"gateway", "manager"}:
        folder = f"{kind}.data", Path(getattr(settings, kind).data)
    return MachineNeeds(
        PROGRAM,
        "gateway",
        settings.tls,
        brokers,
        listens=listens,
        data=folder,
        without=() if is_here else (MOSQUITTO,),
    )


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
