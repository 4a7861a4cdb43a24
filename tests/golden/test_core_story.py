"""A burst told decision by decision: a change of judgement appears in review as a change of this story.

Rewrite it with `python -m tests.golden.test_core_story` after looking at what changed. The checksum in its last line is
of the memory's bytes: equal inputs give equal bytes on every machine.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from forebay.core import codec
from forebay.core.memory import initial_memory
from forebay.core.reasons import Reason
from forebay.core.step import step
from forebay.core.wordings import wording
from tests.core import build
from tests.core.toy import Toy

STORY = Path(__file__).with_name("burst.txt")
SECONDS = 900


def tell() -> str:
    """Play 1.4 requests/s, a fivefold burst from 300 s to 420 s, and what comes after."""
    toy = Toy({}, lambda second: 7 if 300 <= second < 420 else 1.4)
    spec = build.fleet(toy.service)
    memory = initial_memory(spec, 0)
    lines: list[str] = []
    said = ""
    for second in range(SECONDS):
        toy.live(second)
        rows, gateway = toy.look(second, 0)
        memory, decisions = step(spec, memory, build.snapshot(second * 1000 + 500, rows, [gateway]))
        decision = decisions.decision(0)
        toy.obey(decision, second, 0)
        numbers = f"{decision.replicas_serving} serving + {decision.replicas_warm} warm"
        if numbers == said:
            continue
        said = numbers
        lines.append(f"{second:4} s  {numbers}{', nothing may be removed' if decision.hold else ''}")
        lines += [
            f"          {verdict.stage}: {verdict.replicas}, {wording(verdict.reason).say(dict(verdict.inputs))}"
            for verdict in decision.steps
            if verdict.reason is not Reason.NONE
        ]
    digest = hashlib.sha256(codec.encode_memory(memory)).hexdigest()
    return "\n".join([*lines, f"memory after {SECONDS} s: {digest}", ""])


def test_the_story_of_a_burst_is_the_one_that_was_reviewed() -> None:
    assert tell() == STORY.read_text()


if __name__ == "__main__":
    STORY.write_text(tell())
