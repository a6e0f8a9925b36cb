"""What a priority buys: fan-out, a second tree, and a place in every queue.

Entries beyond hop / child, 110 at the thesis' costs, never help, so that is the
fan-out of an emergency. A routine message gets a narrow tree although a wide one is
faster, because a wide one fills the publisher's queue. A second tree with other heads
loses a subscriber only if both its heads are dead.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from gateway_daemon.overlay.partition import Plan, Shape


@dataclass(frozen=True)
class Policy:
    """How messages of one priority travel.

    Attributes:
        plan: How they spread.
        trees: In how many trees, with different heads.
    """

    plan: Plan
    trees: int = 1


POLICIES: Mapping[int, Policy] = MappingProxyType({
    5: Policy(Plan(Shape.POSTAL, 110), trees=2),
    4: Policy(Plan(Shape.POSTAL, 46)),
    3: Policy(Plan(Shape.EQUAL, 32)),
    2: Policy(Plan(Shape.REGULAR, 16, 16)),
    1: Policy(Plan(Shape.REGULAR, 8, 8)),
})
