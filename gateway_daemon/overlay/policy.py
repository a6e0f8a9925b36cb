"""What a priority buys: fan-out, a second tree, and a place in every queue.

Entries beyond hop / child, 110 at the thesis' costs, never help, so that is the
fan-out of an emergency. A routine message gets a narrow tree although a wide one is
faster, because a wide one fills the publisher's queue. A second tree with other heads
loses a subscriber only if both its heads are dead.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from gateway_daemon.overlay.partition import Plan, Shape
from spatial_mqtt.priority import LADDER

NARROWEST = 8


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


def plan_for(priority: int, waiting: int) -> Plan:
    """How a message is to spread from a node in whose queue others wait.

    A wide fan-out keeps the node busy for longer, and those who wait pay for it, so it
    shrinks with the queue. An emergency keeps its own: nobody goes before it.
    """
    plan = POLICIES[priority].plan
    if priority == LADDER.top:
        return plan
    return replace(
        plan, root=min(plan.root, max(NARROWEST, plan.root // (1 + waiting)))
    )
