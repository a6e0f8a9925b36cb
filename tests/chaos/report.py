"""Formats the result of a chaos run as a table. No I/O."""

from collections import Counter
from collections.abc import Mapping, Sequence

from chaos.oracle import Judgement
from chaos.schedule import PlannedFault

from demo.witness import percentile

MAX_LISTED = 10


def table(
    seed: int,
    events: Sequence[PlannedFault],
    found: Judgement,
    more: Mapping[str, object],
) -> str:
    """Format the result.

    Args:
        seed: Seed that repeats the run.
        events: Faults that were injected.
        found: Result of the oracle.
        more: Further values by name.
    """
    done = Counter((event.part, str(event.fault)) for event in events)
    lines = ["", "  part               fault        times"]
    lines += [f"  {part:<19}{fault:<13}{n:>5}" for (part, fault), n in done.items()]
    lines += ["", "  priority      put     lost"]
    lines += [
        f"  {priority:<8}{found.sent[priority]:>9}{found.lost[priority]:>9}"
        for priority in sorted(found.sent, reverse=True)
    ]
    waits_s = list(found.waits_s.values())
    p50, p99 = percentile(waits_s, 0.50), percentile(waits_s, 0.99)
    if p50 is not None and p99 is not None:
        lines.append(
            f"\n  urgent, from put or from the last repair: half within {p50:.2f} s, "
            f"99 of 100 within {p99:.2f} s, the slowest {max(waits_s):.2f} s"
        )
    lines.append(
        f"  order judged for {found.judged} urgent messages, "
        f"{len(found.overtaken)} overtaken; on single steps for {found.judged_at}, "
        f"{len(found.overtaken_at)} overtaken; {len(found.twice)} twice, "
        f"{len(found.unscored)} not scored"
    )
    lines += [f"  {name}: {value}" for name, value in more.items()]
    lines += [f"  BROKEN: {words}" for words in found.broken]
    stories = [*found.overtaken.values(), *found.overtaken_at.values()]
    lines += [f"    {story}" for story in stories[:MAX_LISTED]]
    lines.append(f"  CHAOS_SEED={seed} repeats the faults")
    return "\n".join(lines) + "\n"
