"""JMA's cells: third meshes (JIS X 0410) of 30" x 45", about 1 km."""

import math
import re
from typing import Final

from spatial_mqtt.cells import ANALYSIS_LEVEL, Cell
from spatial_mqtt.errors import FieldError

_CODE: Final = re.compile(r"[3-6][0-9][2-5][0-9][0-7][0-7][0-9][0-9]")
_LAT_DEG: Final = 30 / 3600
_LON_DEG: Final = 45 / 3600


def check_mesh(code: str) -> None:
    """Let the code of a third mesh in Japan through.

    Raises:
        FieldError: It is none.
    """
    if not _CODE.fullmatch(code):
        rule = "8 digits of a third mesh in Japan such as 50330471"
        raise FieldError("mesh", rule, code, "a spreadsheet may have cut zeros")


def mesh_center(code: str) -> tuple[float, float]:
    """Latitude and longitude of the centre of a third mesh, in degrees."""
    check_mesh(code)
    d = [int(digit) for digit in code]
    rows = ((d[0] * 10 + d[1]) * 8 + d[4]) * 10 + d[6]
    columns = ((d[2] * 10 + d[3]) * 8 + d[5]) * 10 + d[7]
    return (rows + 0.5) * _LAT_DEG, 100 + (columns + 0.5) * _LON_DEG


def mesh_at(latitude_deg: float, longitude_deg: float) -> str:
    """Code of the third mesh that holds a position in Japan."""
    row = math.floor(latitude_deg / _LAT_DEG + 1e-9)
    column = math.floor((longitude_deg - 100) / _LON_DEG + 1e-9)
    first, second, third = row // 80, row // 10 % 8, row % 10
    code = (
        f"{first:02d}{column // 80:02d}{second}{column // 10 % 8}{third}{column % 10}"
    )
    check_mesh(code)
    return code


def cell_of_mesh(code: str) -> str:
    """Token of the analysis cell that holds the centre of a mesh."""
    return Cell.at(*mesh_center(code), ANALYSIS_LEVEL).token
