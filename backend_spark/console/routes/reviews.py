"""Routes of the reviews of readings: queue, preview, decisions and their end."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import pyarrow as pa
from fastapi import APIRouter, Depends, HTTPException, Response

from backend_spark.console.dependencies import Chief, ConsoleServices, Services, viewer
from backend_spark.console.http import check_why, json_body, json_response
from backend_spark.console.level_grid import severity, utc_time
from backend_spark.console.previews import PreviewBusyError, ReviewEffect
from backend_spark.console.reviews import (
    MAX_READINGS,
    RevertEntry,
    ReviewDecision,
    ReviewEntry,
    counting,
    find_spans,
    most_urgent,
    read_flagged,
)
from backend_spark.console.thresholds import job_state
from backend_spark.scoring.observation import flag_reasons
from backend_spark.scoring.reviews import (
    NEVER_REJECTED,
    ReadingReview,
    ReviewVerdict,
    read_report,
)
from backend_spark.tables.reader import DeltaTables
from service_runtime.errors import shortened
from slope_science.quality import Flag
from slope_science.reason_codes import ReasonCode

DEFAULT_HOURS: Final = 72
MAX_HOURS: Final = 720
MAX_DECISIONS_SHOWN: Final = 200
DRAFT_ID: Final = 2**53
"""Number of a decision that is not saved: later than all others."""

router = APIRouter(prefix="/api", dependencies=[Depends(viewer)])


class ReviewDraft(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a decision about the readings of a sensor.

    Attributes:
        node: Id of the node.
        name: Name of the readings.
        from_s: Unix time of the first reading.
        to_s: Unix time of the last one.
        verdict: ``accepted``, ``good`` or ``bad``.
        codes: Codes of the doubts, but for ``bad``.
        why: Reason; a preview needs none, nor does ``accepted``.
        confirmed_level: Level of 4 or 5 that the preview showed, to which the user has
            agreed to raise the cell.
    """

    node: str
    name: str
    from_s: float
    to_s: float
    verdict: ReviewVerdict
    codes: tuple[str, ...] = ()
    why: str = ""
    confirmed_level: int | None = None


class RevertDraft(msgspec.Struct, forbid_unknown_fields=True):
    """Body that reverts a decision; the last two are those of `ReviewDraft`."""

    review: int
    why: str = ""
    confirmed_level: int | None = None


DraftBody = Annotated[ReviewDraft, Depends(json_body(ReviewDraft))]
RevertBody = Annotated[RevertDraft, Depends(json_body(RevertDraft))]


@router.get("/reviews")
def queue(services: Services, hours: int = DEFAULT_HOURS) -> Response:
    """Doubtful readings that nobody has judged, and the decisions, newest first."""
    return json_response(_view(services, hours))


@router.post("/reviews/preview")
def preview(draft: DraftBody, services: Services) -> Response:
    """What a decision changes in the levels of the cell."""
    cell, count = _find_readings(services, draft)
    return json_response(
        {"cell": cell, "count": count} | asdict(_effect_of(services, cell, draft))
    )


@router.post("/reviews")
def decide(visitor: Chief, draft: DraftBody, services: Services) -> Response:
    """Write a decision."""
    check_why(draft.why, is_needed=draft.verdict != "accepted")
    cell, count = _find_readings(services, draft)
    raised_to = _effect_of(services, cell, draft).raised_to
    _check_confirmation(raised_to, draft.confirmed_level)
    body = _entry(draft, count, raised_to)
    services.reviews.add(services.clock(), visitor.account.name, cell, body)
    return json_response(_view(services, DEFAULT_HOURS))


@router.post("/reviews/revert/preview")
def revert_preview(draft: RevertBody, services: Services) -> Response:
    """What the end of a decision changes in the levels of the cell."""
    decision = _find_decision(services, draft.review)
    effect = _effect_without(services, decision)
    found = {"cell": decision.entry.subject, "count": decision.body.count}
    return json_response(found | asdict(effect))


@router.post("/reviews/revert")
def revert(visitor: Chief, draft: RevertBody, services: Services) -> Response:
    """Revert a decision, by an entry of its own."""
    check_why(draft.why)
    decision = _find_decision(services, draft.review)
    raised_to = _effect_without(services, decision).raised_to
    _check_confirmation(raised_to, draft.confirmed_level)
    body = RevertEntry(draft.review, draft.why.strip(), raised_to)
    cell, who = decision.entry.subject, visitor.account.name
    if not services.reviews.revert(services.clock(), who, cell, body):
        raise _unknown_decision(draft.review)
    return json_response(_view(services, DEFAULT_HOURS))


def _view(services: ConsoleServices, hours: int) -> dict[str, Any]:
    if not 1 <= hours <= MAX_HOURS:
        raise HTTPException(422, f"hours must be between 1 and {MAX_HOURS}")
    live_state, book = services.live_state, services.reviews
    report = read_report(Path(services.settings.backend.data))
    decisions, path = book.decisions(), str(book.path.absolute())
    in_force = [each.review() for each in decisions if each.end is None]
    since_s = live_state.now_s() - hours * 3600
    rows = read_flagged(DeltaTables(services.tables), since_s)
    spans = find_spans(rows, in_force)
    return {
        "now_s": live_state.now_s(),
        "hours": hours,
        "spans": list(most_urgent(spans, _levels(services))),
        "n_spans": len(spans),
        "is_cut": len(rows) == MAX_READINGS,
        "job": job_state(
            report.path if report else None, book.path, is_reported=report is not None
        ),
        "decisions": [
            _shown(each) | each.state(report, path)
            for each in decisions[:MAX_DECISIONS_SHOWN]
        ],
    }


def _levels(services: ConsoleServices) -> dict[str, int]:
    """Present level of each cell, held or not."""
    with services.live_state.lock:
        tokens = list(services.live_state.grid.tokens)
    shown = services.live_state.snapshot()["levels"]
    return {
        token: severity(int(level))[0]
        for token, level in zip(tokens, shown, strict=False)
    }


def _shown(decision: ReviewDecision) -> dict[str, Any]:
    entry, end = decision.entry, decision.end
    return {
        "id": entry.id,
        "at_s": entry.at_s,
        "who": entry.who,
        "cell": entry.subject,
        **msgspec.to_builtins(decision.body),
        "end": end and {"at_s": end.at_s, "who": end.who, "why": end.body["why"]},
    }


def _find_readings(services: ConsoleServices, draft: ReviewDraft) -> tuple[str, int]:
    """Cell and number of the readings that a decision is about.

    Raises:
        HTTPException: 422 if there are none, or if a field is wrong.
    """
    _check_range(services, draft)
    tables = DeltaTables(services.tables)
    times = utc_time(draft.from_s), utc_time(draft.to_s)
    rows = tables.sensor(draft.node, draft.name, *times)
    wanted = [row for row in _columns(rows) if _is_meant(row, draft)]
    cells = {row["cell"] for row in wanted}
    if len(cells) == 1:
        return str(cells.pop()), len(wanted)
    kind = "reading" if draft.verdict == "bad" else "doubtful reading with the codes"
    rule = f"node and name must have a {kind} within the times, all in one cell"
    got = f"{shortened(draft.node)} and {shortened(draft.name)}"
    raise HTTPException(422, f"{rule}, got {got}")


def _columns(rows: pa.Table) -> list[dict[str, Any]]:
    known: list[dict[str, Any]] = rows.select(["cell", "flag", "flag_why"]).to_pylist()
    return known


def _is_meant(row: dict[str, Any], draft: ReviewDraft) -> bool:
    if row["cell"] is None:
        return False
    if draft.verdict == "bad":
        return True
    codes = {str(reason.code) for reason in flag_reasons(row["flag_why"])}
    is_doubtful = row["flag"] in {int(Flag.SUSPECT), int(Flag.FAIL)}
    return is_doubtful and codes <= set(draft.codes) - NEVER_REJECTED


def _check_range(services: ConsoleServices, draft: ReviewDraft) -> None:
    now_s = services.live_state.now_s()
    days = services.settings.score.horizon_days
    if not now_s - days * 86_400 <= draft.from_s <= draft.to_s <= now_s:
        rule = f"from_s and to_s must lie in order within the last {days} days"
        raise HTTPException(422, f"{rule}, got {draft.from_s:.0f} and {draft.to_s:.0f}")
    unknown = set(draft.codes) - set(ReasonCode)
    if unknown or (draft.verdict != "bad") != bool(draft.codes):
        rule = "codes must be those of the doubts, and none with verdict bad"
        got = min(unknown) if unknown else ", ".join(draft.codes)
        raise HTTPException(422, f"{rule}, got {shortened(got)}")


def _check_confirmation(raised_to: int | None, confirmed: int | None) -> None:
    """Refuse a decision that raises a cell to 4 or 5 without the user's consent.

    Raises:
        HTTPException: 409 without it.
    """
    if raised_to is not None and confirmed != raised_to:
        rule = f"confirmed_level must be {raised_to}: the decision raises the cell to"
        got = "none" if confirmed is None else confirmed
        raise HTTPException(409, f"{rule} level {raised_to}, got {got}")


def _entry(draft: ReviewDraft, count: int, raised_to: int | None) -> ReviewEntry:
    return ReviewEntry(
        draft.node,
        draft.name,
        draft.from_s,
        draft.to_s,
        draft.verdict,
        tuple(sorted(draft.codes)),
        draft.why.strip(),
        count,
        raised_to,
    )


def _effect_of(
    services: ConsoleServices, cell: str, draft: ReviewDraft
) -> ReviewEffect:
    if draft.verdict == "accepted":
        return ReviewEffect.of([])
    now = counting(services.reviews.in_force())
    entry = _entry(draft, 0, None)
    mine = entry.review(DRAFT_ID, cell, "", services.clock())
    return _effect(services, cell, draft.from_s, (now, [*now, mine]))


def _effect_without(
    services: ConsoleServices, decision: ReviewDecision
) -> ReviewEffect:
    if decision.body.verdict == "accepted":
        return ReviewEffect.of([])
    now = counting(services.reviews.in_force())
    then = [review for review in now if review.id != decision.entry.id]
    cell, from_s = decision.entry.subject, decision.body.from_s
    return _effect(services, cell, from_s, (now, then))


def _effect(
    services: ConsoleServices,
    cell: str,
    from_s: float,
    reviews: tuple[Sequence[ReadingReview], Sequence[ReadingReview]],
) -> ReviewEffect:
    cells = services.live_state.cells_with_nodes(cell)
    try:
        return services.reviews.preview.compare(cell, from_s, reviews, cells)
    except PreviewBusyError as error:
        raise HTTPException(503, str(error)) from error


def _find_decision(services: ConsoleServices, number: int) -> ReviewDecision:
    found = services.reviews.find(number)
    if found is None:
        raise _unknown_decision(number)
    return found


def _unknown_decision(number: int) -> HTTPException:
    rule = "review must be the number of a decision that is in force"
    return HTTPException(422, f"{rule}, got {number}")
