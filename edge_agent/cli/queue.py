"""The command ``queue``: shows, exports, refills, checks and repairs a queue file.

Reads are short pages, because a long read would keep a running agent's WAL from being
reused. No command leases messages.
"""

import base64
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, TextIO

import click

from edge_agent import app, config
from edge_agent.cli._options import (
    EXIT_FAILED,
    PROGRAM,
    config_option,
    find_queue_file,
    json_option,
)
from edge_agent.queue import schema
from edge_agent.queue.base import MessageDraft, QueueError
from edge_agent.queue.file_lifecycle import QueueFile, read_counters, refuse_emptied
from edge_agent.queue.store import DROPPED_PURGED, CounterDeltas, QueueRow, Store
from service_runtime import lifecycle
from service_runtime.errors import FieldError
from service_runtime.settings import SettingsError
from spatial_mqtt.priority import LADDER
from spatial_mqtt.senml import MessageId, decode_pack, encode_json

PAGE_ROWS = 200


REPAIR = (
    "start the agent, which recovers the readable messages, or do so with "
    "`edge-agent queue repair`"
)


class _Group(click.Group):
    """Prints errors of the queue and the settings, and sets the exit status."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except SettingsError as error:
            raise SystemExit(lifecycle.report_settings_error(PROGRAM, error)) from error
        except (QueueError, OSError, sqlite3.DatabaseError) as error:
            words = lifecycle.explain_denied(error) or error
            click.echo(f"{PROGRAM}: {words}{_remedy(error)}", err=True)
            raise SystemExit(EXIT_FAILED) from error


def _remedy(error: Exception) -> str:
    """What to do about a damaged file; empty for other errors."""
    codes = {getattr(each, "sqlite_errorcode", 0) & 0xFF
             for each in (error, error.__cause__)}  # fmt: skip
    is_damaged = codes & {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT}
    return f"; {REPAIR}" if is_damaged else ""


@click.group("queue", cls=_Group)
def queue_commands() -> None:
    """Inspect the node's queue, also while the agent runs."""


@queue_commands.command()
@config_option
@json_option
def stats(path: Path, as_json: bool) -> None:
    """Print the content and the counters of each priority."""
    node = config.read_node_settings(path)
    tally = read_counters(find_queue_file(node))
    if as_json:
        click.echo(json.dumps({"priorities": tally}))
        return
    names = ("rows", "bytes", "put", "acked", "dropped", "duplicates")
    click.echo("priority" + "".join(f"{name:>12}" for name in names))
    for priority, row in tally.items():
        click.echo(f"{priority:>8}" + "".join(f"{row[name]:>12}" for name in names))


@queue_commands.command()
@config_option
@json_option
@click.option(
    "--limit", default=10, show_default=True, help="Number of messages to show."
)
def peek(path: Path, as_json: bool, limit: int) -> None:
    """Show the most urgent messages on the disk."""
    with _QueueFile(path) as (store, _):
        for number, row in enumerate(_rows(store, min(limit, PAGE_ROWS))):
            if number >= limit:
                return
            _print(_line(row, store), as_json)


@queue_commands.command()
@config_option
@click.option(
    "--json", "_json", is_flag=True, help="Ignored: the output is always JSON."
)
def export(path: Path, _json: bool) -> None:
    """Print every message as a JSON line that `replay` reads."""
    with _QueueFile(path) as (store, _):
        for row in _rows(store):
            if row.is_intact:
                click.echo(json.dumps(_exported(row), ensure_ascii=False))


@queue_commands.command()
@config_option
@json_option
@click.option(
    "--priority", type=click.IntRange(1, LADDER.top), help="Only this priority."
)
@click.option(
    "--older-than",
    "older_s",
    type=float,
    help="Only messages older than this, in seconds.",
)
@click.confirmation_option(prompt="Messages will be lost. Go on?")
def purge(
    path: Path, as_json: bool, priority: int | None, older_s: float | None
) -> None:
    """Drop messages; with --older-than only those of a known age."""
    purged = 0
    with _QueueFile(path) as (store, _):
        now_ms = _last_ms(store)
        for level in LADDER.descending if priority is None else (priority,):
            after = 0
            while page := store.read_page(level, after, PAGE_ROWS):
                after = page[-1].message.seq
                chosen = [row for row in page if _is_older(row, older_s, now_ms)]
                purged += _drop(store, chosen)
    _print({"purged": purged}, as_json)


@queue_commands.command()
@config_option
@json_option
@click.argument("file", type=click.File(encoding="utf-8", errors="surrogateescape"))
def replay(path: Path, as_json: bool, file: TextIO) -> None:
    """Put exported messages back; skip those whose id the queue knows."""
    settings = config.read_node_settings(path)
    find_queue_file(settings, may_be_new=True)
    queue = app.open_queue(settings)
    put = known = bad = 0
    with closing(queue):
        for line in file:
            draft = _draft(line)
            if draft is None:
                bad += 1
            elif queue.put([draft])[0] is None:
                known += 1
            else:
                put += 1
    _print({"put": put, "known": known, "bad": bad}, as_json)
    raise SystemExit(lifecycle.EXIT_USAGE_DATA if bad else 0)


@queue_commands.command()
@config_option
@json_option
def check(path: Path, as_json: bool) -> None:
    """Check the file and the checksum of every message."""
    with _QueueFile(path) as (store, db):
        verdict = _verdict(db)
        rows = bad = 0
        for row in _rows(store) if verdict == "ok" else ():
            rows += 1
            bad += not row.is_intact
    _print({"file": verdict, "rows": rows, "bad": bad}, as_json)
    if verdict != "ok":
        click.echo(f"{PROGRAM}: the file is damaged; {REPAIR}", err=True)
    raise SystemExit(EXIT_FAILED if bad or verdict != "ok" else 0)


def _verdict(db: sqlite3.Connection) -> str:
    try:
        schema.check_integrity(db)
    except sqlite3.DatabaseError as error:
        return str(error)
    return "ok"


@queue_commands.command()
@config_option
@json_option
def repair(path: Path, as_json: bool) -> None:
    """Make a new file of the readable messages; the agent must not run."""
    with closing(QueueFile(find_queue_file(config.read_node_settings(path)))) as place:
        saved, aside = place.repair()
    _print({"saved": saved, "kept": str(aside)}, as_json)


class _QueueFile:
    """Opens a queue file without a lease, a check or a migration."""

    def __init__(self, path: Path) -> None:
        self._file = find_queue_file(config.read_node_settings(path))
        refuse_emptied(self._file)
        self._db = sqlite3.connect(
            f"{self._file.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None
        )

    def __enter__(self) -> tuple[Store, sqlite3.Connection]:
        return Store(self._file, self._db), self._db

    def __exit__(self, *_error: object) -> None:
        self._db.close()


def _rows(store: Store, page_rows: int = PAGE_ROWS) -> Iterator[QueueRow]:
    """Read every message in pages, the most urgent first."""
    for priority in LADDER.descending:
        after = 0
        while page := store.read_page(priority, after, max(page_rows, 1)):
            yield from page
            after = page[-1].message.seq


def _line(row: QueueRow, store: Store) -> dict[str, Any]:
    now_ms, message = _last_ms(store), row.message
    is_known = now_ms is not None and row.born_ms is not None
    return {
        "id": str(message.id),
        "priority": message.priority,
        "age_s": (now_ms - row.born_ms) / 1000 if is_known else None,  # type: ignore[operator]
        "topic": message.topic,
        "bytes": len(message.payload),
    }


def _last_ms(store: Store) -> int | None:
    """The queue's clock at its last commit; ages are at least those."""
    clock = store.get_state("queue/clock")
    return int(clock.rsplit(" ", 1)[1]) if clock else None


def _exported(row: QueueRow) -> dict[str, Any]:
    message = row.message
    line: dict[str, Any] = {
        "id": str(message.id),
        "priority": message.priority,
        "topic": message.topic,
        "payload": base64.b64encode(message.payload).decode(),
    }
    try:
        line["pack"] = json.loads(encode_json(decode_pack(message.payload)))
    except FieldError:
        line["pack"] = None  # no pack, or with bytes: the payload has it all
    return line


def _draft(line: str) -> MessageDraft | None:
    try:
        fields = json.loads(line.encode())  # refuses bytes that are no UTF-8
        payload = base64.b64decode(fields["payload"], validate=True)
        message_id = MessageId.parse(fields["id"])
        priority = LADDER.check(fields["priority"])
        return MessageDraft(
            priority, str(fields["topic"]), lambda _id: payload, message_id
        )
    except (ValueError, KeyError, TypeError, FieldError, RecursionError) as error:
        click.echo(f"{PROGRAM}: not an exported line: {error}", err=True)
        return None


def _is_older(row: QueueRow, older_s: float | None, now_ms: int | None) -> bool:
    if older_s is None:
        return True
    if now_ms is None or row.born_ms is None:
        return False
    return now_ms - row.born_ms > older_s * 1000


def _drop(store: Store, rows: list[QueueRow]) -> int:
    """Remove rows in one short transaction; returns how many were still there."""
    changes = CounterDeltas()
    dropped = 0
    with store.transaction():
        for row in rows:
            cost = store.delete(row.message.priority, row.message.seq)
            if cost is not None:
                changes.add_dropped(row.message.priority, cost, DROPPED_PURGED)
                dropped += 1
        store.apply_deltas(changes)
    return dropped


def _print(values: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(values, ensure_ascii=False))
    else:
        click.echo(
            "  ".join(f"{k} {'-' if v is None else v}" for k, v in values.items())
        )
