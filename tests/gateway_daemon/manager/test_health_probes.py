"""Gateways that stop answering, and that answer again."""

import time

import pytest

from gateway_daemon.app import accepts_connection
from gateway_daemon.manager.registry import Registry
from gateway_daemon.manager.server_probes import (
    MAX_MISSED_PROBES,
    HealthProbes,
    ProbeResult,
)
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


@pytest.mark.parametrize("host", ["broker..example", f"{64 * 'b'}.example", "b/../c"])
def test_host_that_cannot_be_a_name_does_not_answer(host: str) -> None:
    """A typing error of an administrator ends no Manager."""
    assert not accepts_connection(BrokerInfo(host, 1883))
