import json
from datetime import UTC, datetime

import pytest

from edge_agent.sensors.base import Hardware, SensorBusError
from edge_agent.sensors.gnss import Gnss, GnssSettings
from edge_agent.simulator.buses import SimulatedBuses

NOW_S = 1_780_569_060.0
SITE = {"latitude": 35.0, "longitude": 139.0}


def make_sensor() -> tuple[SimulatedBuses, Gnss]:
    """A machine without gpsd, and the sensor."""
    buses = SimulatedBuses()
    settings = GnssSettings(kind="gnss", name="gnss", **SITE)
    return buses, Gnss(settings, Hardware(None, lambda _: None, buses=buses))


def fix(lat: float, time_s: float | None = NOW_S) -> str:
    """A report of gpsd."""
    tpv = {"class": "TPV", "mode": 3, "lat": lat, "lon": 139.0, "altMSL": 7.5, "eph": 3}
    if time_s is not None:
        tpv["time"] = datetime.fromtimestamp(time_s, UTC).isoformat()
    return json.dumps({"class": "POLL", "active": 1, "tpv": [tpv]})


def test_position_and_distance_from_the_site() -> None:
    """A thousandth of a degree of latitude is 111 m."""
    buses, sensor = make_sensor()
    buses.gpsd_report = lambda: fix(35.001)
    found = {r.name: (r.unit, r.value) for r in sensor.read(NOW_S + 2)}
    assert found == {
        "gnss/moved": ("m", pytest.approx(111.2, abs=0.2)),
        "gnss/lat": ("lat", 35.001),
        "gnss/lon": ("lon", 139.0),
        "gnss/alt": ("m", 7.5),
        "gnss/error": ("m", 3.0),
        "gnss/clock": ("s", 2.0),
    }


def test_fix_without_a_time_has_no_clock_reading() -> None:
    """Values that the receiver does not have are left out."""
    buses, sensor = make_sensor()
    buses.gpsd_report = lambda: fix(35.0, None)
    names = {r.name for r in sensor.read(NOW_S)}
    assert "gnss/clock" not in names
    assert len(sensor.read(NOW_S + 60)) == 5


def test_unplugged_receiver_is_detected() -> None:
    """The daemon keeps the last fix; the same time a minute later is no fix."""
    buses, sensor = make_sensor()
    buses.gpsd_report = lambda: fix(35.0)
    sensor.read(NOW_S)
    assert sensor.read(NOW_S + 1)
    with pytest.raises(SensorBusError, match="sensor gnss repeats an old fix"):
        sensor.read(NOW_S + 60)
    buses.gpsd_report = lambda: fix(35.0, NOW_S + 120)
    assert sensor.read(NOW_S + 120)


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (None, r"sensor gnss gpsd failed: .*refused; check the antenna"),
        ('{"class":"POLL","active":0}', "has no fix: gpsd has no receiver"),
        ('{"class":"POLL","active":1,"tpv":[]}', "has no fix: the receiver has no fix"),
        ("nonsense", "has no fix: gpsd must answer in JSON"),
    ],
)
def test_missing_position_is_reported_with_a_reason(
    report: str | None, expected: str
) -> None:
    """No daemon, no receiver, no satellites, not gpsd."""
    buses, sensor = make_sensor()
    if report is not None:
        buses.gpsd_report = lambda: report
    with pytest.raises(SensorBusError, match=expected):
        sensor.read(NOW_S)
