"""Tables and view of the copy in PostGIS.

``levels``, ``newest``
    Rows of the Delta tables ``levels`` and ``current``, with all their columns.
``cells``
    The polygon of each S2 cell.
``current``
    View: one row a cell with its level at the time of the query.
``sync_state``
    One row: the version of gold that the copy has, and the rule of the view.
"""

from typing import Final, LiteralString

import pyarrow as pa
from psycopg import Cursor
from psycopg.sql import SQL, Composed, Identifier

from backend_spark.errors import PostgisSetupError
from backend_spark.scoring.holds import GRACE_S, HELD, JUDGED, LOW_HOLD_S, UNKNOWN
from backend_spark.tables.schemas import CURRENT, LEVELS, NUMBERS, TEXTS, UTC_TIME
from slope_science.findings import WARNING

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
