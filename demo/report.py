"""Report of the demo: a table for a mayor, summary.json for programs, and a map.

The map is a page in one file without network access: cells by level, reasons on click.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo import scenario
from demo.witness import Verdict, percentile
from slope_science import JST
from spatial_mqtt.cells import ANALYSIS_LEVEL, Cell
from spatial_mqtt.priority import LADDER

MEANING = {
    1: "no criterion reached",
    2: "advisory: check your way out",
    3: "warning: the elderly should leave",
    4: "danger: everybody should leave",
    5: "emergency: life in danger",
}


@dataclass(frozen=True)
class CellReport:
    """Highest level of a cell during the storm.

    Attributes:
        token: S2 token of the cell.
        level: Highest level of the storm.
        at: Simulated time when it was first reached, JST.
        reasons: Reasons for the level.
        places: Descriptions of the nodes in the cell.
        series: Rows of the levels table, in order of time.
    """

    token: str
    level: int
    at: str
    reasons: tuple[str, ...]
    places: tuple[str, ...]
    series: tuple[Mapping[str, Any], ...]


def cell_reports(rows: Sequence[Mapping[str, Any]]) -> list[CellReport]:
    """Return a report for each cell, the highest level first."""
    by_cell: dict[str, list[Mapping[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: row["at"]):
        by_cell.setdefault(row["cell"], []).append(row)
    reports = [_report(token, series) for token, series in by_cell.items()]
    return sorted(reports, key=lambda report: (-report.level, report.token))


def summary(
    verdict: Verdict, cells: Sequence[CellReport], nodes: int
) -> dict[str, Any]:
    """Return the content of summary.json."""
    return {
        "nodes": nodes,
        "messages": {
            "sent": len(verdict.sent),
            "archived": len(verdict.arrivals),
            "scored": len(verdict.arrivals) - len(verdict.unscored),
            "lost": len(verdict.lost),
            "duplicates": verdict.duplicates,
        },
        "by_priority": {
            str(priority): _by_priority(verdict, priority)
            for priority in LADDER.descending
        },
        "cells": [
            {"token": c.token, "level": c.level, "reasons": list(c.reasons)}
            for c in cells
        ],
    }


def table(summary_: Mapping[str, Any], cells: Sequence[CellReport]) -> str:
    """Format the table for a mayor."""
    lines = [
        "",
        "  What the slopes went through (equivalent levels, with assumed criteria)",
        "",
    ]
    for cell in cells:
        level = f"レベル{cell.level}相当  {MEANING[cell.level]}"
        lines.append(f"  {', '.join(cell.places):<38} {level}")
        lines += [f"      since {cell.at}: {reason}" for reason in cell.reasons[:2]]
    lines += ["", "  What became of the messages", ""]
    lines.append("  priority       sent   half within   99 of 100 within")
    for priority, row in summary_["by_priority"].items():
        if row["sent"]:
            p50, p99 = (_seconds(row[name]) for name in ("p50_s", "p99_s"))
            name = LADDER.name(int(priority))
            lines.append(f"  {priority} {name:<8}{row['sent']:>8}{p50:>14}{p99:>19}")
    lines.append("")
    for _, plan in scenario.nodes():
        if plan.fate:
            lines.append(f"  {plan.id}: {plan.fate}")
    counts = summary_["messages"]
    kinds = ("sent", "archived", "scored", "lost", "duplicates")
    lines.append("  " + ", ".join(f"{counts[kind]} {kind}" for kind in kinds))
    if shown := summary_.get("console"):
        lines.append(
            f"  the console showed {shown['cells']} cells, {shown['events']} events, "
            f"the highest of level {shown['highest_level']}"
        )
    return "\n".join(lines)


def _report(token: str, series: Sequence[Mapping[str, Any]]) -> CellReport:
    worst = max(series, key=lambda row: row["level"] or 0)
    places = tuple(
        plan.place
        for _, plan in scenario.nodes()
        if plan.cell.parent(ANALYSIS_LEVEL).token == token
    )
    at = worst["at"].astimezone(JST).strftime("%Y-%m-%d %H:%M")
    return CellReport(
        token,
        worst["level"] or 1,
        at,
        tuple(worst["reasons"] or ()),
        places,
        tuple(series),
    )


def _by_priority(verdict: Verdict, priority: int) -> dict[str, Any]:
    latencies = [
        a.latency_s for a in verdict.arrivals.values() if a.priority == priority
    ]
    p50, p99 = percentile(latencies, 0.50), percentile(latencies, 0.99)
    return {
        "sent": sum(p == priority for p in verdict.sent.values()),
        "p50_s": None if p50 is None else round(p50, 3),
        "p99_s": None if p99 is None else round(p99, 3),
    }


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f} s" if value < 1 else f"{value:.1f} s"


TEMPLATE = Path(__file__).with_name("map.html")
COLOURS = {1: "#ffffff", 2: "#f2e700", 3: "#ff2800", 4: "#aa00aa", 5: "#0c000c"}
"""Official colours of the levels."""


def map_page(cells: Sequence[CellReport], summary: Mapping[str, Any]) -> str:
    """Return the map's page as HTML."""
    data = {
        "cells": [_map_cell(cell) for cell in cells],
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


def _map_cell(report: CellReport) -> dict[str, Any]:
    return {
        "token": report.token,
        "level": report.level,
        "at": report.at,
        "reasons": list(report.reasons),
        "places": list(report.places),
        "corners": Cell.from_token(report.token).corners(),
        "series": [
            {
                "at": row["at"].astimezone(JST).strftime("%m-%d %H:%M"),
                "swi": round(row["swi_mm"], 1) if row["swi_mm"] is not None else None,
                "r60": round(row["r60_mm"], 1) if row["r60_mm"] is not None else None,
                "level": row["level"],
            }
            for row in report.series
        ],
    }
