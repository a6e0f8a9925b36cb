"""All readers of external input, with valid inputs and the errors they may raise."""

import json
import struct
import zlib
from datetime import UTC, datetime

from fuzz.reader import Reader, of_cbor, of_json, text

from backend_spark.config import BackendSettings
from backend_spark.criteria.telegrams import parse_telegram
from backend_spark.errors import RainTableError, TelegramError
from backend_spark.evaluation.inputs import read_rain_series, read_slides
from backend_spark.rain_table import RainText, soil_water_lines
from backend_spark.scoring.decode import parse_message as parse_row
from edge_agent.cli.first_boot import TextError
from edge_agent.cli.first_boot import decode_text as decode_fleet_text
from edge_agent.cli.provision import SETTINGS_KEYS, FleetError, parse_fleet_lines
from edge_agent.config import parse_node_settings
from edge_agent.notices import Notices
from edge_agent.sensors import ds18b20, gnss, modbus, sdi12
from gateway_daemon.config import GatewaySettings, ManagerSettings, SignerSettings
from gateway_daemon.gateway.incoming import (
    Unpacker,
    parse_delivery,
    parse_publication,
)
from gateway_daemon.gateway.subscriptions import SubscriptionTable, filters_by_broker
from gateway_daemon.manager.autoscaler import decode_autoscale_report
from gateway_daemon.manager.replication import decode_record, decode_view
from gateway_daemon.overlay.keys import OverlayError, OverlayKey
from gateway_daemon.overlay.messages import (
    LevelPacket,
    NeighbourQuery,
    decode_frame,
    encode_frame,
)
from service_runtime.errors import FieldError
from service_runtime.settings import SettingsError, build_settings, parse_toml
from service_runtime.tls import Endpoint
from spatial_mqtt import codec, directory, topics
from spatial_mqtt.announcements import Notice, NoticeVerifier, read_notice_time_s
from spatial_mqtt.batching import (
    BatchItem,
    Fragment,
    FragmentJoiner,
    decode_batch,
    encode_batch,
    split_message,
)
from spatial_mqtt.certificates import RenewalAnswer, RenewalRequest
from spatial_mqtt.codec import parse_number
from spatial_mqtt.custody import CustodyOffer, CustodyReceipt, receipt_topic
from spatial_mqtt.directory import decode_load_report
from spatial_mqtt.errors import (
    BatchError,
    DirectoryError,
    EnvelopeError,
    NoticeError,
    PacketError,
    ReceiptError,
    RenewalError,
    TopicError,
)
from spatial_mqtt.senml import (
    MessageId,
    Pack,
    Reading,
    decode_message_id,
    decode_pack,
    encode_cbor,
    encode_json,
)
from spatial_mqtt.transport import IncomingMessage, Publication

ID = MessageId("n1", "bb", 7)
PACK = Pack(ID, 3, 1.7e9, (Reading("rain", "mm", 0.5), Reading("tilt/x", "deg", 1.0)))
CBOR, JSON = encode_cbor(PACK), encode_json(PACK)
INFO = {"host": "gw", "port": 1883}
ENTRY = {"topic": "/3/1", "broker_info": INFO}
TABLE = directory.decode_broker_table(
    json.dumps({"version": 1, "brokers": [ENTRY]}).encode()
)
NODE = b"""[node]
id = "n1"
latitude = 33.5
longitude = 133.5
[uplink]
gateway = "mqtts://gw"
[[sensor]]
kind = "rain-gauge"
name = "rain"
pin = 17
"""
GATEWAY = b"""[gateway]
id = "g"
broker = "mqtts://a"
managers = ["mqtts://b"]
areas = ["/3/1"]
"""
RAIN = b"t,mm\n2026-07-01T00:10:00,1.5\n2026-07-01T00:20:00,0\n"


TELEGRAM = (
    b'<Report xmlns="http://xml.kishou.go.jp/jmaxml1/">'
    b'<Head xmlns="http://xml.kishou.go.jp/jmaxml1/informationBasis1/">'
    b"<ReportDateTime>2026-07-01T13:00:00+09:00</ReportDateTime></Head></Report>"
)


def publish(topic: str, payload: bytes, **more: object) -> IncomingMessage:
    return IncomingMessage(topic, payload, 1, False, None, None, None, (1, 1), **more)


def packet(data: bytes) -> object:
    found = codec.split_packets(bytearray(data))
    return [
        codec.decode_publish(first, body, 1) if first & 0xF0 == codec.PUBLISH else None
        for first, body in found
    ]


def gateway_ingress(data: bytes) -> object:
    """A message of a hostile node, with any topic, content type and payload."""
    head, _, payload = data.partition(b"\n")
    words = head.decode(errors="replace").split(" ")
    content, wants = (*words[1:], "", "")[:2]
    message = publish("/forward/" + words[0], payload, content=content)
    message = message._replace(response_topic=wants, message_id=wants)
    topic = topics.ForwardTopic.parse(message.topic)
    for each in Unpacker(float).unpack(message):
        receipt = parse_publication(each, topic, 2).receipt_topic
        assert receipt is None or topics.matches(topics.CUSTODY_FILTER, receipt)
        assert "+" not in (receipt or "")
    return parse_delivery(message._replace(topic="/" + words[0]), 2)


def joined(data: bytes) -> object:
    joiner = FragmentJoiner(2000)
    return [joiner.add("/3", Fragment.decode(each)) for each in data.split(b"|")]


def filters(words: str) -> object:
    first, _, second = words.partition(" ")
    topics.can_match_in(first, second)
    topics.filter_area(first)
    topics.areas_around(second)
    filters_by_broker([first, second], TABLE)
    return topics.matches(first, second)


def logged(line: str) -> object:
    table = SubscriptionTable()
    for handle in (
        table.on_subscribe_log,
        table.on_unsubscribe_log,
        table.on_client_log,
        table.register,
    ):
        handle(line)
    table.unregister(line)
    return filters_by_broker(table.filters, TABLE)


def row(data: bytes) -> object:
    now = datetime(2026, 7, 1, tzinfo=UTC)
    values = {"payload": data, "topic": "/3/1", "received_at": now, "age_s": 0.0}
    names = ("node", "boot", "seq", "pri", "topic", "age_s")
    return parse_row(dict.fromkeys(names) | values)


def rain(csv: str) -> object:
    source = RainText("rain.csv", csv)
    list(soil_water_lines(source, column="mm", step_h=1 / 6, allow_missing=True))
    return read_rain_series(source, "t", "mm")


def notices(data: bytes) -> object:
    received = Notices(None, lambda _: None)
    for topic in ("/notice/3", "/notice/3/1"):
        received.on_message(publish(topic, data))
    return received.level(0.0), received.criteria()


def signed(data: bytes) -> object:
    """Verification at a node without keys, which accepts no notice."""
    return NoticeVerifier([]).verify("/notice/3", data)


NOTICE = of_json(
    {"level": 3, "until_s": 1.8e9},
    {
        "level": 1,
        "criteria": {
            "advisory_mm": 100, "warning_mm": 130, "special_mm": 200,
            "version": 1.7e9, "line": [[10, 150], [50, 120]],
        },
    },
)  # fmt: skip
SIGNED = of_json({"body": '{"level":3,"at_s":1.7e9}', "signature": "AAAA"})[0]
OVERLAY_KEY = OverlayKey("/3", 0, "g")
FRAME = encode_frame(OVERLAY_KEY, OVERLAY_KEY, LevelPacket(0, NeighbourQuery()))
RECEIPT = CustodyReceipt.from_ids([ID, MessageId("n1", "bb", 9)]).encode()
MODBUS = b"\x01\x03\x00\x00\x00\x01"
MQTT = codec.encode_publish(
    Publication(
        "/3/1", CBOR, priority=5, response_topic="/custody/g", message_id=str(ID)
    ),
    "/3/1",
    None,
    7,
)
COMPACT = codec.encode_publish(
    Publication("/3/1", CBOR, correlation=b"\xb5\x01\x23\xab\xcd\x07gw"),
    "/3/1",
    None,
    7,
)

READERS = (
    Reader("packet", packet, (PacketError,), (MQTT, COMPACT, b"\x40\x02\x00\x07")),
    Reader("puback", codec.decode_puback, (PacketError,), (b"\x00\x07\x10",)),
    Reader("number", text(parse_number), (), (b"5", b"-1")),
    Reader("envelope", decode_pack, (EnvelopeError,), (CBOR, JSON)),
    Reader("envelope id", decode_message_id, (EnvelopeError,), (CBOR, JSON)),
    Reader("message id", text(MessageId.parse), (EnvelopeError,), (b"n1:bb:7",)),
    Reader("bronze row", row, (), (CBOR, JSON)),
    Reader(
        "forward",
        text(topics.ForwardTopic.parse),
        (TopicError,),
        (b"/forward/3/1/pri5",),
    ),
    Reader("cell", text(topics.parse_cell_topic), (TopicError,), (b"/3/1/2/0",)),
    Reader(
        "custody", text(topics.parse_custody_topic), (TopicError,), (b"/custody/n1",)
    ),
    Reader("area", text(topics.check_area), (TopicError,), (b"/3/1", b"/")),
    Reader("topic", text(topics.check_publishable), (TopicError,), (b"/3/1",)),
    Reader("filters", text(filters), (), (b"/3/+/# /3/1", b"# /")),
    Reader("receipt to", text(lambda t: receipt_topic(ID, t)), (), (b"/custody/g",)),
    Reader("receipt", CustodyReceipt.decode, (ReceiptError,), (RECEIPT,)),
    Reader(
        "offer",
        CustodyOffer.decode,
        (ReceiptError,),
        (CustodyOffer("g", ("#",)).encode(),),
    ),
    Reader(
        "parcel",
        decode_batch,
        (BatchError,),
        (
            encode_batch([BatchItem(CBOR), BatchItem(JSON, 5)]),
            encode_batch([BatchItem(b"x" * 99)]),
        ),
    ),
    Reader(
        "chunk",
        joined,
        (BatchError,),
        (split_message("n1:bb:7", CBOR, 20)[0].encode(),),
    ),
    Reader(
        "gateway",
        gateway_ingress,
        (TopicError,),
        (
            b"3/1/pri5 parcel /custody/g\n" + encode_batch([BatchItem(CBOR)]),
            b"3/1 chunk n1:bb:7\n" + split_message("n1:bb:7", CBOR, 400)[0].encode(),
            b"3/1/pri2  #\n" + CBOR,
        ),
    ),
    Reader("notice", Notice.decode, (NoticeError,), NOTICE),
    Reader("notices", notices, (), NOTICE),
    Reader("gateways", directory.decode_gateways, (DirectoryError,), of_json([ENTRY])),
    Reader(
        "table",
        directory.decode_broker_table,
        (DirectoryError,),
        of_json({"version": 1, "brokers": [ENTRY]}),
    ),
    Reader(
        "gateway notice",
        directory.decode_gateway_notice,
        (DirectoryError,),
        of_json({"broker_info": INFO, "status": "up", "version": 2}),
    ),
    Reader(
        "here",
        directory.decode_gateway_heartbeat,
        (DirectoryError,),
        of_json({"broker_info": INFO, "every_s": 10}),
    ),
    Reader(
        "place",
        directory.decode_gateway_location,
        (DirectoryError,),
        of_json({"broker_info": INFO, "latitude": 33.5, "longitude": 133.5}),
    ),
    Reader(
        "area setting",
        directory.decode_area_setting,
        (DirectoryError,),
        of_json({"broker_info": INFO, "topics": ["/3"]}, ENTRY),
    ),
    Reader("entry", directory.decode_broker_entry, (DirectoryError,), of_json(ENTRY)),
    Reader(
        "load",
        decode_load_report,
        (DirectoryError,),
        of_json({"gateway": INFO, "per_s": 1, "cpu": 0.5, "cells": [["/3", 1.0]]}),
    ),
    Reader("record", decode_record, (DirectoryError,), of_json({"key": {}})),
    Reader("view", decode_view, (DirectoryError,), of_json({"manager": "m"})),
    Reader(
        "report", decode_autoscale_report, (DirectoryError,), of_json({"mode": "on"})
    ),
    Reader(
        "overlay frame",
        decode_frame,
        (OverlayError,),
        (FRAME, b"\x01" + zlib.compress(FRAME[1:])),
    ),
    Reader("signed notice", signed, (NoticeError,), (SIGNED, *NOTICE)),
    Reader("age of a notice", read_notice_time_s, (), (SIGNED, *NOTICE)),
    Reader("broker log", text(logged), (), (b"1700000000 c 1 /3/#", b"c 0 #")),
    Reader(
        "renewal",
        RenewalRequest.decode,
        (RenewalError,),
        of_cbor({"asked": b"x", "old": b"y", "signature": b"z"}),
    ),
    Reader(
        "renewed",
        RenewalAnswer.decode,
        (RenewalError,),
        of_cbor({"certificate": b"x", "refused": ""}),
    ),
    Reader(
        "telegram",
        lambda data: parse_telegram("VPWW56.xml", data),
        (TelegramError,),
        (
            TELEGRAM,
            b"<?xml version='1.0' encoding='latin-1'?>" + TELEGRAM,
        ),
    ),
    Reader("url", text(Endpoint.parse), (FieldError,), (b"mqtts://[::1]:8883",)),
    Reader(
        "node.toml",
        text(lambda t: parse_node_settings(parse_toml(t))),
        (SettingsError,),
        (NODE,),
    ),
    *(
        Reader(
            name,
            text(lambda t, f=form: build_settings(f, parse_toml(t))),
            (SettingsError,),
            seeds,
            is_remote=False,
        )
        for name, form, seeds in (
            ("gateway.toml", GatewaySettings, (GATEWAY,)),
            ("manager.toml", ManagerSettings, (b'[manager]\nbroker = "mqtts://a"\n',)),
            ("signer.toml", SignerSettings, (b'[signer]\nbroker = "mqtts://a"\n',)),
            (
                "backend.toml",
                BackendSettings,
                (b'[backend]\ndata = "/d"\n[ingest]\nid = "i"\n',),
            ),
        )
    ),
    Reader(
        "fleet",
        lambda data: parse_fleet_lines(decode_fleet_text(data), SETTINGS_KEYS),
        (FleetError, TextError),
        (b"id,latitude,longitude\nn1,33.5,133.5\n",),
        is_remote=False,
    ),
    Reader("rain", text(rain), (RainTableError,), (RAIN,), is_remote=False),
    Reader(
        "landslides",
        text(lambda t: read_slides(RainText("slides.csv", t))),
        (RainTableError,),
        (b"time,class\n2026-07-01T00:10:00,a\n",),
        is_remote=False,
    ),
    Reader(
        "gpsd",
        text(gnss.decode),
        (gnss.NoFixError,),
        of_json({"class": "TPV", "mode": 3, "lat": 33.5, "lon": 133.5, "eph": 2}),
        is_remote=False,
    ),
    Reader(
        "1-Wire",
        text(ds18b20.decode),
        (ds18b20.OneWireAnswerError, ds18b20.NoTemperatureError),
        (b"50 05 4b : crc=b9 YES\n50 05 t=21312\n", b"21312\n"),
        is_remote=False,
    ),
    Reader(
        "Modbus",
        lambda data: modbus.decode(data, MODBUS),
        (modbus.ModbusAnswerError, modbus.ModbusExceptionError),
        (b"\x01\x03\x02" + struct.pack(">H", 5) + b"xG",),
        is_remote=False,
    ),
    Reader(
        "SDI-12",
        lambda data: sdi12.decode(data, b"0D0!", with_crc=False),
        (sdi12.Sdi12AnswerError,),
        (b"0+3.14-2\r\n",),
        is_remote=False,
    ),
)
