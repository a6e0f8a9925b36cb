"""Synthetic tables in the forms that prefectures and JMA publish."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

RAINS: Final = range(151)
PREFECTURE_HEAD: Final = (
    *("GRIDNO", "DATETIME", "PROVINCECODE", "PREFECTURECODE", "CITYGROUPCODE"),
    *("CITYCODE", "LATITUDE", "LONGITUDE", "FREE1", "FREE2", "LEVEL1", "LEVEL2"),
    *(f"LEVEL3_{mm:02d}" for mm in RAINS),
)
DOSHA_HEAD: Final = (
    "市町村等をまとめた地域",
    "市町村等",
    "地域メッシュコード（１km格子対応）",
    "土壌雨量指数基準（注意報）",
    "土壌雨量指数基準（警報）",
    "",
)
JMA_TITLES: Final = {
    5: "（別紙２－１）レベル５土砂災害特別警報の基準値",
    4: "（別紙２－２）レベル４土砂災害危険警報の基準値",
    2: "（別紙２－３）レベル２土砂災害注意報の基準値",
}
ENCODINGS: Final = {
    "UTF-8": ("utf-8", b""),
    "UTF-8 with BOM": ("utf-8", b"\xef\xbb\xbf"),
    "cp932": ("cp932", b""),
    "UTF-16 LE": ("utf-16-le", b"\xff\xfe"),
    "UTF-16 BE": ("utf-16-be", b"\xfe\xff"),
    "UTF-16 LE without BOM": ("utf-16-le", b""),
}
CITY: Final = "2720700"


@dataclass(frozen=True)
class SyntheticMesh:
    """Criteria of one mesh; None: not judged."""

    code: str
    advisory_mm: int | None
    warning_mm: int | None
    line_mm: tuple[int, ...] | None


def prefecture(count: int) -> list[SyntheticMesh]:
    """Meshes of a prefecture in rows of 75; every tenth has LEVEL1 only."""
    return [_mesh(n) for n in range(count)]


def _mesh(n: int) -> SyntheticMesh:
    row, column = 4080 + n // 75, 2560 + n % 75
    code = (
        f"{row // 80:02d}{column // 80:02d}{row // 10 % 8}{column // 10 % 8}"
        f"{row % 10}{column % 10}"
    )
    if n % 10 == 3:
        return SyntheticMesh(code, 90 + n % 30, None, None)
    top = 200 + n % 120
    line = tuple(max(round(0.66 * top), top - mm**2 // 60) for mm in RAINS)
    return SyntheticMesh(code, 90 + n % 30, 130 + n % 40, line)


def dosyakei(meshes: Iterable[SyntheticMesh]) -> list[list[object]]:
    """The prefectures' table: 999 is not judged, the end of a line 0."""
    rows: list[list[object]] = [list(PREFECTURE_HEAD)]
    for n, mesh in enumerate(meshes):
        line = [*(mesh.line_mm or [999] * 151)]
        if mesh.line_mm and n % 7 == 0:
            line[121:] = [0] * 30
        place = ["00000000", "010600", "270000", "270005", CITY, "34.283300"]
        limits = [
            999 if mm is None else mm for mm in (mesh.advisory_mm, mesh.warning_mm)
        ]
        rows.append([mesh.code, *place, "135.112500", "", "", *limits, *line])
    return rows


def dosha(meshes: Iterable[SyntheticMesh]) -> list[list[object]]:
    """JMA's table until May 2026: a title line, and － for no value."""
    title = "（別添）大雨警報・注意報の土壌雨量指数基準値"
    rows: list[list[object]] = [
        [title, "", "", "", "令和7年5月29日現在", ""],
        list(DOSHA_HEAD),
    ]
    for mesh in meshes:
        limits = [
            "－" if mm is None else mm for mm in (mesh.advisory_mm, mesh.warning_mm)
        ]
        rows.append(["北大阪", "高槻市", mesh.code, *limits, ""])
    return rows


def jma_line(
    meshes: Iterable[SyntheticMesh], level: int, share: float = 1.0
) -> list[list[object]]:
    """JMA's table of one level since May 2026, as a share of the critical line."""
    head = ["二次細分区域コ－ド", "市町村等", "格子番号"]
    rows: list[list[object]] = [
        [f"#件名:{JMA_TITLES[level]}", "更新日:令和8年5月28日"],
        [*head, *(f"60分雨量{mm}ミリの時の土壌雨量指数" for mm in RAINS)],
    ]
    for mesh in meshes:
        line = (
            [round(share * mm) for mm in mesh.line_mm] if mesh.line_mm else ["－"] * 151
        )
        rows.append([CITY, "高槻市", mesh.code, *line])
    return rows


FORMS: Final = {
    "dosyakei": dosyakei,
    "dosha": dosha,
    "2_2": lambda meshes: jma_line(meshes, 4),
}


def encode(
    rows: Sequence[Sequence[object]], encoding: str = "UTF-8", *, separator: str = ","
) -> bytes:
    """Bytes of a table with the line ends of Windows."""
    codec, bom = ENCODINGS[encoding]
    lines = [separator.join(map(str, row)) for row in rows]
    return bom + ("\r\n".join(lines) + "\r\n").encode(codec)
