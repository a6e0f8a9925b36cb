"""Independent comparison of the messages put on the queues with those that arrived.

Uses no program's own counters: ids put come from ledgers beside the queues, archived
ids from the segments on disk, scored ids from the gold table.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from backend_spark.ingest.segment_log import read_segments
from spatial_mqtt.senml import decode_pack

Put = dict[str, int]
"""Message id to priority."""


@dataclass(frozen=True)
class Arrival:
    """One archived message.

    Attributes:
        priority: Priority, 1 to 5.
        node: Id of the sending node.
        latency_s: Real seconds from the sampling instant to the archive's disk.
    """

    priority: int
    node: str
    latency_s: float


@dataclass
class Verdict:
    """Result of the comparison.

    Attributes:
        sent: Ids put on a queue.
        arrivals: First arrival by id.
        lost: Ids that never reached the archive.
        unscored: Archived ids that never reached gold.
        duplicates: Extra rows, in archive and gold together.
    """

    sent: Put
    arrivals: dict[str, Arrival] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    unscored: set[str] = field(default_factory=set)
    duplicates: int = 0

    @property
    def is_clean(self) -> bool:
        """Whether no message was lost, left unscored or duplicated."""
        return bool(self.sent) and not (self.lost or self.unscored or self.duplicates)


def read_ledgers(paths: Iterable[Path]) -> Put:
    """Read ids and priorities of all messages put on the queues."""
    put: Put = {}
    for path in paths:
        lines = path.read_text(encoding="ascii").splitlines() if path.exists() else []
        # Skips a line that a kill cut short.
        put.update((i, int(p)) for i, _, p in (x.partition(" ") for x in lines) if p)
    return put


def judge(
    put: Put, log_folder: Path, scored: Iterable[str], to_real_s: "ToReal"
) -> Verdict:
    """Compare ledgers, archive and gold."""
    archived: Counter[str] = Counter()
    arrivals: dict[str, Arrival] = {}
    for path, table in read_segments(log_folder):
        # A segment's inode changes last when it is published, after its fsync.
        on_disk_s = path.stat().st_ctime
        for payload in table.column("payload").to_pylist():
            pack = decode_pack(payload)
            archived[str(pack.id)] += 1
            latency_s = on_disk_s - to_real_s(pack.time_s)
            arrivals.setdefault(
                str(pack.id), Arrival(pack.priority, pack.id.node, latency_s)
            )
    gold = Counter(scored)
    sent = {i: a.priority for i, a in arrivals.items()} | put
    return Verdict(
        sent=sent,
        arrivals=arrivals,
        lost=sent.keys() - archived.keys(),
        unscored=archived.keys() - gold.keys(),
        duplicates=sum(n - 1 for n in archived.values())
        + sum(n - 1 for n in gold.values()),
    )


@dataclass(frozen=True)
class ToReal:
    """Converts simulated to real Unix time.

    Attributes:
        start_s: Simulated time of the beginning of the storm.
        epoch_s: Real time of the beginning.
        speedup: Simulated seconds per real second.
    """

    start_s: float
    epoch_s: float
    speedup: float

    def __call__(self, simulated_s: float) -> float:
        """Return the real time of a simulated one."""
        return self.epoch_s + (simulated_s - self.start_s) / self.speedup


def percentile(values: list[float], share: float) -> float | None:
    """Return the nearest-rank percentile; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
