"""The rule by which the demo says that the machine itself was too slow."""

import os

import pytest

from e2e.demo import machine

STAT = "cpu  100 5 50 800 20 3 2 20 0 0\ncpu0 1 2 3\n"


def test_proc_stat() -> None:
    # idle 800 + iowait 20; all eight: 100 + 5 + 50 + 800 + 20 + 3 + 2 + 20
    assert machine.read_cpu(STAT) == machine.Cpu(total=1000, idle=820, steal=20)


PERCENTILES = {
    "of nothing": ([], 99, 0.0),
    "of one": ([7], 50, 7.0),
    "the 50th of 1..4 is the second": ([4, 3, 2, 1], 50, 2.0),
    "the 99th of 1..100 is the 99th": (list(range(1, 101)), 99, 99.0),
    "the 99th of 1..200 is the 198th": (list(range(1, 201)), 99, 198.0),
}


@pytest.mark.parametrize(("values", "per_cent", "expected"), PERCENTILES.values(), ids=PERCENTILES)
def test_percentile(values: list[int], per_cent: float, expected: float) -> None:
    assert machine.percentile(values, per_cent) == expected


CALM = ([1] * 100, [2.0] * 100, [0.5] * 100, [0.0] * 100)
VERDICTS = {
    "a calm machine": (CALM, "the machine was not the bottleneck"),
    "requests sent late": (
        ([51] * 100, *CALM[1:]),
        "the machine was the bottleneck: requests were sent 51 ms late (p99)",
    ),
    "a late event loop": (
        (CALM[0], [60.0] * 100, *CALM[2:]),
        "the machine was the bottleneck: the generator's event loop ran 60 ms late (p99)",
    ),
    "eleven full seconds of a hundred": (
        (*CALM[:2], [0.99] * 11 + [0.5] * 89, CALM[3]),
        "the machine was the bottleneck: no idle processor in 11% of the seconds",
    ),
    "ten of a hundred are allowed": (
        (*CALM[:2], [0.99] * 10 + [0.5] * 90, CALM[3]),
        "the machine was not the bottleneck",
    ),
    "a noisy neighbour": (
        (*CALM[:3], [0.06] * 100),
        "the machine was the bottleneck: 6% of the processor time was stolen",
    ),
    "nothing was sampled": (([], [], [], []), "the machine was not the bottleneck"),
}


@pytest.mark.parametrize(("samples", "words"), VERDICTS.values(), ids=VERDICTS)
def test_verdict(samples: tuple[list[int], list[float], list[float], list[float]], words: str) -> None:
    assert machine.verdict(*samples).words == words
    assert machine.verdict(*samples).was_bottleneck == ("not" not in words)


def test_processor_time_is_told_by_program() -> None:
    used = machine.process_cpu_s()
    assert sum(used.values()) > 0
    assert any("pytest" in name or "python" in name for name in used), used
    assert machine.describe()["cores"] == os.cpu_count()
