"""Settings of the backend."""

import re
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


def test_only_the_data_folder_is_required(tmp_path: Path) -> None:
    """All other settings have defaults."""
    settings = read_settings(write(tmp_path, '[backend]\ndata = "/data"\n'))

    assert settings.backend.data == "/data"
    assert settings.ingest.filters == CELL_FILTERS
    assert settings.score.horizon_days == 60
    assert settings.criteria.warning_mm == pytest.approx(150.0)


def test_all_invalid_settings_are_reported_at_once(tmp_path: Path) -> None:
    """Unknown keys, wrong types and values out of bounds are all listed."""
    text = '[ingest]\nid = "a/b"\nflush = 1\n[score]\ntrigger_s = "1"\n'
    with pytest.raises(SettingsError, match=r"backend\.data must be given") as caught:
        read_settings(write(tmp_path, text))

    error = str(caught.value)
    assert "ingest.flush is not a known key; did you mean 'flush_ms'?" in error
    assert "ingest.id" in error
    assert "score.trigger_s" in error


@pytest.mark.parametrize("url", ["s3://bucket/data", "abfss://c@a/x", "file:/data"])
def test_url_as_data_folder_is_rejected(tmp_path: Path, url: str) -> None:
    """Ingest would write, and give receipts for, a folder named ``s3:``."""
    with pytest.raises(SettingsError, match=r"backend\.data: folder must be on this"):
        read_settings(write(tmp_path, f'[backend]\ndata = "{url}"\n'))


def test_ingest_without_a_broker_is_rejected(tmp_path: Path) -> None:
    """Only ingest needs a broker."""
    settings = read_settings(write(tmp_path, '[backend]\ndata = "/data"\n'))
    with pytest.raises(SettingsError, match=r"ingest\.broker must be given"):
        parse_broker(settings.ingest)


SHARDS = (
    '[backend]\ndata = "/data"\n[[shard]]\nid = "a"\nfilters = ["/3/0/#", "/3/1"]\n'
    '[[shard]]\nid = "{}"\nfilters = ["{}"]\n'
)


def test_shard_replaces_name_and_filters(tmp_path: Path) -> None:
    """The other settings apply to all shards."""
    settings = read_settings(write(tmp_path, SHARDS.format("b", "/3/2/#")))
    shard = select_shard(settings, "b")

    assert (shard.ingest.id, shard.ingest.filters) == ("b", ("/3/2/#",))
    assert shard.ingest.flush_ms == settings.ingest.flush_ms


@pytest.mark.parametrize("filter_", ["$share/g/4/#", "$SYS/#", "/4/#/1", "/4+", ""])
@pytest.mark.parametrize("key", ["ingest.filters", "shard[1].filters"])
def test_filter_without_receipts_is_rejected(
    tmp_path: Path, key: str, filter_: str
) -> None:
    """An offer of `$share/g/4/#` covers no topic: nobody would wait for a receipt."""
    table = '[[shard]]\nid = "a"' if key.startswith("shard") else "[ingest]"
    text = f'[backend]\ndata = "/data"\n{table}\nfilters = ["/3/#", "{filter_}"]\n'
    error = f"{key}: filter must be one such as /4/#, without $, got '{filter_}'"
    with pytest.raises(SettingsError, match=rf"{re.escape(error)}; .* \[\[shard\]\]"):
        read_settings(write(tmp_path, text))


def test_unknown_shard_is_rejected(tmp_path: Path) -> None:
    """The error lists the existing shards."""
    settings = read_settings(write(tmp_path, SHARDS.format("b", "/3/2/#")))
    with pytest.raises(SettingsError, match=r"--shard must be .* there is: a, b"):
        select_shard(settings, "c")


@pytest.mark.parametrize(
    ("name", "filter_", "message"),
    [
        ("a", "/3/2/#", "shard.id must be a name of its own"),
        ("b", "/3/0/1", "shard.filters of b must be apart from those of a"),
        ("b", "#", "shard.filters of b must be apart from those of a"),
        ("b", "/3/+", "shard.filters of b must be apart from those of a"),
    ],
)
def test_shards_must_not_share_ids_or_topics(
    tmp_path: Path, name: str, filter_: str, message: str
) -> None:
    """A topic of two shards would be logged twice."""
    with pytest.raises(SettingsError, match=message):
        read_settings(write(tmp_path, SHARDS.format(name, filter_)))
