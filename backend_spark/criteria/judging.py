"""How each cell is judged, by the settings: its criteria, and JMA's telegrams."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from backend_spark.criteria.table import CriteriaTable, read_criteria
from backend_spark.criteria.telegrams import Telegram, parse_telegram
from backend_spark.errors import TelegramError
from backend_spark.sections import CriteriaSettings
from backend_spark.transforms.score import Rules
from slope_science.criteria import Criteria

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Judging:
    """Rules of any cell.

    Attributes:
        table: Criteria.
        look_ahead: Whether the rain of the last hour may raise a level.
        telegrams: Folder of JMA's telegrams; None compares with none.
    """

    table: CriteriaTable
    look_ahead: bool = False
    telegrams: Path | None = None
    _read: dict[str, Telegram | None] = field(default_factory=dict)

    @classmethod
    def by(cls, settings: CriteriaSettings) -> "Judging":
        """As the settings say.

        Raises:
            CriteriaTableError: The file breaks a rule.
        """
        table = CriteriaTable(Criteria.assumed_from(settings.warning_mm))
        if settings.file is not None:
            table = read_criteria(Path(settings.file), table.default)
        folder = None if settings.telegrams is None else Path(settings.telegrams)
        return cls(table, settings.look_ahead, folder)

    def of(self, cells: Iterable[str]) -> dict[str, Rules]:
        """Rules of some cells, with the telegrams that are there now."""
        told, rules = self._telegrams(), {}
        for cell in cells:
            code = self.table.municipality(cell) if told else None
            ours = tuple(t for t in told if code in t.levels)
            rules[cell] = Rules(self.table.of(cell), self.look_ahead, code, ours)
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
