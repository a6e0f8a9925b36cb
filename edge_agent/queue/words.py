"""What a queue holds, in words for a status line."""

from edge_agent.queue.base import Stats


def waiting_words(stats: Stats) -> str:
    """Messages by priority, the most urgent first, such as ``5:1 3:13``."""
    depths = sorted(stats.depth.items(), reverse=True)
    return " ".join(f"{p}:{depth.rows}" for p, depth in depths if depth.rows)


def depth_words(stats: Stats, oldest_s: float | None) -> str:
    """Such as ``14 queued (5:1 3:13), oldest 35 s``, with what was dropped, if any.

    Args:
        stats: Of the queue.
        oldest_s: Age of its oldest message; None when there is none.
    """
    waiting = waiting_words(stats)
    words = [f"{sum(depth.rows for depth in stats.depth.values())} queued"]
    if waiting:
        words[0] += f" ({waiting})"
        words += [] if oldest_s is None else [f"oldest {oldest_s:.0f} s"]
    dropped = sum(stats.dropped.values())
    if dropped:
        words.append(f"{dropped} ever dropped")
    return ", ".join(words)
