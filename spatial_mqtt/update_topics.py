"""Topics of updates, both ways.

/update/<area>                        which version nodes should run, retained
/piece/want/<name>                    "I want these bytes of a file"
/piece/for/<name>                     the bytes
"""

from typing import Final

from spatial_mqtt.errors import TopicError
from spatial_mqtt.topics import areas_around, check_area, check_node_id

ROLLOUTS: Final = "/update/#"
WANTS: Final = "/piece/want/+"
PIECES: Final = "/piece/for/+"


def rollout_topic(area: str) -> str:
    """Where a rollout for an area is retained.

    Raises:
        TopicError: It is no area.
    """
    return f"/update{check_area(area)}"


def rollout_filters(topic: str) -> tuple[str, ...]:
    """Where a node at a topic listens: its own place and every area around it."""
    return tuple(rollout_topic(area) for area in areas_around(topic))


def want_topic(name: str) -> str:
    """Where somebody asks for pieces of a file.

    Raises:
        TopicError: The name cannot be a topic level.
    """
    return WANTS.replace("+", check_node_id(name))


def piece_topic(name: str) -> str:
    """Where somebody gets them.

    Raises:
        TopicError: The name cannot be a topic level.
    """
    return PIECES.replace("+", check_node_id(name))


def wanted_by(topic: str) -> str:
    """Who asks on a topic of `WANTS`.

    Raises:
        TopicError: It is none.
    """
    head = WANTS.removesuffix("+")
    if not topic.startswith(head):
        raise TopicError("topic", f"under {head}", topic)
    return check_node_id(topic.removeprefix(head))
