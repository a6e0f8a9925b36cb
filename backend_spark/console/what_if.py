"""What if it rains: the levels of all cells under rain that somebody assumes."""

from typing import Any, Final

from backend_spark.console import grid, snake
from backend_spark.console.board import Board
from backend_spark.console.thresholds import Thresholds

MOST_HOURS: Final = 6
MOST_MM_PER_H: Final = 200.0


def levels_if(
    board: Board, thresholds: Thresholds, mm_per_h: float, hours: int
) -> dict[str, Any]:
    """Highest level of each cell by rain, in the order of the cells.

    Even rain from the present on. A cell without soil water now stays missing: it
    starts nowhere. Signs of motion are not judged; the present level, which has
    them, is the least that is shown.

    Args:
        board: The present.
        thresholds: Of the cells.
        mm_per_h: Rain.
        hours: How long.
    """
    with board.lock:
        cells = list(zip(board.grid.tokens, board.grid.latest, strict=True))
        shown = board.grid.shown(board.present_step_s()).tolist()
    depths = [mm_per_h / snake.HOUR_STEPS] * (hours * snake.HOUR_STEPS)
    criteria_of = thresholds.newest()
    levels = []
    for (token, latest), now in zip(cells, shown, strict=True):
        if now == grid.MISSING or latest.tanks is None:
            levels.append(grid.MISSING)
            continue
        start = (latest.tanks, latest.r60_mm or 0.0)
        then = snake.future("given", start, depths, criteria_of(token))
        levels.append(max(then.level, now if now != grid.NO_JUDGEMENT else 0))
    return {"levels": levels, "mm_per_h": mm_per_h, "hours": hours}
