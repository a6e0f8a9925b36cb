"""Commands ``console``, ``report``, ``places`` and the ``console-`` ones."""

import ctypes
import os
import secrets
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import click

from backend_spark.cli import config_option, usage_errors, writing
from backend_spark.config import BackendSettings, read_settings
from backend_spark.console.accounts import (
    ROLES,
    Account,
    Accounts,
    check_account_name,
    digest_token,
    hash_password,
    make_totp_secret,
    matching_step,
    provisioning_uri,
    read_accounts,
    scan_accounts,
    write_accounts,
)
from backend_spark.console.audit_log import (
    ACCESS_KINDS,
    JournalHead,
    check_journal,
    read_journal,
)
from backend_spark.console.notifications.rules import NotificationSection
from backend_spark.errors import PlaceFileError
from service_runtime.errors import FieldError
from service_runtime.lifecycle import log_to_stderr

if TYPE_CHECKING:
    from backend_spark.console.notifications.outbox import NotificationOutbox

MAX_SHOWN = 20
"""Names of nodes in one line."""


M_MMAP_THRESHOLD = -3
"""Parameter of mallopt(3), from malloc.h."""

LARGE_BLOCK_BYTES = 1 << 20

DELTA_ALLOCATOR = "narenas:1,dirty_decay_ms:0,muzzy_decay_ms:0"
"""For jemalloc in delta-rs: what a query has freed is returned at once, not kept.

Otherwise it keeps 75 MB after the first query, and 40 MB more after others.
"""


class WithoutPandas(MetaPathFinder):
    """Import finder for a program without pandas.

    pyarrow imports pandas at its first use if it is installed: a second of CPU time and
    40 MB, for conversions that the console does not make.
    """

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> None:
        """Refuse pandas, as if it was not installed; leave others to other finders."""
        if fullname == "pandas":
            raise ModuleNotFoundError(fullname, name=fullname)


def return_large_blocks() -> None:
    """Let glibc return each large block to the system as soon as it is freed.

    Otherwise its limit rises to the largest block freed so far, up to 32 MB, and what
    is smaller stays between others: 90 MB after the first reading of the tables.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)


def limit_memory() -> None:
    """Choose imports and allocators for a small process, before any of them is used."""
    sys.meta_path.insert(0, WithoutPandas())
    return_large_blocks()
    # Arrow's own allocator keeps 50 MB more after the first reading of the tables.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    os.environ.setdefault("_RJEM_MALLOC_CONF", DELTA_ALLOCATOR)


@click.command()
@config_option
def console(config_path: Path) -> None:
    """Show the tables as web pages for analysts; until SIGTERM."""
    settings = read_settings(config_path)
    log_to_stderr()
    limit_memory()
    from backend_spark.console import app  # noqa: PLC0415 - pyarrow and FastAPI

    app.run(settings)


@click.command()
@config_option
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    help="File to write (HTML); self-contained, prints on one page.",
)
@click.option(
    "--language",
    type=click.Choice(["ja", "en"]),
    help="Default: console.language.",
)
def report(config_path: Path, out: Path, language: str | None) -> None:
    """Write a one-page situation report: levels, reasons, missing data."""
    settings = read_settings(config_path)
    from backend_spark.console import app  # noqa: PLC0415 - pyarrow and FastAPI

    page = app.render_report(settings, language or settings.console.language)
    with writing("--out", out):
        out.write_text(page, encoding="utf-8")


@click.group()
def places() -> None:
    """Name the cells: districts and slopes, their households, shelter and contact."""


@places.command("load")
@config_option
@click.argument("file", type=click.Path(path_type=Path))
def load_places(config_path: Path, file: Path) -> None:
    """Replace the places by those of a table (CSV) or of GeoJSON.

    Open pages show them within a minute. With an error in the file nothing changes.
    """
    settings = read_settings(config_path)
    section = settings.backend
    from backend_spark.console.notifications.rules import (  # noqa: PLC0415
        describe_unknown,
        unknown_districts,
    )
    from backend_spark.console.places import (  # noqa: PLC0415
        Gazetteer,
        read_place_file,
        write_places,
    )
    from backend_spark.tables.reader import open_tables  # noqa: PLC0415 - pyarrow

    with usage_errors(PlaceFileError):
        rows = read_place_file(file)
    write_places(Path(section.data), rows.places)
    cells = {cell for place in rows.places for cell in place.cells}
    click.echo(f"{len(rows.places)} places in {len(cells)} cells")
    if rows.ignored:
        click.echo(f"columns that are not used: {', '.join(rows.ignored)}")
    gazetteer = Gazetteer(rows.places)
    rules = settings.console.notifications
    for line in describe_unknown(unknown_districts(rules, gazetteer.districts)):
        click.echo(line)
    nodes = open_tables(section).nodes(["node", "cell"]).to_pylist()
    nameless = [
        node["node"]
        for node in nodes
        if gazetteer.of_node(node["node"], node["cell"], None) is None
    ]
    if nameless:
        shown = ", ".join(sorted(nameless)[:MAX_SHOWN])
        click.echo(f"nodes in cells without a place: {len(nameless)} ({shown})")


@click.group("console-account")
def console_account() -> None:
    """Add, list and remove console accounts; a running console follows at once."""


accounts_file = click.argument("accounts_file", type=click.Path(path_type=Path))


@console_account.command()
@accounts_file
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice(ROLES),
    help="viewer reads; analyst acknowledges and notes; chief changes thresholds. "
    "Default: that of the account, and analyst for a new one.",
)
@click.password_option(help="Prompted for if absent.")
def add(accounts_file: Path, name: str, role: str | None, password: str) -> None:
    """Add an account, or set its password and, if given, its role.

    A damaged line of NAME is replaced.
    """
    is_new = not accounts_file.exists()
    found, damaged = ({}, None) if is_new else _accounts_but(accounts_file, name)
    if damaged is not None and role is None:
        raise click.UsageError(f"--role must be given: {damaged}")
    with usage_errors(FieldError):
        secret = hash_password(password, secrets.token_bytes)
        new = Account(check_account_name(name), role or "analyst", secret)
        old = found.get(name, new)
        account = replace(old, role=role or old.role, password_hash=secret)
        write_accounts(accounts_file, found | {name: account})
    click.echo(f"{name} ({account.role}) is in {accounts_file}")
    if damaged is not None:
        click.echo("its line was damaged: make its second factor and token again")
    if account.is_locked:
        command = f"console-account lock {accounts_file} {name} --remove"
        click.echo(f"it is locked; {command} unlocks it")


@console_account.command()
@accounts_file
@click.argument("name")
def remove(accounts_file: Path, name: str) -> None:
    """Remove an account, also a damaged line; its sessions end.

    The last chief stays: nobody could add another in the page.
    """
    found, damaged = _accounts_but(accounts_file, name)
    was_chief = damaged is None and _account(found, name).role == "chief"
    kept = {k: a for k, a in found.items() if k != name}
    has_chief = any(a.role == "chief" and not a.is_locked for a in kept.values())
    if not kept or (was_chief and not has_chief):
        rule, remedy = "another than the last chief", "add another one first"
        raise click.UsageError(str(FieldError("account", rule, name, remedy)))
    write_accounts(accounts_file, kept)


@console_account.command()
@accounts_file
@click.argument("name")
@click.option("--remove", is_flag=True, help="Log in with the password alone again.")
def totp(accounts_file: Path, name: str, *, remove: bool) -> None:
    """Require a code of an authenticator app (TOTP) beside the password.

    Run it again for a new device; with --remove when the device was lost.
    """
    found = _read_accounts(accounts_file)
    account = _account(found, name)
    secret = "" if remove else make_totp_secret(secrets.token_bytes)
    if secret:
        click.echo(f"Add this to the authenticator app:\n{secret}")
        click.echo(provisioning_uri(secret, name))
        code = click.prompt("Code that the app shows now")
        if matching_step(secret, code, time.time()) is None:
            rule = "that of the app now; compare the clocks. Nothing was changed"
            raise click.UsageError(f"code must be {rule}")
    changed = replace(account, totp_secret=secret)
    write_accounts(accounts_file, found | {name: changed})
    factors = "password and code" if secret else "password"
    click.echo(f"{name} logs in with {factors} now")


@console_account.command()
@accounts_file
@click.argument("name")
@click.option("--remove", is_flag=True, help="The token is not accepted any more.")
def token(accounts_file: Path, name: str, *, remove: bool) -> None:
    """Give an account a token, with which programs such as QGIS read.

    It replaces the token before. It opens SensorThings, OGC API Features, the CAP feed
    and downloads for reading, and no page.
    """
    found = _read_accounts(accounts_file)
    account = _account(found, name)
    made = "" if remove else secrets.token_urlsafe(32)
    digest = digest_token(made) if made else ""
    changed = replace(account, token_digest=digest)
    write_accounts(accounts_file, found | {name: changed})
    click.echo(made or f"{name} has no token now")


@console_account.command()
@accounts_file
@click.argument("name")
@click.option("--remove", is_flag=True, help="It may log in again.")
def lock(accounts_file: Path, name: str, *, remove: bool) -> None:
    """Lock an account: its sessions end, and it cannot log in."""
    found = _read_accounts(accounts_file)
    changed = replace(_account(found, name), is_locked=not remove)
    write_accounts(accounts_file, found | {name: changed})
    click.echo(f"{name} {'may log in again' if remove else 'is locked'}")


@console_account.command("list")
@accounts_file
def list_accounts(accounts_file: Path) -> None:
    """List the accounts, their roles, second factors, tokens and locks."""
    for account in _read_accounts(accounts_file).values():
        more = {
            "totp": account.totp_secret,
            "token": account.token_digest,
            "locked": account.is_locked,
        }
        shown = ",".join(name for name, is_set in more.items() if is_set) or "-"
        click.echo(f"{account.name}\t{account.role}\t{shown}")


def _accounts_but(path: Path, name: str) -> tuple[Accounts, FieldError | None]:
    """Accounts of a file in which only the line of one name may be damaged.

    Returns:
        The accounts, without that one if it is damaged, and what is wrong with it.
    """
    with usage_errors(FieldError):
        found, damaged = scan_accounts(path)
    own = damaged.pop(name, None)
    for other in damaged.values():
        raise click.UsageError(str(other))
    if own is not None:
        found.pop(name, None)
    return found, own


def _read_accounts(path: Path) -> Accounts:
    with usage_errors(FieldError):
        return read_accounts(path)


def _account(found: Accounts, name: str) -> Account:
    if name not in found:
        names = ", ".join(found) or "none"
        raise click.UsageError(f"there is no account {name!r}; there are: {names}")
    return found[name]


@click.group("console-journal")
def console_journal() -> None:
    """Check the console's journal, and show the logins in it."""


journal_file = click.argument(
    "journal_file", type=click.Path(path_type=Path, dir_okay=False)
)


@console_journal.command("check")
@journal_file
@click.option(
    "--head",
    "heads",
    multiple=True,
    help="Head that the console logged earlier, NUMBER:HASH; may be repeated.",
)
def check(journal_file: Path, heads: tuple[str, ...]) -> None:
    """Check that no entry was changed, removed or added since it was written.

    The status is 1 if one was. Without --head a file whose hashes were all made anew
    passes.
    """
    with usage_errors(FieldError):
        known = [JournalHead.parse(head) for head in heads]
        found = check_journal(journal_file, known)
    for problem in found.problems:
        click.echo(problem)
    click.echo(f"head {found.head}, {len(found.problems)} problems")
    sys.exit(1 if found.problems else 0)


@console_journal.command()
@journal_file
@click.option(
    "--limit",
    type=click.IntRange(1, 1_000_000),
    default=100,
    show_default=True,
    help="Number of entries.",
)
def logins(journal_file: Path, limit: int) -> None:
    """Show logins, failures, logouts and changes of accounts, newest first."""
    with usage_errors(FieldError):
        entries = read_journal(journal_file, *ACCESS_KINDS, limit=limit)
    for entry in entries:
        at = datetime.fromtimestamp(entry.at_s, UTC)
        rest = {k: v for k, v in entry.body.items() if k != "accounts"}
        fields = " ".join(f"{k}={v}" for k, v in rest.items())
        name = entry.who or entry.subject or "-"
        click.echo(f"{at:%Y-%m-%dT%H:%M:%SZ}\t{entry.kind}\t{name}\t{fields}")


@click.group("console-notifications")
def notifications() -> None:
    """Test the rules of the notifications, and show the delivery log."""


@notifications.command("test")
@config_option
@click.option("--rule", help="Name of one rule; all by default.")
def test_rules(config_path: Path, rule: str | None) -> None:
    """Send a test to each address, from this process.

    The status is 1 if one was not accepted, or if a rule has a district without places.
    """
    settings = read_settings(config_path)
    sections = _sections(settings, rule)
    results = [
        _send_test(settings, section, position)
        for section in sections
        for position in range(len(section.to))
    ]
    if not results:
        click.echo("there is no [[console.notifications]] in the settings")
    are_known = _check_districts(settings, sections)
    sys.exit(0 if results and all(results) and are_known else 1)


def _check_districts(
    settings: BackendSettings, sections: Sequence[NotificationSection]
) -> bool:
    """Print districts of rules that no place has; whether there are none."""
    from backend_spark.console.notifications import rules  # noqa: PLC0415
    from backend_spark.console.places import StoredPlaces  # noqa: PLC0415

    places = StoredPlaces(Path(settings.backend.data)).now
    unknown = rules.unknown_districts(sections, places.districts)
    for line in rules.describe_unknown(unknown):
        click.echo(line)
    return not unknown


def _sections(
    settings: BackendSettings, rule: str | None
) -> Sequence[NotificationSection]:
    known = settings.console.notifications
    if rule is not None and rule not in {section.name for section in known}:
        names = ", ".join(section.name for section in known) or "none"
        raise click.UsageError(f"there is no rule {rule!r}; there are: {names}")
    return [section for section in known if rule in {None, section.name}]


def _send_test(
    settings: BackendSettings, section: NotificationSection, position: int
) -> bool:
    """Send one test, and print the result; whether it was accepted."""
    from backend_spark.console.notifications import channels, sender  # noqa: PLC0415

    now_s = time.time()
    shown = f"{section.name}: address {position + 1}"
    try:
        sender.check_addresses(
            replace(settings.console, notifications=(section,), heartbeat=None)
        )
        address = sender.read_address(section.to[position])
        shown = f"{section.name}: {channels.masked(address)}"
        texts = sender.texts_of(section, settings.console)
        message = texts.test(f"msg_test_{round(now_s * 1000)}")
        key = sender.key_of(section)
        channels.deliver(address, section.format, key, message, now_s, reached=set())
    except (channels.DeliveryError, FieldError) as error:
        click.echo(f"{shown}: {error}")
        return False
    click.echo(f"{shown}: accepted")
    return True


@notifications.command("log")
@config_option
@click.option(
    "--limit",
    type=click.IntRange(1, 100_000),
    default=50,
    show_default=True,
    help="Number of notifications.",
)
def show_log(config_path: Path, limit: int) -> None:
    """Show notifications with their last attempt, newest first."""
    from backend_spark.console.app import outbox_path  # noqa: PLC0415
    from backend_spark.console.databases import naming_damage  # noqa: PLC0415
    from backend_spark.console.notifications.outbox import NotificationOutbox  # noqa: PLC0415

    path = outbox_path(read_settings(config_path))
    if not path.exists():
        raise click.UsageError(f"there is no {path}: the console has not run yet")
    with naming_damage(path.parent):
        _show(NotificationOutbox(path), limit)


def _show(outbox: "NotificationOutbox", limit: int) -> None:
    for each in outbox.newest(limit):
        attempts = outbox.attempts(each.id)
        last = attempts[-1] if attempts else {"number": 0, "outcome": ""}
        at = datetime.fromtimestamp(each.created_s, UTC)
        click.echo(
            f"{at:%Y-%m-%dT%H:%M:%SZ}\t{each.target.rule}\t{each.shown}\t"
            f"level {each.level}\t{each.state}\t{last['number']} attempts\t"
            f"{last['outcome']}"
        )
