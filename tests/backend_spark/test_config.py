"""Settings of the backend."""

from pathlib import Path

import pytest

from backend_spark.config import parse_broker, read_settings, select_shard
from service_runtime.settings import SettingsError
from spatial_mqtt.topics import CELL_FILTERS


def write(folder: Path, text: str) -> Path:
    """A settings file."""
    path = folder / "backend.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_settings_with_a_data_folder_only_take_defaults(tmp_path: Path) -> None:
    """Only the data folder must be given."""
    settings = read_settings(write(tmp_path, '[backend]\ndata = "/data"\n'))

    assert settings.backend.data == "/data"
    assert settings.ingest.filters == CELL_FILTERS
    assert settings.score.horizon_days == 60
    assert settings.criteria.warning_mm == pytest.approx(150.0)


def test_settings_name_every_mistake_at_once(tmp_path: Path) -> None:
    """Unknown keys, wrong types and bad bounds are all listed."""
    text = '[ingest]\nid = "a/b"\nflush = 1\n[score]\ntrigger_s = "1"\n'
    with pytest.raises(SettingsError, match=r"backend\.data must be given") as caught:
        read_settings(write(tmp_path, text))

    said = str(caught.value)
    assert "ingest.flush is not a known key; did you mean 'flush_ms'?" in said
    assert "ingest.id" in said
    assert "score.trigger_s" in said


def test_ingest_without_a_broker_is_refused(tmp_path: Path) -> None:
    """A broker is needed by ingest, and by ingest only."""
    settings = read_settings(write(tmp_path, '[backend]\ndata = "/data"\n'))
    with pytest.raises(SettingsError, match=r"ingest\.broker must be given"):
        parse_broker(settings.ingest)


SHARDS = (
    '[backend]\ndata = "/data"\n[[shard]]\nid = "a"\nfilters = ["/3/0/#", "/3/1"]\n'
    '[[shard]]\nid = "{}"\nfilters = ["{}"]\n'
)


def test_shard_replaces_name_and_filters(tmp_path: Path) -> None:
    """The rest of the settings is for all."""
    settings = read_settings(write(tmp_path, SHARDS.format("b", "/3/2/#")))
    ours = select_shard(settings, "b")

    assert (ours.ingest.id, ours.ingest.filters) == ("b", ("/3/2/#",))
    assert ours.ingest.flush_ms == settings.ingest.flush_ms


def test_unknown_shard_is_refused(tmp_path: Path) -> None:
    """The message names those that there are."""
    settings = read_settings(write(tmp_path, SHARDS.format("b", "/3/2/#")))
    with pytest.raises(SettingsError, match=r"--shard must be .* there is: a, b"):
        select_shard(settings, "c")


@pytest.mark.parametrize(
    ("name", "filter_", "said"),
    [
        ("a", "/3/2/#", "shard.id must be a name of its own"),
        ("b", "/3/0/1", "shard.filters of b must be apart from those of a"),
        ("b", "#", "shard.filters of b must be apart from those of a"),
        ("b", "/3/+", "shard.filters of b must be apart from those of a"),
    ],
)
def test_shards_may_share_nothing(
    tmp_path: Path, name: str, filter_: str, said: str
) -> None:
    """A topic of two shards would be in the log twice."""
    with pytest.raises(SettingsError, match=said):
        read_settings(write(tmp_path, SHARDS.format(name, filter_)))
