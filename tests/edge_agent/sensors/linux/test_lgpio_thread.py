"""lgpio's one thread."""

import threading
from types import SimpleNamespace

from edge_agent.sensors.linux.gpio import is_edge_thread_alive


def test_thread_that_ended_is_found() -> None:
    """After an exception in one callback all pins are dumb."""
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()

    assert not is_edge_thread_alive({"lgpio": SimpleNamespace(_notify_thread=thread)})


def test_thread_that_lives_is_well() -> None:
    """As long as it runs, edges are told of."""
    lives = SimpleNamespace(_notify_thread=threading.current_thread())

    assert is_edge_thread_alive({"lgpio": lives})


def test_program_without_lgpio_has_nothing_to_miss() -> None:
    """On simulated pins, or with the kernel's own events."""
    assert is_edge_thread_alive({})
