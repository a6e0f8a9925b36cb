"""Settings of the backend, read from one TOML file and checked once at start."""

from dataclasses import dataclass, replace
from itertools import combinations, product
from pathlib import Path
from typing import Final

from backend_spark.keeping import KeepSettings
from backend_spark.sections import (
    BackendSettings,
    ConsoleSettings,
    CriteriaSettings,
    ForecastSettings,
    IngestSettings,
    NotifySettings,
    ScoreSettings,
    ShardSettings,
)
from spatial_mqtt.endpoint import Endpoint, TlsFiles
from spatial_mqtt.errors import FieldError
from spatial_mqtt.metrics import MetricsSection
from spatial_mqtt.settings import Rule, SettingsError, key, parse, read, text_of
from spatial_mqtt.topics import overlaps

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
        raise SettingsError([f"{path} cannot be read: {error}"]) from error
    settings = read(Settings, parse(text))
    if 0 < settings.keep.silver_days < settings.score.horizon_days:
        problem = FieldError(
            "keep.silver_days",
            f"0 or at least score.horizon_days ({settings.score.horizon_days})",
            settings.keep.silver_days,
            "levels are computed from so much of silver",
        )
        raise SettingsError([str(problem)])
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
        raise SettingsError([str(problem)])
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
    raise SettingsError([str(problem)])
