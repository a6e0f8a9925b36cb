"""Scenario of the demo: two valleys, eight nodes, one storm. No I/O."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from slope_science import JST
from spatial_mqtt.cells import Cell
from spatial_mqtt.topics import cell_topic

AREA_LEVEL = 10
QUIET_INTERVAL_S = 600
FAST_INTERVAL_S = 300
COMFORTABLE_SPEEDUP = 800
"""Above this speedup nodes sample less often, so that two cores are enough."""

LINK_BYTES_PER_S = 6250
"""50 kbps: link of the node with the outage, for its backlog."""


@dataclass(frozen=True)
class NodePlan:
    """One node of the demo.

    Attributes:
        id: Name of the node.
        place: Description of the location.
        latitude: In degrees.
        longitude: In degrees.
        fails_at: Share of the storm after which its slope fails; None for never.
        wire_cut_at: Share of the storm after which its wire is cut by a rock.
        interval_s: Time between readings, simulated.
        fate: Description for the table of the fault that the demo injects.
    """

    id: str
    place: str
    latitude: float
    longitude: float
    fails_at: float | None = None
    wire_cut_at: float | None = None
    interval_s: int = QUIET_INTERVAL_S
    fate: str = ""

    @property
    def cell(self) -> Cell:
        """Cell of its topic."""
        return Cell.at(self.latitude, self.longitude)


@dataclass(frozen=True)
class Valley:
    """One valley with its own gateway.

    Attributes:
        name: Id of the gateway.
        rain_share: Its rain, as a share of the storm's.
        nodes: The nodes in it.
    """

    name: str
    rain_share: float
    nodes: tuple[NodePlan, ...]

    @property
    def areas(self) -> list[str]:
        """Areas that its gateway serves."""
        return sorted({cell_topic(n.cell.parent(AREA_LEVEL)) for n in self.nodes})


CUT, KILLED = "otani-3", "otani-2"

VALLEYS = (
    Valley(
        "gw-otani",
        1.0,
        (
            NodePlan("otani-1", "Otani, school", 33.5750, 133.5000),
            NodePlan(
                "otani-2",
                "Otani, shrine",
                33.5810,
                133.5080,
                fate="killed -9, restarted",
            ),
            NodePlan(
                "otani-3",
                "Otani, upper farm",
                33.5680,
                133.5040,
                wire_cut_at=0.62,
                interval_s=120,
                fate="link cut, then 50 kbps",
            ),
            NodePlan("otani-4", "Otani, school yard", 33.5735, 133.5025),
        ),
    ),
    Valley(
        "gw-nishi",
        0.4,
        (
            NodePlan("nishi-1", "Nishi, bridge", 33.6000, 133.5400),
            NodePlan(
                "nishi-2",
                "Nishi, terrace",
                33.6060,
                133.5480,
                fails_at=0.85,
                fate="slope creeps",
            ),
            NodePlan("nishi-3", "Nishi, mill", 33.5930, 133.5440),
            NodePlan("nishi-4", "Nishi, quarry", 33.6030, 133.5300),
        ),
    ),
)


@dataclass(frozen=True)
class Storm:
    """The storm and its duration in real time.

    Attributes:
        start: Simulated time of the beginning.
        hours: Simulated duration.
        real_duration_s: Duration in real seconds.
        total_mm: Rain of an invented storm.
        csv: Recorded rain instead: (file, column, first time, last time).
    """

    start: datetime
    hours: float
    real_duration_s: float
    total_mm: float = 420.0
    csv: tuple[Path, str, str, str] | None = None

    @property
    def speedup(self) -> float:
        """Simulated seconds per real second."""
        return self.hours * 3600 / self.real_duration_s


INVENTED = Storm(datetime(2026, 7, 1, tzinfo=JST), hours=24, real_duration_s=90)

# Times of the faults, as shares of the storm.
LINK_DOWN_AT, LINK_UP_AT = 0.20, 0.60
KILL_AT = 0.35
RESTART_AFTER_S = 2.0


def nodes() -> Iterator[tuple[Valley, NodePlan]]:
    """Yield every node with its valley."""
    for valley in VALLEYS:
        for node in valley.nodes:
            yield valley, node


def node_toml(
    plan: NodePlan,
    valley: Valley,
    storm: Storm,
    where: Mapping[str, str],
    epoch_unix_s: float,
) -> str:
    """Return a node's settings as TOML.

    Args:
        plan: The node.
        valley: Its valley.
        storm: The storm.
        where: ``uplink`` (a line of TOML), ``folder``.
        epoch_unix_s: Real time of the beginning of the storm.
    """
    folder = where["folder"]
    stretch = max(1.0, storm.speedup / COMFORTABLE_SPEEDUP)
    interval_s = plan.interval_s * stretch
    return f"""[node]
id = "{plan.id}"
latitude = {plan.latitude}
longitude = {plan.longitude}

[uplink]
gather_s = 0
{where["uplink"]}
rate_bytes_per_s = {LINK_BYTES_PER_S}

[queue]
path = "{folder}/{plan.id}.db"
max_bytes = 20_000_000
# The demo counts every put, so none may be in memory only when a node is killed.
window_s = 0

[sampling]
fast_interval_s = {min(FAST_INTERVAL_S * stretch, interval_s)}

[simulation]
start = "{storm.start.isoformat()}"
epoch_unix_s = {epoch_unix_s}
speedup = {storm.speedup}
stop_after_h = {storm.hours}
seed = {sum(map(ord, valley.name))}
ledger = "{folder}/{plan.id}.ledger"
{_rain(storm, valley)}
{_after("failure_after_h", plan.fails_at, storm)}
{_after("wire_break_after_h", plan.wire_cut_at or plan.fails_at, storm)}

{_sensors(interval_s)}"""


def _rain(storm: Storm, valley: Valley) -> str:
    if storm.csv is None:
        total_mm = storm.total_mm * valley.rain_share
        return f"duration_h = {storm.hours}\ntotal_mm = {total_mm}"
    path, column, first, last = storm.csv
    return (
        f'rain_csv = "{path}"\nrain_column = "{column}"\n'
        f'first_date = "{first}"\nlast_date = "{last}"'
    )


def _after(key: str, share: float | None, storm: Storm) -> str:
    return "" if share is None else f"{key} = {share * storm.hours:.3f}"


def _sensors(interval_s: float) -> str:
    tables = (
        'kind = "rain-gauge"\nname = "rain"\npin = 17\nmm_per_tip = 0.5',
        'kind = "soil-moisture"\nname = "soil"\nchannel = 0\ndry_v = 2.2\nwet_v = 1.0',
        'kind = "tilt"\nname = "tilt"\ndevice = 1\nsamples = 2',
        'kind = "wire"\nname = "wire"\npin = 27',
    )
    return "\n".join(f"[[sensor]]\n{t}\ninterval_s = {interval_s}\n" for t in tables)
