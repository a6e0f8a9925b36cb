"""The commands on a queue file, with and without a running agent."""

import json
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from edge_agent.cli import cli
from edge_agent.cli.queue import queue_commands
from edge_agent.queue.base import Durability, ExpiryPolicy, MessageDraft
from edge_agent.queue.sqlite_queue import SqliteQueue
from edge_agent.uplink.in_flight import FlightLimits, InFlight
from edge_agent.uplink.scheduler import PublicationBuilder, SenderProfile
from spatial_mqtt.custody import CustodyOffer
from spatial_mqtt.senml import MessageId, Pack, Reading, encode_cbor

NODE = """
[node]
id = "{node}"
latitude = 33.5588
longitude = 133.5312
[uplink]
managers = ["mqtt://127.0.0.1:1883"]
[queue]
path = "{folder}/queue.db"
max_bytes = 200_000_000
[[sensor]]
kind = "wire"
name = "span"
pin = 27
"""


class FakeClock:
    """Settable monotonic clock in seconds."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def draft(priority: int) -> MessageDraft:
    def encode(id_: MessageId) -> bytes:
        return encode_cbor(Pack(id_, priority, 1.0, (Reading("tilt/x", "deg", 0.5),)))

    return MessageDraft(priority, f"/forward/{priority}", encode)


def open_queue(folder: Path, clock: FakeClock) -> SqliteQueue:
    path = folder / "queue.db"
    return SqliteQueue(path, "kochi-0001", "boot", 10**6, expiry=ExpiryPolicy(clock))


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[SqliteQueue]:
    """A running agent's queue with an old and a young message of each priority."""
    clock = FakeClock()
    queue = open_queue(tmp_path, clock)
    queue.put([draft(p) for p in range(1, 6)])
    clock.now_s = 160.0
    queue.put([draft(p) for p in range(1, 6)])
    yield queue
    queue.close()


def run(
    folder: Path, command: str, *arguments: str, node: str = "kochi-0001"
) -> Result:
    path = folder / "node.toml"
    path.write_text(NODE.format(folder=folder, node=node))
    return CliRunner().invoke(
        queue_commands, [command, *arguments, "--config", str(path)]
    )


def rows(result: Result) -> list[dict[str, object]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_peek_shows_the_most_urgent_first(tmp_path: Path, agent: SqliteQueue) -> None:
    """Works beside a running agent, without leasing."""
    peeked = rows(run(tmp_path, "peek", "--json", "--limit", "3"))

    assert [(row["priority"], row["age_s"]) for row in peeked] == [
        (5, 60.0), (5, 0.0), (4, 60.0),
    ]  # fmt: skip
    assert len(agent.lease(99)) == 10


def test_export_decodes_and_replay_requeues_once(
    tmp_path: Path, agent: SqliteQueue
) -> None:
    """Messages still in the queue are skipped; delivered ones return under their id."""
    exported = run(tmp_path, "export")
    file = tmp_path / "lines"
    file.write_text(exported.stdout)
    agent.ack([m.seq for m in agent.lease(3)])

    first = rows(run(tmp_path, "replay", "--json", str(file)))[0]
    second = rows(run(tmp_path, "replay", "--json", str(file)))[0]
    left = {str(m.id) for m in agent.lease(99)}

    assert rows(exported)[0]["pack"][0]["u"] == "deg"  # type: ignore[index]
    assert (first["put"], first["known"]) == (3, 7)
    assert (second["put"], second["known"]) == (0, 10)
    assert left == {row["id"] for row in rows(exported)}


def test_messages_replayed_at_another_node_get_their_receipts_there(
    tmp_path: Path, agent: SqliteQueue
) -> None:
    """They went to the node that had put them, so all was sent again for ever."""
    exported = tmp_path / "exported.jsonl"
    exported.write_text(run(tmp_path, "export").stdout)
    other = tmp_path / "other"
    other.mkdir()
    assert run(other, "replay", str(exported), node="kochi-0002").exit_code == 0

    with closing(SqliteQueue(other / "queue.db", "kochi-0002", "b", 10**6)) as queue:
        in_flight = InFlight(FlightLimits())
        in_flight.on_up(0.0, 100, [CustodyOffer("gw")])
        builder = PublicationBuilder(queue, SenderProfile("kochi-0002"), in_flight)
        sent = builder.build_next(5)
    assert sent is not None
    assert sent.publication.response_topic == "/custody/kochi-0002"


def test_replay_of_a_bad_line_is_an_error(tmp_path: Path, agent: SqliteQueue) -> None:
    """Exit status 65 and the reason."""
    file = tmp_path / "lines"
    file.write_text('{"id": "no"}\n')
    result = run(tmp_path, "replay", str(file))

    assert result.exit_code == 65
    assert "not an exported line" in result.output


@pytest.mark.parametrize(
    ("arguments", "left"),
    [
        (("--priority", "2"), [5, 5, 4, 4, 3, 3, 1, 1]),
        (("--older-than", "30"), [5, 4, 3, 2, 1]),
        (("--priority", "1", "--older-than", "30"), [5, 5, 4, 4, 3, 3, 2, 2, 1]),
    ],
)
def test_purge_drops_selected_messages_and_counts_them(
    tmp_path: Path, agent: SqliteQueue, arguments: tuple[str, ...], left: list[int]
) -> None:
    """Other messages stay, and the counters agree."""
    result = rows(run(tmp_path, "purge", "--yes", "--json", *arguments))[0]
    stats = agent.stats()

    assert [m.priority for m in agent.lease(99)] == left
    assert result["purged"] == 10 - len(left) == sum(stats.dropped.values())
    assert sum(d.rows for d in stats.depth.values()) == len(left)


def test_purge_asks_for_confirmation(tmp_path: Path, agent: SqliteQueue) -> None:
    """Without a confirmation nothing is dropped."""
    assert run(tmp_path, "purge").exit_code != 0
    assert len(agent.lease(99)) == 10


def test_check_counts_messages_that_fail_their_checksum(
    tmp_path: Path, agent: SqliteQueue
) -> None:
    """Exit status 0 for a sound file, 1 for a bad message."""
    sound = run(tmp_path, "check", "--json")
    with sqlite3.connect(tmp_path / "queue.db") as db:
        db.execute("UPDATE message SET payload = X'00' WHERE seq = 1")
    db.close()
    damaged = run(tmp_path, "check", "--json")

    assert (sound.exit_code, rows(sound)) == (0, [{"file": "ok", "rows": 10, "bad": 0}])
    assert (damaged.exit_code, rows(damaged)[0]["bad"]) == (1, 1)


def test_repair_is_refused_while_the_agent_runs(
    tmp_path: Path, agent: SqliteQueue
) -> None:
    """The error has the remedy; after the agent has stopped it works."""
    refused = run(tmp_path, "repair")
    agent.close()
    repaired = rows(run(tmp_path, "repair", "--json"))[0]

    assert refused.exit_code == 1
    assert "stop the agent first" in refused.output
    assert repaired["saved"] == 10


@pytest.mark.parametrize("words", [["send"], ["queue", "replay", "-"]])
def test_relative_queue_is_made_by_the_agent_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    """From another folder, the message would be in a new file that no agent sends."""
    config, other = tmp_path / "node.toml", tmp_path / "other"
    config.write_text(NODE.format(folder=".", node="n1"))
    other.mkdir()
    line = '{"pri": 5, "e": [{"n": "test", "v": 1.0}]}\n' if words == ["send"] else ""

    def done_in(folder: Path) -> Result:
        monkeypatch.chdir(folder)
        return CliRunner().invoke(cli, [*words, "--config", str(config)], line)

    refused = done_in(other)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert f"{other}/queue.db cannot be used: there is no such" in refused.stderr
    assert "the folder in which the agent runs" in refused.stderr
    assert not list(other.iterdir())

    open_queue(tmp_path, FakeClock()).close()
    assert done_in(tmp_path).exit_code == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="changes owners, which needs root")
def test_files_that_root_makes_belong_to_the_user_of_the_agent(tmp_path: Path) -> None:
    """With files of root the agent kept its messages in memory only."""
    folder = tmp_path / "state"
    folder.mkdir()
    os.chown(folder, 12345, 12346)
    path = tmp_path / "node.toml"
    path.write_text(NODE.format(folder=folder, node="n1"))

    def run_by_root(*arguments: str, text: str = "") -> set[tuple[int, int]]:
        done = CliRunner().invoke(cli, [*arguments, "--config", str(path)], text)
        assert done.exit_code == 0, done.output
        found = [each.stat() for each in folder.iterdir()]
        return {(each.st_uid, each.st_gid) for each in found}

    message = '{"pri": 5, "e": [{"n": "test", "u": "mm", "v": 1.0}]}\n'
    assert run_by_root("send", text=message) == {(12345, 12346)}
    assert run_by_root("queue", "repair") == {(12345, 12346)}
    names = {each.name for each in folder.iterdir()}
    assert {"queue.db", "queue.db.lock", "queue.db.reserve"} <= names
    assert "queue.db.damaged-1" in names


@pytest.mark.skipif(os.geteuid() != 0, reason="changes owners, which needs root")
def test_files_of_an_agent_of_root_that_is_killed_belong_to_the_user(
    tmp_path: Path,
) -> None:
    """`edge-agent run` by hand, then a power cut: the service must start again."""
    os.chown(tmp_path, 12345, 12346)
    window = Durability(window_s=3600.0)
    with closing(
        SqliteQueue(tmp_path / "queue.db", "n1", "b", 10**6, durability=window)
    ):
        found = {each.name: each.stat() for each in tmp_path.iterdir()}

    assert {"queue.db", "queue.db-wal", "queue.db.owner", "queue.db.notes"} <= set(
        found
    )
    assert {(e.st_uid, e.st_gid) for e in found.values()} == {(12345, 12346)}


@pytest.mark.skipif(os.geteuid() != 0, reason="changes owners, which needs root")
@pytest.mark.parametrize(
    ("name", "is_sent"), [("reserve", True), ("lock", False), ("x", True)]
)
def test_links_in_the_folder_of_the_agent_reach_no_file_of_root(
    tmp_path: Path, name: str, is_sent: bool
) -> None:
    """A hostile agent owns the folder in which root opens the queue."""
    folder, victim = tmp_path / "state", tmp_path / "shadow"
    folder.mkdir()
    os.chown(folder, 12345, 12346)
    path = tmp_path / "node.toml"
    path.write_text(NODE.format(folder=folder, node="n1"))
    link = folder / f"queue.db.{name}"
    if name == "lock":
        link.symlink_to(victim)  # root would make the file
    else:
        victim.write_text("secret")
        (link.hardlink_to if name == "x" else link.symlink_to)(victim)
    message = '{"pri": 5, "e": [{"n": "test", "u": "mm", "v": 1.0}]}\n'
    done = CliRunner().invoke(cli, ["send", "--config", str(path)], message)

    assert (done.exit_code == 0) == is_sent, done.output
    if name == "lock":
        assert not victim.exists()
    else:
        assert (victim.read_text(), victim.stat().st_uid) == ("secret", 0)


def test_command_without_a_queue_file_is_an_error(tmp_path: Path) -> None:
    """A command before the first run creates no file."""
    result = run(tmp_path, "peek")

    assert result.exit_code == 1
    assert "has the agent run yet?" in result.output
    assert not (tmp_path / "queue.db").exists()


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """Folder of a killed agent whose queue file is gone; its log has ten messages."""
    queue = open_queue(tmp_path, FakeClock())
    queue.put([draft(p) for p in range(1, 6)] * 2)
    folder = tmp_path / "killed"
    folder.mkdir()
    shutil.copy(tmp_path / "queue.db-wal", folder)
    queue.close()
    return folder


@pytest.mark.parametrize("is_emptied", [True, False])
def test_repair_saves_the_messages_of_a_log_without_its_file(
    killed: Path, is_emptied: bool
) -> None:
    """Commands that only read refuse it, because SQLite would delete the log."""
    file = killed / "queue.db"
    if is_emptied:
        file.touch()
    log = Path(f"{file}-wal").read_bytes()
    readers = [run(killed, command) for command in ("stats", "peek", "check")]
    repaired = run(killed, "repair", "--json")

    assert [result.exit_code for result in readers] == [1, 1, 1]
    assert all("edge-agent queue repair" in result.stderr for result in readers)
    assert json.loads(repaired.stdout) == {"saved": 10, "kept": f"{file}.damaged-1"}
    assert Path(f"{file}.damaged-1-wal").read_bytes() == log
    assert len(rows(run(killed, "peek", "--json"))) == 10
