"""Whatever is submitted and aborted, and when: every request gets exactly its tokens, and no block is lost."""

from hypothesis import given
from hypothesis import strategies as st

from forebay.engine_model.engine import Engine, EngineSettings
from forebay.engine_model.kv_blocks import chain_hash
from forebay.engine_model.step_time import StepTimes

TIMES = StepTimes(5_000_000_000, 10_000_000, 40_000, 16_000_000, 700_000)
REQUESTS = st.lists(
    st.tuples(
        st.integers(0, 30),  # the step before which it arrives
        st.integers(1, 120),  # prompt
        st.integers(1, 40),  # answer
        st.integers(0, 2),  # which of three texts it begins with
        st.one_of(st.none(), st.integers(0, 60)),  # the step in which the client goes away
    ),
    min_size=1,
    max_size=12,
)


def chain(text: int, blocks: int) -> list[int]:
    hashes: list[int] = []
    for index in range(blocks):
        hashes.append(chain_hash(hashes[-1] if hashes else 0, bytes([text, index])))
    return hashes


@given(
    requests=REQUESTS,
    blocks=st.integers(12, 40),
    seqs=st.integers(1, 6),
    budget=st.integers(1, 100),
    caching=st.booleans(),
)
def test_every_request_gets_its_tokens_and_every_block_comes_back(
    requests: list[tuple[int, int, int, int, int | None]], blocks: int, seqs: int, budget: int, *, caching: bool
) -> None:
    engine = Engine(EngineSettings(TIMES, blocks, 160, seqs, budget, prefix_caching=caching))
    emitted = dict.fromkeys(range(len(requests)), 0)
    aborted: set[int] = set()
    now_ps, number, idle = 0, 0, False
    while not idle or number <= 60:
        for index, (arrival, prompt, output, text, _) in enumerate(requests):
            if arrival == number:
                engine.submit(str(index), prompt, output, chain(text, (prompt + output) // 16), now_ps)
        duration_ps = engine.begin_step(now_ps)
        for index, (*_, leaves) in enumerate(requests):
            if leaves == number and engine.abort(str(index)):
                aborted.add(index)
        idle = duration_ps is None
        if duration_ps is not None:
            assert duration_ps >= TIMES.c0_ps
            now_ps += duration_ps
            outcome = engine.end_step(now_ps)
            assert outcome.tokens <= budget
            assert engine.requests_running <= seqs
            for request in outcome.emitted:
                emitted[int(request.request_id)] += 1
        assert 0 <= engine.kv_blocks_used <= engine.kv_blocks_usable == blocks - 1
        number += 1
        assert number < 20_000, "an engine with requests must always get on"
    for index, (_, _, output, _, _) in enumerate(requests):
        assert emitted[index] == output or index in aborted
    assert (engine.kv_blocks_used, engine.requests_running, engine.requests_waiting) == (0, 0, 0)
