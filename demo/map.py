"""Map page in one file without network access: cells by level, reasons on click."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from demo import scenario
from demo.report import MEANING, CellReport
from spatial_mqtt.cells import Cell

TEMPLATE = Path(__file__).with_name("map.html")
COLOURS = {1: "#ffffff", 2: "#f2e700", 3: "#ff2800", 4: "#aa00aa", 5: "#0c000c"}
"""Official colours of the levels."""


def page(cells: Sequence[CellReport], summary: Mapping[str, Any]) -> str:
    """Return the page as HTML."""
    data = {
        "cells": [_cell(cell) for cell in cells],
        "nodes": [
            {
                "id": n.id,
                "place": n.place,
                "lat": n.latitude,
                "lng": n.longitude,
                "fate": n.fate,
            }
            for _, n in scenario.nodes()
        ],
        "colours": COLOURS,
        "meaning": MEANING,
        "messages": summary["messages"],
    }
    # "</" in a name would end the script element.
    text = json.dumps(data, ensure_ascii=False).replace("</", "<\\/")
    return TEMPLATE.read_text(encoding="utf-8").replace("/*DATA*/null", text)


def _cell(report: CellReport) -> dict[str, Any]:
    return {
        "token": report.token,
        "level": report.level,
        "at": report.at,
        "reasons": list(report.reasons),
        "places": list(report.places),
        "corners": Cell.from_token(report.token).corners(),
        "series": [
            {
                "at": row["at"].astimezone(scenario.JST).strftime("%m-%d %H:%M"),
                "swi": round(row["swi_mm"], 1) if row["swi_mm"] is not None else None,
                "r60": round(row["r60_mm"], 1) if row["r60_mm"] is not None else None,
                "level": row["level"],
            }
            for row in report.series
        ],
    }
