"""A decision about readings from the console to gold, and back."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from conftest import free_port
from console_workspace import Clock, Workspace, log_in, make_test_services, serve
from pyspark.sql import SparkSession
from storm_log import CELLS, T0, TOKENS, write

from backend_spark.config import BackendSettings, read_settings
from backend_spark.console.routes.time_travel import ReplaySpan, read_replay
from backend_spark.ingest.segment_log import LogRow
from backend_spark.streaming import job
from backend_spark.streaming.job import ReceiptInterval, rebuild
from backend_spark.streaming.pipeline import ScoringPipeline
from backend_spark.streaming.session import RestartingQuery
from backend_spark.tables.delta_writer import create_tables
from backend_spark.tables.reader import DeltaTables
from backend_spark.tables.schemas import SPARK_TABLES
from spatial_mqtt.senml import MessageId, Pack, Reading, encode_cbor
from spatial_mqtt.topics import cell_topic

pytestmark = pytest.mark.spark

DRY, WET = 24, 12
LAST_S = T0 + 600 * (DRY + WET - 1)


def message(seq: int, rain_mm: float, total_mm: float) -> LogRow:
    """A pack of one gauge, received two seconds later."""
    at_s = T0 + 600 * seq
    readings = (Reading("rain", "mm", rain_mm, total_mm),)
    payload = encode_cbor(Pack(MessageId("n1", "b", seq), 1, at_s, readings))
    received_us = (at_s + 2) * 1_000_000
    return LogRow(received_us, cell_topic(CELLS[0]), payload, "n1", "b", seq, 1)


def cloudburst() -> list[LogRow]:
    """Four dry hours and two of 132 mm/h, which no other gauge confirms."""
    dry = [message(seq, 0.0, 0.0) for seq in range(DRY)]
    return dry + [message(DRY + n, 22.0, 22.0 * (n + 1)) for n in range(WET)]


@dataclass
class Bench:
    """A console and a job over the same data folder.

    Attributes:
        spark: Spark session.
        settings: Of both.
        pipeline: The job's.
        client: Of the console.
    """

    spark: SparkSession
    settings: BackendSettings
    pipeline: ScoringPipeline
    client: httpx.Client

    @property
    def tables(self) -> DeltaTables:
        """The tables."""
        return DeltaTables(Path(self.settings.backend.data) / "tables")

    def receive(self, rows: list[LogRow], run: str) -> None:
        """Write messages to the log, and run batches over them."""
        write(Path(self.settings.backend.data) / "log", run, [rows])
        RestartingQuery(
            lambda: job.start_query(
                *(self.spark, self.settings, self.pipeline.run_batch, {}), once=True
            )
        ).wait_until_ended()

    def score(self) -> None:
        """Run a pass."""
        self.pipeline.score(self.spark)

    def send(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a decision as a chief."""
        proof = log_in(self.client, "a-chief")
        answer = self.client.post(f"/api/reviews{path}", headers=proof, json=body)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def state(self) -> str:
        """State of the newest decision."""
        return str(self.client.get("/api/reviews").json()["decisions"][0]["state"])

    def newest(self) -> tuple[int, int, list[str]]:
        """Level, version and reasons of the newest step."""
        row = self.tables.cell(TOKENS[0]).to_pylist()[-1]
        return row["level"], row["version"], row["reasons"]

    def flags(self) -> list[tuple[int, str | None]]:
        """Flags and reasons of the rain in silver, by time."""
        rows = self.tables.sensor("n1", "rain")
        whys = rows["flag_why"].to_pylist()
        return list(zip(rows["flag"].to_pylist(), whys, strict=True))

    def replayed(self, *, is_then: bool) -> int:
        """Level of the newest step in a replay of the console."""
        played = read_replay(self.tables, ReplaySpan(LAST_S, LAST_S, is_then))
        return int(played.levels[0, -1])


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path) -> Iterator[Bench]:
    """Both, after the cloudburst was scored; one minute after its last reading."""
    workspace = Workspace(tmp_path, free_port())
    file = workspace.data / "console" / "reviews.json"
    more = f'{workspace.with_accounts()}\n[score]\nreviews = "{file}"'
    create_tables(workspace.data / "tables", SPARK_TABLES)
    settings = read_settings(workspace.config(more))
    job.register(spark)
    parts = make_test_services(workspace, Clock(LAST_S + 60.0), more)
    with serve(parts, workspace.port) as client:
        bench = Bench(spark, settings, job.make_pipeline(settings), client)
        bench.receive(cloudburst(), "0a")
        bench.score()
        parts.refresh()
        yield bench


def test_decision_reaches_gold_without_a_new_message(bench: Bench) -> None:
    """The preview is what gold has then; silver names the person."""
    before = bench.newest()
    log_in(bench.client, "a-chief")
    (span,) = bench.client.get("/api/reviews").json()["spans"]
    fields = ("node", "name", "from_s", "to_s", "codes")
    draft = {name: span[name] for name in fields} | {"verdict": "good"}
    preview = bench.send("/preview", draft)
    bench.send("", draft | {"why": "it fell", "confirmed_level": 4})
    assert bench.state() == "waiting"
    assert bench.newest() == before
    bench.score()
    after = bench.newest()
    assert bench.state() == "applied"
    assert (before[0], preview["before"]["level"]) == (3, 3)
    assert (after[0], preview["after"]["level"]) == (4, 4)
    assert "counted after a person's review: n1 rain" in after[2]
    assert {f for f, _ in bench.flags()} == {1}
    assert "doubt rejected by a-chief" in (bench.flags()[-1][1] or "")


def test_reverted_decision_leaves_gold_as_it_was(bench: Bench) -> None:
    """With the flags of the tests; no reading is deleted."""
    before, doubted = bench.newest(), bench.flags()
    draft = {"node": "n1", "name": "rain", "from_s": T0, "to_s": LAST_S}
    good = draft | {"verdict": "good", "codes": ["extreme"], "why": "it fell"}
    saved = bench.send("", good | {"confirmed_level": 4})
    bench.score()
    assert bench.newest()[0] == 4
    number = saved["decisions"][0]["id"]
    bench.send("/revert", {"review": number, "why": "mistaken"})
    assert bench.state() == "ending"
    bench.score()
    assert bench.state() == "reverted"
    assert bench.newest()[::2] == before[::2]
    assert bench.flags() == doubted
    assert len(doubted) == DRY + WET


def test_replay_as_known_then_does_not_know_the_decision(bench: Bench) -> None:
    """Although it was made within an hour of the step, when rows usually change."""
    draft = {"node": "n1", "name": "rain", "from_s": T0, "to_s": LAST_S}
    bad = draft | {"verdict": "bad", "why": "the gauge was washed"}
    bench.send("", bad)
    bench.score()
    now = bench.newest()

    assert now[0] in {None, 1}
    assert now[1] == 2
    assert bench.replayed(is_then=True) == 3
    assert bench.replayed(is_then=False) != 3
    why = bench.tables.revisions()["superseded_because"].to_pylist()
    assert set(why) == {"review of readings by a-chief"}


def test_decision_holds_for_later_passes_and_a_rebuild(bench: Bench) -> None:
    """From hot states, and from bronze anew, with the rows of the job."""
    draft = {"node": "n1", "name": "rain", "from_s": T0, "to_s": LAST_S}
    good = draft | {"verdict": "good", "codes": ["extreme"], "why": "it fell"}
    bench.send("", good | {"confirmed_level": 4})
    bench.score()
    for n in range(3):
        bench.receive([message(DRY + WET + n, 0.0, 22.0 * WET)], f"0b{n}")
        bench.score()
    levels, flags = bench.tables.cell(TOKENS[0]), bench.flags()
    rebuild(bench.spark, job.make_pipeline(bench.settings), ReceiptInterval())
    again = bench.tables.cell(TOKENS[0])

    assert max(levels["level"].to_pylist()) == 4
    assert again["level"].to_pylist() == levels["level"].to_pylist()
    assert again["reasons"].to_pylist() == levels["reasons"].to_pylist()
    assert bench.flags() == flags
