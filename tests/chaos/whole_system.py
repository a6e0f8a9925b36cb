"""The whole system, prepared for fault injection.

Two nodes (one finds its gateway by the Managers, one has its own link), two
gateways, two Managers, an ingest and Spark, and a broker for each of them.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from chaos.schedule import Fault
from conftest import Broker
from soak.relay import Relay
from soak.rig import AGENT, DISTRIBUTED, FED, GATEWAY, GAUGE, INGEST, LOCAL, Rig

from backend_spark.tables.reader import open_tables
from edge_agent.queue.file_lifecycle import read_counters

MANAGER, MANAGER_2, SCORE = "manager", "second manager", "score"
GATEWAY_2, LOCAL_2 = "second gateway", "second local broker"
DIRECTORY, DIRECTORY_2 = "manager's broker", "second manager's broker"
LINK, SITE, MANAGER_LINK = "link", "gateway's site", "manager's link"
PEERS = "link of the managers"

PATH = {
    AGENT: frozenset({AGENT, DISTRIBUTED, INGEST}),
    FED: frozenset({FED, LINK, LOCAL, GATEWAY, DISTRIBUTED, INGEST}),
}
"""Parts that a node's messages need. The Managers are on no path."""

ALTERNATIVES = {AGENT: frozenset({SITE, LOCAL, GATEWAY, LOCAL_2, GATEWAY_2})}
"""The agent needs one of two gateways."""

PROGRAM = (Fault.KILL, Fault.STOP)
FAULTS = {
    AGENT: PROGRAM,
    FED: (*PROGRAM, Fault.JUMP),
    GATEWAY: (*PROGRAM, Fault.JUMP),
    GATEWAY_2: PROGRAM,
    INGEST: (*PROGRAM, Fault.JUMP),
    MANAGER: PROGRAM,
    MANAGER_2: PROGRAM,
    LOCAL: PROGRAM,
    LOCAL_2: PROGRAM,
    DISTRIBUTED: PROGRAM,
    DIRECTORY: PROGRAM,
    LINK: (Fault.CUT, Fault.SLOW),
    SITE: (Fault.LONG, Fault.SLOW),
    MANAGER_LINK: (Fault.CUT,),
    PEERS: (Fault.CUT,),
}

SCORE_STARTS = 4
"""Starts of the Spark job until one reads the log to its end."""

MANAGER_TOML = """
[manager]
id = "{id}"
broker = "{own}"
peers = ["{peer}"]
data = "{data}"
[[broker]]
topic = "/"
url = "{distributed}"
"""
GATEWAY_TOML = """
[gateway]
id = "gw-2"
broker = "{local}"
managers = {managers}
areas = ["/1/2"]
data = "{data}"
"""
SPARK = """
[score]
master = "local[2]"
"""


@dataclass
class WholeSystem(Rig):
    """A rig with two Managers, a second gateway, and Spark.

    Attributes:
        local_2: The second gateway's own broker.
        directory, directory_2: The Managers' brokers.
        disks: Small disks, by the program that stores its files there.
        has_spark: Whether Spark runs all the time and is subject to faults.
        returned: Programs that exited by themselves and were restarted.
    """

    local_2: Broker = field(kw_only=True)
    directory: Broker = field(kw_only=True)
    directory_2: Broker = field(kw_only=True)
    disks: Mapping[str, Path] = field(default_factory=dict)
    has_spark: bool = False
    returned: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Write the settings that do not depend on the storm."""
        super().__post_init__()
        self.links = {
            LINK: Relay(self.local.port),
            SITE: Relay(self.local.port),
            MANAGER_LINK: Relay(self.directory.port),
        }
        self.peers = [Relay(b.port) for b in (self.directory, self.directory_2)]
        self.gateway_url = _url(self.links[LINK])
        self.can_pause_all = False  # the fed node has a real rain gauge
        for name in (FED, GATEWAY, INGEST):
            self.shifts[name] = self.folder / f"{name}.shift"
            self.shifts[name].write_text("0")
        self._managers = [_url(self.links[MANAGER_LINK]), self.directory_2.url]
        self._write_gateways()
        self._write_managers()
        self._config(SCORE).write_text(self._config(INGEST).read_text() + SPARK)

    def write_nodes(self, lasts_s: float) -> None:
        """Write the settings of both nodes.

        The agent is in a storm and uses the Managers; the other is fed over the link.
        """
        self.write_storm(lasts_s)
        agent = self._config(AGENT)
        by_hand = f'gateway = "{self.gateway_url}"'
        by_managers = f"managers = {self._managers}"
        agent.write_text(agent.read_text().replace(by_hand, by_managers))
        queue = self.disks[FED] / "q.db" if FED in self.disks else None
        self.write_node(FED, GAUGE.format(interval_s=1), queue)

    @property
    def faults(self) -> dict[str, tuple[Fault, ...]]:
        """Possible faults by part."""
        found = FAULTS | {
            name: (*FAULTS[name], Fault.FULL) for name in self.disks if name in FAULTS
        }
        spark = {SCORE: (*PROGRAM, Fault.WORKER)} if self.has_spark else {}
        return found | spark

    @property
    def brokers(self) -> dict[str, Broker]:
        """Brokers by name."""
        return super().brokers | {
            LOCAL_2: self.local_2,
            DIRECTORY: self.directory,
            DIRECTORY_2: self.directory_2,
        }

    def relays(self, part: str) -> list[Relay]:
        """Relays of a link."""
        return self.peers if part == PEERS else [self.links[part]]

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send SIGSTOP or SIGCONT to a program or a broker."""
        if name in self.brokers:
            self.brokers[name].signal(number)
        else:
            self.processes.signal(name, number)

    def start(self, name: str) -> None:
        """Start or restart a program or a broker."""
        command = {
            MANAGER: ("gateway_daemon", "manager"),
            MANAGER_2: ("gateway_daemon", "manager"),
            GATEWAY_2: ("gateway_daemon", "run"),
            SCORE: ("backend_spark", "score"),
        }.get(name)
        if command:
            config = str(self._config(name))
            self.processes.python(name, *command, "--config", config)
        else:
            super().start(name)

    def bring_back(self) -> None:
        """Restart programs that exited by themselves, as systemd would."""
        for name in self.processes.dead():
            self.returned.append(name)
            self.start(name)

    def count_in_gateways(self) -> int:
        """Messages in the gateways' queues to the distributed broker."""
        time.sleep(0.1)  # callers poll in a loop
        lanes = (self.lane, self.folder / GATEWAY_2 / "lanes" / self.lane.name)
        tallies = [read_counters(lane) for lane in lanes if lane.exists()]
        return sum(row["rows"] for tally in tallies for row in tally.values())

    def score(self) -> list[str]:
        """Ids in the table of messages, after Spark has read the whole log.

        The job may exit, as when Spark waits too long for a Python worker to start;
        systemd would start it again.
        """
        config = str(self._config(SCORE))
        command = ("-m", "backend_spark", "score", "--once", "--config", config)
        with (self.folder / f"{SCORE}.log").open("ab") as log:
            statuses = (
                subprocess.run(
                    [sys.executable, *command], stdout=log, stderr=log, check=False
                ).returncode
                for _ in range(SCORE_STARTS)
            )
            assert 0 in statuses, f"score --once failed {SCORE_STARTS} times"
        rows = open_tables(self.folder / "backend").messages().to_pylist()
        return [f"{row['node']}:{row['boot']}:{row['seq']}" for row in rows]

    def close(self) -> None:
        """Stop everything."""
        self.stop()
        for link in (*self.links.values(), *self.peers):
            link.close()

    def _write_gateways(self) -> None:
        gateway = self._config(GATEWAY)
        public = f'public = "{_url(self.links[SITE])}"'
        more = f'managers = {self._managers}\n{public}\nareas = ["/1/2/2"]'
        gateway.write_text(gateway.read_text().replace("managers = []", more))
        self._config(GATEWAY_2).write_text(
            GATEWAY_TOML.format(
                local=self.local_2.url,
                managers=self._managers,
                data=self.folder / GATEWAY_2,
            )
        )

    def _write_managers(self) -> None:
        first, second = self.peers
        for name, id_, own, peer in (
            (MANAGER, "m-1", self.directory, second),
            (MANAGER_2, "m-2", self.directory_2, first),
        ):
            self._config(name).write_text(
                MANAGER_TOML.format(
                    id=id_,
                    own=own.url,
                    peer=_url(peer),
                    data=self.folder / name,
                    distributed=self.distributed.url,
                )
            )


def _url(link: Relay) -> str:
    return f"mqtt://127.0.0.1:{link.port}"
