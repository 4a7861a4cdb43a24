"""DECIDE: the arithmetic of routing, on plain integers.

Each rule is a scalar function of int64s without objects, so that the simulator compiles these very lines instead of
telling them again. UNKNOWN stands for a number that nobody has said yet.
"""

from __future__ import annotations

UNKNOWN = -1
# Three polls missed: from here on a replica is used with caution (no allowance over its batch, others preferred).
STALE_MS = 3_000
# A full batch: somebody must finish first, and how soon is not known. A second puts such a replica behind any with a
# slot.
FULL_BATCH_MS = 1_000
# A measured prefill rate moves by a quarter a report: a straggler is known after about four seconds of traffic.
NEWEST_SHARE = 4
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


def learned_rate(known: int, rate: int) -> int:
    """Move a prefill rate (tokens a second) towards the newest measurement; UNKNOWN takes it as it is."""
    if known == UNKNOWN:
        return rate
    return max(1, known + (rate - known) // NEWEST_SHARE)
