"""Who does not answer is noticed, and who answers again."""

import time

from gateway_daemon.manager.health_probes import (
    MAX_MISSED_PROBES,
    HealthProbes,
    ProbeResult,
)
from gateway_daemon.manager.registry import Registry
from service_runtime.watchdog import LoopWatchdog
from spatial_mqtt.directory import BrokerEntry, BrokerInfo, GatewayNotice

GW, FAITHFUL, BROKER = (BrokerInfo(name, 1) for name in ("gw", "ours", "b"))


def probes_of(well: set[BrokerInfo]) -> HealthProbes:
    registry = Registry().with_broker(BrokerEntry("/", BROKER))
    for gateway in (GW, FAITHFUL):
        registry = registry.with_notice(GatewayNotice(gateway, "up"))
    made = HealthProbes(lambda who: who in well, LoopWatchdog(time.monotonic))
    made.set_targets(registry.with_heartbeat(FAITHFUL))
    return made


def test_silence_counts_after_three_looks_and_is_told_once() -> None:
    """One lost packet moves nobody."""
    well = {GW, BROKER}
    probes = probes_of(well)
    assert probes.probe_all() == []
    well.discard(GW)
    told = [probes.probe_all() for _ in range(MAX_MISSED_PROBES + 2)]

    assert told == [[], [], [ProbeResult(GW, is_reachable=False)], [], []]


def test_return_is_told_once() -> None:
    """A gateway without our software may come back without a word."""
    well = {BROKER}
    probes = probes_of(well)
    for _ in range(MAX_MISSED_PROBES):
        probes.probe_all()
    well.add(GW)

    assert [probes.probe_all() for _ in range(2)] == [
        [ProbeResult(GW, is_reachable=True)],
        [],
    ]


def test_gateway_that_says_goodbye_is_left_alone() -> None:
    """It may stand where only its clients reach it."""
    probes = probes_of({GW, BROKER})

    assert [probes.probe_all() for _ in range(MAX_MISSED_PROBES)] == [
        []
    ] * MAX_MISSED_PROBES
