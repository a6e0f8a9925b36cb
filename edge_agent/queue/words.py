"""What a queue holds, in words for a status line."""

from edge_agent.queue.base import Stats


def depth_words(stats: Stats, oldest_s: float | None) -> str:
    """Such as ``14 queued (5:1 3:13), oldest 35 s``, with what was dropped, if any.

    Args:
        stats: Of the queue.
        oldest_s: Age of its oldest message; None when there is none.
    """
    depth = {p: d.rows for p, d in sorted(stats.depth.items(), reverse=True) if d.rows}
    words = [f"{sum(depth.values())} queued"]
    if depth:
        words[0] += f" ({' '.join(f'{p}:{rows}' for p, rows in depth.items())})"
        words += [] if oldest_s is None else [f"oldest {oldest_s:.0f} s"]
    dropped = sum(stats.dropped.values())
    if dropped:
        words.append(f"{dropped} ever dropped")
    return ", ".join(words)
