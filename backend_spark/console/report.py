"""Situation report: one page with levels, places, reasons and missing data."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from importlib.resources import files
from typing import Any, Final, NamedTuple

from jinja2 import Environment, FileSystemLoader, select_autoescape

from backend_spark.console import level_grid
from backend_spark.console.audit_log import Journal
from backend_spark.console.events import EventBook
from backend_spark.console.level_grid import headline_order, severity, urgency
from backend_spark.console.live_state import LiveState, is_judged
from backend_spark.console.places import NO_PLACES, DistrictLevel, Gazetteer
from backend_spark.i18n import (
    HELD_MEANING,
    REPORT_WORDS,
    level_meaning,
    reasons_of,
    render_both,
)
from slope_science import JST
from slope_science.levels import ADVISORY, EMERGENCY, LOWEST, Cause

MAX_CELLS: Final = 7
MAX_DISTRICTS: Final = 8
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
        places: Names of the cells.
    """

    live_state: LiveState
    journal: Journal
    place: str
    assumed: bool
    places: Gazetteer = NO_PLACES

    def render(self, language: str) -> str:
        """HTML of the page; names and notes are escaped."""
        now, cells = self.live_state.snapshot(), self.live_state.cells()
        words, levels = REPORT_WORDS[language], now["levels"]
        rows = self._rows(now, cells["tokens"])
        present = describe_present(now, words)
        highest = present["highest"]
        waiting = EventBook(self.journal).summary()
        causes = {c for row in rows if row.level == highest for c in row.latest.causes}
        return TEMPLATES.get_template("report.html").render(
            language=language,
            w=words,
            place=self.place,
            now=when(now["now_s"]),
            exercise=now["exercise"],
            meaning=_meaning(highest, [c for c in Cause if c in causes], language),
            counts=_counts(levels),
            cells=[self._cell(row, now, language) for row in rows[:MAX_CELLS]],
            more=max(0, len(rows) - MAX_CELLS),
            districts=self._districts(rows)[:MAX_DISTRICTS],
            shapes=cell_polygons(cells["corners"], levels),
            width=MAP_WIDTH,
            height=MAP_HEIGHT,
            waiting=waiting,
            is_waiting_higher=waiting.peak > severity(highest)[0],
            notes=[
                (when(e.at_s), e.who, e.body["text"])
                for e in self.journal.read("note", limit=MAX_NOTES)
            ],
            nodes=now["nodes"],
            assumed=self.assumed,
            bounded=sum(row.latest.flags & level_grid.LOWER_BOUND > 0 for row in rows),
            **present,
        )

    def _rows(self, now: dict[str, Any], tokens: Sequence[str]) -> list["ReportRow"]:
        """Cells that reach a criterion, the most urgent first."""
        with self.live_state.lock:
            latest = list(self.live_state.grid.latest)
        rows = [
            ReportRow(*values)
            for values in zip(
                tokens,
                now["levels"],
                now["since_s"],
                now["margin_mm"],
                latest,
                strict=False,
            )
            if severity(values[1])[0] >= ADVISORY
        ]
        households = self.places.households
        return sorted(
            rows, key=lambda r: urgency(r.level, r.margin_mm, households(r.token))
        )

    def _districts(self, rows: Sequence["ReportRow"]) -> list[DistrictLevel]:
        return self.places.roll_up({row.token: row.level for row in rows})

    def _cell(
        self, row: "ReportRow", now: dict[str, Any], language: str
    ) -> dict[str, Any]:
        latest, words = row.latest, REPORT_WORDS[language]
        reasons = render_both(reasons_of(latest.reason_codes, latest.reasons))
        here = self.places.in_cell(row.token)
        return {
            "level": row.level,
            "token": row.token,
            "name": self.places.name(row.token),
            "households": self.places.households(row.token),
            "shelters": list(dict.fromkeys(p.shelter for p in here if p.shelter)),
            "contacts": list(dict.fromkeys(p.contact for p in here if p.contact)),
            "at": _passed(latest.at_s, now),
            "known": when(latest.known_until_s or latest.at_s),
            "since": _since(row.since_s, now["now_s"], words),
            "margin": row.margin_mm,
            "reasons": [reason[language] for reason in reasons],
            "r60": latest.r60_mm,
            "swi": None if latest.tanks is None else latest.tanks.index_mm,
        }


class ReportRow(NamedTuple):
    """A cell that reaches a criterion.

    Attributes:
        token: Of the cell.
        level: As in the array of levels.
        since_s: Unix time of the begin of its level; 0 if unknown.
        margin_mm: Soil water index missing to the next level.
        latest: Its newest row.
    """

    token: str
    level: int
    since_s: int
    margin_mm: float | None
    latest: level_grid.LatestRow


def describe_present(now: dict[str, Any], words: dict[str, str]) -> dict[str, Any]:
    """What a page states first: highest level, its begin, age of the data.

    Args:
        now: Snapshot of the live state.
        words: Texts of the page.
    """
    highest = max(now["levels"], key=headline_order, default=0)
    begins = [
        since_s
        for level, since_s in zip(now["levels"], now["since_s"], strict=True)
        if level == highest and since_s and ADVISORY <= level <= EMERGENCY
    ]
    return {
        "highest": highest,
        "since": _since(min(begins, default=0), now["now_s"], words),
        "data_at": None if now["newest_s"] is None else _passed(now["newest_s"], now),
        "unjudged": "" if is_judged(now) else _stale_words(now, words),
        "unknown": _unknown_words(now, words),
        "name": partial(_level_name, words),
    }


def _level_name(words: dict[str, str], level: int) -> str:
    names = {
        level_grid.MISSING: "missing",
        level_grid.NO_JUDGEMENT: "unjudged",
        LOWEST: "calm",
    }
    if level > level_grid.HELD_OFFSET:
        return words["held"].format(level - level_grid.HELD_OFFSET)
    return words[names.get(level, "level")].format(level)


def _stale_words(now: dict[str, Any], words: dict[str, str]) -> str:
    if now["newest_s"] is None:
        return words["no_judgement_now"] + words["no_data_yet"]
    age = _duration(now["now_s"] - now["newest_s"], words)
    last = words["last_data"].format(when(now["newest_s"]), age)
    return f"{words['no_judgement_now']} {last}"


def _unknown_words(now: dict[str, Any], words: dict[str, str]) -> str:
    """Why no calm can be stated; empty if all is judged and no node is silent."""
    cells = sum(not LOWEST <= level <= EMERGENCY for level in now["levels"])
    silent = now["nodes"].get("silent", 0)
    return words["some_unknown"].format(cells, silent) if cells or silent else ""


def _meaning(level: int, causes: Sequence[Cause], language: str) -> str:
    if level > level_grid.HELD_OFFSET:
        return HELD_MEANING[language]
    if level in {level_grid.MISSING, level_grid.NO_JUDGEMENT}:
        return ""
    return level_meaning(level, causes, language)


def _passed(at_s: float, now: dict[str, Any]) -> str:
    """Time of a level: that of the end of its step, or the present before it."""
    return when(min(at_s, now["now_s"]))


def _since(since_s: int, now_s: float, words: dict[str, str]) -> str:
    """Begin of a level and its duration; without the date on the same day."""
    if not since_s:
        return ""
    shown, today = when(min(since_s, now_s)), when(now_s)[:10]
    shown = shown[11:] if shown[:10] == today else shown[5:]
    return words["since"].format(shown, _duration(now_s - since_s, words))


def _duration(seconds: float, words: dict[str, str]) -> str:
    hours, minutes = divmod(max(0, int(seconds)) // 60, 60)
    if hours >= 48:  # noqa: PLR2004 - days are easier to read
        return words["days"].format(*divmod(hours, 24))
    if not hours:
        return words["minutes"].format(minutes)
    return words["hours"].format(hours, minutes)


def _counts(levels: list[int]) -> list[tuple[int, int]]:
    """Number of cells at each value that there is, the highest first."""
    shown = sorted(set(levels), key=headline_order, reverse=True)
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


def when(at_s: float) -> str:
    """A Unix time in Japan, to the minute."""
    return datetime.fromtimestamp(at_s, JST).strftime("%Y-%m-%d %H:%M")
