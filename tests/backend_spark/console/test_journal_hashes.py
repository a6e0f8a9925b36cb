"""Every change of the journal behind its triggers shows."""

import hashlib
import json
import logging
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from backend_spark.cli import cli
from backend_spark.console.audit_log import (
    Journal,
    JournalDraft,
    JournalHead,
    check_journal,
)

OLD_TABLE = """
create table entry (
  id integer primary key autoincrement, at_s real not null, kind text not null,
  subject text not null, who text not null, body text not null
);
create unique index one_alert on entry (subject) where kind = 'alert';
create trigger no_change before update on entry
  begin select raise(abort, 'the book is not changed'); end;
create trigger no_removal before delete on entry
  begin select raise(abort, 'nothing leaves the book'); end;
"""
"""Tables of the release before the hashes."""

ALERTS = tuple(JournalDraft("alert", key, "", {}) for key in ("a 4 1", "b 3 1"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal with five entries."""
    path = tmp_path / "journal.sqlite"
    journal = Journal(path)
    journal.write_all(1.0, ALERTS)
    for n in range(3):
        journal.write(2.5 + n, "note", "", "鈴木", {"text": f"note {n}"})
    return path


def run_sql(path: Path, *statements: str) -> None:
    """Run SQL behind the console's back."""
    with closing(sqlite3.connect(path)) as db:
        for statement in statements:
            db.execute(statement)
        db.commit()


def newest(path: Path) -> JournalHead:
    """Head of a journal without problems."""
    found = check_journal(path)
    assert found.problems == ()
    return found.head


@pytest.mark.parametrize(
    "statement",
    [
        "insert or replace into entry values (4, 0, 'note', '', 'x', '{}')",
        (
            "replace into entry (id, at_s, kind, subject, who, body)"
            " values (1, 0, 'note', '', 'x', '{}')"
        ),
        "insert or replace into entry_hash values (4, x'00')",
        "update entry_hash set hash = x'00'",
        "delete from entry_hash",
        (
            "insert into entry values (4, 0, 'note', '', 'x', '{}')"
            " on conflict (id) do update set who = 'x'"
        ),
    ],
)
@pytest.mark.attack(
    "console: journal entry overwritten by SQL",
    "overwritten",
)
def test_replacements_are_refused(path: Path, statement: str) -> None:
    """SQLite's "or replace" deletes a row without the trigger of deletions."""
    with pytest.raises(sqlite3.IntegrityError, match="the book"):
        run_sql(path, statement)

    assert newest(path).number == 5


def test_alert_is_not_replaced_by_another_of_its_key(path: Path) -> None:
    """By the unique index of alerts; the console ignores the second one."""
    forged = "values (0, 'alert', 'a 4 1', '', '{}')"
    run_sql(
        path,
        f"insert or replace into entry (at_s, kind, subject, who, body) {forged}",
    )
    journal = Journal(path)

    assert journal.write_all(9.0, ALERTS) == [None, None]
    assert [entry.at_s for entry in journal.read("alert")] == [1.0, 1.0]
    assert newest(path).number == 5


@pytest.mark.parametrize(
    ("statements", "problem"),
    [
        (
            ["drop trigger no_change", "update entry set body = '{}' where id = 4"],
            "entry 4 was changed",
        ),
        (
            ["drop trigger no_change", "update entry set at_s = 0 where id = 1"],
            "entry 1 was changed",
        ),
        (
            ["drop trigger no_removal", "delete from entry where id = 4"],
            "entry 4 is missing",
        ),
        (
            ["insert into entry values (9, 0, 'note', '', 'x', '{}')"],
            "entry 9 was not written by the console",
        ),
    ],
)
def test_change_behind_the_triggers_shows(
    path: Path, statements: list[str], problem: str
) -> None:
    """The check names the entry, also after later ones; its status is 1."""
    run_sql(path, *statements)
    Journal(path).write(9.0, "note", "", "x", {"text": "later"})
    done = CliRunner().invoke(cli, ["console-journal", "check", str(path)])

    assert done.exit_code == 1
    assert done.output.splitlines()[0] == problem
    assert "1 problems" in done.output


def test_journal_written_anew_shows_by_its_logged_head(
    path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if its end was cut off: the log has the head of every entry."""
    with caplog.at_level(logging.INFO):
        Journal(path).write(9.0, "note", "", "x", {"text": "the last"})
    head = caplog.messages[-1].split()[2]
    forged = tmp_path / "forged.sqlite"
    for at_s in range(6):
        Journal(forged).write(at_s, "note", "", "x", {"text": "nothing"})
    check = ["console-journal", "check", "--head", head]
    assert CliRunner().invoke(cli, [*check, str(path)]).exit_code == 0
    done = CliRunner().invoke(cli, [*check, str(forged)])

    assert done.exit_code == 1
    assert "entry 6 had another hash when it was logged" in done.output
    cut = CliRunner().invoke(cli, [*check[:3], "7" + head[1:], str(path)])
    assert "entry 7 had another hash" in cut.output


def test_hash_is_computed_as_documented(path: Path) -> None:
    """SHA-256 over the hash before and the row as JSON: anyone can compute it."""
    with closing(sqlite3.connect(path)) as db:
        rows = db.execute("select * from entry order by id").fetchall()
    digest = bytes(32)
    for row in rows:
        encoded = json.dumps(row, separators=(",", ":")).encode()
        digest = hashlib.sha256(digest + encoded).digest()

    assert newest(path) == JournalHead(5, digest)


def test_journal_of_the_release_before_is_upgraded_in_place(tmp_path: Path) -> None:
    """Its entries stay as they are and get hashes; new entries follow them."""
    path = tmp_path / "journal.sqlite"
    with closing(sqlite3.connect(path)) as db:
        db.executescript(OLD_TABLE)
        for n in range(1000):
            db.execute(
                "insert into entry (at_s, kind, subject, who, body)"
                " values (?, 'note', '', 'x', '{}')",
                (n,),
            )
        db.commit()
        before = db.execute("select * from entry").fetchall()
    with pytest.raises(Exception, match="a journal that this release"):
        check_journal(path)
    Journal(path)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("select * from entry").fetchall() == before
    assert newest(path).number == 1000
    Journal(path).write(9.0, "note", "", "x", {})

    assert newest(path).number == 1001


def test_transaction_that_fails_leaves_no_entry(path: Path) -> None:
    """An alert that cannot be stored takes back those before it."""
    bad = JournalDraft("alert", "\ud800", "", {})
    journal = Journal(path)
    with pytest.raises(UnicodeEncodeError, match="surrogates"):
        journal.write_all(3.0, [JournalDraft("alert", "c 3 1", "", {}), bad])
    journal.write(4.0, "note", "", "x", {})

    assert newest(path).number == 6
    assert len(journal.read("alert")) == 2


@pytest.mark.parametrize("content", [b"x" * 5000, None])
def test_other_files_are_refused(tmp_path: Path, content: bytes | None) -> None:
    """The error names the file, and the status is 2."""
    path = tmp_path / "journal.sqlite"
    if content is not None:
        path.write_bytes(content)
    done = CliRunner().invoke(cli, ["console-journal", "check", str(path)])

    assert done.exit_code == 2
    assert "journal must be a journal" in done.output


def test_malformed_head_is_refused(path: Path) -> None:
    """The error states the form."""
    check = ["console-journal", "check", str(path), "--head", "5"]
    done = CliRunner().invoke(cli, check)

    assert done.exit_code == 2
    assert "head must be a number, a colon and 64 hexadecimal digits" in done.output


def test_logins_are_listed(path: Path) -> None:
    """Newest first, with time, kind, name and address."""
    body = {"address": "192.0.2.1", "known_device": True}
    Journal(path).write(60.0, "login", "", "suzuki", body)
    done = CliRunner().invoke(cli, ["console-journal", "logins", str(path)])

    assert done.output == (
        "1970-01-01T00:01:00Z\tlogin\tsuzuki\taddress=192.0.2.1 known_device=True\n"
    )
