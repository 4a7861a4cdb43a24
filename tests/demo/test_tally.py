"""Decisions counted from a journal that the product's own writer wrote of its own judgement."""

from pathlib import Path

from e2e.demo.tally import tally
from forebay.core.memory import initial_memory
from forebay.core.step import step
from forebay.report.journal import Journal
from tests.core import build


def test_every_tick_decides_for_each_service_and_few_decisions_change_anything(tmp_path: Path) -> None:
    spec = build.fleet({}, {})
    memory = initial_memory(spec, 0)
    book = Journal(tmp_path, 1 << 30)
    for second in range(1, 11):
        look = build.snapshot(second * 1000, [{"service": 0}, {"service": 1}])
        after, decisions = step(spec, memory, look)
        book.record(spec, memory, look, decisions)
        memory = after
    counted = tally(tmp_path)
    assert (counted.ticks, counted.decisions) == (10, 20)
    assert counted.changes == 2  # the first decision of each service, and then the same again and again
    assert counted.replay_differences == ()
