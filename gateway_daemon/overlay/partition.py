"""Partition of key ranges: which node is responsible for which part of the subscribers.

Every subscriber receives exactly one copy and n subscribers cost exactly n messages. A
wrong estimate of the ranks costs balance, but never a subscriber.

`split_range` cuts a range at the known nodes (split-forward broadcasting). `POLICIES`
sets fan-out and number of trees by priority: entries beyond hop / child, 110 at the
thesis' costs, never help, so that is the fan-out of an emergency. A routine message
gets a narrow tree although a wide one is faster, because a wide one fills the
publisher's queue. A second tree with other heads loses a subscriber only if both its
heads are down.

`choose_valley_heads` chooses one head per valley. All gateways of a valley share its
uplink, and many copies at once would queue for it. So few copies leave, each for a
range of whole valleys; inside its own valley a gateway serves all nodes it knows.

`build_postal_tree` finds the fastest tree when a sender serves its children one after
the other (the postal model): child number j receives j * child_ms later than an only
child would, and every node that has the message keeps sending. The best tree always
makes the send that arrives first, so the first children get the largest subtrees. Costs
of a hop: 1 ms inside a node, 10 ms between nodes, 0.1 ms per child. The hundredth child
waits for ninety-nine others.

Source: Bar-Noy and Kipnis, "Designing broadcasting algorithms in the postal model",
SPAA 1992; the costs are from the thesis, 6.2. Banno, Fujino and Shudo, IEICE Trans.
E103-D(3) 516-525, 2020 (the idea, from its abstract): a node cuts the range at the keys
of all its neighbours and delegates every part to the neighbour at its left end.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from heapq import heappop, heappush
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from spatial_mqtt.priority import LADDER


@dataclass(frozen=True)
class HopCost:
    """Cost of forwarding, in milliseconds.

    Attributes:
        node_ms: Inside a node, once per message.
        link_ms: Between two nodes.
        child_ms: For each copy that a node sends.
    """

    node_ms: float = 1.0
    link_ms: float = 10.0
    child_ms: float = 0.1

    @property
    def hop_ms(self) -> float:
        """Cost of a hop without the copies."""
        return self.node_ms + self.link_ms

    def child_delay_ms(self, number: int) -> float:
        """Return the delay from a node to its n-th child, 1 the first (ours)."""
        return self.hop_ms + number * self.child_ms


DEFAULT_COST = HopCost()


UNLIMITED = 1 << 30


@dataclass(frozen=True)
class PostalTree:
    """A tree, given by the sizes of its first subtrees.

    Attributes:
        subtree_sizes: Nodes in the subtree of each child of the root, in order of
            sending; never increasing.
        mean_ms: Mean time until a node has the message.
        last_ms: Time until the last one has it.
    """

    subtree_sizes: tuple[int, ...]
    mean_ms: float
    last_ms: float


@lru_cache(maxsize=4096)
def build_postal_tree(
    nodes: int,
    root_fan_out: int = UNLIMITED,
    inner_fan_out: int = UNLIMITED,
    cost: HopCost = DEFAULT_COST,
) -> PostalTree:
    """Find the fastest tree.

    Args:
        nodes: Number of nodes to reach, without the root.
        root_fan_out: Maximum children of the root.
        inner_fan_out: Maximum children of any other node.
        cost: Cost of a hop.
    """
    shares: list[int] = []
    # When it arrives, which child of the root it descends from, number of the send.
    sends = [(cost.child_delay_ms(1), -1, 1)]
    total_ms = last_ms = 0.0
    for _ in range(nodes):
        last_ms, branch, number = heappop(sends)
        total_ms += last_ms
        if number < (root_fan_out if branch < 0 else inner_fan_out):
            heappush(sends, (last_ms + cost.child_ms, branch, number + 1))
        if branch < 0:
            branch = len(shares)
            shares.append(0)
        shares[branch] += 1
        if inner_fan_out:
            heappush(sends, (last_ms + cost.child_delay_ms(1), branch, 1))
    return PostalTree(tuple(shares), total_ms / max(nodes, 1), last_ms)


class Ordered(Protocol):
    """A key: any type with an order."""

    def __lt__(self, other: Any, /) -> bool: ...  # noqa: ANN401 - as bisect asks


K = TypeVar("K", bound=Ordered)


class RangePart(NamedTuple, Generic[K]):
    """A range and the node that is responsible for it.

    Attributes:
        to: The node.
        low: First key of the range.
        high: First key after it.
    """

    to: K
    low: K
    high: K


def split_range(low: K, high: K, right: Sequence[K]) -> list[RangePart[K]]:
    """Delegate a range that begins at or right of oneself.

    Args:
        low: First key of the range; nodes left of oneself in it are already served.
        high: First key after it.
        right: Known nodes right of oneself in key order; the first is the nearest of
            all, which a Skip Graph's level 0 always provides.

    Returns:
        Disjoint parts in key order that cover every node right of oneself in the
        range. Keys left of the first known node in it go to a relay: the last known
        node before the range.
    """
    first, last = bisect_left(right, low), bisect_left(right, high)
    parts: list[RangePart[K]] = []
    start = right[first] if first < last else high
    if first and low < start:
        parts.append(RangePart(right[first - 1], low, start))
    for at in range(first, last):
        end = right[at + 1] if at + 1 < last else high
        parts.append(RangePart(right[at], right[at], end))
    return parts


TABLE_ENTRIES = 46
"""Entries for successors and fingers: a table of 60 less the Skip Graph's links."""

MIN_BASE = 2


class SplitShape(Enum):
    """How a range is cut.

    Attributes:
        EQUAL: Equal parts at the root; fingers below it (V3).
        REGULAR: Equal parts everywhere (a k-ary tree).
        POSTAL: Parts that are sent earlier are larger (V6).
    """

    EQUAL = "equal"
    REGULAR = "regular"
    POSTAL = "postal"


@dataclass(frozen=True)
class SplitPlan:
    """Shape and fan-out of a multicast tree.

    Attributes:
        shape: How ranges are cut.
        root_fan_out: Maximum copies that the publisher sends.
        inner_fan_out: Maximum copies that a subscriber sends.
    """

    shape: SplitShape
    root_fan_out: int
    inner_fan_out: int = TABLE_ENTRIES


def subtree_sizes(others: int, plan: SplitPlan, is_root: bool) -> Sequence[int]:
    """Return the number of nodes that each child is responsible for, itself included.

    Args:
        others: Nodes in the range, oneself not counted.
        plan: How to cut.
        is_root: Whether one is the publisher.
    """
    fan_out = plan.root_fan_out if is_root else plan.inner_fan_out
    if others <= fan_out and plan.shape is not SplitShape.POSTAL:
        return [1] * others
    if plan.shape is SplitShape.POSTAL:
        return build_postal_tree(others, fan_out, plan.inner_fan_out).subtree_sizes
    if plan.shape is SplitShape.REGULAR or is_root:
        return _equal(others, fan_out)
    return _fingers(others, fan_out)


def _equal(others: int, parts: int) -> list[int]:
    each, more = divmod(others, parts)
    return [each + 1] * more + [each] * (parts - more)


def _fingers(others: int, fan_out: int) -> list[int]:
    """Parts between the ranks j * base**i: as few digits as fit the table."""
    digits = 2
    base = _root_up(others + 1, digits)
    while (base - 1) * digits > fan_out and base > MIN_BASE:
        digits += 1
        base = _root_up(others + 1, digits)
    ends = {j * base**i for i in range(digits) for j in range(1, base)}
    inside = sorted(end for end in ends if end <= others)
    return [end - start for start, end in pairwise([*inside, others + 1])]


def _root_up(number: int, degree: int) -> int:
    """Smallest base, at least 2, with base**degree at least the number."""
    base = max(MIN_BASE, int(number ** (1 / degree)) - 1)
    while base**degree < number:
        base += 1
    return base


def head_positions(sizes: Sequence[int]) -> list[int]:
    """Return the positions of the heads in a range with parts of these sizes."""
    return [0, *accumulate(sizes[:-1])] if sizes else []


def assign_range(low: K, high: K, heads: Sequence[K]) -> list[RangePart[K]]:
    """Assign a range to heads, each from its own key to the next head.

    Args:
        low: First key of the range.
        high: First key after it.
        heads: Heads in key order, all in the range.

    Returns:
        Disjoint parts that cover the range. The first head also covers the keys left
        of it: a node that joined there recently is its left neighbour.
    """
    starts = [low, *heads[1:]]
    ends = [*heads[1:], high]
    return (
        [RangePart(*each) for each in zip(heads, starts, ends, strict=True)]
        if heads
        else []
    )


def nearest_indices(wanted: Sequence[int], places: Sequence[int]) -> list[int]:
    """Choose for each wanted position the nearest known one.

    Args:
        wanted: Positions in order.
        places: Known positions in order.

    Returns:
        Distinct indices into ``places`` in order; fewer if two wanted ones share one.
    """
    found: dict[int, None] = {}
    for place in wanted:
        at = bisect_left(places, place)
        around = [i for i in (at - 1, at) if 0 <= i < len(places)]
        found[min(around, key=lambda i: abs(places[i] - place))] = None
    return sorted(found)


def second_tree_heads(sizes: Sequence[int]) -> list[int]:
    """Return the positions of a second tree's heads: the middle of the first's parts.

    A head of one tree is not a head of the other, so a subscriber is missed only if
    both of its heads are down.
    """
    places = [
        start + size // 2
        for start, size in zip(head_positions(sizes), sizes, strict=True)
    ]
    return [1, *places] if places and places[0] > 1 else places


MIN_FAN_OUT = 8


@dataclass(frozen=True)
class PriorityPolicy:
    """Handling of the messages of one priority.

    Attributes:
        plan: Shape and fan-out.
        trees: Number of trees, with different heads.
    """

    plan: SplitPlan
    trees: int = 1


POLICIES: Mapping[int, PriorityPolicy] = MappingProxyType({
    5: PriorityPolicy(SplitPlan(SplitShape.POSTAL, 110), trees=2),
    4: PriorityPolicy(SplitPlan(SplitShape.POSTAL, 46)),
    3: PriorityPolicy(SplitPlan(SplitShape.EQUAL, 32)),
    2: PriorityPolicy(SplitPlan(SplitShape.REGULAR, 16, 16)),
    1: PriorityPolicy(SplitPlan(SplitShape.REGULAR, 8, 8)),
})


def choose_plan(priority: int, queued_copies: int) -> SplitPlan:
    """Return the plan for a message at a node with copies in its queue.

    A wide fan-out occupies the node for longer and delays the queued copies, so it
    shrinks with the queue. An emergency keeps its own: it is always served first.
    """
    plan = POLICIES[priority].plan
    if priority == LADDER.top:
        return plan
    return replace(
        plan,
        root_fan_out=min(
            plan.root_fan_out,
            max(MIN_FAN_OUT, plan.root_fan_out // (1 + queued_copies)),
        ),
    )


VALLEY_LINK_MS = 2.4
"""Time that one copy occupies a valley's link: 300 bytes at 1 Mbit/s."""

MAX_UPLINK_COPIES = 4
"""Maximum copies that one gateway sends out of its valley. Alone on its link it would
be a little faster with more; in a disaster its neighbours need the same link."""


class RangeHead(NamedTuple):
    """A node that is responsible for a range which begins at it or left of it.

    Attributes:
        head_index: Its index among the known nodes.
        first_index: Index of the first known node of its range.
    """

    head_index: int
    first_index: int


def choose_valley_heads(
    own: str, valleys: Sequence[str], *, is_uplink_narrow: bool, tree: int = 0
) -> list[RangeHead]:
    """Choose heads among known nodes.

    Args:
        own: The sender's valley.
        valleys: Of each known node in key order; nodes of one valley are adjacent.
        is_uplink_narrow: Whether the uplink is cut or busy: then one copy leaves, and
            its receiver does the rest.
        tree: 1 is the second tree; it has other heads, if a valley has two nodes.

    Returns:
        In order; the range of each ends where the next one's begins.
    """
    near = [RangeHead(i, i) for i, valley in enumerate(valleys) if valley == own]
    runs = [run for run in _runs(valleys) if valleys[run.start] != own]
    most = 1 if is_uplink_narrow else MAX_UPLINK_COPIES
    tree_of_valleys = build_postal_tree(
        len(runs), root_fan_out=most, cost=HopCost(child_ms=VALLEY_LINK_MS)
    )
    chosen = [runs[place] for place in head_positions(tree_of_valleys.subtree_sizes)]
    out = [
        RangeHead(run.start + (len(run) // 2 if tree else 0), run.start)
        for run in chosen
    ]
    return sorted([*near, *out], key=lambda head: head.first_index)


def _runs(valleys: Sequence[str]) -> list[range]:
    """Return the runs of nodes of one valley each."""
    starts = [i for i, v in enumerate(valleys) if i == 0 or v != valleys[i - 1]]
    return [range(*ends) for ends in pairwise([*starts, len(valleys)])]
