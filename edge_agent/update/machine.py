"""What the image on this card says of itself, and of updates that it has tried."""

from dataclasses import dataclass
from pathlib import Path

ABOUT = "etc/yamamori-image"
SLOT = "run/yamamori-slot"
TRIED = "data/slot/tried"
HISTORY = "data/slot/history"
REFUSED = "data/slot/refused"


@dataclass(frozen=True)
class Machine:
    """Reads what the image's own scripts write.

    Attributes:
        root: Of the file system.
    """

    root: Path = Path("/")

    def fact(self, name: str) -> str | None:
        """A line of the image's description: role, version; None without an image."""
        told = dict(line.split("=", 1) for line in self._lines(ABOUT) if "=" in line)
        return told.get(name)

    @property
    def is_on_trial(self) -> bool:
        """Whether the running version may still be taken back."""
        return any(" trial " in line for line in self._lines(SLOT))

    def outcome(self, sha256: str, version: str) -> str | None:
        """What came of a bundle, in words; None when it was not tried yet."""
        refused = [line for line in self._lines(REFUSED) if line.startswith(sha256)]
        if refused:
            return f"refused: {refused[-1].removeprefix(sha256).strip()}"
        if sha256 not in self._lines(TRIED):
            return None
        told = [line for line in self._lines(HISTORY) if f"version {version} " in line]
        return told[-1].partition(f"version {version} ")[2] if told else "on trial"

    def _lines(self, name: str) -> list[str]:
        try:
            return (self.root / name).read_text(errors="replace").splitlines()
        except OSError:
            return []
