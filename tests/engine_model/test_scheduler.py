"""vLLM's continuous batching, rule by rule."""

from forebay.engine_model.kv_blocks import BlockPool, chain_hash
from forebay.engine_model.scheduler import Batch, Running, Scheduler


def request(name: str, prompt: int, *, output: int = 100, generated: int = 0, text: str | None = None) -> Running:
    hashes: list[int] = []
    for index in range((prompt + output) // 16):
        hashes.append(chain_hash(hashes[-1] if hashes else 0, f"{text or name} {index}".encode()))
    return Running(name, prompt, output, hashes, 0, output_tokens=generated)


def scheduler(blocks: int = 1000, *, seqs: int = 8, budget: int = 64, caching: bool = True) -> Scheduler:
    return Scheduler(BlockPool(blocks), seqs, budget, prefix_caching=caching)


def step(engine: Scheduler) -> Batch:
    """Schedule and compute; whoever has no token left to compute gets one more output token."""
    batch = engine.schedule()
    for member in batch.members:
        member.computed_tokens += member.step_tokens
        if member.computed_tokens == member.tokens:
            member.output_tokens += 1
    return batch


def shares(batch: Batch) -> dict[str, int]:
    return {member.request_id: member.step_tokens for member in batch.members}


def test_a_prompt_longer_than_the_budget_is_computed_in_chunks() -> None:
    engine = scheduler()
    engine.waiting.append(request("long", 150))
    assert [shares(step(engine)) for _ in range(4)] == [{"long": 64}, {"long": 64}, {"long": 22}, {"long": 1}]


def test_running_requests_come_first_and_the_prompt_takes_what_the_budget_leaves() -> None:
    engine = scheduler()
    engine.waiting.extend([request("a", 10), request("b", 20)])
    assert shares(step(engine)) == {"a": 10, "b": 20}
    engine.waiting.append(request("long", 150))
    batch = step(engine)
    assert shares(batch) == {"a": 1, "b": 1, "long": 62}
    assert (batch.decoding, batch.context_tokens, batch.prompt_tokens, batch.pairs) == (2, 11 + 21, 62, 62 * 62)
    # Its second chunk now stands in the queue of the running: the decodes before it still go first.
    assert shares(step(engine)) == {"a": 1, "b": 1, "long": 62}


def test_at_most_max_num_seqs_run_first_come_first_served() -> None:
    engine = scheduler(seqs=2)
    engine.waiting.extend([request("a", 10), request("b", 10), request("c", 10)])
    assert shares(step(engine)) == {"a": 10, "b": 10}
    engine.remove(engine.running[0])
    assert shares(step(engine)) == {"b": 1, "c": 10}


def test_nothing_is_admitted_once_the_budget_is_spent() -> None:
    engine = scheduler(budget=16)
    engine.waiting.extend([request("a", 16), request("b", 4)])
    assert shares(step(engine)) == {"a": 16}
    assert shares(step(engine)) == {"a": 1, "b": 4}


def test_a_budget_smaller_than_the_batch_leaves_the_last_ones_out() -> None:
    engine = scheduler(budget=2)
    engine.waiting.extend([request("a", 1), request("b", 1)])
    step(engine)
    engine.waiting.append(request("c", 1))
    assert shares(step(engine)) == {"a": 1, "b": 1}


def test_without_blocks_the_last_running_request_is_preempted_and_nobody_is_admitted() -> None:
    engine = scheduler(blocks=4, caching=False)
    engine.waiting.extend([request("a", 32), request("b", 30)])
    step(engine)  # two blocks each: the pool is full
    engine.waiting.append(request("c", 1))
    batch = step(engine)  # a's 33rd token needs a third block
    assert shares(batch) == {"a": 1}
    assert [victim.request_id for victim in batch.preempted] == ["b"]
    assert [waiting.request_id for waiting in engine.waiting] == ["b", "c"]
    assert (engine.waiting[0].preemptions, engine.waiting[0].computed_tokens, engine.waiting[0].blocks) == (1, 0, [])


def test_the_last_request_that_finds_no_block_preempts_itself() -> None:
    engine = scheduler(blocks=4, caching=False)
    engine.waiting.extend([request("a", 30), request("b", 32)])
    step(engine)
    batch = step(engine)
    assert shares(batch) == {"a": 1}
    assert [victim.request_id for victim in batch.preempted] == ["b"]


def test_a_preempted_request_is_computed_again_with_its_answer_as_prefill() -> None:
    engine = scheduler(blocks=8, caching=False)
    engine.waiting.append(request("a", 20, generated=5))
    batch = step(engine)
    assert (shares(batch), batch.decoding, batch.prompt_tokens) == ({"a": 25}, 0, 25)


def test_cached_full_blocks_are_taken_and_at_least_the_last_token_is_computed() -> None:
    engine = scheduler()
    engine.waiting.append(request("a", 32, text="same"))
    step(engine)
    engine.waiting.append(request("b", 32, text="same"))
    batch = step(engine)
    assert shares(batch) == {"a": 1, "b": 16}
    assert [(member.request_id, member.cached_tokens) for member in batch.admitted] == [("b", 16)]
    assert batch.pairs == 32 * 32 - 16 * 16
    assert engine.running[0].blocks[0] == engine.running[1].blocks[0]


def test_requests_admitted_in_one_step_share_what_the_first_of_them_computes() -> None:
    engine = scheduler(budget=200)
    engine.waiting.extend([request("a", 60, text="same"), request("b", 60, text="same")])
    assert shares(step(engine)) == {"a": 60, "b": 12}


def test_a_preempted_request_finds_its_own_blocks_again() -> None:
    engine = scheduler(blocks=5)
    engine.waiting.extend([request("a", 32), request("b", 32)])
    step(engine)
    for _ in range(2):
        step(engine)  # a takes the fifth block, b is preempted in its second decode at the latest
    assert [waiting.request_id for waiting in engine.waiting] == ["b"]
    engine.remove(engine.running[0])
    batch = step(engine)
    assert shares(batch) == {"b": 1}
    assert batch.admitted[0].cached_tokens == 0  # of its first admission, which the metrics report


def test_a_cached_prefix_that_is_free_is_not_counted_as_room_twice() -> None:
    engine = scheduler(blocks=4, budget=100)
    engine.waiting.append(request("a", 33, text="same"))
    step(engine)
    engine.remove(engine.running[0])  # two cached blocks and two that hold nothing are free
    engine.waiting.append(request("b", 80, text="same"))
    assert shares(step(engine)) == {}  # five blocks needed: two hits and three of the two others
    assert engine.waiting[0].blocks == []


def test_a_waiting_request_can_be_removed() -> None:
    engine = scheduler()
    engine.waiting.extend([request("a", 10), request("b", 10)])
    engine.remove(engine.waiting[1])
    assert shares(step(engine)) == {"a": 10}
