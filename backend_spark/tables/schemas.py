"""Schemas of all tables: as Arrow, and as DDL for Spark.

All times are microseconds in UTC. Spark accepts an Arrow batch only if it matches its
schema exactly, so columns are listed only here.
"""

from typing import Final

import pyarrow as pa

UTC_TIME: Final = pa.timestamp("us", tz="UTC")
TEXTS: Final = pa.list_(pa.field("element", pa.string()))
NUMBERS: Final = pa.list_(pa.field("element", pa.float64()))

_ID = (
    pa.field("node", pa.string()),
    pa.field("boot", pa.string()),
    pa.field("seq", pa.int64()),
    pa.field("pri", pa.int32()),
)

LOG: Final = pa.schema([
    pa.field("received_at", UTC_TIME),
    pa.field("topic", pa.string()),
    pa.field("payload", pa.binary()),
    *_ID,
    pa.field("reason", pa.string()),  # why a message is in quarantine
    pa.field("age_s", pa.int32()),  # wait in queues; null: not late
])
"""Segment of the log: one row per message, as received."""

BRONZE: Final = LOG.append(pa.field("batch_id", pa.int64()))
"""Rows of the log, with the batch that read them."""

SILVER: Final = pa.schema([
    *_ID,
    pa.field("cell", pa.string()),  # token of the analysis cell; null elsewhere
    pa.field("topic", pa.string()),
    pa.field("name", pa.string()),
    pa.field("unit", pa.string()),
    pa.field("value", pa.float64()),  # a boolean is 1 or 0, and text in value_text
    pa.field("value_text", pa.string()),
    pa.field("sum", pa.float64()),
    pa.field("at", UTC_TIME),
    pa.field("received_at", UTC_TIME),
    pa.field("synchronised", pa.bool_()),  # else `at` is time of receipt minus age
    pa.field("why", pa.string()),
    pa.field("reason_codes", TEXTS),  # those of `why` as JSON; null: not sent
    pa.field("age_s", pa.int32()),  # wait in queues; null: not late
    pa.field("node_flag", pa.int32()),  # QARTOD flag set by the node; null: none
    # QARTOD: 1 good, 2 not evaluated, 3 suspect, 4 failed, 9 missing
    pa.field("flag", pa.int32()),
    pa.field("flag_why", pa.string()),
])
"""One row per reading."""

FLAGS: Final = pa.schema([
    pa.field("file", pa.string()),  # name within the folder of silver
    pa.field("row", pa.int64()),  # number of the row in the file
    SILVER.field("flag"),
    SILVER.field("flag_why"),
])
"""New flags of rows of silver, changed by later readings."""

PARSED: Final = pa.schema([
    *SILVER,
    pa.field("pack_at", UTC_TIME),
    pa.field("position", pa.int32()),  # index of the reading in its pack
    pa.field("reason", pa.string()),  # why a pack does not decode
    pa.field("batch_id", pa.int64()),
])
"""Result of decoding; silver, rejected and messages are projections of it."""

TOUCHED: Final = pa.schema([
    pa.field("cell", pa.string()),
    pa.field("node", pa.string()),
    pa.field("earliest_us", pa.int64()),  # null: nothing to score
    pa.field("rejected", pa.int64()),
    pa.field("received_us", pa.int64()),  # this and the following: revisions.News
    pa.field("late", pa.int64()),
    pa.field("first_us", pa.int64()),
    pa.field("last_us", pa.int64()),
    pa.field("wait_us", pa.int64()),
])
"""Changes by a chunk of messages, per cell and node."""

REJECTED: Final = pa.schema([
    *_ID,
    pa.field("topic", pa.string()),
    pa.field("received_at", UTC_TIME),
    pa.field("reason", pa.string()),
    pa.field("batch_id", pa.int64()),
])
"""Packs with an id that cannot be decoded; their bytes are in bronze."""

_VERSION = (
    pa.field("version", pa.int32()),  # 1, plus 1 for each revision
    pa.field("revised_because", pa.string()),
    pa.field("revised_at", UTC_TIME),
)
_SUPERSEDED = (
    pa.field("superseded_at", UTC_TIME),
    pa.field("superseded_because", pa.string()),
)

LEVELS: Final = pa.schema([
    pa.field("cell", pa.string()),
    pa.field("at", UTC_TIME),  # end of a 10-minute step
    pa.field("r60_mm", pa.float64()),
    pa.field("swi_mm", pa.float64()),
    pa.field("s1_mm", pa.float64()),
    pa.field("s2_mm", pa.float64()),
    pa.field("s3_mm", pa.float64()),
    pa.field("lower_bound", pa.bool_()),
    pa.field("rain_known", pa.bool_()),
    pa.field("history_days", pa.float64()),  # length of the rain history of the index
    pa.field("tilt_rate_deg_per_h", pa.float64()),
    pa.field("level", pa.int32()),  # null: unknown
    pa.field("reasons", TEXTS),
    pa.field("n_nodes", pa.int32()),
    pa.field("latest_received", UTC_TIME),
    pa.field("effective_1h5_mm", pa.float64()),  # half-life 1.5 h
    pa.field("effective_72h_mm", pa.float64()),
    pa.field("antecedent_mm_per_day", pa.float64()),
    pa.field("margin_mm", pa.float64()),  # below the critical line; negative: above it
    pa.field("margin_dry_mm", pa.float64()),  # after two hours without rain
    pa.field("margin_same_mm", pa.float64()),  # if the rain of the last hour continues
    pa.field("margin_forecast_mm", pa.float64()),  # with an official forecast
    pa.field("level_dry", pa.int32()),
    pa.field("level_same", pa.int32()),
    pa.field("level_forecast", pa.int32()),
    pa.field("forecast_source", pa.string()),  # source of the newest known forecast
    pa.field("forecast_issued_at", UTC_TIME),
    pa.field("forecast_mm", NUMBERS),  # in each step of ten minutes; null: not used
    pa.field("forecast_why", pa.string()),  # why it is not used, or doubtful
    pa.field("look_ahead_h", pa.int32()),  # of the prefecture, for the outlooks
    pa.field("moisture_percentile", pa.float64()),  # in the sensor's own history
    pa.field("pore_percentile", pa.float64()),
    pa.field("completeness", pa.float64()),  # part of a day with known rain
    pa.field("n_nodes_day", pa.int32()),
    pa.field("assumed", TEXTS),
    pa.field("official_level", pa.int32()),  # JMA's level for the municipality
    pa.field("official_at", UTC_TIME),
    pa.field("reason_codes", TEXTS),  # `reasons` as JSON; null: by an earlier program
    pa.field("notice_level", pa.int32()),  # for notices and sirens; null: as `level`
    pa.field("state", pa.string()),  # judged, held or unknown; null: earlier program
    pa.field("known_until", UTC_TIME),  # end of the last judged step; null: judged
    *_VERSION,
])
"""One row per cell and step; (cell, at) is unique."""

CURRENT: Final = pa.schema([
    *LEVELS,
    pa.field("level_since", UTC_TIME),  # first of the unbroken rows of this level
    pa.field("latency_s", pa.float64()),  # last reading to gold; null: unknown
])
"""The newest row of levels of each cell; the cell is unique."""

SENSORS: Final = pa.schema([
    pa.field("cell", pa.string()),
    pa.field("node", pa.string()),
    pa.field("sensor", pa.string()),
    pa.field("at", UTC_TIME),  # end of a 10-minute step
    pa.field("kind", pa.string()),  # tilt or displacement
    pa.field("n_readings", pa.int32()),  # used readings in the step
    pa.field("worst_flag", pa.int32()),
    pa.field("tilt_rate_deg_per_h", pa.float64()),
    pa.field("tilt_noise_deg_per_h", pa.float64()),  # upper limit of noise alone
    pa.field("tilt_rate_6h_deg_per_h", pa.float64()),
    pa.field("tilt_noise_6h_deg_per_h", pa.float64()),
    pa.field("thermal_deg_per_k", pa.float64()),  # compensated; null: unknown
    pa.field("velocity_mm_per_h", pa.float64()),
    pa.field("velocity_sigma_mm_per_h", pa.float64()),
    pa.field("moved_24h_mm", pa.float64()),
    pa.field("failure_at", UTC_TIME),  # by inverse velocity
    pa.field("failure_earliest_at", UTC_TIME),  # of the 90 % interval
    pa.field("failure_latest_at", UTC_TIME),
    pa.field("failure_half_width_h", pa.float64()),
    pa.field("failure_r2", pa.float64()),
    pa.field("failure_points", pa.int32()),
    pa.field("failure_usable", pa.bool_()),  # whether it passes all checks
    pa.field("failure_gate", pa.string()),  # the check that it fails
    *_VERSION,
])
"""One row per moving sensor and step with readings; `SENSOR_KEY` is unique."""

LEVEL_KEY: Final = ("cell", "at")
SENSOR_KEY: Final = ("cell", "node", "sensor", "at")

REVISIONS: Final = pa.schema([*LEVELS, *_SUPERSEDED])
"""Rows of levels before their revision; (cell, at, version) is unique."""

SENSOR_REVISIONS: Final = pa.schema([*SENSORS, *_SUPERSEDED])
"""Rows of sensors before their revision."""

MESSAGES: Final = pa.schema([
    *_ID,
    pa.field("cell", pa.string()),
    pa.field("at", UTC_TIME),
    pa.field("received_at", UTC_TIME),
    pa.field("batch_id", pa.int64()),
])
"""One row per message id, to check that no message is lost or duplicated."""

NODES: Final = pa.schema([
    pa.field("node", pa.string()),
    pa.field("cell", pa.string()),
    pa.field("topic", pa.string()),
    pa.field("boot", pa.string()),
    pa.field("at", UTC_TIME),  # of its newest reading
    pa.field("received_at", UTC_TIME),  # of its last message
    pa.field("synchronised", pa.bool_()),
    pa.field("age_s", pa.int32()),
    pa.field("reported_at", UTC_TIME),  # of its last status report; null: none
    pa.field("queued", pa.string()),
    pa.field("oldest_s", pa.float64()),
    pa.field("gateway", pa.string()),
    pa.field("dropped", pa.float64()),
    pa.field("battery_v", pa.float64()),
    pa.field("health", TEXTS),  # newest of each name, see `node_rows`; null: none
])
"""One row per node that has sent a message; the node is unique."""

NODE_KEY: Final = ("node",)

ALERTS: Final = pa.schema([
    *_ID,
    pa.field("cell", pa.string()),
    pa.field("topic", pa.string()),
    pa.field("at", UTC_TIME),  # null if it cannot be decoded, as the next two
    pa.field("synchronised", pa.bool_()),
    pa.field("why", pa.string()),  # the rule that set the priority
    pa.field("readings", TEXTS),  # each as ``name value unit``
    pa.field("received_at", UTC_TIME),
    pa.field("age_s", pa.int32()),
    pa.field("reason", pa.string()),  # why a pack cannot be decoded
    pa.field("reason_codes", TEXTS),  # those of `why` as JSON; null: not sent
])
"""One row per urgent message, within a second of its receipt; the id is unique."""

FORECASTS: Final = pa.schema([
    pa.field("kind", pa.string()),  # cell, mesh or municipality
    pa.field("place", pa.string()),
    pa.field("source", pa.string()),
    pa.field("issued_at", UTC_TIME),
    pa.field("from_at", UTC_TIME),
    pa.field("at", UTC_TIME),  # end of the interval
    pa.field("mm", pa.float64()),
    pa.field("flag", pa.int32()),
    pa.field("flag_why", pa.string()),
    pa.field("received_at", UTC_TIME),  # when it became known
    pa.field("file", pa.string()),
])
"""One row per interval of an official forecast of rain for a place."""

ANALYSES: Final = pa.schema([
    pa.field("product", pa.string()),  # soil_water or rain
    pa.field("mesh", pa.int32()),  # code of the third mesh
    pa.field("at", UTC_TIME),  # for which it applies; end of the hour of rain
    pa.field("issued_at", UTC_TIME),
    pa.field("mm", pa.float64()),  # null: missing in the file
    pa.field("received_at", UTC_TIME),  # when it became known
    pa.field("file", pa.string()),
    pa.field("issue", pa.string()),  # digest of the file
    pa.field("batch_id", pa.int64()),  # number of the import
])
"""One row per mesh, time and issue of JMA's analysed rain or soil water index."""

CELL_STATES: Final = pa.schema([
    pa.field("cell", pa.string()),
    pa.field("at", UTC_TIME),  # end of the last step in the state
    pa.field("format", pa.int32()),  # version of the encoding
    pa.field("body", pa.binary()),  # encoded by scoring.saved_states
])
"""Scoring state of a cell; (cell, at) is unique."""

TABLES: Final = {
    "bronze": BRONZE,
    "silver": SILVER,
    "rejected": REJECTED,
    "messages": MESSAGES,
    "nodes": NODES,
    "levels": LEVELS,
    "current": CURRENT,
    "sensors": SENSORS,
    "revisions": REVISIONS,
    "sensor_revisions": SENSOR_REVISIONS,
    "memories": CELL_STATES,
    "alerts": ALERTS,
    "forecasts": FORECASTS,
    "analyses": ANALYSES,
}

SPARK_TABLES: Final = tuple(
    name for name in TABLES if name not in {"alerts", "forecasts", "analyses"}
)
"""Tables that the Spark job writes; the others have their own writers."""

RECEIVED: Final = ("bronze", "silver", "rejected", "messages")
"""Tables of received data, in the order of their commits; bronze has the offset."""

DERIVED_TABLES: Final = frozenset({"current"})
"""Tables that are made anew from others when they are damaged."""

_DDL = {
    pa.string(): "string",
    pa.binary(): "binary",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    UTC_TIME: "timestamp",
    TEXTS: "array<string>",
    NUMBERS: "array<double>",
}


def cast_to_schema(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast rows to a schema; columns that older files lack are null.

    delta-rs writes string views, which have other types.
    """
    known = dict(zip(rows.column_names, rows.columns, strict=True))
    columns = [
        pa.nulls(rows.num_rows, field.type)
        if (column := known.get(field.name)) is None
        else column
        if column.type == field.type
        else column.cast(field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def format_ddl(schema: pa.Schema) -> str:
    """Format a schema as Spark DDL."""
    return ", ".join(f"`{field.name}` {_DDL[field.type]}" for field in schema)
