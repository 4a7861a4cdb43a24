"""vLLM's continuous batching, rule by rule."""

from tests.engine_model.build import ROW_BLOCKS, Scheduler


def test_a_prompt_longer_than_the_budget_is_computed_in_chunks() -> None:
    engine = Scheduler()
    engine.add("long", 150)
    assert [engine.step().shares for _ in range(4)] == [{"long": 64}, {"long": 64}, {"long": 22}, {"long": 1}]


def test_running_requests_come_first_and_the_prompt_takes_what_the_budget_leaves() -> None:
    engine = Scheduler()
    engine.add("a", 10)
    engine.add("b", 20)
    assert engine.step().shares == {"a": 10, "b": 20}
    engine.add("long", 150)
    batch = engine.step()
    assert batch.shares == {"a": 1, "b": 1, "long": 62}
    assert (batch.decoding, batch.context_tokens, batch.prompt_tokens, batch.pairs) == (2, 11 + 21, 62, 62 * 62)
    # Its second chunk now stands in the queue of the running: the decodes before it still go first.
    assert engine.step().shares == {"a": 1, "b": 1, "long": 62}


def test_at_most_max_num_seqs_run_first_come_first_served() -> None:
    engine = Scheduler(seqs=2)
    engine.add("a", 10)
    engine.add("b", 10)
    engine.add("c", 10)
    assert engine.step().shares == {"a": 10, "b": 10}
    engine.remove("a")
    assert engine.step().shares == {"b": 1, "c": 10}


def test_nothing_is_admitted_once_the_budget_is_spent() -> None:
    engine = Scheduler(budget=16)
    engine.add("a", 16)
    engine.add("b", 4)
    assert engine.step().shares == {"a": 16}
    assert engine.step().shares == {"a": 1, "b": 4}


def test_a_budget_smaller_than_the_batch_leaves_the_last_ones_out() -> None:
    engine = Scheduler(budget=2)
    engine.add("a", 1)
    engine.add("b", 1)
    engine.step()
    engine.add("c", 1)
    assert engine.step().shares == {"a": 1, "b": 1}


def test_without_blocks_the_last_running_request_is_preempted_and_nobody_is_admitted() -> None:
    engine = Scheduler(blocks=4, caching=False)
    engine.add("a", 32)
    engine.add("b", 30)
    engine.step()  # two blocks each: the pool is full
    engine.add("c", 1)
    batch = engine.step()  # a's 33rd token needs a third block
    assert batch.shares == {"a": 1}
    assert (batch.preempted, engine.waiting) == (1, ["b", "c"])
    row = engine.row("b")
    assert (engine.bank.preempted[row], engine.bank.computed[row], engine.bank.held[row]) == (1, 0, 0)


def test_the_last_request_that_finds_no_block_preempts_itself() -> None:
    engine = Scheduler(blocks=4, caching=False)
    engine.add("a", 30)
    engine.add("b", 32)
    engine.step()
    batch = engine.step()
    assert batch.shares == {"a": 1}
    assert (batch.preempted, engine.waiting) == (1, ["b"])


def test_a_request_is_let_in_only_when_the_whole_of_it_fits() -> None:
    engine = Scheduler(blocks=6, caching=False)
    engine.add("a", 30)  # two blocks, and a third with its third decode
    engine.add("long", 70)  # five blocks: its first chunk of 34 tokens would fit
    assert engine.step().shares == {"a": 30}
    engine.remove("a")
    assert engine.step().shares == {"long": 64}


def test_cached_blocks_need_no_room_when_a_request_is_let_in() -> None:
    engine = Scheduler(blocks=6)
    engine.add("a", 64, text="shared")
    engine.step()
    engine.add("b", 70, text="shared")  # five blocks, four of them a's
    assert engine.step().shares == {"a": 1, "b": 6}


def test_blocks_may_hold_any_number_of_tokens() -> None:
    engine = Scheduler(blocks=2, caching=False, block_tokens=32)
    engine.add("a", 32)
    engine.add("b", 1)
    assert engine.step().shares == {"a": 32, "b": 1}
    assert engine.step().shares == {"a": 1}  # its 33rd token takes the block of b


def test_a_preempted_request_is_computed_again_with_its_answer_as_prefill() -> None:
    engine = Scheduler(blocks=8, caching=False)
    engine.add("a", 20, generated=5)
    batch = engine.step()
    assert (batch.shares, batch.decoding, batch.prompt_tokens) == ({"a": 25}, 0, 25)


def test_cached_full_blocks_are_taken_and_at_least_the_last_token_is_computed() -> None:
    engine = Scheduler()
    engine.add("a", 32, text="same")
    engine.step()
    engine.add("b", 32, text="same")
    batch = engine.step()
    assert batch.shares == {"a": 1, "b": 16}
    assert batch.admitted == {"b": 16}
    assert batch.pairs == 32 * 32 - 16 * 16
    tables = [engine.bank.table[engine.row(name) * ROW_BLOCKS] for name in "ab"]
    assert tables[0] == tables[1]


def test_requests_admitted_in_one_step_share_what_the_first_of_them_computes() -> None:
    engine = Scheduler(budget=200)
    engine.add("a", 60, text="same")
    engine.add("b", 60, text="same")
    assert engine.step().shares == {"a": 60, "b": 12}


def test_a_preempted_request_finds_its_own_blocks_again() -> None:
    engine = Scheduler(blocks=5)
    engine.add("a", 32)
    engine.add("b", 32)
    engine.step()
    for _ in range(2):
        engine.step()  # a takes the fifth block, b is preempted in its second decode at the latest
    assert engine.waiting == ["b"]
    engine.remove("a")
    batch = engine.step()
    assert batch.shares == {"b": 1}
    assert batch.admitted == {"b": 0}  # of its first admission, which the metrics report


def test_a_cached_prefix_that_is_free_is_not_counted_as_room_twice() -> None:
    engine = Scheduler(blocks=4, budget=100)
    engine.add("a", 33, text="same")
    engine.step()
    engine.remove("a")  # two cached blocks and two that hold nothing are free
    engine.add("b", 80, text="same")
    assert engine.step().shares == {}  # five blocks needed: two hits and three of the two others
    assert engine.bank.held[engine.row("b")] == 0


def test_a_waiting_request_can_be_removed() -> None:
    engine = Scheduler()
    engine.add("a", 10)
    engine.add("b", 10)
    engine.remove("b")
    assert engine.step().shares == {"a": 10}
