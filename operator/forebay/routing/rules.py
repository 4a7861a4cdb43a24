"""DECIDE: the arithmetic of routing, on plain integers.

Each rule is a scalar function of int64s without objects, so that the simulator compiles these very lines instead of
telling them again. UNKNOWN stands for a number that nobody has said yet.
"""

from __future__ import annotations

UNKNOWN = -1
# What a prompt token costs before any replica of a service was measured; only differences between replicas matter then,
# and there are none.
PREFILL_FIRST_TOKENS_PER_S = 8_000
# Three polls missed: from here on a replica is used with caution (no allowance over its batch, others preferred).
STALE_MS = 3_000
# A full batch: somebody must finish first, and how soon is not known. A second puts such a replica behind any with a
# slot.
FULL_BATCH_MS = 1_000
# Least tokens between two reports that say something of a replica's pace: half a second of one request's.
GAPS_LEAST = 20
# The constant part of a step in requests: 15 ms against 0.4 ms a request on a 70B model, prompts included.
PACE_BASE = 32
# A promise of 500 ms to the first token goes with one of 50 ms between tokens: ten gaps weigh as much as the wait. In
# the simulator, replicas whose speeds vary by a quarter then keep their gaps within a tenth of each other's; by the
# wait alone the quickest prefiller got half as many again as the slowest, and its gaps broke the promise.
ITL_WEIGHT = 10
# What is learned of a replica's gaps moves by a quarter a report: a straggler is known after four seconds of traffic.
NEWEST_SHARE = 4
# What is learned of its prefill weighs a measurement by the time it took, against ten seconds that were known: a report
# often holds a single prompt, and of two prompts of 12,000 tokens the cached one looks several times as fast. In the
# simulator, Mooncake's conversations on 16 replicas keep their promises in 97 % of the requests; with a quarter a
# report the replica that was last lucky got the next prompts, and 90 % kept them.
PREFILL_MEMORY_MS = 10_000
# Own requests beyond the batch, as a share of it: they keep the batch full while an end travels to the gateway (1-4
# ms) and the next request back, and are too few to form a queue that a promoted replica could not take over.
ALLOWANCE_SHARE = 16


def predicted_ttft_ms(tokens: int, tokens_per_s: int, load: int, batch_max: int, age_ms: int) -> int:
    """Predict the time to the first token.

    Prefill of `tokens`, everything ahead and the prompt itself, stretched by the decode steps that share the engine:
    at a full batch the prefill gets about half of the time. A report older than STALE_MS adds its own age, since that
    long nobody knows what joined.
    """
    prefill_ms = 1_000 * tokens // max(1, tokens_per_s)
    wait_ms = prefill_ms + prefill_ms * load // max(1, batch_max)
    if load >= batch_max:
        wait_ms += FULL_BATCH_MS
    if age_ms >= STALE_MS:
        wait_ms += age_ms
    return wait_ms


def has_room(  # noqa: PLR0917 - a compiled rule takes plain numbers by position
    load: int,
    age_ms: int,
    batch_max: int,
    kv_tokens_total: int,
    kv_tokens_used: int,
    pending_tokens: int,
    prompt_tokens: int,
) -> bool:
    """Say whether a prompt of this size would start at once or nearly so.

    Parameters
    ----------
    load
        Requests there, own and others'.
    age_ms
        Of the engine's last report.
    kv_tokens_total, kv_tokens_used
        Slots of the KV cache by that report; UNKNOWN: the batch alone decides.
    pending_tokens
        Of prompts that were sent there and that the report does not show yet.
    """
    if load == 0:
        return True  # a prompt too big for an empty KV cache is the engine's to refuse
    if age_ms >= STALE_MS:
        return load < batch_max
    if load >= batch_max + max(1, batch_max // ALLOWANCE_SHARE):
        return False
    if min(kv_tokens_total, kv_tokens_used) == UNKNOWN:
        return True
    return kv_tokens_used + pending_tokens + prompt_tokens <= kv_tokens_total


def smoothed(known: int, newest: int) -> int:
    """Move what was learned towards the newest measurement, by a share; UNKNOWN takes it as it is."""
    if known == UNKNOWN:
        return newest
    return max(1, known + (newest - known) // NEWEST_SHARE)


def prefill_rate(known: int, tokens: int, time_ms: int) -> int:
    """Return what is known of a replica's prefill, in tokens a second, once `tokens` more took it `time_ms`."""
    if known == UNKNOWN:
        return max(1, 1_000 * tokens // time_ms)
    return max(1, (known * PREFILL_MEMORY_MS + 1_000 * tokens) // (PREFILL_MEMORY_MS + time_ms))


def pace_of(itl_us: int, load: int) -> int:
    """Return how slow a replica is, in thousandths of a microsecond a request: its token gap at a load, freed of it.

    A step's time is a constant and a share for each request, so gaps at two loads are compared as if PACE_BASE requests
    were always there.
    """
    return 1_000 * itl_us // (load + PACE_BASE)


def predicted_itl_us(pace: int, load: int) -> int:
    """Predict the gap between tokens once one more request has joined."""
    return pace * (load + 1 + PACE_BASE) // 1_000


def cost_ms(ttft_ms: int, itl_us: int) -> int:
    """Weigh the wait for the first token against the gaps between all others: ITL_WEIGHT of them count."""
    return ttft_ms + ITL_WEIGHT * itl_us // 1_000
