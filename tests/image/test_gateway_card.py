"""Files on a gateway's card: valid ones are imported, invalid ones reported."""

import os
import shutil
import socket
import subprocess
from pathlib import Path
from queue import SimpleQueue

import paho.mqtt.client as paho
import pytest
from conftest import MOSQUITTO, free_port, wait_until
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.properties import Properties

from image.gateway_card import take
from spatial_mqtt.codec import MAX_RECEIVED_BYTES, get_property

BROKER = Path(__file__).parents[2] / "image/roles/gateway/etc/mosquitto/mosquitto.conf"
RULES = Path(__file__).parents[2] / "systemd/firewall/yamamori.nft"
needs_nft = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("nft") is None,
    reason="needs root and nft; run scripts/setup",
)
GATEWAY = """
[gateway]
id = "gw-otani"
broker = "mqtt://127.0.0.1:1883"
managers = ["mqtts://10.8.0.1:8883"]
data = "/var/lib/yamamori/gateway"
"""


@pytest.fixture
def card(tmp_path: Path) -> Path:
    folder = tmp_path / "card"
    (folder / "mosquitto").mkdir(parents=True)
    (tmp_path / "etc").mkdir()
    (folder / "gateway.toml").write_text(GATEWAY, newline="\r\n")
    return folder


def test_settings_and_broker_files_are_imported_and_keys_removed(card: Path) -> None:
    """The files have the line ends of Windows."""
    etc = card.parent / "etc"
    (card / "mosquitto/own.conf").write_bytes(b"listener 8883\r\n")
    key = b"-----BEGIN PRIVATE KEY-----\nsecret\n"
    (card / "mosquitto/key.pem").write_bytes(key)
    lines = list(take(card, etc))

    assert lines == [
        "gateway.toml: TAKEN",
        "mosquitto/key.pem: TAKEN",
        "mosquitto/own.conf: TAKEN",
    ]
    assert (etc / "gateway.toml").read_text() == GATEWAY
    assert (etc / "mosquitto/own.conf").read_bytes() == b"listener 8883\n"
    assert (etc / "mosquitto/key.pem").read_bytes() == key
    assert not (card / "mosquitto/key.pem").exists()


def test_power_cut_while_a_key_is_wiped_destroys_no_key(
    card: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of zeros is not installed at the next start, and is removed."""
    etc, key = card.parent / "etc", b"-----BEGIN PRIVATE KEY-----\nsecret\n"
    (card / "mosquitto/key.pem").write_bytes(key)
    unlink = Path.unlink

    def cut_power(path: Path, **options: bool) -> None:
        if card in path.parents:
            raise ConnectionAbortedError("power cut")
        unlink(path, **options)

    monkeypatch.setattr(Path, "unlink", cut_power)
    with pytest.raises(ConnectionAbortedError, match="power cut"):
        list(take(card, etc))
    monkeypatch.undo()
    list(take(card, etc))

    assert (etc / "mosquitto/key.pem").read_bytes() == key
    assert not list((card / "mosquitto").iterdir())


def test_folder_among_the_broker_files_is_reported(card: Path) -> None:
    """The files after it are imported."""
    (card / "mosquitto/certs").mkdir()
    (card / "mosquitto/own.conf").write_bytes(b"listener 8883\n")

    assert list(take(card, card.parent / "etc"))[1:] == [
        "mosquitto/certs: IGNORED, as it is no file",
        "mosquitto/own.conf: TAKEN",
    ]


def test_names_to_which_windows_added_txt_are_accepted(card: Path) -> None:
    """The broker reads only files that end in .conf."""
    etc = card.parent / "etc"
    (card / "gateway.toml").rename(card / "gateway.toml.txt")
    (card / "mosquitto/own.conf.txt").write_bytes(b"listener 8883\r\n")

    assert list(take(card, etc)) == [
        "gateway.toml.txt: TAKEN",
        "mosquitto/own.conf.txt: TAKEN",
    ]
    assert (etc / "gateway.toml").read_text() == GATEWAY
    assert (etc / "mosquitto/own.conf").read_bytes() == b"listener 8883\n"


@needs_nft
def test_firewall_files_open_further_ports(card: Path) -> None:
    """Such as the port of the metrics; the file has the name that Notepad gives it."""
    etc, rule = card.parent / "etc", b"ip saddr 10.8.0.0/24 tcp dport 9464 accept\n"
    (card / "firewall").mkdir()
    (card / "firewall/metrics.nft.txt").write_bytes(rule.replace(b"\n", b"\r\n"))

    assert list(take(card, etc, RULES))[1:] == ["firewall/metrics.nft.txt: TAKEN"]
    assert (etc / "firewall/metrics.nft").read_bytes() == rule


@needs_nft
@pytest.mark.parametrize(
    "text", ["tcp dprt 9464 accept\n", "define office = 10.8.0.2\n", "}\n"]
)
def test_firewall_file_that_nft_refuses_is_not_installed(card: Path, text: str) -> None:
    """With it, nft would load no rule at all, and each port would be open."""
    etc = card.parent / "etc"
    (etc / "firewall").mkdir()
    office = "define office = 10.8.0.1\nip saddr $office tcp dport 9464 accept\n"
    (etc / "firewall/metrics.nft").write_text(office)
    (card / "firewall").mkdir()
    (card / "firewall/other.nft").write_text(text)
    lines = list(take(card, etc, RULES))[1:]

    assert lines[0] == "firewall/other.nft: REFUSED; what worked before goes on"
    assert any("rror" in line for line in lines[1:])
    assert [path.name for path in (etc / "firewall").iterdir()] == ["metrics.nft"]


@needs_nft
def test_firewall_files_are_tested_in_the_order_in_which_they_are_loaded(
    card: Path,
) -> None:
    """That of their names: a name must be defined before it is used."""
    etc, rule = card.parent / "etc", "ip saddr $office tcp dport 9464 accept\n"
    (etc / "firewall").mkdir()
    (etc / "firewall/names.nft").write_text("define office = 10.8.0.1\n")
    (card / "firewall").mkdir()
    (card / "firewall/metrics.nft").write_text(rule)
    assert "firewall/metrics.nft: REFUSED" in "".join(take(card, etc, RULES))
    (card / "firewall/metrics.nft").rename(card / "firewall/ports.nft")
    assert "firewall/ports.nft: TAKEN" in take(card, etc, RULES)


@needs_nft
def test_firewall_file_needs_no_line_end(card: Path) -> None:
    """Notepad adds none, and marks UTF-8."""
    (card / "firewall").mkdir()
    for port in (9464, 9465):
        text = f"ip saddr 10.8.0.0/24 tcp dport {port} accept"
        (card / f"firewall/{port}.nft").write_text(text, encoding="utf-8-sig")
    lines = list(take(card, card.parent / "etc", RULES))
    assert lines[1:] == ["firewall/9464.nft: TAKEN", "firewall/9465.nft: TAKEN"]


@needs_nft
@pytest.mark.parametrize("encoding", ["utf-16", "shift_jis", "utf-8"])
def test_typing_error_in_a_firewall_file_is_reported_in_any_encoding(
    card: Path, encoding: str
) -> None:
    """An exception would leave no report, and the broker's files unreadable."""
    (card / "firewall").mkdir()
    text = "tcp dport 9464 acept # 監視用\n"
    (card / "firewall/metrics.nft").write_text(text, encoding=encoding)
    lines = list(take(card, card.parent / "etc", RULES))
    assert lines[1] == "firewall/metrics.nft: REFUSED; what worked before goes on"


def test_firewall_file_with_another_name_is_reported(card: Path) -> None:
    """The firewall would not read it."""
    (card / "firewall").mkdir()
    (card / "firewall/metrics.nft.bak").write_text("tcp dport 9464 accept\n")

    ignored = "firewall/metrics.nft.bak: IGNORED, as it is no *.nft file"
    assert ignored in take(card, card.parent / "etc", RULES)


@needs_nft
def test_changed_firewall_file_replaces_the_earlier_one(card: Path) -> None:
    """It is tested without the earlier one."""
    etc = card.parent / "etc"
    (card / "firewall").mkdir()
    for port in (9464, 9466):
        text = f"define office = 10.8.0.{port % 100}\ntcp dport {port} accept\n"
        (card / "firewall/metrics.nft").write_text(text)
        assert "firewall/metrics.nft: TAKEN" in take(card, etc, RULES)
        assert (etc / "firewall/metrics.nft").read_text() == text


def test_file_with_the_right_name_has_precedence(card: Path) -> None:
    """The report names the other one."""
    etc = card.parent / "etc"
    (card / "mosquitto/own.conf").write_bytes(b"listener 8883\n")
    for name in ("gateway.toml", "mosquitto/own.conf"):
        (card / f"{name}.txt").write_bytes(b"other\n")

    assert list(take(card, etc)) == [
        "gateway.toml: TAKEN",
        "gateway.toml.txt: IGNORED, as there is gateway.toml",
        "mosquitto/own.conf: TAKEN",
        "mosquitto/own.conf.txt: IGNORED, as there is own.conf",
    ]
    assert (etc / "gateway.toml").read_text() == GATEWAY
    assert (etc / "mosquitto/own.conf").read_bytes() == b"listener 8883\n"


def test_invalid_settings_do_not_replace_valid_ones(card: Path) -> None:
    """The report names the unknown key."""
    etc = card.parent / "etc"
    list(take(card, etc))
    (card / "gateway.toml").write_text(GATEWAY.replace("id =", "idd ="))
    lines = list(take(card, etc))

    assert lines[0] == "gateway.toml: REFUSED; what worked before goes on"
    assert any("idd" in line for line in lines[1:])
    assert (etc / "gateway.toml").read_text() == GATEWAY
    assert not (etc / "gateway.toml.card").exists()


@pytest.mark.broker
@pytest.mark.parametrize(
    ("limit", "most_bytes"),
    [("", MAX_RECEIVED_BYTES), ("max_packet_size 1048576\n", 1048576)],
)
def test_broker_takes_the_settings_on_the_card(
    card: Path, limit: str, most_bytes: int
) -> None:
    """Listeners are the site's; its limit of a packet replaces the image's."""
    port, etc = free_port(), card.parent / "etc"
    own = f"listener {port} 127.0.0.1\nallow_anonymous true\n{limit}"
    (card / "mosquitto/own.conf").write_text(own)
    list(take(card, etc))
    config = card.parent / "mosquitto.conf"
    text = BROKER.read_text().replace("/etc/yamamori", str(etc))
    config.write_text(text.replace("/var/lib/mosquitto/", f"{card.parent}/"))
    broker = subprocess.Popen([MOSQUITTO, "-c", str(config)], stderr=subprocess.DEVNULL)
    answers: SimpleQueue[Properties | None] = SimpleQueue()
    client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
    client.on_connect = lambda *arguments: answers.put(arguments[-1])
    try:
        with socket.socket() as probe:
            wait_until(lambda: probe.connect_ex(("127.0.0.1", port)) == 0)
        client.connect("127.0.0.1", port)
        client.loop_start()
        answer = answers.get(timeout=20)
        client.disconnect()
        client.loop_stop()
    finally:
        broker.kill()
        broker.wait()

    assert get_property(answer, "MaximumPacketSize") == most_bytes
