"""The tables keep their promises in a folder, at S3 and at Azure Blob Storage."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake.exceptions import CommitFailedError
from object_stores import ObjectStore, run_store

from backend_spark.config import BackendSection, read_settings
from backend_spark.errors import SupersededError
from backend_spark.exports.sql import open_sql
from backend_spark.streaming.checkpoint import read_app_id
from backend_spark.tables import maintenance
from backend_spark.tables.current import read_current
from backend_spark.tables.delta_writer import (
    BatchTransaction,
    JobClaim,
    append_files,
    append_rows,
    commit_files,
    create_tables,
    delete_rows,
    merge_rows,
    read_cell_states,
    replace_cell_states,
    time_literal,
    update_flags,
    write_file,
)
from backend_spark.tables.maintenance import compact, renew_current, shorten_log
from backend_spark.tables.reader import DeltaTables, open_tables
from backend_spark.tables.schemas import (
    CELL_STATES,
    FLAGS,
    LEVEL_KEY,
    LEVELS,
    SILVER,
)
from backend_spark.tables.store import Folder, open_table, parse_folder, tables_folder
from service_runtime.errors import FieldError
from service_runtime.settings import SettingsError

T0 = datetime(2026, 7, 1, tzinfo=UTC)
NAMES = ("bronze", "silver", "levels", "memories", "current")


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with run_store("s3", tmp_path_factory.mktemp("s3") / "log") as store:
        yield store


@pytest.fixture(scope="session")
def az(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with run_store("az", tmp_path_factory.mktemp("az") / "log") as store:
        yield store


AT_LENGTH = [
    "file",
    *(pytest.param(store, marks=pytest.mark.long) for store in ("s3", "az")),
]


@pytest.fixture(params=["file", "s3", "az"])
def tables(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Folder:
    """Empty tables, in each kind of store."""
    if request.param == "file":
        place = f"file://{tmp_path}/tables"
    else:
        store = request.getfixturevalue(request.param)
        place = store.make_place()
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
    made = parse_folder(place)
    create_tables(made, NAMES)
    return made


def levels(*rows: tuple[str, int, int]) -> pa.Table:
    """Rows of gold: cell, number of the step, level."""
    step = timedelta(minutes=10)
    return pa.Table.from_pylist(
        [
            {"cell": cell, "at": T0 + step * n, "level": level}
            for cell, n, level in rows
        ],
        schema=LEVELS,
    )


def append_batch(tables: Folder, number: int, claim: JobClaim | None = None) -> None:
    """Append a batch of two readings to silver."""
    rows = [
        {"cell": "a", "at": T0 + timedelta(minutes=number), "node": "n", "flag": 2},
        {"cell": "b", "at": T0 + timedelta(minutes=number), "node": "m", "flag": 2},
    ]
    file = write_file(tables / "silver", pa.Table.from_pylist(rows, SILVER), SILVER)
    batch = BatchTransaction("app", number)
    append_files(tables / "silver", [file], batch, claim)


def test_batch_is_stored_once_and_readers_agree(tables: Folder) -> None:
    """Datasets, queries, statistics and SQL find the rows, each once."""
    for number in (0, 1, 1):
        append_batch(tables, number)
    reader = DeltaTables(tables)
    rows: Any = open_sql(str(tables) if "://" in str(tables) else tables.parent).query(
        "SELECT node, time FROM silver WHERE cell = 'a' ORDER BY time"
    )

    assert reader.silver().num_rows == 4
    assert reader.of("silver", "node", "n", T0).num_rows == 2
    assert reader.count("silver", ["cell = 'b'"]) == 2
    assert reader.extent("silver") is not None
    assert [node for node, _ in rows.fetchall()] == ["n", "n"]


def test_later_claim_ends_the_job_before(tables: Folder) -> None:
    """Its next batch is refused, and is in no table."""
    claims = [JobClaim([tables / "silver"]) for _ in range(2)]
    append_batch(tables, 0, claims[0])
    append_batch(tables, 1, claims[1])
    with pytest.raises(SupersededError, match="claimed by another job"):
        append_batch(tables, 2, claims[0])

    assert DeltaTables(tables).silver().num_rows == 4


def test_of_two_commits_at_once_one_is_refused(tables: Folder) -> None:
    """Each version has one writer, even where a store has no locks."""
    path = tables / "levels"
    claim = JobClaim([path])
    read = [claim.open(path) for _ in range(4)]
    files = [write_file(path, levels(("a", n, 1)), LEVELS) for n in range(4)]

    def commit(number: int) -> bool:
        try:
            properties = claim.commit_properties()
            commit_files(path, [files[number]], properties, read=read[number])
        except CommitFailedError:
            return False
        return True

    with ThreadPoolExecutor(4) as threads:
        won = list(threads.map(commit, range(4)))

    assert won.count(True) == 1
    assert DeltaTables(tables).levels().num_rows == 1


def test_rows_are_merged_flagged_and_deleted(tables: Folder) -> None:
    """Each kind of change of a pass and of the retention."""
    path = tables / "levels"
    append_rows(path, levels(("a", 0, 1), ("a", 1, 1)))
    merge_rows(path, levels(("a", 1, 4), ("b", 1, 2)), LEVEL_KEY)
    append_batch(tables, 0)
    (file,) = DeltaTables(tables).dataset("silver").files  # type: ignore[attr-defined]
    flag = {"file": file, "row": 0, "flag": 4, "flag_why": "spike"}
    update_flags(tables / "silver", pa.Table.from_pylist([flag], FLAGS))
    before_us = round((T0 + timedelta(minutes=5)).timestamp() * 1e6)

    assert delete_rows(path, f"at < {time_literal(before_us)}") == 1
    found = DeltaTables(tables).levels(["cell", "level"]).sort_by("cell")
    assert found.to_pylist() == [
        {"cell": "a", "level": 4},
        {"cell": "b", "level": 2},
    ]
    assert sorted(DeltaTables(tables).silver(["flag"])["flag"].to_pylist()) == [2, 4]


def test_cell_states_are_replaced(tables: Folder) -> None:
    """A state that is no longer valid is gone, the new one is found."""
    path, us = tables / "memories", round(T0.timestamp() * 1e6)
    states = pa.Table.from_pylist(
        [{"cell": "a", "at": T0, "format": 1, "body": b"1"}], CELL_STATES
    )
    append_rows(path, states)
    next_day = pa.array([T0 + timedelta(days=1)], CELL_STATES.field("at").type)
    later = states.set_column(1, CELL_STATES.field("at"), next_day)
    replace_cell_states(path, states.select(["cell", "at"]), later)

    assert read_cell_states(path, {"a": us}).all_times == [("a", us + 86_400_000_000)]


@pytest.mark.parametrize("tables", AT_LENGTH, indirect=True)
def test_compaction_and_a_shorter_log_keep_the_rows(
    tables: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old commits are gone, and a new reader finds every row once."""
    monkeypatch.setattr(maintenance, "KEEP_COMMITS", 3)
    path = tables / "silver"
    for number in range(4):
        append_batch(tables, number)
    for _ in range(2):
        compact(path)
        shorten_log(path)
        append_batch(tables, open_table(path).version() + 10)
        append_batch(tables, open_table(path).version() + 10)
        append_batch(tables, open_table(path).version() + 10)
    shorten_log(path)
    shorten_log(path)

    assert DeltaTables(tables).silver().num_rows == 2 * 10
    with pytest.raises(Exception, match=r"version|log"):
        open_table(path, 1)


def test_newest_levels_follow_gold(tables: Folder) -> None:
    """The table is read back, and what gold gained since is added."""
    append_rows(tables / "levels", levels(("a", 0, 1), ("a", 1, 2), ("b", 0, 3)))
    assert renew_current(tables)
    assert read_current(tables).is_stored
    append_rows(tables / "levels", levels(("a", 2, 2)))
    newest = {row["cell"]: row for row in DeltaTables(tables).newest().to_pylist()}

    assert (newest["a"]["at"] - newest["a"]["level_since"]).seconds == 600
    assert newest["b"]["level"] == 3


def test_id_of_the_batches_is_made_once(tables: Folder, tmp_path: Path) -> None:
    """A job on another machine continues with it."""
    made = read_app_id(tables, tmp_path / "here")

    assert read_app_id(tables, tmp_path / "there") == made


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("ftp://host/x", r"tables must be a folder, file:///folder, s3://"),
        ("s3:///x", r"tables must be a folder"),
        ("file://host/x", r"tables must be on this machine"),
        ("s3:/bucket/x", r"folder must be on this machine, not a URL"),
    ],
)
def test_place_of_another_form_is_rejected(
    tmp_path: Path, place: str, message: str
) -> None:
    """The settings name the rule, the value and what to do."""
    config = tmp_path / "backend.toml"
    config.write_text(f'[backend]\ndata = "/data"\ntables = "{place}"\n')
    with pytest.raises(SettingsError, match=message):
        read_settings(config)


@pytest.mark.parametrize("place", ["az://c/x?sv=1&sig=SECRET", "s3://id:SECRET@b/x"])
def test_credentials_in_the_url_are_rejected_and_not_shown(
    tmp_path: Path, place: str
) -> None:
    """The settings may be readable by everyone, and the error is in the journal."""
    config = tmp_path / "backend.toml"
    config.write_text(f'[backend]\ndata = "/data"\ntables = "{place}"\n')
    with pytest.raises(SettingsError, match="URL without credentials") as caught:
        read_settings(config)

    assert "SECRET" not in str(caught.value)


def test_signature_for_azure_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors of pyarrow contain the URL with the token."""
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sv=1&sig=SECRET")
    section = BackendSection(data="/data", tables="az://container/backend")
    with pytest.raises(SettingsError, match="ACCOUNT_KEY, or use a managed") as caught:
        tables_folder(section)

    assert "SECRET" not in str(caught.value)


def test_plain_http_needs_consent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without TLS everyone on the way reads the keys' signatures and the data."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://store.example")
    monkeypatch.delenv("AWS_ALLOW_HTTP", raising=False)
    with pytest.raises(FieldError, match=r"must be https://.*AWS_ALLOW_HTTP=true"):
        open_tables("s3://bucket/backend")
