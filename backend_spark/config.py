"""Settings of the backend, read from one TOML file and checked once at start.

The tables of the backend's settings file, each with its keys, units and bounds.

``[keep]`` of the backend's settings: how long rows stay.
"""

from dataclasses import dataclass, replace
from itertools import combinations, product
from pathlib import Path
from typing import Final

from service_runtime.errors import FieldError
from service_runtime.metrics import MetricsSection, listens_at
from service_runtime.settings import (
    Problem,
    Rule,
    SettingsError,
    key,
    parse,
    read,
    text_of,
)
from service_runtime.tls import Endpoint, TlsFiles
from spatial_mqtt.topics import CELLS_FILTER, check_node_id, overlaps
from spatial_mqtt.transport import MQTT_RECEIVE_MAXIMUM


@dataclass(frozen=True)
class BackendSettings:
    """Where the data is.

    Attributes:
        data: Folder with log/, quarantine/, tables/ and checkpoints/ below it.
    """

    data: str = key(Rule("Folder of the log, the tables and the checkpoints."))


@dataclass(frozen=True)
class IngestSettings:
    """The process between the broker and the log.

    Attributes:
        id: Name of the ingester, and its fixed MQTT client id.
        broker: URL of the broker.
        filters: Subscriptions.
        flush_ms: Longest wait before a message is on disk.
        session_expiry_s: How long the broker keeps messages for us.
        receive_maximum: Most unacknowledged messages in flight.
        keep_days: Age at which a scored segment may go.
        keep_bytes: Bytes of segments beyond which the oldest scored ones go.
        keep_segments: Number of segments beyond which the oldest scored ones go.
        quarantine_bytes: Bytes of quarantine beyond which the oldest of it goes.
        takeover_s: Silence after which a standby kills and replaces the ingester.
        buffer_bytes: Memory for messages that wait for the disk.
        places: File of where each name may speak from.
    """

    id: str = key(
        Rule("Name and fixed MQTT client id of the ingester.", check=check_node_id),
        "ingest-0",
    )
    broker: str | None = key(
        Rule("URL of the broker to read.", check=Endpoint.parse), None
    )
    filters: tuple[str, ...] = key(Rule("Topic filters to subscribe."), CELLS_FILTER)
    flush_ms: int = key(
        Rule("Longest wait before a message is on disk.", "ms", 1, 10_000), 200
    )
    session_expiry_s: int = key(
        Rule("How long the broker keeps messages for us.", "s", 1, 2**32 - 2), 604_800
    )
    receive_maximum: int = key(
        Rule(
            "Most unacknowledged messages in flight; a broker that allows fewer is "
            "read no faster than its limit per flush_ms.",
            low=1,
            high=MQTT_RECEIVE_MAXIMUM,
        ),
        1000,
    )
    keep_days: int = key(
        Rule("Age at which a scored segment of the log goes.", "days", 0, 3650), 7
    )
    keep_bytes: int = key(
        Rule(
            "Size of this ingester's log beyond which its oldest scored segments go.",
            "bytes",
            10**6,
            10**15,
        ),
        20 * 10**9,
    )
    keep_segments: int = key(
        Rule(
            "Segments beyond which the oldest scored ones go; scoring lists them all "
            "for each batch.",
            low=10,
            high=10**7,
        ),
        20_000,
    )
    quarantine_bytes: int = key(
        Rule(
            "Size of the quarantine beyond which the oldest of it goes.",
            "bytes",
            10**6,
            10**15,
        ),
        10**9,
    )
    takeover_s: float = key(
        Rule("Silence after which a standby replaces the ingester.", "s", 1, 3600), 60.0
    )
    buffer_bytes: int = key(
        Rule(
            "Memory for messages that wait for the disk; beyond it the broker is held "
            "back.",
            "bytes",
            10**5,
            10**11,
        ),
        64_000_000,
    )
    places: str | None = key(
        Rule(
            "File of `gateway-daemon ca places`: where each name may speak from. What "
            "comes under a name from elsewhere goes to quarantine."
        ),
        None,
    )


@dataclass(frozen=True)
class ShardSettings:
    """``[[shard]]``: the part of the topics that one ingest process reads.

    Attributes:
        id: Name of that ingester, and its fixed MQTT client id.
        filters: Its subscriptions.
        listen: Where it answers Prometheus, instead of ``metrics.listen``.
    """

    id: str = key(
        Rule("Name and fixed MQTT client id of the process.", check=check_node_id)
    )
    filters: tuple[str, ...] = key(
        Rule("Topic filters to subscribe; no topic may be in two shards.")
    )
    listen: str | None = key(
        Rule(
            "Where Prometheus may ask this process, host:port.",
            check=lambda listen: listen is None or listens_at(listen),
        ),
        None,
    )


@dataclass(frozen=True)
class ScoreSettings:
    """The Spark job.

    Attributes:
        trigger_s: Time between batches.
        every_s: Time between two passes that score what batches touched.
        max_segments_per_batch: Most log segments that one batch takes.
        horizon_days: Readings older than this no longer count.
        max_ahead_s: A reading further ahead of its receipt is not scored.
        master: Spark master when none is given otherwise.
    """

    trigger_s: float = key(Rule("Time between batches.", "s", 0, 3600), 1.0)
    every_s: float = key(
        Rule(
            "Time between two scorings of the cells that messages came for; a "
            "scoring that takes longer is followed by a rest as long.",
            "s",
            0,
            3600,
        ),
        10.0,
    )
    max_segments_per_batch: int = key(
        Rule("Most log segments in a batch.", low=1, high=100_000), 200
    )
    horizon_days: int = key(Rule("How far back rain counts.", "days", 1, 400), 60)
    max_ahead_s: int = key(
        Rule("A reading further ahead of its receipt is not scored.", "s", 0, 10**9),
        600,
    )
    master: str = key(Rule("Spark master when --master is not given."), "local[*]")


@dataclass(frozen=True)
class CriteriaSettings:
    """What rain is judged against.

    Attributes:
        warning_mm: Soil water index of the warning criterion (level 3).
        file: Table of the prefecture, which goes before `warning_mm`.
        changes: What people set in the console, which goes before `file`.
        telegrams: Folder of JMA's warning telegrams to compare with.
        look_ahead: Whether rain to come may raise a level by what it leads to
            within two hours.
    """

    warning_mm: float = key(
        Rule("Warning criterion where no file has one.", "mm", 20, 1000), 150.0
    )
    file: str | None = key(
        Rule(
            "CSV of the prefecture's criteria by mesh: mesh, LEVEL1, LEVEL2, LEVEL3_00 "
            "to LEVEL3_150, SPECIAL, municipality; absent judges by planning defaults, "
            "which every reason calls assumed."
        ),
        None,
    )
    changes: str | None = key(
        Rule(
            "CSV that the console writes when a chief changes thresholds, "
            "DATA/console/criteria.csv: its advisory, warning and special criteria go "
            "before those of the file, whose critical line stays. Read again when it "
            "changes; need not be there yet."
        ),
        None,
    )
    telegrams: str | None = key(
        Rule(
            "Folder of JMA's warning telegrams (VPWW56 and others, *.xml); their level "
            "for the cell's municipality stands beside ours. Needs municipality in the "
            "file."
        ),
        None,
    )
    look_ahead: bool = key(
        Rule(
            "Whether levels 2 to 4 also count when rain to come reaches them within "
            "two hours: an official forecast's, without one that of the last hour "
            "going on; the tables tell these futures in any case. A forecast for the "
            "public needs a permit."
        ),
        False,
    )


@dataclass(frozen=True)
class ForecastSettings:
    """Official forecasts of rain.

    Attributes:
        folder: Where their files are.
        max_age_s: Greatest age of one that is used.
    """

    folder: str | None = key(
        Rule("Folder of files (*.csv, *.json) that `forecast load` takes in."), None
    )
    max_age_s: float = key(
        Rule(
            "Age from which a forecast is not used, and the tables say that it is "
            "stale.",
            "s",
            600,
            43_200,
        ),
        7200.0,
    )


@dataclass(frozen=True)
class NotifySettings:
    """The way back to the slope."""

    id: str = key(
        Rule("Name and fixed MQTT client id of the publisher.", check=check_node_id),
        "notify-0",
    )
    brokers: tuple[str, ...] = key(
        Rule(
            "URLs of the Managers' brokers, where notices are retained.",
            check=lambda urls: [Endpoint.parse(url) for url in urls],
        ),
        (),
    )
    key_file: str | None = key(
        Rule("File of the private Ed25519 key (PEM); absent leaves them unsigned."),
        None,
    )
    from_level: int = key(
        Rule("Lowest level that has a notice; nodes hurry from 3 on.", low=2, high=5), 2
    )
    hold_s: float = key(
        Rule(
            "How long a notice holds; it is renewed after half of that.",
            "s",
            60,
            604_800,
        ),
        10_800.0,
    )
    calm_s: float = key(
        Rule(
            "How long a level must have been judged lower before it is told lower or "
            "taken back; a rise is told at once.",
            "s",
            0,
            86_400,
        ),
        3600.0,
    )
    every_s: float = key(Rule("Time between looks at the levels.", "s", 1, 3600), 10.0)
    max_age_s: float = key(
        Rule("A judgement older than this says nothing of now.", "s", 600, 86_400),
        3600.0,
    )


@dataclass(frozen=True)
class ConsoleSettings:
    """The web pages of the analysts.

    Attributes:
        host: Address to listen on.
        port: TCP port.
        place: Name of the municipality.
        language: Of people who have not chosen.
        accounts: File of accounts; None lets people on this machine look, no more.
        exercise: Whether the newest data are the present.
        sender: Who stands as the sender in CAP drafts.
        tiles: URL of map tiles.
        proxy_header: Header in which a reverse proxy names who is logged in.
        proxies: Addresses of such proxies.
        managers: Whom it asks for the gateways.
        metrics: Where it answers Prometheus.
    """

    host: str = key(Rule("Address to listen on."), "127.0.0.1")
    port: int = key(Rule("TCP port.", low=1, high=65_535), 8088)
    place: str = key(Rule("Name of the municipality, for titles and reports."), "")
    language: str = key(
        Rule("Of people who have not chosen.", choices=("ja", "en")), "ja"
    )
    accounts: str | None = key(
        Rule(
            "File made by console-account; without it people on this machine may "
            "look, and change nothing."
        ),
        None,
    )
    exercise: bool = key(
        Rule("The newest data are the present: for exercises and replays."), False
    )
    sender: str = key(
        Rule("Sender in CAP drafts, such as bosai@city.example."),
        "draft@yamamori.invalid",
    )
    tiles: str | None = key(
        Rule("URL of map tiles with {z}, {x} and {y}; without it the map is plain."),
        None,
    )
    proxy_header: str | None = key(
        Rule("Header in which a reverse proxy names who is logged in."), None
    )
    proxies: tuple[str, ...] = key(
        Rule("Addresses from which that header is believed."), ("127.0.0.1",)
    )
    managers: tuple[str, ...] = key(
        Rule(
            "Brokers of the Managers, each mqtt://host:port or mqtts://host:port: "
            "their list of gateways is shown; empty shows what nodes tell of theirs.",
            check=lambda urls: [Endpoint.parse(url) for url in urls],
        ),
        (),
    )
    metrics: str | None = key(
        Rule(
            "Where Prometheus may ask the console, host:port; absent listens nowhere.",
            check=lambda listen: listen is None or listens_at(listen),
        ),
        None,
    )


def _keep(what: str) -> int:
    told = f"Age at which {what} are deleted; 0 keeps them for ever."
    days: int = key(Rule(told, "days", 0, 36_500), 0)
    return days


@dataclass(frozen=True)
class KeepSettings:
    """How long rows stay in the tables.

    Attributes:
        bronze_days: Messages as received; what is gone cannot be replayed.
        silver_days: Readings, and packs that do not decode.
        levels_days: Levels and what is behind them.
        messages_days: Message ids.
        alerts_days: Alerts.
        nodes_days: When and what a node last said.
        forecasts_days: Official forecasts of rain.
    """

    bronze_days: int = _keep("messages as received")
    silver_days: int = _keep("readings, and packs that do not decode,")
    levels_days: int = _keep("levels, what is behind them and their revisions")
    messages_days: int = _keep("message ids")
    alerts_days: int = _keep("alerts")
    nodes_days: int = _keep("nodes that were not heard for so long")
    forecasts_days: int = _keep("forecasts of rain, by when they were known,")

    def days(self, table: str) -> int:
        """Of a table; 0 is for ever."""
        if table == "memories":  # which the scoring itself thins out
            return 0
        gold = dict.fromkeys(("sensors", "revisions", "sensor_revisions"), "levels")
        kin = {"rejected": "silver", **gold}
        return int(getattr(self, f"{kin.get(table, table)}_days"))


LOG_FOLDER: Final = "log"
QUARANTINE_FOLDER: Final = "quarantine"
TABLES_FOLDER: Final = "tables"
CHECKPOINTS_FOLDER: Final = "checkpoints"


@dataclass(frozen=True)
class Settings:
    """All settings of the backend."""

    backend: BackendSettings
    ingest: IngestSettings
    score: ScoreSettings
    criteria: CriteriaSettings
    forecast: ForecastSettings
    notify: NotifySettings
    console: ConsoleSettings
    keep: KeepSettings
    tls: TlsFiles
    metrics: MetricsSection
    shard: tuple[ShardSettings, ...] = key(
        Rule("Parts of the topics, each for an ingest process of its own."), ()
    )

    def __post_init__(self) -> None:
        """Refuse shards that share a name or a topic: messages would come twice."""
        for first, second in combinations(self.shard, 2):
            if first.id == second.id:
                raise FieldError("shard.id", "a name of its own", first.id)
            both = [
                pair
                for pair in product(first.filters, second.filters)
                if overlaps(*pair)
            ]
            if both:
                rule = f"apart from those of {first.id}"
                raise FieldError(f"shard.filters of {second.id}", rule, both[0])


def load(path: Path) -> Settings:
    """Read and check a settings file.

    Raises:
        SettingsError: The file is missing, no TOML, or breaks a rule.
    """
    try:
        text = text_of(path)
    except OSError as error:
        raise SettingsError([Problem(str(path), f"cannot be read: {error}")]) from error
    settings = read(Settings, parse(text))
    if 0 < settings.keep.silver_days < settings.score.horizon_days:
        problem = FieldError(
            "keep.silver_days",
            f"0 or at least score.horizon_days ({settings.score.horizon_days})",
            settings.keep.silver_days,
            "levels are computed from so much of silver",
        )
        raise SettingsError([Problem.of(problem)])
    return settings


def broker_of(settings: IngestSettings) -> Endpoint:
    """The broker to ingest from.

    Raises:
        SettingsError: None is set.
    """
    if settings.broker is None:
        problem = FieldError(
            "ingest.broker",
            "given to ingest",
            None,
            "write broker = 'mqtt://host:port'",
        )
        raise SettingsError([Problem.of(problem)])
    return Endpoint.parse(settings.broker)


def shard_of(settings: Settings, name: str | None) -> Settings:
    """The settings of one ingest process.

    Args:
        settings: All settings.
        name: Id of its shard; None where there are no shards.

    Raises:
        SettingsError: There is no such shard, or none is named where there are some.
    """
    if name is None and not settings.shard:
        return settings
    for shard in settings.shard:
        if shard.id == name:
            ours = replace(settings.ingest, id=shard.id, filters=shard.filters)
            metrics = MetricsSection(listen=shard.listen)
            return replace(settings, ingest=ours, metrics=metrics)
    known = ", ".join(shard.id for shard in settings.shard) or "none"
    rule = "the id of a [[shard]]"
    problem = FieldError("--shard", rule, name, f"there is: {known}")
    raise SettingsError([Problem.of(problem)])
