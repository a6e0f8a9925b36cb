"""``python -m experiments.bench.queue_child ARM FOLDER``: one queue in its own process.

Opens the arm and executes the commands on its input: ``fill N`` puts a backlog,
``run CYCLES BATCH`` puts, takes and acknowledges this number of batches. Each answer
is one line of JSON.
"""

import json
import sys
import time
from pathlib import Path

# A node has no pandas; if it is installed here, sqlite-utils would import it.
sys.modules["pandas"] = None  # type: ignore[assignment]

from experiments.bench.queue_arms import ARMS, Arm  # noqa: E402

FILL_BATCH = 1000


def written_bytes() -> int:
    """Return the bytes that this process has written to disk so far."""
    for line in Path("/proc/self/io").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(": ")
        if name == "write_bytes":
            return int(value)
    raise LookupError("no write_bytes in /proc/self/io")


def rss_bytes() -> int:
    """Return the resident memory of this process."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise LookupError("no VmRSS in /proc/self/status")


def make_bodies(count: int, size_bytes: int = 200) -> list[bytes]:
    """Return distinct payloads."""
    return [f"{n:0{size_bytes}d}".encode("ascii") for n in range(count)]


def fill(arm: Arm, count: int) -> dict[str, float]:
    """Put a backlog."""
    arm.set_bulk_mode(is_on=True)
    for start in range(0, count, FILL_BATCH):
        arm.put(make_bodies(min(FILL_BATCH, count - start)))
    arm.set_bulk_mode(is_on=False)
    return {"rss_bytes": rss_bytes()}


def run(arm: Arm, cycles: int, batch: int) -> dict[str, float]:
    """Put, take and acknowledge batches."""
    bodies = make_bodies(batch)
    before_bytes = written_bytes()
    start_s = time.perf_counter()
    for _ in range(cycles):
        arm.put(bodies)
        arm.ack(arm.take(batch))
    took_s = time.perf_counter() - start_s
    return {
        "per_s": cycles * batch / took_s,
        "bytes_each": (written_bytes() - before_bytes) / (cycles * batch),
        "rss_bytes": rss_bytes(),
    }


def main(name: str, folder: Path) -> None:
    """Execute commands until the input ends."""
    start_s = time.perf_counter()
    arm = ARMS[name].open(folder)
    first = len(arm.take(1)) if (folder / "filled").exists() else 0
    opened = {"open_s": time.perf_counter() - start_s, "first": first}
    print(json.dumps({**opened, "rss_bytes": rss_bytes()}), flush=True)
    for line in sys.stdin:
        action, *numbers = line.split()
        counts = [int(number) for number in numbers]
        result = fill(arm, *counts) if action == "fill" else run(arm, *counts)
        print(json.dumps(result), flush=True)
    arm.close()
    (folder / "filled").touch()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
