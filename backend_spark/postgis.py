"""Copy of gold in a PostGIS database: its tables, and how it is brought up to date.

``levels``, ``newest``
    Rows of the Delta tables ``levels`` and ``current``, with all their columns.
``cells``
    The polygon of each S2 cell.
``current``
    View: one row a cell with its level at the time of the query.
``sync_state``
    One row: the version of gold that the copy has, and the rule of the view.

A pass is one transaction. It contains the rows and the version of gold that they are
of. So a copy is always of one version: a pass that was killed has changed nothing, and
the next one continues. A copy of another gold (made anew, or restored from a backup) is
replaced as a whole.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, LiteralString

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from psycopg import Connection, Cursor
from psycopg.sql import SQL, Composed, Identifier
from pyarrow import fs

from backend_spark.errors import PostgisSetupError, PostgisUnavailableError
from backend_spark.exports.cell_states import cell_ring
from backend_spark.scoring.holds import GRACE_S, HELD, JUDGED, LOW_HOLD_S, UNKNOWN
from backend_spark.tables.current import CurrentLevels, read_current
from backend_spark.tables.delta_log import (
    GoldChanges,
    GoldVersion,
    all_files,
    changes_between,
    version_of,
)
from backend_spark.tables.schemas import (
    CURRENT,
    LEVELS,
    NUMBERS,
    TEXTS,
    UTC_TIME,
    cast_to_schema,
)
from backend_spark.tables.store import Folder, open_files, open_table
from slope_science.levels import WARNING

LAYOUT: Final = 1
"""Version of the view and of ``sync_state``."""

COPIED: Final = {"levels": LEVELS, "newest": CURRENT}
KEYS: Final = {"levels": ("cell", "at"), "newest": ("cell",)}
"""Tables of rows of gold, and what is unique in them."""

_TYPES: Final[dict[pa.DataType, LiteralString]] = {
    pa.string(): "text",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.float64(): "double precision",
    pa.bool_(): "boolean",
    UTC_TIME: "timestamptz",
    TEXTS: "text[]",
    NUMBERS: "double precision[]",
}

_STATE: Final[LiteralString] = """
CREATE TABLE IF NOT EXISTS {schema}.sync_state (
    id boolean PRIMARY KEY DEFAULT true CHECK (id),
    layout integer NOT NULL,
    table_id text,
    version bigint,
    committed_ms bigint,
    history_days integer,
    hold_s double precision NOT NULL,
    synced_at timestamptz
)"""

_CELLS: Final[LiteralString] = """
CREATE TABLE IF NOT EXISTS {schema}.cells (
    cell text PRIMARY KEY,
    geom {gis}.geometry(Polygon, 4326) NOT NULL
)"""

_INDEXES: Final[tuple[LiteralString, ...]] = (
    "CREATE INDEX IF NOT EXISTS cells_geom ON {schema}.cells USING gist (geom)",
    "CREATE INDEX IF NOT EXISTS levels_at ON {schema}.levels USING brin (at)",
)

# `PresentLevel.of_row` in SQL. The time is that of the statement: now() would be that
# of the begin of the transaction, which a program of an analyst may keep open.
_VIEW: Final[LiteralString] = """
CREATE OR REPLACE VIEW {schema}.current AS
SELECT n.cell, p.level, p.state,
    CASE WHEN p.level IS NOT DISTINCT FROM n.level THEN n.level_since END
        AS level_since,
    n.at, p.known_until, s.moment, n.margin_mm, n.r60_mm, n.swi_mm, n.completeness,
    n.lower_bound, n.n_nodes, n.reasons, n.reason_codes, n.assumed, n.latest_received,
    c.geom
FROM {schema}.newest n
JOIN {schema}.cells c USING (cell)
CROSS JOIN (SELECT hold_s, statement_timestamp() AS moment FROM {schema}.sync_state) s
CROSS JOIN LATERAL (
    SELECT coalesce(nullif(n.state, ''),
        CASE WHEN n.level IS NULL THEN {unknown} ELSE {judged} END) AS state
) r
CROSS JOIN LATERAL (
    SELECT s.moment - n.at > make_interval(secs => {grace_s}) AS is_silent,
        CASE WHEN r.state = {judged} AND s.moment - n.at
            > make_interval(secs => {grace_s}) THEN n.at ELSE n.known_until
        END AS known_until
) k
CROSS JOIN LATERAL (
    SELECT k.is_silent AND (n.level IS NULL OR k.known_until IS NULL
        OR s.moment - k.known_until > make_interval(secs => CASE
            WHEN n.level >= {warning} THEN s.hold_s
            ELSE least(s.hold_s, {low_hold_s}) END)) AS is_over
) o
CROSS JOIN LATERAL (
    SELECT CASE WHEN NOT o.is_over THEN n.level END AS level,
        CASE WHEN NOT k.is_silent THEN r.state WHEN o.is_over THEN {unknown}
            ELSE {held} END AS state,
        k.known_until
) p"""

GOLD: Final = "levels"
CONNECT_S: Final = 10
LOCK_S: Final = 60
"""Longest waits for the server, and for another pass or a change of the layout."""

CUT_OFF_S: Final = 60
"""Time after which a connection ends whose server is out of reach."""

ROWS_AT_ONCE: Final = 65_536
NUL: Final = "\0"
"""Cannot be in a text of PostgreSQL."""


def prepare_layout(cursor: Cursor, schema: str, hold_s: float) -> bool:
    """Make what is missing of the tables and the view.

    Args:
        cursor: Of the transaction.
        schema: Schema of the database.
        hold_s: `HoldLimits.hold_s`.

    Returns:
        Whether columns are new, so that all rows have to be copied.

    Raises:
        PostgisSetupError: The database lacks PostGIS or the schema, or has a layout
            of a newer program.
    """
    names = {"schema": Identifier(schema), "gis": Identifier(_gis_schema(cursor))}
    _check_schema(cursor, schema)
    cursor.execute(SQL(_STATE).format(**names))
    cursor.execute(SQL("SELECT layout FROM {schema}.sync_state").format(**names))
    found = cursor.fetchone()
    if found is not None and found[0] > LAYOUT:
        raise PostgisSetupError(
            f"schema {schema}",
            f"of layout {LAYOUT} or older",
            found[0],
            "a newer program writes it: upgrade this one, or give it another schema",
        )
    has_new = sum(_add_columns(cursor, schema, table) for table in COPIED) > 0
    if has_new or found is None or found[0] < LAYOUT:
        cursor.execute(SQL(_CELLS).format(**names))
        for index in _INDEXES:
            cursor.execute(SQL(index).format(**names))
        cursor.execute(_view(schema))
    put = "INSERT INTO {schema}.sync_state (layout, hold_s) VALUES (%s, %s) "
    put += "ON CONFLICT (id) DO UPDATE SET layout = EXCLUDED.layout, "
    put += "hold_s = EXCLUDED.hold_s"
    cursor.execute(SQL(put).format(**names), (LAYOUT, hold_s))
    return has_new


def _gis_schema(cursor: Cursor) -> str:
    cursor.execute(
        "SELECT nspname FROM pg_extension JOIN pg_namespace n ON n.oid = extnamespace "
        "WHERE extname = 'postgis'"
    )
    found = cursor.fetchone()
    if found is None:
        remedy = "as an administrator of the database: CREATE EXTENSION postgis"
        raise PostgisSetupError("the database", "one with PostGIS", "none", remedy)
    return str(found[0])


def _check_schema(cursor: Cursor, schema: str) -> None:
    cursor.execute("SELECT FROM pg_namespace WHERE nspname = %s", (schema,))
    if cursor.fetchone() is None:
        remedy = "make it, owned by the role of the copy, see docs/how-to/postgis.md"
        raise PostgisSetupError("--schema", "a schema of the database", schema, remedy)


def _add_columns(cursor: Cursor, schema: str, table: str) -> bool:
    """Add the columns that a table lacks; returns whether there were any."""
    cursor.execute(
        "SELECT column_name FROM information_schema.columns "
        "WHERE table_schema = %s AND table_name = %s",
        (schema, table),
    )
    there = {row[0] for row in cursor}
    columns = [
        SQL("{} {}").format(Identifier(field.name), SQL(_TYPES[field.type]))
        for field in COPIED[table]
        if field.name not in there
    ]
    name = Identifier(schema, table)
    if not there:
        keys = SQL(", ").join(map(Identifier, KEYS[table]))
        columns.append(SQL("PRIMARY KEY ({})").format(keys))
        create = SQL("CREATE TABLE {} ({})").format(name, SQL(", ").join(columns))
        cursor.execute(create)
    for column in columns if there else ():
        cursor.execute(SQL("ALTER TABLE {} ADD COLUMN {}").format(name, column))
    return bool(columns)


def _view(schema: str) -> Composed:
    return SQL(_VIEW).format(
        schema=Identifier(schema),
        judged=JUDGED,
        held=HELD,
        unknown=UNKNOWN,
        grace_s=GRACE_S,
        low_hold_s=LOW_HOLD_S,
        warning=WARNING,
    )


@dataclass(frozen=True)
class PostgisCopy:
    """What is copied, and where to.

    Attributes:
        tables: Folder of the tables.
        service: Service of libpq, which names the database, role and credentials.
        schema: Schema of the database.
        hold_s: `HoldLimits.hold_s`.
        history_days: Days of levels before the newest one to keep; None for all.
    """

    tables: Folder
    service: str
    schema: str
    hold_s: float
    history_days: int | None = None


@dataclass(frozen=True)
class SyncResult:
    """What a pass did.

    Attributes:
        version: Version of gold that the copy has now.
        cells: Number of cells.
        is_whole: Whether all rows were copied, not only the changes.
        rows: Rows of levels that were compared with those of the copy.
    """

    version: int
    cells: int
    is_whole: bool
    rows: int

    def __str__(self) -> str:
        """One line for the journal."""
        which = "all of the levels" if self.is_whole else "changes"
        return (
            f"the copy has version {self.version} of levels, {self.cells} cells; "
            f"read {which}, {self.rows} rows"
        )


def sync_postgis(copy: PostgisCopy) -> SyncResult:
    """Bring the copy to the newest version of gold.

    Raises:
        PostgisSetupError: The service, database or schema is not set up.
        PostgisUnavailableError: The database does not answer; a later pass may work.
    """
    try:
        with connect(copy.service) as link, link.cursor() as cursor:
            return _Pass(copy, cursor).run()
    except psycopg.OperationalError as error:
        raise PostgisUnavailableError(copy.service, str(error)) from error
    except psycopg.errors.InsufficientPrivilege as error:
        remedy = "grant it as in docs/how-to/postgis.md"
        reason = str(error).partition("\n")[0]
        raise PostgisSetupError(
            "role of the service", "allowed to write", reason, remedy
        ) from error


def connect(service: str) -> Connection:
    """Connect to the database of a service.

    Raises:
        PostgisSetupError: The service is not defined.
        psycopg.OperationalError: The database does not answer.
    """
    try:
        return psycopg.connect(
            service=service,
            connect_timeout=CONNECT_S,
            client_encoding="utf8",
            application_name="yamamori",
            tcp_user_timeout=CUT_OFF_S * 1000,
            keepalives_idle=CUT_OFF_S // 2,
            keepalives_interval=CUT_OFF_S // 6,
            keepalives_count=3,
        )
    except psycopg.OperationalError as error:
        if "definition of service" not in str(error):
            raise
        remedy = "set PGSERVICEFILE to the file that defines it"
        raise PostgisSetupError("--service", "defined", service, remedy) from error


class _Pass:
    """One pass, in the transaction of a cursor."""

    def __init__(self, copy: PostgisCopy, cursor: Cursor) -> None:
        self._copy, self._cursor = copy, cursor
        self._rows = 0

    def run(self) -> SyncResult:
        """Apply what gold has gained and lost."""
        copy, cursor = self._copy, self._cursor
        cursor.execute(SQL("SET LOCAL lock_timeout = {}").format(f"{LOCK_S}s"))
        # One pass at a time: a version read before the lock could be an older one.
        lock = "SELECT pg_advisory_xact_lock(hashtextextended('yamamori ' || %s, 0))"
        cursor.execute(lock, (copy.schema,))
        has_new_columns = prepare_layout(cursor, copy.schema, copy.hold_s)
        current = read_current(copy.tables)
        if current.gold is None:
            remedy = "check backend.tables; score first: backend-spark score"
            raise PostgisSetupError("levels", "a table", str(copy.tables), remedy)
        path = copy.tables / GOLD
        levels = open_table(path, current.gold.number)
        table_id = str(levels.metadata().id)
        changes = (
            None if has_new_columns else self._changes(path, table_id, current.gold)
        )
        is_whole = changes is None
        if changes is None:
            changes = GoldChanges(all_files(levels))
        self._apply(current, changes, is_whole)
        self._store(table_id, current.gold)
        return SyncResult(
            current.gold.number, current.rows.num_rows, is_whole, self._rows
        )

    def _changes(
        self, path: Folder, table_id: str, gold: GoldVersion
    ) -> GoldChanges | None:
        """What the copy lacks; None if it has to be made as a whole."""
        self._execute(
            "SELECT table_id, version, committed_ms, history_days "
            "FROM {schema}.sync_state"
        )
        (row,) = self._cursor.fetchall()
        stored_id, number, committed_ms, days = row
        if stored_id != table_id or number > gold.number:
            return None
        if days is not None and days < (self._copy.history_days or days + 1):
            return None
        try:
            if version_of(path, number) != GoldVersion(number, committed_ms):
                return None
        except FileNotFoundError:
            return None
        return changes_between(path, number, gold.number)

    def _apply(
        self, current: CurrentLevels, changes: GoldChanges, is_whole: bool
    ) -> None:
        since, until = None, changes.trimmed_until
        newest = pc.max(current.rows["at"]).as_py()
        if self._copy.history_days is not None and newest is not None:
            since = newest - timedelta(days=self._copy.history_days)
        for before in filter(None, (since, until)):
            self._execute("DELETE FROM {schema}.levels WHERE at < %s", before)
        if is_whole or changes.files:
            self._add_cells(current.rows["cell"].to_pylist())
            self._merge("levels", self._read_files(changes, since), is_whole)
        if is_whole or changes.files or changes.trimmed_until is not None:
            self._merge("newest", [current.rows], is_whole=True)

    def _read_files(
        self, changes: GoldChanges, since: datetime | None
    ) -> Iterator[pa.Table]:
        files = open_files(self._copy.tables / GOLD)
        for file in changes.files:
            for part in _read_file(file.name, files):
                is_kept = pc.greater_equal(part["at"], since) if since else None
                rows = part if is_kept is None else part.filter(is_kept)
                self._rows += rows.num_rows
                yield rows

    def _add_cells(self, cells: Iterable[str]) -> None:
        self._execute("SELECT cell FROM {schema}.cells")
        new = set(cells) - {row[0] for row in self._cursor}
        put = SQL("INSERT INTO {}.cells (cell, geom) VALUES (%s, %s)")
        self._cursor.executemany(
            put.format(Identifier(self._copy.schema)),
            [(cell, _polygon(cell)) for cell in sorted(new)],
        )

    def _merge(self, table: str, parts: Iterable[pa.Table], is_whole: bool) -> None:
        """Insert rows, and change those that differ.

        Args:
            table: Table of `COPIED`.
            parts: The rows.
            is_whole: Whether rows that are not among them are deleted.
        """
        names = [Identifier(name) for name in COPIED[table].names]
        keys = [Identifier(name) for name in KEYS[table]]
        words = {
            "table": Identifier(self._copy.schema, table),
            "columns": SQL(", ").join(names),
            "keys": SQL(", ").join(keys),
            "old": SQL(", ").join(SQL("t.{}").format(name) for name in names),
            "new": SQL(", ").join(SQL("EXCLUDED.{}").format(name) for name in names),
        }
        run = self._cursor.execute
        create = "CREATE TEMPORARY TABLE staged ON COMMIT DROP AS "
        create += "SELECT {columns} FROM {table} WITH NO DATA"
        run(SQL(create).format(**words))
        copy = SQL("COPY staged ({columns}) FROM STDIN").format(**words)
        with self._cursor.copy(copy) as stream:
            for part in parts:
                for row in _rows(part):
                    stream.write_row(row)
        run("ANALYZE staged")
        put = "INSERT INTO {table} AS t ({columns}) SELECT {columns} FROM staged "
        put += "ON CONFLICT ({keys}) DO UPDATE SET ({columns}) = ROW ({new}) "
        put += "WHERE ({old}) IS DISTINCT FROM ({new})"
        run(SQL(put).format(**words))
        if is_whole:
            same = SQL(" AND ").join(SQL("s.{0} = t.{0}").format(key) for key in keys)
            gone = "DELETE FROM {table} AS t WHERE NOT EXISTS "
            gone += "(SELECT FROM staged AS s WHERE {same})"
            run(SQL(gone).format(same=same, **words))
        run("DROP TABLE staged")

    def _store(self, table_id: str, gold: GoldVersion) -> None:
        self._execute(
            "UPDATE {schema}.sync_state SET table_id = %s, version = %s, "
            "committed_ms = %s, history_days = %s, synced_at = statement_timestamp()",
            table_id,
            gold.number,
            gold.committed_ms,
            self._copy.history_days,
        )

    def _execute(self, text: LiteralString, *values: object) -> None:
        names = {"schema": Identifier(self._copy.schema)}
        self._cursor.execute(SQL(text).format(**names), values)


def _read_file(name: str, files: fs.FileSystem) -> Iterator[pa.Table]:
    with pq.ParquetFile(name, filesystem=files) as parquet:
        for batch in parquet.iter_batches(ROWS_AT_ONCE):
            yield cast_to_schema(pa.table(batch), LEVELS)


def _polygon(cell: str) -> str:
    """Polygon of a cell as EWKT."""
    points = ", ".join(f"{lon} {lat}" for lon, lat in cell_ring(cell))
    return f"SRID=4326;POLYGON(({points}))"


def _rows(part: pa.Table) -> Iterator[tuple[Any, ...]]:
    return zip(*(_values(column) for column in part.columns), strict=True)


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Values of a column; a NUL in a text is replaced."""
    values: list[Any] = column.to_pylist()
    is_list = pa.types.is_list(column.type)
    texts = pc.list_flatten(column) if is_list else column
    if not pa.types.is_string(texts.type):
        return values
    if not pc.any(pc.match_substring(texts, NUL)).as_py():
        return values
    if is_list:
        return [each and [_clean(text) for text in each] for each in values]
    return [_clean(each) for each in values]


def _clean(text: str | None) -> str | None:
    return text and text.replace(NUL, "\ufffd")
