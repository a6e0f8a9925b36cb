"""Where cells are, as the map draws them."""

from collections.abc import Iterable

from spatial_mqtt.cells import Cell


class Corners:
    """Corners of cells, computed once each."""

    def __init__(self) -> None:
        self._known: dict[str, list[int]] = {}

    def of(self, tokens: Iterable[str]) -> list[list[int]]:
        """Corners of each cell as millionths of a degree, lon before lat."""
        return [self._known.get(token) or self._find(token) for token in tokens]

    def _find(self, token: str) -> list[int]:
        found = [
            round(degrees * 1e6)
            for latitude, longitude in Cell.from_token(token).corners()
            for degrees in (longitude, latitude)
        ]
        self._known[token] = found
        return found
