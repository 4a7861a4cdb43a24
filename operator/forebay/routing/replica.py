"""DECIDE: what one gateway knows of one replica, from its own book and from the replica's last report.

Between two reports (a second apart) only the own book moves. Load of other gateways is what the report showed beyond
the own requests at that moment.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forebay.routing import rules
from forebay.routing.rules import UNKNOWN

if TYPE_CHECKING:
    from forebay.wire.signals import ReplicaSignals

# Ten missed: what it once said of other gateways' load says nothing any more; only the own requests count against it.
FORGOTTEN_MS = 10_000


@dataclass(slots=True)
class Sent:
    """One request that this gateway sent to a replica and that has not ended."""

    sent_ms: int
    body_bytes: int
    pending_tokens: int  # of its prompt, not yet seen in the engine's prompt counter


@dataclass(frozen=True, slots=True)
class Counted:
    """What an engine counted between two reports."""

    prompt_tokens: int
    requests_finished: int


@dataclass(slots=True)
class Replica:
    """One replica of one service.

    Attributes
    ----------
    routable : bool
        Serving, Ready, not being deleted, and known to Envoy.
    prefill_tokens_per_s : int
        Measured; UNKNOWN until the engine finished a prompt between two reports.
    pace : int
        `rules.pace_of` its gaps between tokens; UNKNOWN until it made enough of them between two reports.
    kv_tokens_total, kv_tokens_used : int
        Of the last report; UNKNOWN where it does not say.
    """

    uid: str
    endpoint: str  # "ip:port"
    batch_max: int
    routable: bool = False
    leaving: bool = False  # its pod is gone; it stays until its requests have ended
    prefill_tokens_per_s: int = UNKNOWN
    pace: int = UNKNOWN
    kv_tokens_total: int = UNKNOWN
    kv_tokens_used: int = UNKNOWN
    sent: dict[str, Sent] = field(default_factory=dict)  # in order of sending
    adopted: int = 0  # running since before this process; they have no name here
    pending_tokens: int = 0
    others: int = 0  # requests of other gateways
    others_waiting: int = 0
    report: ReplicaSignals | None = None
    report_ms: int = 0  # when the engine's numbers in it were read
    _others_seen: int = 0
    _history: deque[tuple[int, int]] = field(default_factory=lambda: deque([(0, 0)]))  # (since, own requests)

    @property
    def own(self) -> int:
        """Requests of this gateway that run here."""
        return len(self.sent) + self.adopted

    def look(self, now_ms: int) -> tuple[int, int]:
        """Return the requests here, own and others', and the age of what the engine last said.

        The age is FORGOTTEN_MS if it never spoke. Both at once, since every request asks every replica.
        """
        if self.report is None:
            return len(self.sent) + self.adopted, FORGOTTEN_MS
        age_ms = now_ms - self.report_ms
        return len(self.sent) + self.adopted + (self.others if age_ms < FORGOTTEN_MS else 0), age_ms

    def has_room(self, load: int, age_ms: int, prompt_tokens: int) -> bool:
        """Say whether a prompt of this size would start at once or nearly so; `load` and `age_ms` are from `look`."""
        return rules.has_room(
            load,
            age_ms,
            self.batch_max,
            self.kv_tokens_total,
            self.kv_tokens_used,
            self.pending_tokens,
            prompt_tokens,
        )

    # --- the own book ---------------------------------------------------------------------------------------------

    def send(self, request_id: str, prompt_tokens: int, body_bytes: int, now_ms: int) -> None:
        """Note a request as sent here."""
        self.sent[request_id] = Sent(now_ms, body_bytes, prompt_tokens)
        self.pending_tokens += prompt_tokens
        self._note(now_ms)

    def end(self, request_id: str, now_ms: int) -> Sent:
        """Note the end of a sent request; what its prompt still had pending is gone with it."""
        sent = self.sent.pop(request_id)
        self.pending_tokens -= sent.pending_tokens
        self._note(now_ms)
        return sent

    def adopt(self, change: int, now_ms: int) -> None:
        """Add (or, negative, end) requests that began before this process."""
        self.adopted += change
        self._note(now_ms)

    def _note(self, now_ms: int) -> None:
        if self._history[-1][0] == now_ms:
            self._history.pop()
        self._history.append((now_ms, self.own))
        self._own_at(now_ms - FORGOTTEN_MS)

    def _own_at(self, at_ms: int) -> int:
        while len(self._history) > 1 and self._history[1][0] <= at_ms:
            self._history.popleft()
        return self._history[0][1]

    # --- the replica's report -------------------------------------------------------------------------------------

    def observe(self, report: ReplicaSignals, now_ms: int) -> Counted | None:
        """Take a report in; return what was counted since the last one, None if there is nothing to compare with."""
        if report.sample_age_ms is None:
            return None  # the supervisor has not read its engine yet
        before, at_ms = self.report, now_ms - report.sample_age_ms
        if before is not None and at_ms < self.report_ms:
            return None  # an older one that was overtaken
        own_then = self._own_at(at_ms)
        counted = _difference(before, report)
        if counted is not None and before is not None:
            # Of what was prefilled, our share is our share of the requests there.
            total = own_then + self.others
            self._see(counted.prompt_tokens * own_then // total if total else 0, at_ms)
            self._learn_rate(before, report, counted)
            self._learn_pace(before, report, total)
        if report.requests_running is not None and report.requests_waiting is not None:
            seen = max(0, report.requests_running + report.requests_waiting - own_then)
            # Two reports must show it: an end that the engine's gauge has not seen yet looks like a foreign request.
            self.others, self._others_seen = min(seen, self._others_seen), seen
            self.others_waiting = min(self.others, report.requests_waiting)
        self.report, self.report_ms = report, at_ms
        self._note_kv(report)
        return counted

    def _note_kv(self, report: ReplicaSignals) -> None:
        permille = report.kv_used_permille
        if permille is None or not report.kv_blocks_total or not report.kv_block_tokens:
            self.kv_tokens_total = self.kv_tokens_used = UNKNOWN
            return
        self.kv_tokens_total = report.kv_blocks_total * report.kv_block_tokens
        self.kv_tokens_used = self.kv_tokens_total * permille // 1_000

    def _see(self, prompt_tokens: int, at_ms: int) -> None:
        for sent in self.sent.values():
            if prompt_tokens == 0 or sent.sent_ms > at_ms:
                return
            seen = min(prompt_tokens, sent.pending_tokens)
            sent.pending_tokens -= seen
            self.pending_tokens -= seen
            prompt_tokens -= seen

    def _learn_rate(self, before: ReplicaSignals, after: ReplicaSignals, counted: Counted) -> None:
        ttft_ms = _delta(before.ttft_sum_ms, after.ttft_sum_ms)
        queued_ms = _delta(before.queue_time_sum_ms, after.queue_time_sum_ms)
        if ttft_ms is None or counted.prompt_tokens == 0:
            return
        prefill_ms = ttft_ms - (queued_ms or 0)
        if prefill_ms > 0:
            known = self.prefill_tokens_per_s
            self.prefill_tokens_per_s = rules.prefill_rate(known, counted.prompt_tokens, prefill_ms)

    def _learn_pace(self, before: ReplicaSignals, after: ReplicaSignals, load: int) -> None:
        gaps_ms = _delta(before.itl_sum_ms, after.itl_sum_ms)
        gaps = _delta((before.itl_buckets or (None,))[-1], (after.itl_buckets or (None,))[-1])
        if gaps_ms is not None and gaps is not None and gaps >= rules.GAPS_LEAST:
            self.pace = rules.smoothed(self.pace, rules.pace_of(1_000 * gaps_ms // gaps, load))


def _delta(before: int | None, after: int | None) -> int | None:
    if before is None or after is None or after < before:
        return None
    return after - before


def _difference(before: ReplicaSignals | None, after: ReplicaSignals) -> Counted | None:
    if before is None or before.pod_uid != after.pod_uid:
        return None
    tokens = _delta(before.prompt_tokens_total, after.prompt_tokens_total)
    finished = _delta(before.requests_finished_total, after.requests_finished_total)
    if tokens is None or finished is None:
        return None  # a restarted engine counts from zero again: a new baseline
    return Counted(tokens, finished)
