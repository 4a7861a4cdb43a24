"""DECIDE: where a request goes: to the replica with room that will answer it best, first token and rhythm weighed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.routing.rules import PREFILL_FIRST_TOKENS_PER_S, UNKNOWN, cost_ms, predicted_itl_us, predicted_ttft_ms

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forebay.routing.replica import Replica

# Envoy tries at most four hosts (num_retries 3); a longer list would never be read.
DESTINATIONS_MAX = 4


def mean_measured(values: Iterable[int], otherwise: int) -> int:
    """Average what was measured of a service's replicas, so that a newcomer competes as an equal."""
    measured = [value for value in values if value != UNKNOWN]
    return sum(measured) // len(measured) if measured else otherwise


def order(replicas: Iterable[Replica], prompt_tokens: int, mean_prompt_tokens: int, now_ms: int) -> list[Replica]:
    """List where a request should go, best first; empty: it has to wait.

    Parameters
    ----------
    replicas
        Of one service; those that are not routable are never in the answer.
    prompt_tokens
        Of this request, estimated.
    mean_prompt_tokens
        Of the service's requests; what a waiting request of another gateway is taken for.
    now_ms
        The present.

    Returns
    -------
    list
        Empty unless at least one has room. Then up to DESTINATIONS_MAX: those with room by predicted cost, behind them
        those without, which serve only when every better one refuses the connection.
    """
    routable = [r for r in replicas if r.routable]
    usual_rate = usual_pace = 0
    if any(UNKNOWN in (r.prefill_tokens_per_s, r.pace) for r in routable):
        usual_rate = mean_measured((r.prefill_tokens_per_s for r in routable), PREFILL_FIRST_TOKENS_PER_S)
        usual_pace = mean_measured((r.pace for r in routable), 0)  # no replica is told apart by it
    ranked: list[tuple[bool, int, int, str, Replica]] = []
    for replica in routable:
        load, age_ms = replica.look(now_ms)
        ahead = replica.pending_tokens + replica.others_waiting * mean_prompt_tokens
        rate = usual_rate if replica.prefill_tokens_per_s == UNKNOWN else replica.prefill_tokens_per_s
        pace = usual_pace if replica.pace == UNKNOWN else replica.pace
        ttft_ms = predicted_ttft_ms(ahead + prompt_tokens, rate, load, replica.batch_max, age_ms)
        cost = cost_ms(ttft_ms, predicted_itl_us(pace, load))
        full = not replica.has_room(load, age_ms, prompt_tokens)
        ranked.append((full, cost, load, replica.uid, replica))
    ranked.sort()  # uids differ, so no two replicas are ever compared
    if not ranked or ranked[0][0]:
        return []
    return [row[4] for row in ranked[:DESTINATIONS_MAX]]
