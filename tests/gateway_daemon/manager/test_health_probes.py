"""Gateways that stop answering, and that answer again."""

import time

from gateway_daemon.manager.health_probes import (
    MAX_MISSED_PROBES,
    HealthProbes,
    ProbeResult,
)
from gateway_daemon.manager.registry import Registry
from service_runtime.watchdog import LoopWatchdog
from spatial_mqtt.directory import BrokerEntry, BrokerInfo, GatewayNotice

GW, WITH_HEARTBEAT, BROKER = (BrokerInfo(name, 1) for name in ("gw", "ours", "b"))


def probes_of(reachable: set[BrokerInfo]) -> HealthProbes:
    registry = Registry().with_broker(BrokerEntry("/", BROKER))
    for gateway in (GW, WITH_HEARTBEAT):
        registry = registry.with_notice(GatewayNotice(gateway, "up"))
    probes = HealthProbes(
        lambda broker: broker in reachable, LoopWatchdog(time.monotonic)
    )
    probes.set_targets(registry.with_heartbeat(WITH_HEARTBEAT))
    return probes


def test_unreachable_gateway_is_reported_once_after_three_probes() -> None:
    """One lost packet has no effect."""
    reachable = {GW, BROKER}
    probes = probes_of(reachable)
    assert probes.probe_all() == []
    reachable.discard(GW)
    results = [probes.probe_all() for _ in range(MAX_MISSED_PROBES + 2)]

    assert results == [[], [], [ProbeResult(GW, is_reachable=False)], [], []]


def test_return_is_reported_once() -> None:
    """A gateway without our software may return without a notice."""
    reachable = {BROKER}
    probes = probes_of(reachable)
    for _ in range(MAX_MISSED_PROBES):
        probes.probe_all()
    reachable.add(GW)

    assert [probes.probe_all() for _ in range(2)] == [
        [ProbeResult(GW, is_reachable=True)],
        [],
    ]


def test_gateway_with_heartbeats_is_not_probed() -> None:
    """It may be reachable by its clients only."""
    probes = probes_of({GW, BROKER})

    assert [probes.probe_all() for _ in range(MAX_MISSED_PROBES)] == [
        []
    ] * MAX_MISSED_PROBES
