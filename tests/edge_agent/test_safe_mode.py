"""Safe mode: which parts of a broken settings file are still used."""

from pathlib import Path

import pytest

from edge_agent.config import read_node_settings
from edge_agent.safe_mode import (
    LAST_FILE,
    PRIORITY,
    RecoveredSettings,
    make_report,
    recover_last_settings,
    recover_settings,
    save_last_settings,
)
from service_runtime.settings import SettingsError

GOOD = """
[node]
id = "kochi-0001"
latitude = 33.5588
longitude = 133.5312
[uplink]
managers = ["mqtt://127.0.0.1:1883", "mqtts://10.8.0.1"]
rate_bytes_per_s = 6250
[queue]
path = "/data/queue.db"
max_bytes = 200_000_000
[[sensor]]
kind = "rain-gauge"
name = "rain"
pin = 17
[[sensor]]
kind = "wire"
name = "span"
pin = 27
"""


def broken(old: str, new: str) -> RecoveredSettings | None:
    assert old in GOOD
    return recover_settings(GOOD.replace(old, new, 1).encode())


def test_valid_file_needs_no_safe_mode() -> None:
    """There is nothing to recover."""
    assert recover_settings(GOOD.encode()) is None


@pytest.mark.parametrize(
    ("old", "new", "sensors", "has_queue", "expected"),
    [
        ("rate_bytes", "rate_byte", ["rain", "span"], True, "is not a known key"),
        ("pin = 27", "pin = 17", ["rain"], True, "must be a pin of its own"),
        ("pin = 27", 'pin = "27"', ["rain"], True, "sensor.span.pin"),
        ('kind = "wire"', 'kind = "wyre"', ["rain"], True, "did you mean 'wire'?"),
        ('name = "span"', 'name = "a/b"', ["rain"], True, "sensor[2]"),
        ('name = "span"', 'name = "rain"', ["node"], True, "named once"),
        ("max_bytes", "most_bytes", ["rain", "span"], False, "queue.most_bytes"),
        ('10.8.0.1"', '10.8.0.1:x"', ["rain", "span"], True, "uplink.managers"),
        ("mqtts://10", "mqtt://10", ["rain", "span"], True, "uplink.managers"),
        ("[queue]", "[power]\n[queue]", ["rain", "span"], True, "power.battery"),
        ("[queue]", "[oops]\na = 1\n[queue]", ["rain", "span"], True, "oops"),
        ("pin = 27", "pin = ", ["rain"], True, "[[sensor]] on line 16 is left out"),
        (
            "[queue]",
            "[queue",
            ["rain", "span"],
            False,
            "the file: line 9, column 7",
        ),
        ("pin = 17", "pin 17", ["span"], True, "[[sensor]] on line 12 is left out"),
    ],
)
def test_wrong_settings_are_left_out_and_reported(
    old: str, new: str, sensors: list[str], has_queue: bool, expected: str
) -> None:
    """A sensor is left out as a whole; a doubtful queue is not opened."""
    safe = broken(old, new)

    assert safe is not None
    assert [sensor.name for sensor in safe.node.sensors] == sensors
    assert safe.has_queue is has_queue
    assert any(expected in problem for problem in safe.problems)
    assert safe.node.settings.node.id == "kochi-0001"
    assert safe.node.settings.uplink.managers[0] == "mqtt://127.0.0.1:1883"


def test_queue_that_the_file_does_not_name_is_the_usual_one() -> None:
    """No section, no doubt; a mistake elsewhere is none of the queue."""
    start, end = GOOD.index("[queue]"), GOOD.index("[[sensor]]")
    text = (GOOD[:start] + GOOD[end:]).replace("pin = 27", "pin = 17")
    safe = recover_settings(text.encode())
    assert safe is not None
    assert safe.has_queue


def test_plain_link_that_the_settings_allow_is_kept() -> None:
    """Only the other Manager's URL is wrong."""
    text = GOOD.replace("mqtt://127.0.0.1:1883", "mqtt://10.8.0.2")
    text = f"[tls]\nallow_plain_mqtt = true\n{text}".replace("10.8.0.1", "10.8.0.1:x")
    safe = recover_settings(text.encode())
    assert safe is not None
    assert safe.node.settings.uplink.managers == ("mqtt://10.8.0.2",)


LIMITS = """
[[triage.limit]]
sensor = "rain"
above = 5
level = 2
[[triage.limit]]
sensor = "rain"
above = 10
level = 9
[[triage.limit]]
sensor = "span/temp"
below = 1
level = 3
[triage.rules.tilt]
level_3_deg_h = 0.01
[triage.rules.wire]
alone_level = 3
"""


def test_only_the_wrong_limit_and_the_wrong_rule_are_left_out() -> None:
    """The other limits and rules of the site stay; problems give the position."""
    safe = recover_settings((GOOD + LIMITS).encode())

    assert safe is not None
    triage = safe.node.settings.triage
    assert [limit.level for limit in triage.limit] == [2, 3]
    assert triage.rules.wire.alone_level == 3
    assert any(p.startswith("triage.limit[2].level must") for p in safe.problems)
    assert any("triage.rules.tilt.level_3_deg_h" in p for p in safe.problems)


def test_limit_of_an_omitted_sensor_is_omitted() -> None:
    """Its number in the file is reported, although an earlier limit is left out."""
    safe = recover_settings((GOOD + LIMITS).replace("pin = 27", "pin = 17").encode())

    assert safe is not None
    assert [limit.level for limit in safe.node.settings.triage.limit] == [2]
    assert any(p.startswith("triage.limit[3].sensor must") for p in safe.problems)


def test_two_unnamed_broken_sensors_do_not_affect_the_others() -> None:
    """Their numbers do not shift when one of them is removed."""
    unnamed = '[[sensor]]\nkind = "wire"\npin = 22\n'
    first, rest = GOOD.split("[[sensor]]", 1)
    text = f'{first}{unnamed}{unnamed}[[sensor]]{rest}[[sensor]]\nname = "x"\n'
    safe = recover_settings(text.encode())

    assert safe is not None
    assert [sensor.name for sensor in safe.node.sensors] == ["rain", "span"]
    fields = [problem.partition(" ")[0] for problem in safe.problems]
    assert fields == ["sensor[1].name", "sensor[2].name", "sensor.x.kind"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("latitude = 33.5588", "latitude = 95"),
        ('id = "kochi-0001"', ""),
        ('managers = ["mqtt://127.0.0.1:1883", "mqtts://10.8.0.1"]', ""),
        ('["mqtt://127.0.0.1:1883", "mqtts://10.8.0.1"]', '"mqtt://127.0.0.1"'),
        ("[node]", "[node"),
        ("[queue]", '[simulation]\nstart = "soon"\n[queue]'),
    ],
)
def test_no_safe_mode_without_id_location_or_manager(old: str, new: str) -> None:
    """A simulated node must not switch to real pins either."""
    assert broken(old, new) is None


def test_comment_in_another_encoding_is_reported() -> None:
    """A comment in Shift JIS from a Windows editor must not stop the node."""
    raw = GOOD.replace("pin = 27", "pin = 27  # 左岸").encode("cp932")
    safe = recover_settings(raw)

    assert safe is not None
    assert len(safe.node.sensors) == 2
    assert not safe.has_queue
    assert "UTF-8" in safe.problems[0]


def test_byte_order_mark_leaves_out_nothing() -> None:
    """Windows' editors write one, here before the first section."""
    wrong = GOOD.lstrip().replace("pin = 27", "pin = ")
    safe = recover_settings(wrong.encode("utf-8-sig"))

    assert safe is not None
    assert safe == recover_settings(wrong.encode())
    assert [sensor.name for sensor in safe.node.sensors] == ["rain"]


def test_report_has_priority_between_routine_and_alarm() -> None:
    """Text readings, which no rule evaluates."""
    safe = broken("pin = 27", "pin = 17")
    assert safe is not None
    pack = make_report(safe, 1_700_000_000.0, synchronised=False)

    assert pack.priority == PRIORITY == 3
    assert [r.name for r in pack.readings] == ["config/health", "config/mistake/1"]
    assert all(isinstance(r.value, str) for r in pack.readings)
    assert pack.why == "safe mode: 1 mistake in the settings"


def recover_last(folder: Path, raw: bytes | None) -> RecoveredSettings | None:
    """The settings of a node that ran with `GOOD`, and has another file or none now."""
    file = folder / "node.toml"
    file.write_text(GOOD)
    save_last_settings(file, folder)
    file.unlink()
    if raw is not None:
        file.write_bytes(raw)
    with pytest.raises((SettingsError, OSError)) as refused:
        read_node_settings(file)
    error = refused.value
    assert isinstance(error, SettingsError | OSError)
    assert recover_settings(raw or b"") is None
    return recover_last_settings(raw or b"", error, folder)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[uplink]", "[uplink"),
        ('managers = ["mqtt://127.0.0.1:1883", "mqtts://10.8.0.1"]\n', ""),
        ("managers", "manager"),
        ("latitude = 33.5588", 'latitude = "33.5588"'),
        ("longitude = 133.5312", "longitude = 1335312"),
        ('id = "kochi-0001"', 'id = "kochi 0001"'),
        ('id = "kochi-0001"', 'id = "kochi-0001'),
        ("[node]", "[nodes]"),
        (GOOD, ""),
        (GOOD, "\0" * 4096),
        (GOOD, "<<<<<<< HEAD"),
    ],
)
def test_file_without_usable_settings_leads_to_those_of_the_last_run(
    tmp_path: Path, old: str, new: str
) -> None:
    """The mistakes of the file are reported, and which settings are in use."""
    safe = recover_last(tmp_path, GOOD.replace(old, new, 1).encode())

    assert safe is not None
    assert safe.has_queue
    assert safe.node.settings.node.id == "kochi-0001"
    assert [sensor.name for sensor in safe.node.sensors] == ["rain", "span"]
    assert len(safe.problems) > 1
    assert safe.problems[-1].endswith(str(tmp_path / LAST_FILE))


def test_copy_of_the_last_settings_follows_the_file(tmp_path: Path) -> None:
    """The same settings are not written again at each start, which wears the card."""
    file, last = tmp_path / "node.toml", tmp_path / LAST_FILE
    for text in (GOOD, GOOD.replace("pin = 27", "pin = 22")):
        file.write_text(text)
        save_last_settings(file, tmp_path)
        assert last.read_text() == text
    written = last.stat()
    save_last_settings(file, tmp_path)
    assert last.stat() == written


def test_settings_of_the_last_run_may_have_a_byte_order_mark(tmp_path: Path) -> None:
    """They are a copy of the file."""
    (tmp_path / LAST_FILE).write_text(GOOD, encoding="utf-8-sig")
    error = FileNotFoundError("node.toml")
    assert recover_last_settings(b"", error, tmp_path) is not None


def test_missing_file_leads_to_the_settings_of_the_last_run(tmp_path: Path) -> None:
    """The report names the file."""
    safe = recover_last(tmp_path, None)

    assert safe is not None
    assert "node.toml" in safe.problems[0]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('id = "kochi-0001"', 'id = "kochi-0002"'),
        ("latitude = 33.5588", "latitude = 33.6"),
        ("longitude = 133.5312", "longitude = 133.6"),
    ],
)
def test_settings_of_another_node_are_not_replaced(
    tmp_path: Path, old: str, new: str
) -> None:
    """A copied card would send the readings of this slope in the name of another."""
    wrong = GOOD.replace(old, new).replace("managers", "manager")

    assert recover_last(tmp_path, wrong.encode()) is None


def test_damaged_settings_of_the_last_run_are_not_used(tmp_path: Path) -> None:
    """Nor are those of an earlier version with keys that this one does not know."""
    error = FileNotFoundError("node.toml")
    assert recover_last_settings(b"", error, tmp_path) is None
    for text in ("", "\0" * 100, GOOD.replace("pin = 27", "pins = 27")):
        (tmp_path / LAST_FILE).write_text(text)
        assert recover_last_settings(b"", error, tmp_path) is None
    (tmp_path / LAST_FILE).write_bytes(b"\xff\xfe")
    assert recover_last_settings(b"", error, tmp_path) is None
