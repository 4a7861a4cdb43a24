"""From what was written down to the scorecard: pure, so that every number can be worked out by hand in a test."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from e2e.demo.machine import percentile
from e2e.demo.promote import MEASURED as PROMOTE_MEASURED
from e2e.demo.records import Outcome
from forebay.core.goodness import judge

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from e2e.demo.fleet import Span
    from e2e.demo.promote import Promotion
    from e2e.demo.records import Record
    from forebay.core.goodness import Targets

GOODPUT_LEAST_PERMILLE = 950
# Recovery: the burst is over for the users when, of all requests sent in ten seconds, 99 % were good again.
RECOVERY_WINDOW_MS = 10_000
RECOVERY_PERMILLE = 990
RECOVERY_RULE = (
    "seconds from the step to the start of the first 10 s in which >= 99 % of the requests sent were good; "
    "windows start each second; 0: the burst was absorbed at once"
)


@dataclass(frozen=True)
class Requests:
    """How the requests of one service, or of all, ended."""

    admitted: int
    answered: int
    refused: int
    aborted: int
    failed: int
    lost: int


@dataclass(frozen=True)
class ServiceScore:
    """One service's row of the scorecard. Shares are in permille of all requests sent, refused ones included."""

    requests: Requests
    good: int
    goodput_permille: int
    ttft_permille: int
    itl_permille: int
    ttft_p50_ms: int
    ttft_p95_ms: int
    ttft_p99_ms: int
    tpot_p50_ms: int
    tpot_p95_ms: int
    tokens: int
    tokens_missing: int  # the engine counted more than arrived: a token lost on the way


@dataclass(frozen=True)
class Judged:
    """A record with its verdict."""

    record: Record
    ttft: bool
    itl: bool

    @property
    def good(self) -> bool:
        """All promises held."""
        return self.ttft and self.itl


def judge_all(records: Iterable[Record], targets: Mapping[str, Targets]) -> list[Judged]:
    """Hold each record against its service's promises; what was not answered whole is never good."""
    judged = []
    for record in records:
        if record.outcome is Outcome.ANSWERED:
            verdict = judge(targets[record.service], record.prompt_tokens_counted, record.token_ms)
            judged.append(Judged(record, verdict.ttft, verdict.itl_mean and verdict.itl_worst_second))
        else:
            judged.append(Judged(record, ttft=False, itl=False))
    return judged


def permille(part: int, whole: int) -> int:
    """Share rounded down, so that 949.9 is not 950; 1000 of nothing, for nothing was bad."""
    return part * 1000 // whole if whole else 1000


def count(records: Iterable[Record]) -> Requests:
    """Sort requests by how they ended; lost are those that were sent and ended in no way."""
    ends = Counter(record.outcome for record in records)
    known = {outcome: ends[outcome] for outcome in Outcome}
    return Requests(
        admitted=ends.total(),
        answered=known[Outcome.ANSWERED],
        refused=known[Outcome.REFUSED],
        aborted=known[Outcome.ABORTED],
        failed=known[Outcome.FAILED],
        lost=ends.total() - sum(known.values()),
    )


def score_service(judged: Sequence[Judged]) -> ServiceScore:
    """Add up one service, or several taken together."""
    records = [one.record for one in judged]
    with_tokens = [record for record in records if record.token_ms]
    ttft = [record.token_ms[0] for record in with_tokens]
    tpot = [
        (r.token_ms[-1] - r.token_ms[0]) / (len(r.token_ms) - 1) for r in with_tokens if len(r.token_ms) > 1
    ]  # fmt: skip
    answered = [record for record in records if record.outcome is Outcome.ANSWERED]
    return ServiceScore(
        requests=count(records),
        good=sum(one.good for one in judged),
        goodput_permille=permille(sum(one.good for one in judged), len(judged)),
        ttft_permille=permille(sum(one.ttft for one in judged), len(judged)),
        itl_permille=permille(sum(one.itl for one in judged), len(judged)),
        ttft_p50_ms=round(percentile(ttft, 50)),
        ttft_p95_ms=round(percentile(ttft, 95)),
        ttft_p99_ms=round(percentile(ttft, 99)),
        tpot_p50_ms=round(percentile(tpot, 50)),
        tpot_p95_ms=round(percentile(tpot, 95)),
        tokens=sum(len(record.token_ms) for record in records),
        tokens_missing=sum(max(0, (r.usage_output_tokens or 0) - len(r.token_ms)) for r in answered),
    )


def recovery_s(judged: Iterable[Judged], step_ms: int, end_ms: int) -> int | None:
    """Seconds from the step until requests are good again (RECOVERY_RULE).

    Parameters
    ----------
    judged
        The service that the burst hit.
    step_ms, end_ms
        When the burst began and when the traffic ended, since its start.

    Returns
    -------
    int or None
        None when no such window lies before the end of the traffic.
    """
    second_of: dict[int, list[bool]] = defaultdict(list)
    for one in judged:
        if one.record.sent_at_ms >= step_ms:
            second_of[(one.record.sent_at_ms - step_ms) // 1000].append(one.good)
    for start in range((end_ms - step_ms - RECOVERY_WINDOW_MS) // 1000 + 1):
        window = [good for second in range(start, start + RECOVERY_WINDOW_MS // 1000) for good in second_of[second]]
        if window and permille(sum(window), len(window)) >= RECOVERY_PERMILLE:
            return start
    return None


def gpu_seconds(spans: Iterable[Span], end_ms: int) -> dict[str, float]:
    """GPU-seconds by the state of the replica that held them, from the start of the traffic to its end."""
    used: Counter[str] = Counter()
    for span in spans:
        lasted_ms = min(span.until_ms if span.until_ms is not None else end_ms, end_ms) - max(span.from_ms, 0)
        if lasted_ms > 0 and span.gpus:
            used[span.state] += lasted_ms * span.gpus
    return {state: round(ms / 1000, 1) for state, ms in sorted(used.items())}


@dataclass(frozen=True)
class Scorecard:
    """Everything that the demo claims, in one object: the table and report.json are made from it alone."""

    services: dict[str, ServiceScore]
    classes: dict[str, ServiceScore]
    overall: Requests
    recovery_s: int | None
    promote_ms: tuple[int, ...]
    gpu_seconds: dict[str, dict[str, float]]
    decisions: int | None
    changes: int | None

    def failures(self) -> list[str]:
        """Which rules of the demo were broken; none means exit code 0."""
        broken = []
        if self.overall.lost:
            broken.append(f"{self.overall.lost} requests were lost: sent, and ended in no way")
        for name, score in self.classes.items():
            if score.goodput_permille < GOODPUT_LEAST_PERMILLE:
                broken.append(
                    f"goodput of the {name} services is {score.goodput_permille / 10:.1f} %, "
                    f"and {GOODPUT_LEAST_PERMILLE / 10:.0f} % are asked"
                )
        return broken

    def as_json(self) -> dict[str, Any]:
        """For report.json."""
        promote = list(self.promote_ms)
        return {
            "requests": asdict(self.overall),
            "classes": {name: asdict(score) for name, score in self.classes.items()},
            "services": {name: asdict(score) for name, score in self.services.items()},
            "recovery_s": self.recovery_s,
            "recovery_rule": RECOVERY_RULE,
            "promote_ms": {
                "count": len(promote),
                "measured": PROMOTE_MEASURED,
                "p50": round(percentile(promote, 50)) if promote else None,
                "p99": round(percentile(promote, 99)) if promote else None,
            },
            "gpu_seconds_by_state": self.gpu_seconds,
            "decisions": self.decisions,
            "changes": self.changes,
            "failures": self.failures(),
        }


def score(
    records: Sequence[Record],
    *,
    targets: Mapping[str, Targets],
    interactive: Sequence[str],
    burst_service: str,
    burst_from_ms: int,
    traffic_ms: int,
    spans: Sequence[Span],
    promotions: Sequence[Promotion],
    decisions: int | None,
    changes: int | None,
) -> Scorecard:
    """Make the scorecard.

    Parameters
    ----------
    records
        One a request that was sent.
    targets
        Each service's promises.
    interactive
        The services of class Interactive; the others are Batch.
    burst_service, burst_from_ms
        Which service the burst hits, and when it begins.
    traffic_ms
        When the last request of the schedule is due.
    spans, promotions
        From the fleet's log.
    decisions, changes
        Verdicts of the operator during the run, and how many of them changed something; None where not known.
    """
    judged = judge_all(records, targets)
    of = {service: [one for one in judged if one.record.service == service] for service in targets}
    classes = {
        "Interactive": [one for one in judged if one.record.service in interactive],
        "Batch": [one for one in judged if one.record.service not in interactive],
    }
    end_ms = max([traffic_ms, *(record.sent_at_ms + (record.end_ms or 0) for record in records)])
    return Scorecard(
        services={service: score_service(rows) for service, rows in of.items()},
        classes={name: score_service(rows) for name, rows in classes.items()},
        overall=count(records),
        recovery_s=recovery_s(of[burst_service], burst_from_ms, traffic_ms),
        promote_ms=tuple(sorted(one.took_ms for one in promotions)),
        gpu_seconds={
            service: gpu_seconds([span for span in spans if span.service == service], end_ms) for service in targets
        },
        decisions=decisions,
        changes=changes,
    )
