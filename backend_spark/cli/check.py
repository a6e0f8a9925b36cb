"""Commands ``check`` and ``criteria``: the machine of a backend, and its tables."""

import os
import sys
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from backend_spark.cli import config_option
from backend_spark.config import BackendSettings, parse_broker, read_settings
from backend_spark.console.accounts import read_accounts
from backend_spark.criteria.tables import (
    CriteriaFile,
    CriteriaRow,
    CriteriaTable,
    combine_files,
    find_tables,
)
from backend_spark.errors import CriteriaTableError
from service_runtime.cli import SETTINGS_FILE
from service_runtime.errors import FieldError
from service_runtime.lifecycle import EXIT_USAGE_DATA
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
from slope_science.levels import (
    DANGER,
    DEFAULT_CRITERIA,
    EMERGENCY,
    JUDGED_LEVELS,
)
from spatial_mqtt.announcements import NoticeSigner

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


MAX_EXAMPLES = 5


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--config",
    "config_path",
    type=SETTINGS_FILE,
    help="Settings file (TOML): checks its criteria.file when no PATHS are given.",
)
def criteria(paths: tuple[Path, ...], config_path: Path | None) -> None:
    """Check tables of criteria: files as published, or folders of them.

    Prints how many meshes each table has and how many of them it judges at level 5,
    and every row that cannot be read. Nothing is changed: the tables are used as they
    are, with `criteria.file` in the settings.
    """
    files: list[CriteriaFile] = []
    is_wrong = False
    for path in _sources(paths, config_path):
        try:
            files += [CriteriaFile.read(table) for table in find_tables(path)]
        except CriteriaTableError as error:
            is_wrong = True
            click.echo(str(error), err=True)
    for each in files:
        for line in describe_file(each):
            click.echo(line)
        for problem in each.table.problems:
            is_wrong = True
            click.echo(f"{each.table.path}: {problem}", err=True)
    is_wrong |= not _together(files)
    if is_wrong:
        sys.exit(EXIT_USAGE_DATA)


def _sources(paths: Sequence[Path], config_path: Path | None) -> Sequence[Path]:
    if paths:
        return paths
    file = read_settings(config_path).criteria.file if config_path else None
    if file is None:
        raise click.UsageError("give PATHS, or --config with criteria.file set in it")
    return (Path(file),)


def _together(files: Sequence[CriteriaFile]) -> bool:
    """Print what several files judge together; whether they fit."""
    if len(files) < 2:  # noqa: PLR2004 - one file was described already
        return True
    try:
        table: CriteriaTable = combine_files(files, DEFAULT_CRITERIA)
    except CriteriaTableError as error:
        click.echo(str(error), err=True)
        return False
    meshes = list(table.by_mesh.values())
    click.echo(f"together: {len(meshes)} meshes; {_level_5(meshes)}")
    click.echo(f"  {_levels(meshes)}")
    return True


def describe_file(file: CriteriaFile) -> Iterator[str]:
    """Lines about a file: meshes, levels that it judges, and what was left out."""
    rows, table = file.rows, file.table
    kind = "cells" if file.by_token and not file.by_mesh else "meshes"
    total = len(rows) + file.failed
    yield f"{table.path.name}: {len(rows)} {kind} of {total} read; {_level_5(rows)}"
    yield f"  {table.encoding}; {_levels(rows)}"
    if table.title:
        yield f"  title: {table.title.strip()}"
    if table.notes:
        shown = [f'line {at} "{text}"' for at, text in table.notes.items()]
        yield f"  lines without a mesh, left out: {_examples(shown)}"
    if file.differing:
        yield (
            "  given twice with different criteria, the lower counts: "
            f"{_examples(sorted(file.differing))}"
        )


def _level_5(rows: Sequence[CriteriaRow]) -> str:
    judged = sum(EMERGENCY not in row.criteria().not_judged for row in rows)
    return (
        f"{judged} judged at level 5, {len(rows) - judged} not judged at level 5 by "
        "the prefecture"
    )


def _levels(rows: Sequence[CriteriaRow]) -> str:
    """How many rows judge each level, and what is assumed."""
    made = [row.criteria() for row in rows]
    counts = [
        f"{level}: {sum(level not in each.not_judged for each in made)}"
        for level in JUDGED_LEVELS
    ]
    notes = []
    if any(each.special_assumed for each in made):
        notes.append("level 5 by 1.25 of the critical line without rain (assumed)")
    if any(not each.line and DANGER not in each.not_judged for each in made):
        notes.append("level 4 by the planning line (assumed)")
    return "; ".join([f"judged at level {', '.join(counts)}", *notes])


def _examples(texts: Sequence[str]) -> str:
    more = len(texts) - MAX_EXAMPLES
    tail = f" and {more} more" if more > 0 else ""
    return ", ".join(texts[:MAX_EXAMPLES]) + tail
