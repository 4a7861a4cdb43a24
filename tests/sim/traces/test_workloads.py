"""The workloads are there, and scaling changes how many requests come and nothing else."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.sim import workloads
from forebay.sim.trace import Trace
from forebay.sim.workloads import Part, Shape, multiply, replicate, split, synthetic

DATA = Path(__file__).resolve().parents[2] / "data" / "traces"
BLOCK = 16


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    arrivals = sorted(draw(st.lists(st.integers(0, 10**9), min_size=1, max_size=12)))
    blocks = draw(st.lists(st.lists(st.integers(-3, 9), max_size=3), min_size=len(arrivals), max_size=len(arrivals)))
    lengths = draw(st.lists(st.integers(1, 99), min_size=len(arrivals), max_size=len(arrivals)))
    with_prefixes = draw(st.booleans())
    return Trace(
        name="t",
        arrival_us=np.array(arrivals, np.int64),
        prompt_tokens=np.array([len(of) * BLOCK + more for of, more in zip(blocks, lengths, strict=True)], np.int64),
        output_tokens=np.array(lengths, np.int64),
        prefix_ids=np.array([one for of in blocks for one in of], np.int64) if with_prefixes else None,
        prefix_offsets=np.array([0, *np.cumsum([len(of) for of in blocks])], np.int64) if with_prefixes else None,
        prefix_block_tokens=BLOCK if with_prefixes else 0,
    )


def prefixes(trace: Trace) -> list[tuple[int, ...]]:
    if trace.prefix_ids is None or trace.prefix_offsets is None:
        return [()] * len(trace)
    ids, offsets = trace.prefix_ids.tolist(), trace.prefix_offsets.tolist()
    return [tuple(ids[start:end]) for start, end in itertools.pairwise(offsets)]


def requests(trace: Trace) -> Counter[tuple[object, ...]]:
    """Count requests by all but time and ids."""
    shapes = [len(of) for of in prefixes(trace)]
    return Counter(zip(trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), shapes, strict=True))


@given(trace=traces(), copies=st.integers(1, 5), seed=st.integers(0, 9))
def test_copies_have_the_requests_of_the_trace_so_many_times(trace: Trace, copies: int, seed: int) -> None:
    expected = requests(trace)
    for scaled in (replicate(trace, copies, seed), multiply(trace, copies)):
        assert requests(scaled) == Counter({key: count * copies for key, count in expected.items()})
        assert len(scaled) == copies * len(trace)


@given(trace=traces(), copies=st.integers(1, 5), seed=st.integers(0, 9))
def test_copies_share_no_prefix_and_keep_their_own(trace: Trace, copies: int, seed: int) -> None:
    distinct = len({one for of in prefixes(trace) for one in of})
    shared = sum(len(of) for of in prefixes(trace)) - distinct
    for scaled in (replicate(trace, copies, seed), multiply(trace, copies)):
        ids = [one for of in prefixes(scaled) for one in of]
        assert len(set(ids)) == copies * distinct
        assert len(ids) - len(set(ids)) == copies * shared


@given(trace=traces(), copies=st.integers(1, 5))
def test_multiplied_requests_come_at_the_same_instants(trace: Trace, copies: int) -> None:
    assert multiply(trace, copies).arrival_us.tolist() == np.repeat(trace.arrival_us, copies).tolist()


@given(trace=traces(), copies=st.integers(1, 5), seed=st.integers(0, 9))
def test_replicas_come_up_to_a_minute_later_each_as_a_whole(trace: Trace, copies: int, seed: int) -> None:
    scaled = replicate(trace, copies, seed)
    assert scaled.arrival_us.min() == trace.arrival_us[0]
    left = Counter(scaled.arrival_us.tolist())
    late = scaled.arrival_us - trace.arrival_us[0]
    assert late.min() == 0
    assert scaled.duration_us - trace.duration_us in range(60_000_000)
    left.subtract(trace.arrival_us.tolist())
    assert min(left.values()) >= 0
    assert replicate(trace, copies, seed).arrival_us.tobytes() == scaled.arrival_us.tobytes()


@given(trace=traces())
def test_one_copy_is_the_trace(trace: Trace) -> None:
    for scaled in (replicate(trace, 1, 5), multiply(trace, 1)):
        assert scaled.arrival_us.tolist() == trace.arrival_us.tolist()
        assert prefixes(scaled) == prefixes(trace)


@pytest.mark.parametrize("copies", [0, -1])
def test_no_copies_are_refused(copies: int) -> None:
    trace = synthetic(Shape.RAMP, mean_rps=1, seed=0)
    for scale in (lambda: replicate(trace, copies, 0), lambda: multiply(trace, copies)):
        with pytest.raises(ValueError, match=f"{copies} copies of ramp: at least 1"):
            scale()


def test_tuning_and_reporting_share_no_request_and_leave_none() -> None:
    trace = workloads.azure_conversation(DATA)
    tuning, reporting = split(trace, Part.TUNING), split(trace, Part.REPORTING)
    assert len(tuning) + len(reporting) == len(trace)
    assert tuning.duration_us < reporting.duration_us + 10_000_000 < tuning.duration_us + 20_000_000


def test_the_recorded_workloads_are_what_they_are_called() -> None:
    w1, w2, w3 = (one(DATA) for one in (workloads.azure_conversation, workloads.azure_code, workloads.mooncake))
    assert [len(one) for one in (w1, w2, w3)] == [19_366, 8_819, 12_031]
    assert w3.prefix_block_tokens == 512
    w4 = workloads.m_large(DATA, from_s=workloads.DAY_S, span_s=3600, thin=0.1, seed=0)
    w5 = workloads.deepseek_r1(DATA, span_s=3600, seed=0)
    assert w5.output_tokens.mean() > 4 * w4.output_tokens.mean()


def test_w6_is_eight_services_of_one_hour_each_with_its_own_beginning() -> None:
    services = workloads.mixed(DATA, thin=0.05, seed=1)
    assert len({one.name for one in services}) == len(services) == 8
    span_us = workloads.MIXED_SPAN_S * 1_000_000
    for one in services:
        assert 0.98 * span_us < one.duration_us < span_us
    # The conversation is there twice, half of it plus an eighth apart: one's beginning is in the other's middle.
    whole = workloads.azure_conversation(DATA).slice(0, span_us)
    turned = services[5]
    first = int(np.searchsorted(whole.arrival_us, 5 * span_us // 8))
    assert turned.prompt_tokens[:50].tolist() == whole.prompt_tokens[first : first + 50].tolist()
    assert np.sort(turned.prompt_tokens).tolist() == np.sort(whole.prompt_tokens).tolist()


# Shape, minute from, minute to, rate in units of the mean.
RATES: dict[str, tuple[Shape, int, int, float]] = {
    "before a doubling": (Shape.STEP_X2, 0, 10, 3 / 4),
    "a doubling": (Shape.STEP_X2, 10, 20, 3 / 2),
    "before a step of five": (Shape.STEP_X5, 0, 10, 3 / 7),
    "a step of five": (Shape.STEP_X5, 10, 20, 15 / 7),
    "a step of ten": (Shape.STEP_X10, 10, 20, 30 / 12),
    "after a step of ten": (Shape.STEP_X10, 20, 30, 3 / 12),
    "a ramp's foot": (Shape.RAMP, 0, 5, 9 / 25),
    "a ramp's middle": (Shape.RAMP, 12, 13, 27 / 25),
    "a ramp's top": (Shape.RAMP, 20, 25, 9 / 5),
    "off": (Shape.ON_OFF, 0, 10, 0),
    "on": (Shape.ON_OFF, 10, 20, 2),
    "off again": (Shape.ON_OFF, 20, 30, 0),
    "a constant rate of longer requests": (Shape.LENGTH_SHIFT, 15, 30, 1),
}


@pytest.mark.parametrize(("shape", "start", "end", "share"), RATES.values(), ids=RATES)
def test_a_synthetic_rate_has_its_shape(shape: Shape, start: int, end: int, share: float) -> None:
    arrival_us = synthetic(shape, mean_rps=200, seed=3).arrival_us
    inside = int(((arrival_us >= start * 60_000_000) & (arrival_us < end * 60_000_000)).sum())
    expected = 200 * share * 60 * (end - start)
    assert inside == pytest.approx(expected, abs=4 * np.sqrt(expected))


def test_synthetic_arrivals_are_poisson_and_the_seeds() -> None:
    trace = synthetic(Shape.LENGTH_SHIFT, mean_rps=100, seed=1)
    counted = np.bincount(trace.arrival_us // 1_000_000)
    assert counted.var() / counted.mean() == pytest.approx(1, abs=0.1)
    assert synthetic(Shape.LENGTH_SHIFT, mean_rps=100, seed=1).arrival_us.tobytes() == trace.arrival_us.tobytes()
    assert len(synthetic(Shape.LENGTH_SHIFT, mean_rps=100, seed=2)) != len(trace)


def test_a_length_shift_makes_requests_longer_from_its_middle_on() -> None:
    trace = synthetic(Shape.LENGTH_SHIFT, mean_rps=50, seed=1)
    late = trace.arrival_us >= 900_000_000
    assert np.median(trace.prompt_tokens[late]) == pytest.approx(4 * np.median(trace.prompt_tokens[~late]), rel=0.05)
    assert np.median(trace.output_tokens[late]) == pytest.approx(2 * np.median(trace.output_tokens[~late]), rel=0.05)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), 1e-9])
def test_a_rate_without_requests_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="mean_rps"):
        synthetic(Shape.RAMP, mean_rps=rate, seed=0)
