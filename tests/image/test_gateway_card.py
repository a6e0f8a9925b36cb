"""Files on a gateway's card: valid ones are imported, invalid ones reported."""

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
