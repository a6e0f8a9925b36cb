"""Heads on a map: one for each valley, so that a link carries a message once.

All gateways of a valley share its way out. Many copies at once would wait for it, and
an emergency with them: so few leave, each for a range of whole valleys, and inside its
own valley a gateway serves everybody it knows.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from gateway_daemon.overlay.delay import Cost
from gateway_daemon.overlay.partition import heads
from gateway_daemon.overlay.postal import postal_tree

LINK_MS = 2.4
"""What one copy keeps a valley's link busy: 300 bytes at 1 Mbit/s."""

WAYS_OUT = 4
"""Most copies that one gateway sends out of its valley. Alone on its link it would be
a little faster with more; in a disaster its neighbours want the same link."""


class Head(NamedTuple):
    """Who answers for a range that begins at or left of it.

    Attributes:
        at: Its index among the known nodes.
        first: Index of the first known node of its range.
    """

    at: int
    first: int


def by_valleys(
    own: str, valleys: Sequence[str], *, is_narrow: bool, tree: int = 0
) -> list[Head]:
    """Choose heads among known nodes.

    Args:
        own: The valley of who sends.
        valleys: Of each known node in key order; those of one valley lie together.
        is_narrow: Whether the way out is cut or busy: then one copy leaves, and who
            gets it does the rest.
        tree: 1 is a second tree; its heads are others, where a valley has two.

    Returns:
        In order; the range of each ends where the next one's begins.
    """
    near = [Head(i, i) for i, valley in enumerate(valleys) if valley == own]
    runs = [run for run in _runs(valleys) if valleys[run.start] != own]
    most = 1 if is_narrow else WAYS_OUT
    tree_of_valleys = postal_tree(len(runs), root=most, cost=Cost(child_ms=LINK_MS))
    chosen = [runs[place] for place in heads(tree_of_valleys.shares)]
    out = [
        Head(run.start + (len(run) // 2 if tree else 0), run.start) for run in chosen
    ]
    return sorted([*near, *out], key=lambda head: head.first)


def _runs(valleys: Sequence[str]) -> list[range]:
    """Stretches of one valley each."""
    starts = [i for i, v in enumerate(valleys) if i == 0 or v != valleys[i - 1]]
    return [range(*ends) for ends in pairwise([*starts, len(valleys)])]
