"""The callback thread of lgpio."""

import threading
from types import SimpleNamespace

from edge_agent.sensors.linux import is_edge_thread_alive


def test_ended_thread_is_detected() -> None:
    """After an exception in one callback no pin reports edges."""
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()

    assert not is_edge_thread_alive({"lgpio": SimpleNamespace(_notify_thread=thread)})


def test_running_thread_is_alive() -> None:
    """While it runs, edges are reported."""
    running = SimpleNamespace(_notify_thread=threading.current_thread())

    assert is_edge_thread_alive({"lgpio": running})


def test_program_without_lgpio_counts_as_alive() -> None:
    """With simulated pins, or events of the kernel."""
    assert is_edge_thread_alive({})
