"""From load reports to decisions and their execution."""

import time
from collections.abc import Iterator, Sequence

import msgspec
import pytest
from conftest import free_port

from gateway_daemon.manager.autoscaler import (
    LOAD_STALE_S,
    AutoscaleExecutor,
    Autoscaler,
    AutoscaleSettings,
    CommandResult,
    apply_decision,
    spare_key,
)
from gateway_daemon.manager.registry import Registry
from gateway_daemon.manager.scaling_policy import ScalingDecision, ScalingLimits
from gateway_daemon.manager.server_probes import BrokerRateMonitor
from service_runtime.errors import FieldError
from service_runtime.tls import Endpoint
from spatial_mqtt.connection import Connection
from spatial_mqtt.directory import (
    MAX_CELLS,
    AreaSetting,
    BrokerEntry,
    BrokerInfo,
    GatewayNotice,
    LaneLoad,
    LoadReport,
    decode_load_report,
)
from spatial_mqtt.errors import DirectoryError
from spatial_mqtt.topics import MAX_TOPIC_CHARS

G1, G2 = BrokerInfo("g", 1), BrokerInfo("g", 2)
B1, B2, B3 = (BrokerInfo("b", n) for n in (1, 2, 3))
NOW = ScalingLimits(hold_s=0.0, cooldown_s=0.0)


def registry(*gateways: BrokerInfo) -> Registry:
    created = Registry("m").with_configured_brokers([BrokerEntry("/", B1)])
    for gateway in gateways:
        created = created.with_notice(GatewayNotice(gateway, "up"))
    return created


def load(
    gateway: BrokerInfo, cells: dict[str, float], age_s: float = 0.0
) -> LoadReport:
    broker_loads = (LaneLoad(B1, 10, age_s),)
    return LoadReport(
        gateway, sum(cells.values()), 0.5, tuple(cells.items()), broker_loads
    )


def scaler(mode: str = "on", **more: object) -> Autoscaler:
    standby = {"broker": (B2,), "gateway": (G2,)}
    return Autoscaler(AutoscaleSettings(mode, NOW, standby, **more))


def test_loads_of_all_gateways_add_up_by_responsible_broker() -> None:
    """The greatest age counts, and the broker's own rate where it is larger."""
    autoscaler = scaler()
    autoscaler.record_load(load(G1, {"/3/1": 5.0, "/3/2": 1.0}, age_s=2.0), 0.0)
    autoscaler.record_load(load(G2, {"/3/1": 7.0}, age_s=9.0), 0.0)
    both = registry(G1, G2).with_broker(BrokerEntry("/3/1", B3))
    world, sub = autoscaler.current_situation(both, {B1: 4.0}, 0.0).areas[:2]

    assert (world.per_s, world.age_s, world.cells) == (4.0, 9.0, {"/3/2": 1.0})
    assert (sub.server, sub.per_s, sub.cells) == (B3, 12.0, {"/3/1": 12.0})


@pytest.mark.attack(
    "a gateway reports a load that a Manager cannot divide", "every Manager ended"
)
def test_load_of_zero_in_a_busy_gateway_is_not_divided() -> None:
    """The planner has to split the area, and finds nothing to split."""
    busy = {"per_s": 0, "cpu": 9, "cells": [["/1/2", 0.0]]}
    report = decode_load_report(encode_report(busy))
    autoscaler = scaler()
    autoscaler.record_load(report, 0.0)

    decision = autoscaler.decide(registry(G1), {}, 0.0, 1)
    assert decision is not None
    assert (decision.action, decision.kind) == ("nothing", "gateway")


@pytest.mark.attack(
    "a gateway reports a load that a Manager cannot divide", "every Manager ended"
)
@pytest.mark.parametrize(
    "part",
    [
        {"cells": [["/1/2", -1.0]]},
        {"cells": [["/1/2", 1e308]]},
        {"cells": [["/1" * MAX_TOPIC_CHARS, 1.0]]},
        {"cells": [["/1", 1.0]] * (MAX_CELLS + 1)},
        {"cpu": 1e308},
        {"per_s": -1},
        {"lanes": [{"broker": B1, "rows": 1, "age_s": -1.0}]},
    ],
)
def test_load_beyond_the_bounds_is_refused(part: dict[str, object]) -> None:
    """A topic of 500,000 levels took the memory of a Manager."""
    with pytest.raises(DirectoryError, match="gateway load"):
        decode_load_report(encode_report(part))


def encode_report(part: dict[str, object]) -> bytes:
    """A report of G1, with some of its fields."""
    return msgspec.json.encode({"gateway": G1, **part})


def test_stale_load_report_is_ignored() -> None:
    """An old report does not describe the present load."""
    autoscaler = scaler()
    autoscaler.record_load(load(G1, {"/3/1": 5.0}), 0.0)

    assert (
        autoscaler.current_situation(registry(G1), {}, LOAD_STALE_S).areas[0].per_s
        == 0.0
    )


def test_split_and_join_restore_the_registry() -> None:
    """A decision makes the same changes as an administrator's commands."""
    before = registry(G1, G2).with_heartbeat(G1).with_heartbeat(G2)
    for part, server in (("broker", B2), ("gateway", G2)):
        split = ScalingDecision("split", part, "/3/1", server, "hot")
        after = apply_decision(before, split, 1)
        assert BrokerEntry("/3/1", server) in (*after.brokers, *after.gateways)
        back = apply_decision(
            after, ScalingDecision("join", part, "/3/1", server, "calm"), 2
        )

        assert (back.brokers, back.gateways) == (before.brokers, before.gateways)


def test_standby_is_free_until_it_serves_an_area() -> None:
    """A free gateway must be connected; one that is idle does not serve "/"."""
    autoscaler = scaler()
    for gateway in (G1, G2):
        autoscaler.record_load(load(gateway, {"/3/1": 5.0}), 0.0)
    before = registry(G1, G2)
    free = autoscaler.current_situation(before, {}, 0.0).free
    assert free == {"broker": (B2,), "gateway": (G2,)}

    used = before.with_broker(BrokerEntry("/3", B2)).with_areas(
        AreaSetting(G2, topics=("/3",))
    )
    assert autoscaler.current_situation(used, {}, 0.0).free == {
        "broker": (),
        "gateway": (),
    }
    assert autoscaler.current_situation(registry(G1), {}, 0.0).free["gateway"] == ()


def test_started_broker_is_standby_on_every_manager() -> None:
    """It is in the registry, so another Manager may use and stop it."""
    key = spare_key("broker", B3)
    known = registry(G1).with_value(key.kind, key.name, B3, 1)
    situation = scaler(stop_command=("stop",)).current_situation(known, {}, 0.0)
    assert situation.free["broker"] == (B2, B3)
    assert situation.started == {B3}
    assert not scaler().current_situation(known, {}, 0.0).started, "none can be stopped"

    gone = known.with_value(key.kind, key.name, None, 2)
    assert scaler().current_situation(gone, {}, 0.0).free["broker"] == (B2,)


def test_no_broker_is_started_while_the_last_one_is_unused() -> None:
    """It may be faulty, and a repeated start command would exhaust the machine."""
    autoscaler = scaler(start_command=("start",), max_started=2)
    plain = registry(G1)
    assert autoscaler.current_situation(plain, {}, 0.0).may_start == {
        "broker",
        "gateway",
    }
    key = spare_key("gateway", G2)
    pending = plain.with_value(key.kind, key.name, G2, 1)
    assert autoscaler.current_situation(pending, {}, 0.0).may_start == {"broker"}
    key = spare_key("broker", B3)
    full = pending.with_value(key.kind, key.name, B3, 1).with_broker(
        BrokerEntry("/3", B3)
    )
    assert autoscaler.current_situation(full, {}, 0.0).may_start == set()


def test_dry_run_decides_and_reports() -> None:
    """The operator sees what would be done."""
    for mode, decision_count in (("dry-run", 1), ("on", 1), ("off", 0)):
        autoscaler = scaler(mode)
        autoscaler.record_load(load(G1, {"/3/1": 5.0, "/3/2": 5.0}, age_s=60.0), 0.0)
        autoscaler.decide(registry(G1), {}, 0.0, 1_000)
        report = autoscaler.make_report(registry(G1), {}, 0.0)

        assert len(report.decisions) == decision_count
        assert all(d.is_dry_run == (mode == "dry-run") for d in report.decisions)
        assert report.areas[0].heat == 12.0


def test_decisions_survive_a_restart() -> None:
    """Another Manager restores them from the report."""
    autoscaler = scaler()
    autoscaler.record_load(load(G1, {"/3/1": 5.0, "/3/2": 5.0}, age_s=60.0), 0.0)
    autoscaler.decide(registry(G1), {}, 0.0, 1_000)
    report = autoscaler.make_report(registry(G1), {}, 0.0)
    other = scaler()
    other.restore(report)

    assert other.make_report(registry(G1), {}, 0.0).decisions == report.decisions


@pytest.fixture
def rates() -> Iterator[BrokerRateMonitor]:
    """Rates of brokers that are out of reach."""
    nobody = Endpoint("127.0.0.1", free_port())
    monitor = BrokerRateMonitor(
        "m",
        lambda _broker, session, handler: Connection(nobody, session, handler),
        time.monotonic,
    )
    yield monitor
    monitor.stop()


def test_broker_that_is_being_stopped_gets_no_area(rates: BrokerRateMonitor) -> None:
    """The command may take minutes; after a failure the broker is free again."""
    limits = ScalingLimits(cooldown_s=0.0, calm_s=0.0)
    autoscaler = Autoscaler(AutoscaleSettings("on", limits, stop_command=("stop",)))
    commands: list[tuple[Sequence[str], ScalingDecision]] = []
    executor = AutoscaleExecutor(
        autoscaler, rates, lambda command, for_, _: commands.append((command, for_))
    )
    key = spare_key("broker", B3)
    known = registry(G1).with_value(key.kind, key.name, B3, 1)
    for at_s in range(3):
        executor.run_once(known, at_s, 1)

    ((command, decision),) = commands
    assert command == ("stop", "broker", f"mqtt://{B3}")
    assert autoscaler.current_situation(known, {}, 3.0).free["broker"] == ()

    with pytest.raises(FieldError, match="stop_command"):
        executor.on_command_result(CommandResult(decision, "", "status 1"), known, 1)
    assert autoscaler.current_situation(known, {}, 3.0).free["broker"] == (B3,)
