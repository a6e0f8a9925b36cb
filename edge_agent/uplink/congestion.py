"""Congestion window: how many bytes may be in flight, by the queueing delay.

Bytes in flight cannot be overtaken, so an urgent message waits behind them. The window
is as small as it can be while the link stays busy:

* Queueing delay: the round-trip time of a publication minus the least one. While it is
  low, nothing waits at the link and the window grows. When it is high, the window
  becomes rate x least round-trip time, plus a segment or what the link carries in
  `TARGET_DELAY_S`.
* Rate (`RateMeter`): bytes acknowledged per second while a queue waits at the link.
  A remembered rate is used at first, but permits no delay until it is measured. While
  it is unknown, a round trip that fills the window either lets it grow or leads to a
  measurement: by a queue that lasts, or by a probe if the queue empties each time. A
  publication that is alone in flight does not measure it: routers, cellular schedulers
  and policers let a burst pass at line speed before they delay.
* Burst credit (`BurstMeter`): what the link has passed without delay beyond its rate.
  The window grows again only after more than that has passed.
* Pace (`Pacer`): a window that is free at once, after a pause or a lost segment, is not
  written at once, or it would wait at the link as a whole.

Sources: RFC 6817 (LEDBAT) for the target of the queueing delay; BBR (Cardwell et al.
2016) for the rate of delivery, its product with the round-trip time, and the pace. BBR
itself takes the rate of a burst for the rate of the link. docs/decisions/0006 has the
measurements that chose the constants.
"""

import math

from edge_agent.uplink.link_rate import (
    FRAME_BYTES,
    MIN_ROUND_S,
    SAME_TIME_S,
    BurstMeter,
    LinkEstimate,
    Pacer,
    PacketTrain,
    RateMeter,
    SendSample,
)

TARGET_DELAY_S = 0.1
"""Queueing delay that is allowed, unless a single segment takes longer."""

MAX_DEPTH_BYTES = 65_536
"""Maximum bytes that may wait at the link, some milliseconds on a LAN."""

QUEUED_S = TARGET_DELAY_S / 4
"""Minimum queueing delay of a sample of the rate. It does not depend on the rate: an
estimate that is much too low would allow a delay at which none is measured again."""

LOW_DELAY = 0.5
"""Multiple of the target below which the window may grow."""

HIGH_DELAY = 1.25
"""Multiple of the target above which the window shrinks."""

CHANGED_DELAY = 3.0
"""Multiple of the target above which the rate of the link must have changed."""

GROWTH = 0.7
"""Maximum growth of the window in a round trip, as a share of it. On a link of unknown
rate also the share of the bytes passed without delay that may be in flight: about half
a burst is then still unused when the link begins to delay."""

KNOWN_GROWTH = 2.0
"""Growth on a link of known rate, per byte that passed beyond rate x time."""

PROBE_GAIN = 1.5
"""Window as a multiple of the usual one while more passes than the known rate."""

EXCESS_SEGMENTS = 3
"""Number of segments beyond rate x time that do not yet show a faster link."""

CREDIT_MARGIN = 1.25

PACE_GAIN = 2.0
"""Pace as a multiple of the rate, so that a link that has become faster is detected."""

IDLE_S = 1.0
"""Pause after which the burst credit of a link may be complete again."""

PERSISTENT_S = 2.0
PERSISTENT_ROUNDS = 4
"""Seconds and round trips after which a delay that persists at the smallest window is
not taken for a queue any more: the least round-trip time has increased."""

DELAYED_ROUNDS = 3
"""Round trips in succession with a delay and without growth, on a link of unknown rate,
after which the rate is probed."""

START_FRAMES = 2
"""First window on a link of unknown rate."""

SLOW_START_FRAMES = 4
"""Largest first window on a link whose rate is remembered, and the window up to which
all that has passed without delay may be in flight. Source: RFC 3390."""


class CongestionWindow:
    """Limit of the bytes in flight, from measurements of the link.

    Args:
        max_bytes: Upper bound.
        known: Estimate of an earlier connection to the same broker.

    Attributes:
        bytes_in_flight: Bytes that the broker has not acknowledged.
    """

    def __init__(self, max_bytes: int, known: LinkEstimate | None = None) -> None:
        self._max_bytes = max_bytes
        self.bytes_in_flight = 0
        self._meter = RateMeter(known.rate if known else None)
        self._burst = BurstMeter()
        self._pacer = Pacer()
        self._base_s: float | None = None
        self._unit_bytes = float(FRAME_BYTES)
        self._window_bytes = float(START_FRAMES * FRAME_BYTES)
        self._delivered_bytes = 0
        self._last_ack_s = 0.0
        self._round_start_s: float | None = None
        self._is_round_limited = False
        self._is_round_delayed = False
        self._delayed_rounds = 0
        self._is_growing = False
        self._queued_since_s: float | None = None
        self._queued_s = 0.0
        self._queued_alone = 0
        self._is_guessed = False
        self._is_probing = False
        self._train: PacketTrain | None = None
        self._train_bytes = 0
        if known is not None:
            self._burst.restore(known.credit_bytes)

    def on_rtt_sample(self, round_trip_s: float) -> None:
        """Add a round-trip sample of the idle link."""
        self._base_s = min(round_trip_s, self._base_s or round_trip_s)
        if self._meter.rate is not None:
            start_bytes = SLOW_START_FRAMES * FRAME_BYTES
            self._window_bytes = min(self._target_bytes(), start_bytes)

    def estimate(self) -> LinkEstimate | None:
        """What is known of the link; None while its rate is unknown."""
        rate = self._meter.rate
        if rate is None:
            return None
        return LinkEstimate(rate, self._burst.credit_bytes(rate))

    @property
    def largest_bytes(self) -> int:
        """Size of the largest recent publication that is larger than a frame, or 0."""
        return int(self._unit_bytes) if self._unit_bytes > FRAME_BYTES else 0

    @property
    def limit_bytes(self) -> int:
        """Bytes that may be in flight; for a probe, two frames or a large message."""
        window_bytes = self._window_bytes
        if self._is_probing:
            is_sent = self.bytes_in_flight and self._train_bytes > FRAME_BYTES
            is_one = is_sent or self.largest_bytes > 0
            window_bytes = (1 if is_one else 2) * self._unit_bytes
        return int(min(self._max_bytes, max(self._unit_bytes, window_bytes)))

    def free_bytes(self, now_s: float) -> int:
        """Bytes that may be sent now; negative when too many are in flight."""
        free_bytes = self.limit_bytes - self.bytes_in_flight
        pace = self._pace()
        if pace is None:
            return free_bytes
        depth = self._depth_bytes() - self._pacer.drain(pace, now_s)
        return int(min(free_bytes, max(0.0, depth)))

    def wait_s(self, now_s: float) -> float | None:
        """Time until the pace permits a segment; None when it is not the limit."""
        pace = self._pace()
        free_bytes = self.limit_bytes - self.bytes_in_flight
        if pace is None or free_bytes < min(self._unit_bytes, self.limit_bytes / 2):
            return None
        ahead_bytes = self._pacer.drain(pace, now_s) - self._depth_bytes()
        return max(0.0, (ahead_bytes + self._unit_bytes) / pace)

    def on_sent(
        self, size_bytes: int, now_s: float, write_bytes: int = 0
    ) -> SendSample:
        """Add a publication, and the size of its write, to the bytes in flight."""
        is_alone = not self.bytes_in_flight
        if is_alone:
            self._train_bytes = 0
            self._meter.restart(None)
            if now_s - self._last_ack_s > IDLE_S:
                self._burst.forget_run()
                self._delayed_rounds = 0
        self._unit_bytes = max(FRAME_BYTES, size_bytes, self._unit_bytes * 0.98)
        self.bytes_in_flight += size_bytes
        self._train_bytes += size_bytes
        pace = self._pace()
        self._pacer.on_sent(size_bytes, pace, now_s)
        limit = self.limit_bytes
        is_limited = self.bytes_in_flight >= max(limit - self._unit_bytes, limit / 2)
        if pace is not None:
            is_full = self._pacer.queued_bytes >= self._depth_bytes() - self._unit_bytes
            is_limited = is_limited or is_full
        arrives_bytes = max(size_bytes, min(write_bytes, FRAME_BYTES))
        delivered_bytes = self._delivered_bytes
        return SendSample(
            size_bytes, now_s, arrives_bytes, is_alone, is_limited, delivered_bytes
        )

    def on_done(self, sample: SendSample) -> None:
        """Remove a publication from the bytes in flight."""
        self.bytes_in_flight -= sample.size_bytes
        queued_bytes = self._pacer.queued_bytes
        self._pacer.queued_bytes = min(queued_bytes, self.bytes_in_flight)

    def on_ack(self, sample: SendSample, now_s: float) -> None:
        """Update the window after the broker acknowledged a publication."""
        self.on_done(sample)
        self._delivered_bytes += sample.size_bytes
        round_trip_s = max(now_s - sample.sent_s, 1e-4)
        self._base_s = min(round_trip_s, self._base_s or round_trip_s)
        delay_s = round_trip_s - self._base_s
        target_s = self._target_delay_s()
        self._on_train(sample, now_s)
        if delay_s <= QUEUED_S or self._is_probing:
            self._meter.restart(now_s, sample.sent_s)
        elif self._meter.on_ack(sample, now_s, self._base_s, int(self._unit_bytes)):
            self._window_bytes = self._target_bytes()
            self._is_guessed = False
        self._last_ack_s = now_s
        low = HIGH_DELAY if self._meter.rate is None else LOW_DELAY
        is_low = delay_s < low * target_s
        self._burst.on_ack(sample.size_bytes, now_s, is_delayed=not is_low)
        self._on_delay(sample, delay_s / target_s, now_s)
        self._on_round_ack(sample, now_s, is_low=is_low)

    def _on_round_ack(self, sample: SendSample, now_s: float, *, is_low: bool) -> None:
        """End the round when what was sent after its start is acknowledged."""
        self._is_round_limited |= sample.is_limited
        if self._round_start_s is None:
            self._round_start_s = sample.sent_s
        is_round = sample.sent_s >= self._round_start_s
        if is_round and now_s - self._round_start_s >= MIN_ROUND_S:
            self._end_round(is_low, now_s)

    def _on_train(self, sample: SendSample, now_s: float) -> None:
        """Measure packet trains; the first one after the start of a probe ends it."""
        train = self._train
        if sample.is_alone or train is None or not train.add(sample, now_s):
            if self._is_probing and train and train.size_bytes > FRAME_BYTES:
                self._end_probe(train)
            if sample.is_alone:
                self._train = PacketTrain(sample, now_s)
                self._train.add(sample, now_s)

    def _end_probe(self, train: PacketTrain) -> None:
        """Estimate round-trip time and rate anew from a train."""
        rate, known = train.rate, self._meter.rate
        base_s = min(self._base_s or train.round_trip_s, train.round_trip_s)
        if rate is None and train.first.size_bytes > FRAME_BYTES:
            # A large publication is a train by itself.
            rate = train.first.size_bytes / max(train.round_trip_s - base_s, 1e-3)
        own_s = train.first.arrives_bytes / rate if rate else 0.0
        self._base_s = max(base_s, train.round_trip_s - own_s)
        # Two frames may pass as a burst, so only an estimate may be raised.
        most = math.inf if known is None or self._is_guessed else known / 2
        if rate and rate < most:
            self._meter.set_rate(rate)
            self._is_guessed = False
            self._meter.forget_samples()
        if self._meter.rate is not None:
            # A burst makes the first estimate too high: a queue corrects it on the way.
            most_bytes = self._grown_bytes() if known is None else math.inf
            self._window_bytes = min(self._target_bytes(), most_bytes)
        self._queued_alone, self._queued_since_s = 0, None
        self._is_probing = False

    def _on_delay(self, sample: SendSample, excess: float, now_s: float) -> None:
        """Shrink the window when the delay was too high for `MIN_ROUND_S`."""
        if sample.is_alone:
            is_unexplained = self._meter.rate is None and excess >= LOW_DELAY
            is_queued = is_unexplained or excess > HIGH_DELAY
            self._queued_alone = self._queued_alone + 1 if is_queued else 0
        if excess > HIGH_DELAY:
            self._queued_s = now_s
            self._is_round_delayed = True
            self._shrink(sample, excess, now_s)
        elif self._meter.rate is not None or now_s - self._queued_s > SAME_TIME_S:
            # Of acknowledgements that arrive together, the last have waited least. They
            # show that there is no queue only if a rate limits the window.
            self._queued_since_s = None
        if self._queued_alone > 1:
            # Either the rate is lower or the round-trip time higher: the interval of
            # two acknowledgements shows which.
            self._is_probing = True

    def _shrink(self, sample: SendSample, excess: float, now_s: float) -> None:
        """Make the window as small as the rate allows."""
        if self._queued_since_s is None:
            self._queued_since_s = now_s
        queued_s = now_s - self._queued_since_s
        if queued_s < MIN_ROUND_S:
            return
        self._is_growing = False
        if self._meter.rate is None or not self._meter.is_measured:
            # First estimate: what was delivered during this round trip.
            delivered_bytes = self._delivered_bytes - sample.delivered_bytes
            self._meter.set_rate(delivered_bytes / (now_s - sample.sent_s))
            self._is_guessed = True
        self._window_bytes = min(self._window_bytes, self._target_bytes())
        if queued_s > max(PERSISTENT_S, PERSISTENT_ROUNDS * (now_s - sample.sent_s)):
            self._window_bytes = self._unit_bytes  # until one is alone in flight
        if excess > CHANGED_DELAY:
            self._meter.forget_samples()

    def _end_round(self, is_low: bool, now_s: float) -> None:
        """Let the window grow after a round trip without delay."""
        if not is_low:
            self._is_growing = False
        elif self._is_round_limited:
            grown = min(self._grown_bytes(), self._growth_limit_bytes(now_s))
            if grown > self._window_bytes:
                if not self._is_growing:
                    self._meter.forget_samples()
                self._is_growing = True
                self._window_bytes = grown
                self._delayed_rounds = 0
        self._count_delayed_round()
        self._is_round_limited = self._is_round_delayed = False
        self._round_start_s = now_s

    def _count_delayed_round(self) -> None:
        """Probe the rate when delays alone keep the window from growing.

        A queue that empties in each round trip neither shrinks the window nor measures
        the rate, but ends the run of bytes that would let the window grow.
        """
        if self._is_round_limited and self._is_round_delayed:
            self._delayed_rounds += 1
        if self._meter.rate is not None:
            self._delayed_rounds = 0
        elif self._delayed_rounds >= DELAYED_ROUNDS:
            self._delayed_rounds = 0
            self._is_probing = True

    def _grown_bytes(self) -> float:
        """Largest window after the next round trip."""
        return self._window_bytes + max(self._unit_bytes, self._window_bytes * GROWTH)

    def _growth_limit_bytes(self, now_s: float) -> float:
        """Largest window that the bytes passed without delay justify."""
        rate = self._meter.rate
        if rate is None:
            run_bytes = self._burst.run_bytes
            start_bytes = SLOW_START_FRAMES * self._unit_bytes
            return max(
                GROWTH * run_bytes, min(run_bytes + self._unit_bytes, start_bytes)
            )
        target_bytes = self._target_bytes()
        least_bytes = EXCESS_SEGMENTS * self._unit_bytes
        excess_bytes = self._burst.excess_bytes(rate, now_s) - least_bytes
        if excess_bytes <= 0:
            return target_bytes
        credit_bytes = CREDIT_MARGIN * self._burst.credit_bytes(rate)
        new_bytes = excess_bytes - credit_bytes
        if new_bytes > 0 and not self._meter.is_measured:
            self._meter.rate = None  # the remembered rate is wrong
            return self._growth_limit_bytes(now_s)
        return max(PROBE_GAIN * target_bytes, target_bytes + KNOWN_GROWTH * new_bytes)

    def _target_delay_s(self) -> float:
        rate = self._meter.rate
        if rate is None or not self._meter.is_measured:
            return TARGET_DELAY_S
        return self._depth_bytes() / rate

    def _target_bytes(self) -> float:
        """Window of a full link: a segment while its rate is unknown."""
        rate = self._meter.rate
        if rate is None:
            return self._unit_bytes
        return rate * (self._base_s or 0.0) + self._depth_bytes()

    def _depth_bytes(self) -> float:
        """Bytes that may wait at the link."""
        rate = self._meter.rate or 0.0
        return max(self._unit_bytes, min(rate * TARGET_DELAY_S, MAX_DEPTH_BYTES))

    def _pace(self) -> float | None:
        """Bytes per second that may be written; None without a limit."""
        rate = self._meter.rate
        if rate is None or self._is_growing or self._is_probing:
            return None
        return PACE_GAIN * rate
