"""``python -m experiments.capacity``: requirements calculated for up to 700,000 nodes.

Reads the results of `capacity_gateway` and `capacity_backend` and prints a table in
Markdown. Every number is derived from a measured one and from the assumptions below:
processes at most 60 % busy in a storm over all nodes at once, one message per minute
each; ten storm days per year, and one message in ten minutes on all other days.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

RESULTS: Final = Path("docs/explanation/capacity")
SIZES: Final = (1_000, 20_000, 100_000, 700_000)
BUSY: Final = 0.6
STORM_DAYS: Final = 10
STORM_A_DAY, QUIET_A_DAY = 1440, 144
LOG_DAYS: Final = 7
COPIES: Final = 2
"""Copies of stored data, so that the loss of one machine loses no data."""

MICRO: Final = 1e6
GB: Final = 1e9


@dataclass(frozen=True)
class Measured:
    """Measured numbers. CPU and bytes are per message.

    Attributes:
        gateway_nodes: Nodes of the measured gateway.
        gateway_us: CPU of its daemon and its broker.
        gateway_mib: Memory of the daemon.
        broker_us: CPU of the distributed broker.
        ingest_us: CPU of the ingest process.
        alerts_us: CPU of the alert writer.
        batch_us: CPU of Spark for bronze, silver and messages, in a flood.
        gold_cores: Cores that scoring kept busy in the storm, besides the batches, with
            consecutive passes.
        nodes: Nodes of that storm.
        log_bytes: Bytes of the log.
        table_bytes: Bytes of the tables that grow with messages.
    """

    gateway_nodes: int
    gateway_us: float
    gateway_mib: float
    broker_us: float
    ingest_us: float
    alerts_us: float
    batch_us: float
    gold_cores: float
    nodes: int
    log_bytes: float
    table_bytes: float

    @classmethod
    def read(cls, folder: Path) -> "Measured":
        """Read both results."""
        gateway = json.loads((folder / "capacity_gateway.json").read_text())
        backend = json.loads((folder / "capacity_backend.json").read_text())
        hour = gateway["steps"][0]
        steps = {step["arm"]: step for step in backend["steps"]}
        flood = steps["flood, no gold"]
        cpu = flood["cpu_us"]
        storm = steps["storm"]
        per_s = storm["sent"] / storm["seconds"]
        # During a pass batches wait, and grow to the size of those in a flood.
        gold_cores = per_s * (storm["cpu_us"]["score"] - cpu["score"]) / MICRO
        stored = flood["stored_bytes"]
        tables = sum(stored[name] for name in ("bronze", "silver", "messages"))
        return cls(
            gateway["nodes"], hour["cpu_us"]["gateway"] + hour["cpu_us"]["broker"],
            hour["mib"]["gateway"], cpu["broker"], cpu["ingest"], cpu["alerts"],
            cpu["score"], gold_cores, backend["nodes"],
            stored["log"], tables,
        )  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """Requirements of a number of nodes; cores are those kept busy in the storm.

    Attributes:
        nodes: Number of nodes.
        storm_per_s: Messages/s when it rains on all of them.
    """

    nodes: int
    storm_per_s: float
    gateways: int
    gateway_core: float
    brokers: int
    ingesters: int
    alert_writers: int
    batch_cores: int
    gold_cores: int
    quiet_gb_a_day: float
    storm_gb_a_day: float
    year_tb: float

    @classmethod
    def of(cls, nodes: int, m: Measured) -> "Plan":
        """Derive the requirements from the measured numbers."""
        per_s = nodes / 60

        def processes(each_us: float) -> int:
            return math.ceil(per_s * each_us / MICRO / BUSY)

        each = COPIES * m.table_bytes * nodes / GB
        days = STORM_DAYS * STORM_A_DAY + (365 - STORM_DAYS) * QUIET_A_DAY
        log = COPIES * m.log_bytes * nodes * LOG_DAYS * STORM_A_DAY / GB
        gateways = math.ceil(nodes / m.gateway_nodes)
        return cls(
            nodes, per_s, gateways, m.gateway_nodes / 60 * m.gateway_us / MICRO,
            processes(m.broker_us), processes(m.ingest_us), processes(m.alerts_us),
            processes(m.batch_us), math.ceil(m.gold_cores * nodes / m.nodes / BUSY),
            each * QUIET_A_DAY, each * STORM_A_DAY, (each * days + log) / 1000,
        )  # fmt: skip

    @property
    def cores(self) -> int:
        """Cores of the backend and the distributed brokers together."""
        single = self.brokers + self.ingesters + self.alert_writers
        return single + self.batch_cores + self.gold_cores


Row = tuple[str, Callable[[Plan], str]]
ROWS: Final[tuple[Row, ...]] = (
    ("messages/s in a storm over all", lambda p: f"{p.storm_per_s:,.0f}"),
    ("gateways", lambda p: f"{p.gateways:,}"),
    ("of a core, each gateway and its broker", lambda p: f"{p.gateway_core:.1%}"),
    ("distributed brokers, a core each", lambda p: f"{p.brokers}"),
    ("ingest processes, a core each", lambda p: f"{p.ingesters}"),
    ("alert writers, a core each", lambda p: f"{p.alert_writers}"),
    ("Spark cores: bronze, silver", lambda p: f"{p.batch_cores}"),
    ("Spark cores: scoring", lambda p: f"{p.gold_cores}"),
    ("cores together, without gateways", lambda p: f"{p.cores}"),
    ("tables, GB a quiet day", lambda p: f"{p.quiet_gb_a_day:,.1f}"),
    ("tables, GB a storm day", lambda p: f"{p.storm_gb_a_day:,.1f}"),
    ("disk after a year, TB, with the log", lambda p: f"{p.year_tb:,.1f}"),
)


def page_table(plans: list[Plan], core_month: float, tb_month: float) -> list[str]:
    """Return the lines of a Markdown table.

    Args:
        plans: One for each column.
        core_month: Price of a core per month.
        tb_month: Price of a terabyte per month.
    """

    def cost(plan: Plan) -> float:
        return plan.cores * core_month + plan.year_tb * tb_month

    def cost_each(plan: Plan) -> str:
        return f"{cost(plan) / plan.nodes:.4f}"

    rows: list[Row] = [
        *ROWS,
        ("cost a month after a year", lambda p: f"{cost(p):,.0f}"),
        ("cost a month for each node", cost_each),
    ]
    heads = " | ".join(f"{plan.nodes:,} nodes" for plan in plans)
    lines = [f"| | {heads} |", "|---|" + "---|" * len(plans)]
    lines += [f"| {name} | {' | '.join(map(cell, plans))} |" for name, cell in rows]
    return lines


@click.command()
@click.option("--results", type=click.Path(path_type=Path), default=RESULTS)
@click.option("--core-month", default=30.0, help="Price of a core for a month.")
@click.option("--tb-month", default=25.0, help="Price of a terabyte for a month.")
def main(results: Path, core_month: float, tb_month: float) -> None:
    """Print the requirements of 1,000 to 700,000 nodes."""
    measured = Measured.read(results)
    plans = [Plan.of(nodes, measured) for nodes in SIZES]
    print(*page_table(plans, core_month, tb_month), sep="\n")


if __name__ == "__main__":
    main()
