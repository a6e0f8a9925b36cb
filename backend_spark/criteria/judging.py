"""How each cell is judged, by the settings: criteria, JMA's telegrams, forecasts."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from backend_spark.criteria.table import CriteriaTable, read_criteria
from backend_spark.criteria.telegrams import Telegram, parse_telegram
from backend_spark.errors import TelegramError
from backend_spark.forecast.places import Feed
from backend_spark.sections import CriteriaSettings
from backend_spark.transforms.score import Rules
from slope_science.criteria import Criteria

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Judging:
    """Rules of any cell.

    Attributes:
        table: Criteria.
        look_ahead: Whether rain to come may raise a level.
        telegrams: Folder of JMA's telegrams; None compares with none.
        feed: Forecasts of rain; None looks for none.
    """

    table: CriteriaTable
    look_ahead: bool = False
    telegrams: Path | None = None
    feed: Feed | None = None
    _read: dict[str, Telegram | None] = field(default_factory=dict)

    @classmethod
    def by(cls, settings: CriteriaSettings, feed: Feed | None = None) -> "Judging":
        """As the settings say.

        Args:
            settings: Of the criteria.
            feed: Forecasts of rain.

        Raises:
            CriteriaTableError: The file breaks a rule.
        """
        table = CriteriaTable(Criteria.assumed_from(settings.warning_mm))
        if settings.file is not None:
            table = read_criteria(Path(settings.file), table.default)
        folder = None if settings.telegrams is None else Path(settings.telegrams)
        return cls(table, settings.look_ahead, folder, feed)

    def of(self, cells: Iterable[str]) -> dict[str, Rules]:
        """Rules of some cells, with the telegrams and forecasts that are there now."""
        told, rules = self._telegrams(), {}
        newest = self.feed.newest() if self.feed else None
        for cell in cells:
            code = self.table.municipality(cell)
            ours = tuple(t for t in told if code in t.levels)
            rules[cell] = Rules(
                self.table.of(cell),
                self.look_ahead,
                code if told else None,
                ours,
                self.feed.of(cell, code, newest) if self.feed and newest else None,
            )
        return rules

    def _telegrams(self) -> list[Telegram]:
        """All that can be read; one that cannot is told once and left out."""
        folder = self.telegrams
        for path in sorted(folder.glob("*.xml")) if folder else []:
            if path.name not in self._read:
                self._read[path.name] = None
                try:
                    self._read[path.name] = parse_telegram(path.name, path.read_bytes())
                except (OSError, TelegramError) as error:
                    log.warning("%s", error)
        return [t for t in self._read.values() if t is not None]
