"""The whole engine on virtual time: what continuous batching, shared prefixes and chunked prefill are worth."""

import dataclasses
from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest

from forebay.engine_model.engine import Engine, EngineSettings, RequestRejectedError
from forebay.engine_model.kv_blocks import chain_hash
from forebay.engine_model.step_time import PS_PER_MS, StepTimes

H100_8B = StepTimes(6_960_000_000, 10_500_000, 44_200, 16_600_000, 730_000)
SETTINGS = EngineSettings(H100_8B, 2_000, 8_192, 16, 2_048)


def hashes(text: str, blocks: int) -> list[int]:
    chain: list[int] = []
    for index in range(blocks):
        chain.append(chain_hash(chain[-1] if chain else 0, f"{text} {index}".encode()))
    return chain


class World:
    """Runs one engine until it is idle and notes when each token came."""

    def __init__(self, settings: EngineSettings = SETTINGS) -> None:
        self.engine = Engine(settings)
        self.now_ps = 0
        self.tokens_at_ms: dict[str, list[float]] = defaultdict(list)
        self.computed_tokens = 0

    def submit(self, name: str, prompt: int, output: int, text: str | None = None) -> None:
        self.engine.submit(name, prompt, output, hashes(text or name, prompt // 16), self.now_ps)

    def step(self) -> bool:
        duration_ps = self.engine.begin_step(self.now_ps)
        if duration_ps is None:
            return False
        self.now_ps += duration_ps
        outcome = self.engine.end_step(self.now_ps)
        self.computed_tokens += outcome.tokens
        for request in outcome.emitted:
            self.tokens_at_ms[request.request_id].append(self.now_ps / PS_PER_MS)
        return True

    def run(self) -> float:
        while self.step():
            pass
        assert self.engine.kv_blocks_used == 0
        return self.now_ps / PS_PER_MS

    def gaps_ms(self, name: str) -> list[float]:
        at = self.tokens_at_ms[name]
        return [later - earlier for earlier, later in pairwise(at)]


def group(number: int) -> list[tuple[str, int]]:
    """One 800-token answer and fifteen of 40 tokens."""
    return [(f"{number}-{index}", 800 if index == 0 else 40) for index in range(16)]


def test_continuous_batching_does_three_times_the_work_of_a_static_batch() -> None:
    static, continuous = World(), World()
    for number in range(8):
        for name, output in group(number):
            static.submit(name, 100, output)
        static.run()  # the batch is held until its longest answer is done
        for name, output in group(number):
            continuous.submit(name, 100, output)
    continuous.run()
    assert sum(map(len, static.tokens_at_ms.values())) == sum(map(len, continuous.tokens_at_ms.values())) == 8 * 1_400
    assert static.now_ps > 3 * continuous.now_ps


def test_a_shared_system_prompt_is_computed_once() -> None:
    world = World()
    for number in range(10):
        world.submit(f"r{number}", 1_600 + 10, 1, text="the same 1,600 tokens")
    world.run()
    assert world.computed_tokens == 1_600 + 10 * 10
    assert world.engine.prefix_query_tokens_total == 10 * 1_610
    assert world.engine.prefix_hit_tokens_total == 9 * 1_600


def test_the_next_turn_finds_the_last_answer_in_the_cache() -> None:
    engine = Engine(SETTINGS)
    conversation = hashes("conversation", 10)
    engine.submit("turn 1", 64, 65, conversation, 0)
    while engine.begin_step(0) is not None:
        engine.end_step(0)
    second = engine.submit("turn 2", 64 + 65 + 20, 1, conversation, 0)
    engine.begin_step(0)
    assert second.cached_tokens == 128  # eight full blocks; the 129th token was returned but never computed


def test_without_prefix_caching_nothing_is_shared_or_counted() -> None:
    world = World(dataclasses.replace(SETTINGS, prefix_caching=False))
    for number in range(2):
        world.submit(f"r{number}", 160, 1, text="same")
    world.run()
    assert (world.computed_tokens, world.engine.prefix_query_tokens_total) == (320, 0)


@pytest.mark.parametrize(("budget", "worst_gap_ms"), [(256, 15), (8_192, 200)])
def test_chunked_prefill_bounds_the_itl_under_a_long_prompt(budget: int, worst_gap_ms: int) -> None:
    world = World(dataclasses.replace(SETTINGS, max_num_batched_tokens=budget))
    world.submit("chat", 50, 200)
    for _ in range(10):
        world.step()
    world.submit("long", 8_000, 10)
    world.run()
    assert worst_gap_ms / 2 < max(world.gaps_ms("chat")) < worst_gap_ms


def test_requests_that_do_not_fit_together_are_preempted_and_all_answered() -> None:
    world = World(dataclasses.replace(SETTINGS, kv_blocks_total=65, max_model_len=1_000))
    for number in range(6):
        world.submit(f"r{number}", 200, 300)
    world.run()
    assert {name: len(at) for name, at in world.tokens_at_ms.items()} == {f"r{number}": 300 for number in range(6)}
    assert world.engine.preemptions_total > 0


def test_the_times_of_a_request_are_those_of_the_model_clock() -> None:
    engine = Engine(SETTINGS)
    request = engine.submit("a", 10, 2, [], 5)
    assert (engine.requests_waiting, engine.requests_running, request.scheduled_ps) == (1, 0, None)
    engine.begin_step(7)
    assert (engine.requests_waiting, engine.requests_running, engine.kv_blocks_used) == (0, 1, 1)
    first = engine.end_step(11)
    assert (first.emitted, first.prefilled, first.finished, first.tokens) == ([request], [request], [], 10)
    engine.begin_step(11)
    last = engine.end_step(13)
    assert (last.emitted, last.prefilled, last.finished, last.tokens) == ([request], [], [request], 1)
    times = (request.arrived_ps, request.scheduled_ps, request.first_token_ps, request.last_token_ps)
    assert times == (5, 7, 11, 13)
    assert request.token_before_ps == 11


def test_an_aborted_request_frees_its_blocks_even_in_mid_step() -> None:
    engine = Engine(SETTINGS)
    for name in ("a", "b"):
        engine.submit(name, 100, 10, hashes(name, 6), 0)
    engine.begin_step(0)
    assert engine.abort("a")
    assert not engine.abort("a")
    assert [request.request_id for request in engine.end_step(1).emitted] == ["b"]
    assert engine.abort("b")
    assert (engine.begin_step(1), engine.kv_blocks_used) == (None, 0)


def test_forgotten_prefixes_are_computed_again() -> None:
    world = World()
    for number in range(2):
        world.submit(f"r{number}", 160, 1, text="same")
        world.run()
        world.engine.forget_prefixes()
    assert world.computed_tokens == 320


REFUSED = {
    "no prompt": (("new", 0, 1), "at least one prompt token"),
    "no answer": (("new", 1, 0), "at least one prompt token and one output token"),
    "too long together": (("new", 8_000, 193), "exceed the maximum model length of 8192"),
    "an id that is in the engine": (("known", 1, 1), "already in the engine"),
}


@pytest.mark.parametrize(("request_", "message"), REFUSED.values(), ids=REFUSED)
def test_a_request_that_cannot_be_served_is_refused(request_: tuple[str, int, int], message: str) -> None:
    engine = Engine(SETTINGS)
    engine.submit("known", 1, 1, [], 0)
    with pytest.raises(RequestRejectedError, match=message):
        engine.submit(*request_, [], 0)


STUCK: dict[str, tuple[dict[str, Any], str]] = {
    "one request of the greatest length does not fit": ({"kv_blocks_total": 512}, "does not fit the KV cache of 8176"),
    "no room in a step": ({"max_num_batched_tokens": 0}, "at least 1"),
    "nobody may run": ({"max_num_seqs": 0}, "at least 1"),
}


@pytest.mark.parametrize(("change", "message"), STUCK.values(), ids=STUCK)
def test_an_engine_that_could_get_stuck_does_not_start(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SETTINGS, **change)


def test_steps_are_begun_and_ended_in_turn() -> None:
    engine = Engine(SETTINGS)
    with pytest.raises(RuntimeError, match="begin one first"):
        engine.end_step(0)
    engine.submit("a", 1, 1, [], 0)
    engine.begin_step(0)
    with pytest.raises(RuntimeError, match="end it first"):
        engine.begin_step(0)


def test_usable_blocks_leave_out_the_null_block() -> None:
    assert Engine(SETTINGS).kv_blocks_usable == 1_999
