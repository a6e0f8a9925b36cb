"""QoS, expiry and retain flag of each priority."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service_runtime.errors import FieldError
from spatial_mqtt.errors import PriorityError
from spatial_mqtt.priority import Delivery, QosPolicy

DELIVERIES = st.builds(
    Delivery,
    qos=st.integers(0, 2),
    expiry_s=st.one_of(st.none(), st.integers(1, 2**32 - 1)),
    retain=st.booleans(),
)


@given(priority=st.integers(1, 5))
def test_priority_without_an_entry_has_qos_1(priority: int) -> None:
    """No expiry, not retained."""
    assert QosPolicy().delivery(priority) == Delivery(1, None, retain=False)


@given(table=st.dictionaries(st.integers(1, 5), DELIVERIES))
def test_policy_returns_its_entry_or_the_default(table: dict[int, Delivery]) -> None:
    """Priorities in the table use its entry, all others QoS 1."""
    policy = QosPolicy(table)

    for priority in range(1, 6):
        assert policy.delivery(priority) == table.get(priority, Delivery())


@pytest.mark.parametrize("qos", [-1, 3])
def test_invalid_qos_is_refused(qos: int) -> None:
    """MQTT has QoS 0, 1 and 2."""
    with pytest.raises(FieldError, match="qos must be 0, 1 or 2"):
        Delivery(qos=qos)


@pytest.mark.parametrize("expiry_s", [0, -5])
def test_expiry_below_a_second_is_refused(expiry_s: int) -> None:
    """A message that expires at once would never be delivered."""
    with pytest.raises(FieldError, match="expiry_s must be at least 1 second"):
        Delivery(expiry_s=expiry_s)


@pytest.mark.parametrize("priority", [0, 6])
def test_policy_for_an_invalid_priority_is_refused(priority: int) -> None:
    """In the table and in a query."""
    with pytest.raises(PriorityError, match="between 1 and 5"):
        QosPolicy({priority: Delivery()})
    with pytest.raises(PriorityError, match="between 1 and 5"):
        QosPolicy().delivery(priority)
