"""How the messages of each priority are handed to MQTT."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service_runtime.errors import FieldError
from spatial_mqtt.errors import PriorityError
from spatial_mqtt.priority import Delivery, QosPolicy, effective_qos

DELIVERIES = st.builds(
    Delivery,
    qos=st.integers(0, 2),
    expiry_s=st.one_of(st.none(), st.integers(1, 2**32 - 1)),
    retain=st.booleans(),
)


@given(priority=st.integers(1, 5))
def test_priority_without_a_row_is_delivered_at_least_once(priority: int) -> None:
    """QoS 1, no expiry, not retained."""
    assert QosPolicy().delivery(priority) == Delivery(1, None, retain=False)


@given(table=st.dictionaries(st.integers(1, 5), DELIVERIES))
def test_policy_gives_its_row_or_the_default(table: dict[int, Delivery]) -> None:
    """What the table names is delivered as it says, all else as QoS 1."""
    policy = QosPolicy(table)

    for priority in range(1, 6):
        assert policy.delivery(priority) == table.get(priority, Delivery())


@pytest.mark.parametrize("qos", [-1, 3])
def test_qos_that_mqtt_does_not_have_is_refused(qos: int) -> None:
    """There are QoS 0, 1 and 2."""
    with pytest.raises(FieldError, match="qos must be 0, 1 or 2"):
        Delivery(qos=qos)


@pytest.mark.parametrize("expiry_s", [0, -5])
def test_expiry_below_a_second_is_refused(expiry_s: int) -> None:
    """A message that expires at once is never delivered."""
    with pytest.raises(FieldError, match="expiry_s must be at least 1 second"):
        Delivery(expiry_s=expiry_s)


@pytest.mark.parametrize("priority", [0, 6])
def test_policy_for_a_priority_off_the_ladder_is_refused(priority: int) -> None:
    """A row that can never apply is a mistake, and so is the question for it."""
    with pytest.raises(PriorityError, match="between 1 and 5"):
        QosPolicy({priority: Delivery()})
    with pytest.raises(PriorityError, match="between 1 and 5"):
        QosPolicy().delivery(priority)


@given(published=st.integers(0, 2), subscribed=st.integers(0, 2))
def test_effective_qos_is_the_lower_of_both(published: int, subscribed: int) -> None:
    """A subscriber gets no more than was published and no more than it asked for."""
    qos = effective_qos(published, subscribed)

    assert qos in {published, subscribed}
    assert qos <= published
    assert qos <= subscribed
