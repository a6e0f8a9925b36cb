"""Meters of a gateway's load report."""

from pathlib import Path

from gateway_daemon.gateway.load_report import MAX_CELLS, CpuMeter, TopicMeter


def test_rates_cover_the_time_between_two_reads() -> None:
    """Each read resets the counts."""
    times = iter([0.0, 10.0, 12.0])
    meter = TopicMeter(lambda: next(times))
    meter.count(["/3/1"] * 30 + ["/3/2"] * 10)

    report = meter.read()
    assert (report.per_s, report.cells) == (4.0, (("/3/1", 3.0), ("/3/2", 1.0)))
    assert meter.read().cells == ()


def test_only_the_busiest_topics_are_named() -> None:
    """The others are included in the sum."""
    times = iter([0.0, 1.0])
    meter = TopicMeter(lambda: next(times))
    for number in range(MAX_CELLS + 5):
        meter.count([f"/3/{number}"] * (number + 1))
    report = meter.read()

    assert len(report.cells) == MAX_CELLS
    assert report.cells[0] == (f"/3/{MAX_CELLS + 4}", MAX_CELLS + 5)
    assert report.per_s == sum(range(MAX_CELLS + 6))


def test_cpu_load_is_the_share_of_ticks_that_are_not_idle(tmp_path: Path) -> None:
    """Fields as in proc(5); iowait counts as idle."""
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 1 1 1\n")
    cpu = CpuMeter(stat)
    stat.write_text("cpu  160 0 115 820 5 0 0 0 0 0\ncpu0 1 1 1\n")

    assert cpu.read() == 0.75
    assert 0.0 <= CpuMeter().read() <= 1.0
