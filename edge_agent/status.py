"""What a node does, in the one line that ``systemctl status`` shows."""

from collections.abc import Mapping

from edge_agent.queue.base import Stats
from edge_agent.queue.words import depth_words
from edge_agent.uplink.words import Served, link_words


def status_line(
    uplink: Served,
    now_s: float,
    queue: tuple[Stats, float | None],
    problems: Mapping[str, str],
    sensors: int,
) -> str:
    """Link, queue and sensors, such as a person asks for them.

    Args:
        uplink: The node's uplink.
        now_s: Monotonic time, on the uplink's clock.
        queue: What it holds, and the age of its oldest message.
        problems: What is wrong, by the names of the sensors.
        sensors: How many the node has.
    """
    words = [link_words(uplink, now_s), depth_words(*queue)]
    if problems:
        words.append(
            f"{len(problems)} of {sensors} sensors fail: {', '.join(problems)}"
        )
    else:
        words.append(f"{sensors} sensors, none is known to fail")
    return "; ".join(words)
