"""The command ``check``: what a gateway or one of its companions needs here."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from gateway_daemon import config
from gateway_daemon.cli import (
    EXIT_FAILED,
    PROGRAM,
    config_option,
    json_option,
    read_settings,
)
from gateway_daemon.manager.storage import (
    REGISTRY_FILE,
    RegistryFileError,
    load_registry,
)
from service_runtime.machine_check import (
    USER,
    FindingState,
    MachineFinding,
    MachineNeeds,
    are_well,
    check_machine,
    find_service_user,
    find_user,
    finding,
    format_findings,
    ok,
)
from service_runtime.metrics import parse_listen_address
from service_runtime.settings import read_toml
from service_runtime.tls import Endpoint
from spatial_mqtt.certificates import check_certificate_areas

MOSQUITTO: Final = "mosquitto"
SIGNER_USER: Final = "yamamori-ca"
BROKER_FILES: Final = Path("/etc/mosquitto/yamamori")
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
    table = read_settings(read_toml, path)
    kind = next((each for each in FORMS if each in table), "gateway")
    settings = read_settings(FORMS[kind], path)
    user = find_service_user(path, SIGNER_USER if kind == "signer" else USER)
    uid = None if user is None else user.uid
    needs, now = replace(_needs(kind, settings), uid=uid), datetime.now(UTC)
    findings = [
        ok(f"{path}: settings of a {kind} are valid"),
        *check_machine(needs, os.environ, now),
        *(user.check_tls(needs.tls) if user is not None else ()),
        *check_broker_files(BROKER_FILES, MOSQUITTO),
    ]
    if isinstance(settings, config.GatewaySettings):
        areas = settings.gateway.areas
        findings += check_certificate_areas(settings.tls, "gateway.areas", areas)
        if settings.uplink.period:
            findings.append(ok(settings.uplink.describe_zone(now.timestamp())))
    if isinstance(settings, config.ManagerSettings):
        findings += check_registry(Path(settings.manager.data) / REGISTRY_FILE)
    click.echo(format_findings(findings, as_json=is_json))
    raise SystemExit(0 if are_well(findings) else EXIT_FAILED)


def check_registry(path: Path) -> Iterator[MachineFinding]:
    """Check that a Manager can read its registry; it ends at each start otherwise."""
    try:
        load_registry(path)
    except RegistryFileError as error:
        yield MachineFinding(FindingState.MEND, str(error))
    except PermissionError:
        return  # the check of the data folder reports it


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


def check_broker_files(folder: Path, user_name: str) -> Iterator[MachineFinding]:
    """Check that Mosquitto may read the files of `ca broker-config`; only root can.

    Mosquitto ends at each start when a copy that root made belongs to root.

    Args:
        folder: The broker's folder on this machine; it need not exist.
        user_name: User of Mosquitto; it need not exist.
    """
    user = find_user(user_name)
    if user is None or not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        if (obstacle := user.find_obstacle(path)) is not None:
            rule, value = f"be readable by user {user_name}", f"{obstacle} forbids it"
            yield finding(str(path), rule, value, f"chown -R {user_name}: {folder}")


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
