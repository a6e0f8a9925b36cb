"""The whole system with everything that may happen to it.

Two nodes (one finds its gateway by the Manager, one has a link that breaks and a disk
of its own), a gateway, a Manager, an ingest and Spark, and three brokers.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from chaos.oracle import Away
from chaos.schedule import Act, Fault
from conftest import Broker
from soak.disk import fill
from soak.relay import Relay
from soak.rig import AGENT, DISTRIBUTED, FED, GATEWAY, GAUGE, INGEST, LOCAL, Rig

from backend_spark.tables import open_tables

MANAGER, SCORE = "manager", "score"
DIRECTORY = "manager's broker"
LINK, MANAGER_LINK = "link", "manager's link"

ON_PATH = frozenset({LOCAL, GATEWAY, DISTRIBUTED, INGEST})
PATH = {
    AGENT: ON_PATH | {AGENT},
    FED: ON_PATH | {FED, LINK},
}
"""What a node's messages need. The Manager is on nobody's path."""

PROGRAM = (Fault.KILL, Fault.STOP)
FAULTS = {
    AGENT: PROGRAM,
    FED: (*PROGRAM, Fault.JUMP),
    GATEWAY: (*PROGRAM, Fault.JUMP),
    INGEST: (*PROGRAM, Fault.JUMP),
    MANAGER: PROGRAM,
    LOCAL: (Fault.KILL,),
    DISTRIBUTED: (Fault.KILL,),
    DIRECTORY: (Fault.KILL,),
    LINK: (Fault.CUT,),
    MANAGER_LINK: (Fault.CUT,),
}

MANAGER_TOML = """
[manager]
broker = "{directory}"
data = "{folder}/manager"
[[broker]]
topic = "/"
url = "{distributed}"
"""
SPARK = """
[score]
master = "local[2]"
"""


@dataclass
class House(Rig):
    """A rig with a Manager, Spark, and faults that begin and end.

    Attributes:
        directory: The Manager's broker.
        disk: The fed node's own disk; None if none could be mounted.
        has_spark: Whether Spark scores all the time, and suffers, too.
        away: What did nothing when.
        returned: Programs that ended by themselves and were started again.
    """

    directory: Broker | None = None
    disk: Path | None = None
    has_spark: bool = False
    away: list[Away] = field(default_factory=list)
    returned: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Write the settings that no storm changes."""
        super().__post_init__()
        assert self.directory is not None
        self.links = {
            LINK: Relay(self.local.port),
            MANAGER_LINK: Relay(self.directory.port),
        }
        self.gateway_url = self._through(LINK)
        self.can_rest = False  # the fed node's gauge is a real one that goes on
        for name in (FED, GATEWAY, INGEST):
            self.shifts[name] = self.folder / f"{name}.shift"
            self.shifts[name].write_text("0")
        gateway = self._config(GATEWAY)
        manager = f'managers = ["{self._through(MANAGER_LINK)}"]\nareas = ["/1/2/2"]'
        gateway.write_text(gateway.read_text().replace("managers = []", manager))
        self._config(SCORE).write_text(self._config(INGEST).read_text() + SPARK)
        self._config(MANAGER).write_text(
            MANAGER_TOML.format(
                directory=self.directory.url,
                distributed=self.distributed.url,
                folder=self.folder,
            )
        )
        self._away: dict[str, float] = {}
        self._filler: Path | None = None

    def write_nodes(self, lasts_s: float) -> None:
        """One in a storm that asks the Manager, one that is fed over the link."""
        self.write_storm(lasts_s)
        agent = self._config(AGENT)
        by_hand = f'gateway = "{self.gateway_url}"'
        by_manager = f'managers = ["{self._through(MANAGER_LINK)}"]'
        agent.write_text(agent.read_text().replace(by_hand, by_manager))
        queue = self.disk / "q.db" if self.disk else None
        self.write_node(FED, GAUGE.format(interval_s=1), queue)

    @property
    def faults(self) -> dict[str, tuple[Fault, ...]]:
        """What may happen here."""
        full = (Fault.FULL,) if self.disk else ()
        spark = {SCORE: PROGRAM} if self.has_spark else {}
        return FAULTS | {FED: FAULTS[FED] + full} | spark

    @property
    def brokers(self) -> dict[str, Broker]:
        """Brokers by name."""
        assert self.directory is not None
        return super().brokers | {DIRECTORY: self.directory}

    def start(self, name: str) -> None:
        """Start a program or a broker, or start it again."""
        command = {
            MANAGER: ("gateway_daemon", "manager"),
            SCORE: ("backend_spark", "score"),
        }.get(name)
        if command:
            config = str(self._config(name))
            self.processes.python(name, *command, "--config", config)
        else:
            super().start(name)

    def begin(self, act: Act) -> None:
        """Let a fault happen."""
        self._away[act.part] = time.monotonic()
        match act.fault:
            case Fault.KILL:
                self.kill(act.part)
            case Fault.STOP:
                self.processes.signal(act.part, signal.SIGSTOP)
            case Fault.CUT:
                self.links[act.part].cut()
            case Fault.FULL:
                assert self.disk is not None
                self._filler = fill(self.disk)
            case Fault.JUMP:
                self.shifts[act.part].write_text(str(act.jump_s))

    def end(self, act: Act) -> None:
        """Undo it, and note how long it lasted if it kept the part from working."""
        match act.fault:
            case Fault.KILL:
                self.start(act.part)
            case Fault.STOP:
                self.processes.signal(act.part, signal.SIGCONT)
            case Fault.CUT:
                self.links[act.part].mend()
            case Fault.FULL:
                assert self._filler is not None
                self._filler.unlink()
            case Fault.JUMP:
                self.shifts[act.part].write_text("0")
        from_s = self._away.pop(act.part)
        if act.fault in {Fault.KILL, Fault.STOP, Fault.CUT}:
            killed = act.fault is Fault.KILL
            self.away.append(Away(act.part, from_s, time.monotonic(), killed))

    def bring_back(self) -> None:
        """Start again what ended by itself, as systemd would."""
        for name in self.processes.dead():
            self.returned.append(name)
            self.start(name)

    def play(self, acts: list[Act], meanwhile: Callable[[], None]) -> None:
        """Let all faults happen at their times."""
        begins = [(act.from_s, True, act) for act in acts]
        ends = [(act.until_s, False, act) for act in acts]
        start_s = time.monotonic()
        for at_s, is_begin, act in sorted(begins + ends):
            while (left_s := start_s + at_s - time.monotonic()) > 0:
                self.bring_back()
                meanwhile()
                time.sleep(min(left_s, 0.3))
            (self.begin if is_begin else self.end)(act)

    def score(self) -> list[str]:
        """Ids in the table of messages, after Spark has read the whole log."""
        config = str(self._config(SCORE))
        command = ("-m", "backend_spark", "score", "--once", "--config", config)
        with (self.folder / f"{SCORE}.log").open("ab") as log:
            subprocess.run(
                [sys.executable, *command], stdout=log, stderr=log, check=True
            )
        rows = open_tables(self.folder / "backend").messages().to_pylist()
        return [f"{row['node']}:{row['boot']}:{row['seq']}" for row in rows]

    def close(self) -> None:
        """End everything."""
        self.stop()
        for link in self.links.values():
            link.close()

    def _through(self, link: str) -> str:
        return f"mqtt://127.0.0.1:{self.links[link].port}"
