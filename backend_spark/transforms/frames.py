"""Cuts of one batch: DataFrame in, DataFrame out."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from backend_spark.schemas import (
    MESSAGES,
    PARSED,
    REJECTED,
    SILVER,
    UTC_TIME,
    ddl,
)
from backend_spark.transforms.decode import decode_batches
from backend_spark.transforms.last_seen import SAID, SEEN
from backend_spark.transforms.revisions import SETTLED_S
from slope_science.quality import Flag


def parsed(messages: DataFrame) -> DataFrame:
    """Decode messages.

    Shape:
        in: schemas.BRONZE.
        out: schemas.PARSED, one row a reading, or one with a reason.
    """
    return messages.mapInArrow(decode_batches, ddl(PARSED))


def bronze(messages: DataFrame, batch_id: int) -> DataFrame:
    """Messages as received, and the batch that read them."""
    return messages.withColumn("batch_id", f.lit(batch_id).cast("bigint"))


def silver(rows: DataFrame, can_count: Column) -> DataFrame:
    """One row a reading, out of `parsed`; one that cannot count has failed."""
    why = f.lit("clock: the time is not believable beside its receipt")
    flag = f.when(can_count, f.col("flag")).otherwise(f.lit(int(Flag.FAIL)))
    reading = rows.where(f.col("reason").isNull())
    reason = f.when(can_count, f.col("flag_why")).otherwise(why)
    judged = reading.withColumn("flag_why", reason).withColumn("flag", flag)
    return judged.select(*SILVER.names)


def rejected(rows: DataFrame) -> DataFrame:
    """Packs that did not decode, out of `parsed`."""
    bad = rows.where(f.col("reason").isNotNull())
    return bad.select(*REJECTED.names)


def message_ids(rows: DataFrame) -> DataFrame:
    """One row per message id, rejected ones included, out of `parsed`."""
    first = rows.where(f.col("position") == 0).withColumn("at", f.col("pack_at"))
    return first.select(*MESSAGES.names)


def touched(rows: DataFrame, can_count: Column) -> DataFrame:
    """What a batch changes, cell by cell and node by node, out of `parsed`.

    Shape:
        out: cell string, node string, earliest_us long (null: nothing to score),
            rejected long, the columns of revisions.News, and those of
            last_seen.Word: last, a struct, and what the node told of itself.
    """
    at, received = f.unix_micros("at"), f.unix_micros("received_at")
    wait = f.when(can_count, received - at)
    late = f.when(wait > int(SETTLED_S) * 1_000_000, at)
    seen = [_plain(name) for name in SEEN]
    believable = f.when(can_count, at)
    return rows.groupBy("cell", "node").agg(
        f.max_by(f.struct(*seen), believable).alias("last"),
        *(_newest(*each, believable) for each in SAID.items()),
        f.min(f.when(can_count, at)).alias("earliest_us"),
        f.count("reason").alias("rejected"),
        f.max(received).alias("received_us"),
        f.count(late).alias("late"),
        f.min(late).alias("first_us"),
        f.max(late).alias("last_us"),
        f.max(wait).alias("wait_us"),
    )


def _newest(column: str, reading: tuple[str, str], at: Column) -> Column:
    name, of = reading
    is_it = f.col("name") == name
    return f.max_by(_plain(of), f.when(is_it, at)).alias(column)


def _plain(name: str) -> Column:
    """A column; a time as microseconds, which no time zone can shift."""
    is_time = SILVER.field(name).type == UTC_TIME
    return f.unix_micros(name).alias(name) if is_time else f.col(name)


def counts(max_ahead_s: int, horizon_s: int) -> Column:
    """Whether a reading may be scored: its time is believable.

    No reading can be from the future; one clock that runs ahead must not push the
    real readings out of the horizon. A clock that was never set reads the past.
    """
    at, received = f.unix_micros("at"), f.unix_micros("received_at")
    not_ahead = at <= received + max_ahead_s * 1_000_000
    recent = at >= received - horizon_s * 1_000_000
    return not_ahead & (f.col("synchronised") | recent)
