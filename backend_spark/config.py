"""Settings of the backend, read from one TOML file and checked once at start.

Each key is described by its `KeyRule` only; ``docs/reference/settings.md`` is generated
from them by ``scripts/write-reference``.
"""

from dataclasses import dataclass, replace
from itertools import combinations, product
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, urlsplit

from backend_spark.console.settings import ConsoleSection
from backend_spark.ingest.kafka_settings import KafkaSection
from service_runtime.errors import FieldError
from service_runtime.metrics import MetricsSection, parse_listen_address
from service_runtime.settings import (
    KeyRule,
    Problem,
    SettingsError,
    build_settings,
    check_folder,
    key,
    read_settings_table,
)
from service_runtime.tls import Endpoint, TlsFiles, check_links
from slope_science.evidence.settings import EvidenceSettings
from slope_science.levels import LOOK_AHEAD_H
from spatial_mqtt.custody import check_offer_filters
from spatial_mqtt.topics import CELL_FILTERS, check_node_id, overlaps
from spatial_mqtt.transport import MQTT_RECEIVE_MAXIMUM

STORES: Final = ("file", "s3", "az", "gs")
"""Schemes of the URLs of tables."""


def parse_tables_url(text: str) -> SplitResult | None:
    """Parse the URL of tables; None if the text is the path of a folder.

    Raises:
        FieldError: It is a URL of another form.
    """
    if "://" not in text:
        check_folder(text)
        return None
    url = urlsplit(text)
    if "@" in url.netloc or url.query or url.fragment:
        # The value is not shown: it may contain a key.
        remedy = "remove what follows ? or precedes @; set keys in the environment"
        rule = "a URL without credentials"
        raise FieldError("tables", rule, f"{url.scheme}://...", remedy)
    has_place = url.path.startswith("/") if url.scheme == "file" else url.netloc
    if url.scheme not in STORES or not has_place:
        rule = "a folder, file:///folder, s3://bucket/prefix, az:// or gs://"
        raise FieldError("tables", rule, text)
    if url.scheme == "file" and url.netloc:
        remedy = "write three slashes before the path"
        raise FieldError("tables", "on this machine for file://", text, remedy)
    return url


@dataclass(frozen=True)
class BackendSection:
    """``[backend]``: the data folder."""

    data: str = key(
        KeyRule(
            "Folder of the log and the checkpoints; of the tables too, unless "
            "backend.tables names another place.",
            check=check_folder,
        )
    )
    tables: str | None = key(
        KeyRule(
            "Place of the tables: a folder, or a URL s3://bucket/prefix, "
            "az://container/prefix or gs://bucket/prefix, with credentials in the "
            "environment; absent: the folder tables in backend.data.",
            check=lambda place: place is None or parse_tables_url(place),
        ),
        None,
    )


@dataclass(frozen=True)
class IngestSection:
    """``[ingest]``: the process between the broker and the log."""

    id: str = key(
        KeyRule("Name and fixed MQTT client id of the ingester.", check=check_node_id),
        "ingest-0",
    )
    broker: str | None = key(
        KeyRule("URL of the broker to read.", check=Endpoint.parse), None
    )
    filters: tuple[str, ...] = key(
        KeyRule("Topic filters to subscribe.", check=check_offer_filters), CELL_FILTERS
    )
    flush_ms: int = key(
        KeyRule("Longest wait before a message is on disk.", "ms", 1, 10_000), 200
    )
    session_expiry_s: int = key(
        KeyRule("How long the broker keeps the session.", "s", 1, 2**32 - 2), 604_800
    )
    receive_maximum: int = key(
        KeyRule(
            "Maximum number of unacknowledged messages in flight; a broker that allows "
            "fewer is read no faster than its limit per flush_ms.",
            low=1,
            high=MQTT_RECEIVE_MAXIMUM,
        ),
        1000,
    )
    keep_days: int = key(
        KeyRule(
            "Age at which a scored segment of the log is deleted.", "days", 0, 3650
        ),
        7,
    )
    keep_bytes: int = key(
        KeyRule(
            "Size of this ingester's log above which its oldest scored segments are "
            "deleted.",
            "bytes",
            10**6,
            10**15,
        ),
        20 * 10**9,
    )
    keep_segments: int = key(
        KeyRule(
            "Number of segments above which the oldest scored ones are deleted; "
            "scoring lists all of them for each batch.",
            low=10,
            high=10**7,
        ),
        20_000,
    )
    quarantine_bytes: int = key(
        KeyRule(
            "Size of the quarantine above which its oldest segments are deleted.",
            "bytes",
            10**6,
            10**15,
        ),
        10**9,
    )
    takeover_s: float = key(
        KeyRule(
            "Silence after which a standby kills and replaces the ingester.",
            "s",
            1,
            3600,
        ),
        60.0,
    )
    buffer_bytes: int = key(
        KeyRule(
            "Memory for messages that wait for the disk; when it is full, no more are "
            "read from the broker.",
            "bytes",
            10**5,
            10**11,
        ),
        64_000_000,
    )
    places: str | None = key(
        KeyRule(
            "File of `gateway-daemon ca places`: the areas from which each node id may "
            "publish. Messages from elsewhere go to quarantine."
        ),
        None,
    )


@dataclass(frozen=True)
class ShardSection:
    """``[[shard]]``: the part of the topics that one ingest process reads."""

    id: str = key(
        KeyRule("Name and fixed MQTT client id of the process.", check=check_node_id)
    )
    filters: tuple[str, ...] = key(
        KeyRule(
            "Topic filters to subscribe; no topic may be in two shards.",
            check=check_offer_filters,
        )
    )
    listen: str | None = key(
        KeyRule(
            "Address where Prometheus scrapes this process, host:port; replaces "
            "metrics.listen.",
            check=lambda listen: listen is None or parse_listen_address(listen),
        ),
        None,
    )


@dataclass(frozen=True)
class ScoreSection:
    """``[score]``: the Spark job."""

    trigger_s: float = key(KeyRule("Time between batches.", "s", 0, 3600), 1.0)
    every_s: float = key(
        KeyRule(
            "Time between two scorings of the cells that have new messages; a scoring "
            "that takes longer is followed by a pause of a quarter of its length.",
            "s",
            0,
            3600,
        ),
        10.0,
    )
    max_segments_per_batch: int = key(
        KeyRule("Maximum number of log segments in a batch.", low=1, high=100_000), 200
    )
    horizon_days: int = key(
        KeyRule("Age up to which rain is counted.", "days", 1, 400), 60
    )
    max_ahead_s: int = key(
        KeyRule(
            "A message dated further after its receipt is timed by its receipt, less "
            "its wait in queues, because its clock is wrong.",
            "s",
            0,
            10**9,
        ),
        600,
    )
    nearby_km: float = key(
        KeyRule(
            "Radius in which the gauges of other cells are compared with those of a "
            "cell, and take the place of missing ones; 0 uses the cell's own only.",
            "km",
            0,
            20,
        ),
        5.0,
    )
    master: str = key(KeyRule("Spark master when --master is not given."), "local[*]")
    hold_s: float = key(
        KeyRule(
            "Longest time that a level of 3 or more is held without evidence, in gold "
            "and as a notice; after that it is unknown.",
            "s",
            low=3600,
            high=90 * 86_400,
        ),
        7 * 86_400.0,
    )
    reviews: str | None = key(
        KeyRule("Reviews of readings: DATA/console/reviews.json; absent: none."), None
    )


@dataclass(frozen=True)
class ForecastSection:
    """``[forecast]``: official rain forecasts."""

    folder: str | None = key(
        KeyRule("Folder of files (*.csv, *.json) that `forecast load` reads."), None
    )
    max_age_s: float = key(
        KeyRule(
            "Age from which a forecast is not used and is marked as stale in the "
            "tables.",
            "s",
            600,
            43_200,
        ),
        7200.0,
    )


@dataclass(frozen=True)
class AnalysisSection:
    """``[analysis]``: JMA's analysed rain and soil water index on the 1 km grid."""

    soil_water_folder: str | None = key(
        KeyRule(
            "Folder of GRIB2 files of the soil water index "
            "(..._Ggis1km_Psw_Aper10min_ANAL_grib2.bin) that `analysis load` reads; "
            "absent: none."
        ),
        None,
    )
    rain_folder: str | None = key(
        KeyRule(
            "Folder of GRIB2 files of analysed rain, or its quick version "
            "(..._Ggis1km_Prr60lv_ANAL_grib2.bin), that `analysis load` reads; "
            "absent: none."
        ),
        None,
    )
    max_age_s: float = key(
        KeyRule("Age from which an analysis is not used.", "s", 600, 21_600), 3600.0
    )


@dataclass(frozen=True)
class NotifySection:
    """``[notify]``: notices published for the nodes."""

    id: str = key(
        KeyRule("Name and fixed MQTT client id of the publisher.", check=check_node_id),
        "notify-0",
    )
    brokers: tuple[str, ...] = key(
        KeyRule(
            "URLs of the Managers' brokers, where notices are retained.",
            check=lambda urls: [Endpoint.parse(url) for url in urls],
        ),
        (),
    )
    key_file: str | None = key(
        KeyRule("File of the private Ed25519 key (PEM); absent: notices are unsigned."),
        None,
    )
    from_level: int = key(
        KeyRule(
            "Lowest level that is published as a notice; nodes sample faster from 3.",
            low=2,
            high=5,
        ),
        2,
    )
    hold_s: float = key(
        KeyRule(
            "How long a notice is valid; it is renewed after half of that.",
            "s",
            60,
            604_800,
        ),
        10_800.0,
    )
    calm_s: float = key(
        KeyRule(
            "How long a level must have been lower before the notice is lowered or "
            "withdrawn; a rise is published at once.",
            "s",
            0,
            86_400,
        ),
        3600.0,
    )
    every_s: float = key(
        KeyRule("Time between two readings of the levels.", "s", 1, 3600), 10.0
    )
    max_age_s: float = key(
        KeyRule(
            "Age from which a level no longer counts as current.", "s", 600, 86_400
        ),
        3600.0,
    )


@dataclass(frozen=True)
class RainCriteriaSection:
    """``[criteria]``: criteria for the soil water index."""

    warning_mm: float = key(
        KeyRule(
            "Warning criterion (level 3) for cells that no file covers.", "mm", 20, 1000
        ),
        150.0,
    )
    file: str | None = key(
        KeyRule(
            "Table of criteria by mesh as the prefecture or JMA publishes it (CSV), or "
            "a folder of such tables, which complete each other; absent uses planning "
            "defaults, which every reason marks as assumed. `backend-spark criteria` "
            "checks it."
        ),
        None,
    )
    changes: str | None = key(
        KeyRule(
            "CSV that the console writes when a chief changes thresholds, "
            "DATA/console/criteria.csv: its advisory, warning and special criteria and "
            "rates of tilt override those of the file and of [evidence]; the file's "
            "critical line counts by the percentage. Read again when it changes; need "
            "not exist yet."
        ),
        None,
    )
    telegrams: str | None = key(
        KeyRule(
            "Folder of JMA's warning telegrams (VPWW56 and others, *.xml); their level "
            "for the cell's municipality is stored beside the computed one. Needs "
            "municipality in the file."
        ),
        None,
    )
    look_ahead: bool = key(
        KeyRule(
            "Whether a level from 2 to 4 also applies when an official rain forecast "
            "reaches it within the look-ahead; the reason names the forecast."
        ),
        True,
    )
    look_ahead_same_rain: bool = key(
        KeyRule(
            "Whether, without a usable official forecast, the rain of the last hour "
            "continued counts as one. That is a forecast of ours, and forecasts for "
            "the public need a permit; the tables contain it in any case."
        ),
        False,
    )
    look_ahead_h: int = key(
        KeyRule(
            "Look-ahead of meshes whose table has no column LOOK_AHEAD_H: 2, or 3 in "
            "some prefectures.",
            "h",
            LOOK_AHEAD_H[0],
            LOOK_AHEAD_H[-1],
        ),
        LOOK_AHEAD_H[0],
    )

    rain_alone_level: int = key(
        KeyRule(
            "Highest level of rain of doubtful quality (above the limits, or "
            "contradicted by the gauges around) while no second gauge, stream or soil "
            "confirms it.",
            low=1,
            high=5,
        ),
        3,
    )


def _keep(rows: str) -> int:
    doc = f"Age at which {rows} are deleted; 0 keeps them for ever."
    days: int = key(KeyRule(doc, "days", 0, 36_500), 0)
    return days


@dataclass(frozen=True)
class KeepSection:
    """``[keep]``: how long rows stay in the tables."""

    bronze_days: int = _keep("messages as received, which a replay needs,")
    silver_days: int = _keep("readings, and packs that do not decode,")
    levels_days: int = _keep("levels, sensor rows and their revisions")
    messages_days: int = _keep("message ids")
    alerts_days: int = _keep("alerts")
    nodes_days: int = _keep("rows of nodes without a newer message")
    forecasts_days: int = _keep("rain forecasts, counted from their receipt,")
    analyses_days: int = _keep("analysed rain, counted from its receipt,")

    def days_of(self, table: str) -> int:
        """Days that rows of a table are kept; 0 is for ever."""
        if table in {"memories", "current"}:  # trimmed by the scoring itself
            return 0
        gold = dict.fromkeys(("sensors", "revisions", "sensor_revisions"), "levels")
        key_of = {"rejected": "silver", **gold}
        return int(getattr(self, f"{key_of.get(table, table)}_days"))


CONSOLE_FOLDER: Final = "console"
LOG_FOLDER: Final = "log"
QUARANTINE_FOLDER: Final = "quarantine"
TABLES_FOLDER: Final = "tables"
CHECKPOINTS_FOLDER: Final = "checkpoints"


@dataclass(frozen=True)
class BackendSettings:
    """All settings of the backend."""

    backend: BackendSection
    ingest: IngestSection
    kafka: KafkaSection
    score: ScoreSection
    criteria: RainCriteriaSection
    evidence: EvidenceSettings
    forecast: ForecastSection
    analysis: AnalysisSection
    notify: NotifySection
    console: ConsoleSection
    keep: KeepSection
    tls: TlsFiles
    metrics: MetricsSection
    shard: tuple[ShardSection, ...] = key(
        KeyRule("Parts of the topics, each read by its own ingest process."), ()
    )

    def __post_init__(self) -> None:
        """Refuse shards that share an id or a topic: messages would be read twice.

        Links to other machines must be protected.
        """
        check_links(
            self.tls,
            ingest__broker=self.ingest.broker,
            notify__brokers=self.notify.brokers,
            console__managers=self.console.managers,
        )
        for first, second in combinations(self.shard, 2):
            if first.id == second.id:
                raise FieldError("shard.id", "a name of its own", first.id)
            for pair in product(first.filters, second.filters):
                if overlaps(*pair):
                    rule = f"apart from those of {first.id}"
                    raise FieldError(f"shard.filters of {second.id}", rule, pair)


def read_settings(path: Path) -> BackendSettings:
    """Read and check a settings file.

    Raises:
        SettingsError: The file is missing, is not TOML, or breaks a rule.
    """
    settings = build_settings(BackendSettings, read_settings_table(path))
    if 0 < settings.keep.silver_days < settings.score.horizon_days:
        mistake = FieldError(
            "keep.silver_days",
            f"0 or at least score.horizon_days ({settings.score.horizon_days})",
            settings.keep.silver_days,
            "levels are computed from that many days of silver",
        )
        raise SettingsError([Problem.of(mistake)])
    return settings


def parse_broker(settings: IngestSection) -> Endpoint:
    """Parse the URL of the broker to ingest from.

    Raises:
        SettingsError: No broker is set.
    """
    if settings.broker is None:
        remedy = "write broker = 'mqtts://host:port'"
        error = FieldError("ingest.broker", "given to ingest", None, remedy)
        raise SettingsError([Problem.of(error)])
    return Endpoint.parse(settings.broker)


def select_shard(settings: BackendSettings, name: str | None) -> BackendSettings:
    """Settings with the id, filters and metrics address of one shard.

    Args:
        settings: All settings.
        name: Id of the shard; None if the file has no shards.

    Raises:
        SettingsError: There is no such shard, or shards exist and none is given.
    """
    if name is None and not settings.shard:
        return settings
    for shard in settings.shard:
        if shard.id == name:
            section = replace(settings.ingest, id=shard.id, filters=shard.filters)
            metrics = MetricsSection(listen=shard.listen)
            return replace(settings, ingest=section, metrics=metrics)
    ids = ", ".join(shard.id for shard in settings.shard) or "none"
    error = FieldError("--shard", "the id of a [[shard]]", name, f"there is: {ids}")
    raise SettingsError([Problem.of(error)])
