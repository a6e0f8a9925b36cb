"""Salvage: what a damaged queue file still says, row by row.

SQLite itself reads what it can; where it gives up, the file's pages are read one
by one (see `pages`). A message counts only when its checksum matches.
"""

import json
import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from edge_agent.queue.log_file import commits_cut_off
from edge_agent.queue.numbers import NEXT_SEQ
from edge_agent.queue.pages import Record, records
from edge_agent.queue.row import Row
from edge_agent.queue.store import Store
from edge_agent.queue.tally import Changes
from spatial_mqtt.priority import LADDER

log = logging.getLogger(__name__)

COLUMNS = ("priority", "seq", "node", "boot", "origin_seq", "topic", "crc", "payload")
OFFERS = "uplink/offers/"
HIGHEST_SEQ = 2**62
"""A number above it is damage, and would leave none for new messages."""


def salvage(damaged: Path, store: Store) -> int:
    """Put into a new queue what can be read of a damaged one.

    Ids, numbers and priorities are kept; ages are not, because the clock they
    were measured with has no checksum, so what was saved never expires. The new
    file's own values stay: its boot id must differ, because numbers may be used
    again. Ids once taken and remembered values have no checksum either, so they
    come only from tables that SQLite reads without complaint.

    Args:
        damaged: The damaged file, with its ``-wal`` beside it.
        store: The new queue, empty.

    Returns:
        How many messages were saved.
    """
    changes = Changes()
    saved = 0
    highest = 0
    with store.transaction():
        for row in filter(None, map(_message, _found(damaged))):
            if store.restore(row):
                saved += 1
                highest = max(highest, row.seq)
                changes.held(row.priority, 1, row.cost)
        _keep_taken(store, _table(damaged, "taken"))
        state = _table(damaged, "state")
        _keep_state(store, state or _offers(damaged))
        store.remember({NEXT_SEQ: str(highest + 1)})
        store.apply(changes)
    log.error("%d messages were saved from %s", saved, damaged)
    return saved


def _found(path: Path) -> Iterator[Record]:
    """Records that may be messages, some of them more than once."""
    try:
        yield from _read(path, f"SELECT {', '.join(COLUMNS)} FROM message")  # noqa: S608
    except sqlite3.DatabaseError as error:
        log.warning("messages of %s are read page by page: %s", path, error)
        yield from records(path)
        return
    if commits_cut_off(path):
        yield from records(path)


def _table(path: Path, name: str) -> list[Record]:
    """Rows of a table, as far as SQLite can read it."""
    rows: list[Record] = []
    try:
        rows.extend(_read(path, f"SELECT * FROM {name}"))  # noqa: S608 - our words
    except sqlite3.DatabaseError as error:
        log.warning("table %s of %s is damaged: %s", name, path, error)
    return rows


def _read(path: Path, query: str) -> Iterator[Record]:
    # Read only: the damaged file is evidence, and its log must not be applied.
    with closing(
        sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    ) as db:
        # Damage need not be UTF-8: `_message` judges what comes out.
        db.text_factory = lambda raw: raw.decode(errors="surrogateescape")
        yield from db.execute(query)


def _message(record: Record) -> Row | None:
    """The message of a record, when it is one and its checksum matches."""
    if len(record) not in {len(COLUMNS), len(COLUMNS) + 1}:
        return None
    priority, seq, node, boot, origin_seq, topic, crc, payload = record[:8]
    numbers = [n for n in (priority, seq, origin_seq) if isinstance(n, int)]
    texts = [t for t in (node, boot, topic) if isinstance(t, str) and t.isprintable()]
    if len(numbers) + len(texts) != 6 or not isinstance(payload, bytes):  # noqa: PLR2004
        return None
    if numbers[0] not in LADDER.descending() or not isinstance(crc, int):
        return None
    if not 0 < numbers[1] < HIGHEST_SEQ or numbers[2] < 0:
        return None
    priority, seq, origin_seq = numbers
    node, boot, topic = texts
    row = Row(priority, seq, node, boot, origin_seq, topic, crc, payload)
    return row.sealed() if row.is_sound else None


def _keep_taken(store: Store, read: list[Record]) -> None:
    for node, boot, low, high in _sound(read, (str, str, int, int)):
        # A wrong range would refuse messages for ever; a lost one costs duplicates.
        if 0 <= low <= high < HIGHEST_SEQ:
            store.take_range(node, boot, low, high)


def _keep_state(store: Store, read: list[Record]) -> None:
    values = dict(_sound(read, (str, str)))
    own = {name for name in values if name.startswith("queue/")}
    store.remember({name: values[name] for name in values.keys() - own})


def _offers(damaged: Path) -> list[Record]:
    """Remembered offers of receipts, which their own form vouches for.

    Without them a store that is away would be taken for none, and messages be let go
    with a broker's word.
    """
    return [
        (name, value)
        for name, value in _sound(list(records(damaged)), (str, str))
        if name.startswith(OFFERS) and _is_offers(value)
    ]


def _is_offers(value: str) -> bool:
    try:
        told = json.loads(value)
    except ValueError:
        return False
    return isinstance(told, list) and all(
        isinstance(each, list)
        and [type(part) for part in each] == [str, list, list]
        and each[0].isprintable()
        for each in told
    )


def _sound(read: list[Record], types: tuple[type, ...]) -> Iterator[tuple]:  # type: ignore[type-arg]
    for record in read:
        if tuple(map(type, record)) == types:
            yield tuple(record)
