"""Readers of files written by people or by our programs: tables, forecasts, accounts.

A person wrote the file, perhaps with a spreadsheet program, so an error must name the
violated rule and its place.
"""

from pathlib import Path

import msgspec
from fuzz.reader import Reader, file, of_json, text

from backend_spark.console import accounts
from backend_spark.criteria.tables import read_criteria
from backend_spark.errors import CriteriaTableError, ForecastFileError, RainTableError
from backend_spark.forecast import read_forecast
from backend_spark.ingest.messages import PublisherAreaCheck
from backend_spark.rain_table import read_amedas, split_hours
from edge_agent.cli.run import parse_drafts
from edge_agent.clock import SystemClock
from edge_agent.triage.engine import decode_snapshot
from experiments.topology_study.centrality import TopologyError
from experiments.topology_study.evaluation import evaluate_federation
from experiments.topology_study.federations import FederationFile
from gateway_daemon.ca.authority import AuthorityFileError
from gateway_daemon.ca.store import REGISTER_FILE, AuthorityFolder
from gateway_daemon.gateway.subscriptions import _read_saved
from gateway_daemon.manager.storage import RegistryFileError, load_registry
from gateway_daemon.overlay.keys import OverlayError
from gateway_daemon.overlay.messages import (
    CarriedMessage,
    OverlayMessage,
    decode_carried,
)
from service_runtime.errors import FieldError
from service_runtime.settings import SettingsError, build_settings, parse_toml
from slope_science.levels import Criteria
from spatial_mqtt.cells import Cell

NOW_S = 1.79e9
ASSUMED = Criteria.assumed_from(150.0)
LINE = ",".join(f"LEVEL3_{mm:02d}" for mm in range(151))
CRITERIA = (
    b"mesh,LEVEL1,LEVEL2\n50330471,98,131\n50330472,999,999\n",
    b"cell,LEVEL1,LEVEL2,SPECIAL,VERSION\n354e18bc,98,131,246,by suzuki\n*,9,12,20,\n",
    f"mesh,LEVEL1,LEVEL2,{LINE}\n50330471,98,131".encode() + b",177" * 151,
)
AMEDAS = """ダウンロードした時刻：2026/06/02 12:31:33\r
\r
,高知,高知,高知,高知\r
年月日時,降水量(mm),降水量(mm),降水量(mm),降水量(mm)\r
,,,,\r
,,現象なし情報,品質情報,均質番号\r
2026/6/1 22:00:00,0,1,8,1\r
2026/6/1 23:00:00,2.5,0,5,1\r
2026/6/1 24:00:00,,0,1,1\r
2026/6/2 1:00:00,"1.5",0,4,1\r
""".encode("cp932")
RUN = b"JMA,2026-07-01T09:00+09:00,2026-07-01T09:00+09:00,2026-07-01T10:00+09:00,12.5,"
FORECAST = (
    b"source,issued_at,from,to,mm,mesh\n" + RUN + b"50330471\n",
    b"source,issued_at,from,to,mm,cell,flag\n" + RUN + b"354e18bc,1\n",
)
IDENTITY = {"role": "node", "name": "n1", "cells": ["/3/1"]}
CELL = Cell.at(33.5, 133.5)
SECRET = accounts.hash_password("correct horse battery", lambda size: b"s" * size)


def amedas(path: Path) -> object:
    return list(split_hours(read_amedas(str(path), "高知")))


def drafts(lines: str) -> object:
    return list(parse_drafts(lines.splitlines(), "n1", CELL, SystemClock()))


def federation(toml: str) -> object:
    return evaluate_federation(
        build_settings(FederationFile, parse_toml(toml)).to_federation()
    )


FILE_READERS = (
    Reader(
        "criteria",
        file(lambda path: read_criteria(path, ASSUMED), "criteria.csv"),
        (CriteriaTableError,),
        CRITERIA,
        is_remote=False,
    ),
    Reader("AMeDAS", file(amedas, "a.csv"), (RainTableError,), (AMEDAS,), False),
    *(
        Reader(
            f"forecast {suffix}",
            file(lambda path: read_forecast(path, NOW_S), f"forecast.{suffix}"),
            (ForecastFileError,),
            seeds,
            is_remote=False,
        )
        for suffix, seeds in (
            ("csv", FORECAST),
            (
                "json",
                of_json([
                    {
                        "source": "JMA",
                        "issued_at": "2026-07-01T09:00+09:00",
                        "from": "2026-07-01T09:00+09:00",
                        "to": "2026-07-01T10:00+09:00",
                        "mm": 1.5,
                        "municipality": "3920100",
                    }
                ]),
            ),
        )
    ),
    Reader(
        "accounts",
        file(accounts.read_accounts, "accounts"),
        (FieldError,),
        (f"# people\nsuzuki:chief:{SECRET}\nmayor:viewer:{SECRET}\n".encode(),),
        is_remote=False,
    ),
    Reader(
        "places",
        file(PublisherAreaCheck, "places.json"),
        (SettingsError,),
        of_json({"kochi-0001": ["/1/2/2"], "gw": []}),
        is_remote=False,
    ),
    Reader(
        "registry",
        file(load_registry, "registry.json"),
        (RegistryFileError,),
        of_json({"since_ms": 1, "records": [], "heard": [{"host": "gw", "port": 1}]}),
        is_remote=False,
    ),
    Reader(
        "federation",
        text(federation),
        (SettingsError, TopologyError),
        (
            b"""[[broker]]
name = "a"
publishers = 2
[[broker]]
name = "b"
links = ["a"]
subscribers = 3
""",
        ),
        is_remote=False,
    ),
)

OWN_READERS = (
    Reader(
        "lines to send",
        text(drafts),
        (),
        (b'{"pri":5,"e":[{"n":"test","u":"mm","v":1.0}],"why":"by hand"}\n\n',),
    ),
    Reader(
        "what triage remembers",
        text(decode_snapshot),
        (LookupError, TypeError, ValueError, AttributeError, RecursionError),
        of_json({
            "form": 2,
            "time": 1,
            "held": {},
            "past": {},
            "criteria": None,
            "confirmed": {},
        }),
        is_remote=False,
    ),
    Reader(
        "register of the authority",
        file(
            lambda path: AuthorityFolder(path.parent, lambda: NOW_S).load_register(),
            REGISTER_FILE,
        ),
        (AuthorityFileError,),
        of_json({"issued": [{"serial": "a", "identity": IDENTITY, "until_s": 1.8e9}]}),
        is_remote=False,
    ),
    Reader(
        "subscriptions",
        file(_read_saved, "subscriptions.json"),
        (),
        of_json({"clients": {"c": ["/3/#"]}, "counted": {"/3": 1}}),
        is_remote=False,
    ),
    Reader(
        "message of the overlay",
        lambda data: decode_carried(OverlayMessage("m1", 3, data)),
        (OverlayError,),
        (msgspec.msgpack.encode(CarriedMessage("/3/1", b"x", 1.0)),),
    ),
)
"""Files that programs write for themselves, and one message of the overlay."""
