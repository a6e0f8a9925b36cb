import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.sensors.gnss import GnssFix, NoFixError, decode

TPV = {
    "class": "TPV", "device": "/dev/ttyACM0", "mode": 3,
    "time": "2026-06-04T10:31:00.000Z", "lat": 35.123456, "lon": 139.654321,
    "altHAE": 150.2, "altMSL": 110.9, "eph": 4.2, "speed": 0.01,
}  # fmt: skip


def poll(*tpv: object, active: int = 1) -> str:
    """A report as gpsd 3.22 writes it."""
    report = {"class": "POLL", "time": "2026-06-04T10:31:00.2Z", "active": active}
    return json.dumps(report | {"tpv": list(tpv), "gst": [], "sky": []})


def test_fix_in_three_dimensions() -> None:
    """Position, altitude above sea level, time and error."""
    fix = GnssFix(35.123456, 139.654321, 110.9, 1780569060.0, 4.2)
    assert decode(poll(TPV)) == fix
    assert decode(json.dumps(TPV)) == fix


def test_fix_of_an_old_release_in_two_dimensions() -> None:
    """Before 3.20 the altitude is ``alt``; unknown values are left out."""
    old = {"class": "TPV", "mode": 2, "lat": 1.0, "lon": 2.0, "epx": 9.5}
    assert decode(poll(old)) == GnssFix(1.0, 2.0, None, None, 9.5)
    assert decode(poll(old | {"alt": 3.5})).altitude_m == 3.5


def test_best_of_two_receivers() -> None:
    """The one with the smallest error; one without an estimate comes last."""
    coarse = TPV | {"lat": 1.0, "eph": 30.0}
    silent = {k: v for k, v in TPV.items() if k != "eph"}
    assert decode(poll(silent, coarse, TPV)).latitude_deg == 35.123456


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (poll(active=0), "gpsd has no receiver"),
        (poll(), "the receiver has no fix"),
        (poll(TPV | {"mode": 1}), "the receiver has no fix"),
        (poll({"class": "TPV", "mode": 3}), "the receiver has no fix"),
        ('{"class":"VERSION"}', "must answer POLL, got"),
        ("[]", "must answer POLL, got"),
        (poll(TPV | {"lat": "north"}), "must report numbers, got"),
        (poll(TPV | {"lon": 181.0}), "must report numbers, got"),
        (poll(TPV | {"time": "noon"}), "must report numbers, got"),
        ('{"class":"POLL","active":1,"tpv":7}', "must report numbers, got"),
        ("HTTP/1.1 400", "must answer in JSON, got 'HTTP/1.1 400'"),
    ],
)
def test_missing_position_is_reported_with_a_reason(text: str, expected: str) -> None:
    """No receiver, no satellites, or not gpsd."""
    with pytest.raises(NoFixError, match=expected):
        decode(text)


plain = st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5)
fields = st.dictionaries(st.sampled_from([*TPV, "x"]), plain | st.lists(plain))


@given(st.lists(fields | plain, max_size=3))
def test_no_other_error_is_raised_for_any_report(tpv: list[object]) -> None:
    """The result is a position, or the reason why there is none."""
    for text in (poll(*tpv), json.dumps({"class": "TPV"} | dict(enumerate(tpv)))):
        try:
            assert -90 <= decode(text).latitude_deg <= 90
        except NoFixError:
            continue
