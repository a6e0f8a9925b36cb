"""Situation report: one page with levels, places, reasons and missing data."""

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from importlib.resources import files
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, select_autoescape

from backend_spark.console import level_grid
from backend_spark.console.audit_log import Journal
from backend_spark.console.events import EventBook
from backend_spark.console.level_grid import headline_order, severity
from backend_spark.console.live_state import LiveState
from backend_spark.i18n import LEVEL_MEANINGS, REPORT_WORDS, reasons_of, render_japanese
from slope_science.findings import ADVISORY, EMERGENCY, WARNING

JST: Final = timezone(timedelta(hours=9))
MAX_CELLS: Final = 12
MAX_NOTES: Final = 3
MAP_WIDTH: Final = 330.0
MAP_HEIGHT: Final = 250.0

TEMPLATES: Final = Environment(
    loader=FileSystemLoader(str(files("backend_spark.console") / "templates")),
    autoescape=select_autoescape(),
    trim_blocks=True,
    lstrip_blocks=True,
)


@dataclass(frozen=True)
class SituationReport:
    """Renders the page.

    Attributes:
        live_state: Live state.
        journal: Alerts and notes.
        place: Name of the municipality.
        assumed: Whether the criteria are planning defaults.
    """

    live_state: LiveState
    journal: Journal
    place: str
    assumed: bool

    def render(self, language: str) -> str:
        """HTML of the page; names and notes are escaped."""
        now, cells = self.live_state.snapshot(), self.live_state.cells()
        levels = now["levels"]
        with self.live_state.lock:
            latest = list(self.live_state.grid.latest)
        rows = [
            (level, token, row)
            for level, token, row in zip(levels, cells["tokens"], latest, strict=False)
            if severity(level)[0] >= ADVISORY
        ]
        rows.sort(key=lambda row: (-severity(row[0])[0], row[1]))
        highest = max(levels, key=headline_order, default=0)
        return TEMPLATES.get_template("report.html").render(
            language=language,
            w=REPORT_WORDS[language],
            place=self.place,
            now=when(now["now_s"]),
            data_at=None if now["newest_s"] is None else when(now["newest_s"]),
            exercise=now["exercise"],
            highest=highest,
            meaning=LEVEL_MEANINGS[language].get(highest, ""),
            counts=_counts(levels),
            unknown=sum(not 1 <= level <= EMERGENCY for level in levels),
            cells=[_cell(row, language) for row in rows[:MAX_CELLS]],
            more=max(0, len(rows) - MAX_CELLS),
            shapes=cell_polygons(cells["corners"], levels),
            width=MAP_WIDTH,
            height=MAP_HEIGHT,
            waiting=EventBook(self.journal).summary().count,
            notes=[
                (when(e.at_s), e.who, e.body["text"])
                for e in self.journal.read("note", limit=MAX_NOTES)
            ],
            nodes=now["nodes"],
            assumed=self.assumed,
            bounded=sum(row[2].flags & level_grid.LOWER_BOUND > 0 for row in rows),
            serious=sum(severity(level)[0] >= WARNING for level, *_ in rows),
        )


def _counts(levels: list[int]) -> list[tuple[int, int]]:
    """Number of cells at each value, the highest first; held ones only if any."""
    held = {level for level in levels if level > level_grid.HELD_OFFSET}
    shown = sorted({5, 4, 3, 2, 1, 6, 0} | held, key=headline_order, reverse=True)
    return [(level, levels.count(level)) for level in shown]


def inline_assets(page: str) -> str:
    """The page as one file, with its style sheet inlined."""
    style = (files("backend_spark.console") / "static/report.css").read_text("utf-8")
    icon = '  <link rel="icon" href="static/icon.svg">\n'
    link = '<link rel="stylesheet" href="static/report.css">'
    return page.replace(icon, "").replace(link, f"<style>\n{style}</style>")


def cell_polygons(corners: list[list[int]], levels: list[int]) -> list[dict[str, Any]]:
    """Cells as SVG polygons within the frame of the map, north up.

    Args:
        corners: Corners of each cell in microdegrees, longitude first.
        levels: Level of each cell.
    """
    if not corners:
        return []
    xs = [x for cell in corners for x in cell[0::2]]
    ys = [y for cell in corners for y in cell[1::2]]
    # A degree of longitude is shorter than one of latitude: 0.83 at 34 degrees.
    wide, high = (max(xs) - min(xs)) * 0.83, max(ys) - min(ys)
    scale = min(MAP_WIDTH / wide, MAP_HEIGHT / high)
    left, top = min(xs), max(ys)
    return [
        {
            "level": level,
            "points": " ".join(
                f"{(x - left) * 0.83 * scale:.1f},{(top - y) * scale:.1f}"
                for x, y in zip(cell[0::2], cell[1::2], strict=True)
            ),
        }
        for cell, level in zip(corners, levels, strict=False)
    ]


def _cell(row: tuple[int, str, level_grid.LatestRow], language: str) -> dict[str, Any]:
    level, token, latest = row
    reasons = latest.reasons
    if language == "ja":
        reasons = tuple(map(render_japanese, reasons_of(latest.reason_codes, reasons)))
    return {
        "level": level,
        "token": token,
        "at": when(latest.at_s),
        "known": when(latest.known_until_s or latest.at_s),
        "reasons": reasons,
        "r60": latest.r60_mm,
        "swi": None if latest.tanks is None else latest.tanks.index_mm,
    }


def when(at_s: float) -> str:
    """A Unix time in Japan, to the minute."""
    return datetime.fromtimestamp(at_s, JST).strftime("%Y-%m-%d %H:%M")
