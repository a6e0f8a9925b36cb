"""Command ``console-notifications``: test the rules, and show the delivery log."""

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from backend_spark.cli import config_option
from backend_spark.config import BackendSettings, read_settings
from backend_spark.console.notifications.settings import NotificationSection
from service_runtime.errors import FieldError

if TYPE_CHECKING:
    from backend_spark.console.notifications.outbox import NotificationOutbox


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
    from backend_spark.console.notifications.outbox import NotificationOutbox  # noqa: PLC0415
    from backend_spark.console.storage_faults import naming_damage  # noqa: PLC0415

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
