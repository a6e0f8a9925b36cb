"""GRIB2 files as JMA's descriptions define them, written without the product's reader.

Sections, octets and template 4.50008 after JMA's description of the files of analysed
rain (解析雨量を格納するGRIB2の書式, 2019); run lengths after template 7.200. The soil
water index has template 4.0, one field for the total (first fixed surface 200) and two
for the tanks (201). JMA's number of that parameter is in no description at hand; 206 is
a placeholder.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

RAIN_LEVELS = (
    0,
    4,
    *range(10, 780, 10),
    *range(800, 1300, 50),
    *range(1300, 2100, 100),
    2550,
)
"""The 98 values of analysed rain, in 0.1 mm."""

INDEX_LEVELS = tuple(range(601))
"""Values of the soil water index, in mm."""

AT = datetime(2026, 7, 1, 1, 0, tzinfo=UTC)


def pack_runs(levels: np.ndarray, greatest: int, bits: int) -> bytes:
    """Template 7.200: a level, then the digits of its run less one, lowest first."""
    base, out = 2**bits - 1 - greatest, []
    flat = levels.ravel()
    begins = np.concatenate([[0], np.flatnonzero(np.diff(flat)) + 1])
    counts = np.diff(np.append(begins, flat.size))
    for level, count in zip(flat[begins].tolist(), counts.tolist(), strict=True):
        out.append(level)
        rest = count - 1
        while rest:
            rest, digit = divmod(rest, base)
            out.append(greatest + 1 + digit)
    return np.array(out, dtype=f">u{bits // 8}").tobytes()


def section(number: int, body: bytes) -> bytes:
    """A section with its length and number."""
    return struct.pack(">IB", len(body) + 5, number) + body


def clock(at: datetime) -> bytes:
    """Year to second."""
    parts = (at.year, at.month, at.day, at.hour, at.minute, at.second)
    return struct.pack(">HBBBBB", *parts)


@dataclass(frozen=True)
class Layer:
    """A field: numbers of levels, and section 4's surface."""

    levels: np.ndarray
    surface: int = 1
    scaled: int = 0xFFFFFFFF


@dataclass(frozen=True)
class JmaFile:
    """A file; every octet that the tests change is an attribute."""

    layers: Sequence[Layer]
    at: datetime = AT
    north: float = 35.0
    """Northern edge of the grid; JMA's whole area begins at 48 N, 118 E."""
    west: float = 135.0
    table: Sequence[int] = RAIN_LEVELS
    scale: int = 1
    bits: int = 8
    template: int = 50_008
    category: int = 1
    number: int = 200
    minutes: int = 60
    centre: int = 34
    status: int = 0
    steps: tuple[float, float] = field(default=(1 / 120, 1 / 80))
    ahead_min: int = 0

    def but(self, **changes: object) -> "JmaFile":
        """The same with other attributes."""
        return replace(self, **changes)  # type: ignore[arg-type]

    def to_bytes(self) -> bytes:
        """The file."""
        body = self._identity() + self._grid()
        body += b"".join(map(self._layer, self.layers)) + b"7777"
        head = b"GRIB\xff\xff\x00\x02" + struct.pack(">Q", 16 + len(body))
        return head + body

    def write(self, path: Path) -> Path:
        """Write the file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.to_bytes())
        return path

    def _identity(self) -> bytes:
        reference = self.at - timedelta(minutes=self.ahead_min)
        body = struct.pack(">HHBBB", self.centre, 0, 2, 1, 0) + clock(reference)
        return section(1, body + bytes([self.status, 0]))

    def _grid(self) -> bytes:
        rows, columns = self.layers[0].levels.shape
        step_y, step_x = self.steps
        first = (self.north - step_y / 2, self.west + step_x / 2)
        last = (first[0] - (rows - 1) * step_y, first[1] + (columns - 1) * step_x)
        micro = [round(angle * 1e6) for angle in (*first, *last, step_x, step_y)]
        body = struct.pack(">BIBBHB", 0, rows * columns, 0, 0, 0, 4)
        body += struct.pack(">BIBIBI", 255, 2**32 - 1, 1, 63781370, 1, 63567523)
        body += struct.pack(">IIII", columns, rows, 0, 2**32 - 1)
        body += struct.pack(">IIBIIII", *micro[:2], 0x30, *micro[2:])
        return section(3, body + b"\x00")

    def _layer(self, layer: Layer) -> bytes:
        greatest = max(int(layer.levels.max()), 1)
        table = struct.pack(f">{len(self.table)}H", *self.table)
        kind = struct.pack(
            ">IHBHH", layer.levels.size, 200, self.bits, greatest, len(self.table)
        )
        return (
            section(4, self._product(layer))
            + section(5, kind + bytes([self.scale]) + table)
            + section(6, b"\xff")
            + section(7, pack_runs(layer.levels, greatest, self.bits))
        )

    def _product(self, layer: Layer) -> bytes:
        is_sum = self.template != 0
        start = 2**31 + self.minutes if is_sum else self.ahead_min
        body = struct.pack(
            ">HHBBBBBHBBI",
            0,
            self.template,
            self.category,
            self.number,
            0,
            150,
            255,
            0,
            10,
            0,
            start,
        )
        body += struct.pack(
            ">BBIBBI", layer.surface, 255, layer.scaled, 255, 255, 2**32 - 1
        )
        if is_sum:
            body += clock(self.at) + struct.pack(
                ">BIBBBIBI", 1, 0, 1, 2, 0, self.minutes, 0, 0
            )
            body += bytes(24)  # radars and gauges in operation
        return body


def rain_file(mm: np.ndarray, at: datetime = AT) -> JmaFile:
    """Analysed rain of the hour before; nan is missing."""
    values = np.array(RAIN_LEVELS) / 10
    between = (values[1:] + values[:-1]) / 2
    nearest = np.searchsorted(between, np.nan_to_num(mm)) + 1
    return JmaFile([Layer(np.where(np.isnan(mm), 0, nearest))], at)


def index_file(mm: np.ndarray, at: datetime = AT) -> JmaFile:
    """Soil water index: total, then two tanks that must not be taken for it."""
    levels = np.where(np.isnan(mm), 0, np.nan_to_num(mm).round().astype(int) + 1)
    tanks = [Layer(np.full(mm.shape, 3 * n), 201, n) for n in (1, 2)]
    whole = [Layer(levels, 200), *tanks]
    return JmaFile(
        whole, at, table=INDEX_LEVELS, scale=0, bits=16, template=0, number=206
    )
