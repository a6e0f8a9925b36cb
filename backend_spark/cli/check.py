"""The command ``check``: what the services of a backend need on their machine."""

import os
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from backend_spark.cli import config_option
from backend_spark.config import BackendSettings, parse_broker, read_settings
from backend_spark.console.accounts import read_accounts
from service_runtime.errors import FieldError
from service_runtime.machine_check import (
    FindingState,
    MachineFinding,
    MachineNeeds,
    ServiceUser,
    are_well,
    check_machine,
    find_service_user,
    finding,
    format_findings,
    ok,
)
from service_runtime.metrics import parse_listen_address
from service_runtime.settings import Problem
from service_runtime.tls import Endpoint
from spatial_mqtt.notice_signatures import NoticeSigner

PROGRAM: Final = "backend-spark"
JAVA: Final = "default-jre-headless"
SERVICES: Final = ("ingest", "alerts", "score", "console", "notify")
LEAST_FREE_BYTES: Final = 1_000_000_000
"""A storm of a prefecture fills about as much in a day."""

EXIT_FAILED: Final = 1


@click.command()
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
@click.argument("services", nargs=-1, type=click.Choice(SERVICES))
def check(config_path: Path, *, as_json: bool, services: tuple[str, ...]) -> None:
    """Check what SERVICES need on this machine; by default all of a backend.

    The status is 0 when nothing must be mended, 1 when something must, 78 when the
    settings are wrong.
    """
    settings = read_settings(config_path)
    chosen = services or SERVICES
    if "ingest" in chosen:
        parse_broker(settings.ingest)
    user = find_service_user(config_path)
    needs = MachineNeeds(
        PROGRAM,
        "backend",
        settings.tls,
        list(_brokers(settings, chosen)),
        listens=[
            (setting, *parse_listen_address(listen))
            for setting, listen in _addresses(settings, chosen)
        ],
        data=("backend.data", Path(settings.backend.data)),
        least_free_bytes=LEAST_FREE_BYTES,
        without=(JAVA,),
        has_java="score" in chosen,
        uid=None if user is None else user.uid,
    )
    findings = [
        ok(f"{config_path}: settings are valid"),
        *check_machine(needs, os.environ, datetime.now(UTC)),
        *_check_files(settings, chosen, user),
        *(_check_sender(settings.console.sender) if "console" in chosen else ()),
        *(_check_sessions(settings) if {"console", "notify"} & set(chosen) else ()),
    ]
    click.echo(format_findings(findings, as_json=as_json))
    raise SystemExit(0 if are_well(findings) else EXIT_FAILED)


def _check_files(
    settings: BackendSettings, services: Collection[str], user: ServiceUser | None
) -> Iterator[MachineFinding]:
    """Check that files of services can be used, also by their user."""
    key_file = settings.notify.key_file if "notify" in services else None
    accounts = settings.console.accounts if "console" in services else None
    try:
        if key_file is not None:
            NoticeSigner(key_file)
    except FieldError as error:
        yield _finding(Problem.of(error, "notify.key_file"))
    try:
        if accounts is not None:
            read_accounts(Path(accounts))
    except FieldError as error:
        yield _finding(Problem.of(error))
    if user is not None:
        yield from user.check_tls(settings.tls)
        yield from user.check_file("notify.key_file", key_file)
        yield from user.check_file("console.accounts", accounts)


def _check_sender(sender: str) -> Iterator[MachineFinding]:
    """Check the sender of CAP drafts.

    With a wrong one drafts are refused, but levels are shown and alarms given. The
    settings are therefore valid: every service of the backend reads them.
    """
    try:
        from backend_spark.exports import cap  # noqa: PLC0415 - needs libraries
    except ImportError:
        return  # the libraries that are missing are among the findings
    if not cap.is_sender(sender):
        rule = f"be {cap.SENDER_RULE}"
        yield finding("console.sender", rule, sender, cap.SENDER_REMEDY)


def _check_sessions(settings: BackendSettings) -> Iterator[MachineFinding]:
    """Check that console and notify do not end each other's session.

    A broker's port has one session for each certificate.
    """
    notices = {Endpoint.parse(url) for url in settings.notify.brokers}
    for url in settings.console.managers if settings.tls.certificate else ():
        broker = Endpoint.parse(url)
        if broker.tls and broker in notices:
            rule = "have another port than in notify.brokers, with one certificate"
            remedy = "name a Manager's port 8883 here, and its 8884 in notify.brokers"
            yield finding("console.managers", rule, url, remedy)


def _finding(problem: Problem) -> MachineFinding:
    return MachineFinding(FindingState.MEND, str(problem))


def _brokers(
    settings: BackendSettings, services: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Keys and URLs of the brokers of services."""
    if "ingest" in services and settings.ingest.broker is not None:
        yield "ingest.broker", settings.ingest.broker
    if "notify" in services:
        yield from (("notify.brokers", url) for url in settings.notify.brokers)
    if "console" in services:
        yield from (("console.managers", url) for url in settings.console.managers)


def _addresses(
    settings: BackendSettings, services: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Keys and addresses on which services listen."""
    if "ingest" in services:
        shards = [("shard.listen", shard.listen) for shard in settings.shard]
        for setting, listen in shards or [("metrics.listen", settings.metrics.listen)]:
            if listen is not None:
                yield setting, listen
    if "console" in services:
        console = settings.console
        yield "console.port", f"{console.host}:{console.port}"
        if console.metrics is not None:
            yield "console.metrics", console.metrics
