"""Requests drawn from what is known of clients: as many as they sent, as long as theirs, and always the same."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np
import pytest

from forebay.sim.traces import Format, Sampling, TraceError, read

DATA = Path(__file__).resolve().parents[2] / "data" / "traces" / "servegen"
M_LARGE = DATA / "m-large-clients-rate.csv.gz"
DEEPSEEK = DATA / "deepseek-r1-clients-rate.csv.gz"
DAY_S = 86_400

RATES = "client_id,t_start_s,rate_rps,cv,arrival_dist,shape,scale\n"
LENGTHS = "client_id,window_start_s,field,mean,std,q0,q0.5,q1\n"


def totals(model: str) -> list[float]:
    with gzip.open(DATA / "total-rate-10min.csv.gz", "rt") as file:
        return [float(row[model]) for row in csv.DictReader(file) if row[model]]


def model(folder: Path, rates: str, lengths: str, header: str = LENGTHS) -> Path:
    (folder / "m-clients-lengths.csv").write_text(header + lengths)
    path = folder / "m-clients-rate.csv"
    path.write_text(RATES + rates)
    return path


def both(client: int, window_s: int, quantiles: str) -> str:
    return "".join(f"{client},{window_s},{field},1,1,{quantiles}\n" for field in ("input_tokens", "output_tokens"))


FLAT = both(1, 0, "100,100,100")


def test_every_ten_minutes_have_the_requests_that_the_origin_counted() -> None:
    reading = read(DEEPSEEK)
    counted = np.bincount(reading.trace.arrival_us // 600_000_000)
    assert reading.format is Format.SERVEGEN
    assert counted / 600 == pytest.approx(np.array(totals("deepseek-r1")), rel=0.02)
    assert reading.trace.duration_us < DAY_S * 1_000_000


def test_a_part_of_a_long_file_has_the_rates_of_that_part() -> None:
    trace = read(M_LARGE, sampling=Sampling(from_s=5 * DAY_S + 300, span_s=3600)).trace
    counted = np.bincount(trace.arrival_us // 600_000_000, minlength=6)
    windows = np.array(totals("m-large")[5 * 144 : 5 * 144 + 7])
    # The span begins in the middle of a window, whose requests do not come evenly.
    assert counted.sum() / 600 == pytest.approx(windows[1:6].sum() + windows[[0, 6]].mean(), rel=0.1)
    whole = read(M_LARGE, sampling=Sampling(from_s=5 * DAY_S, span_s=3600)).trace
    assert np.bincount(whole.arrival_us // 600_000_000) / 600 == pytest.approx(windows[:6], rel=0.02)


def test_lengths_follow_the_quantiles() -> None:
    with gzip.open(DATA / "deepseek-r1-clients-lengths.csv.gz", "rt") as file:
        mean = {
            (row["client_id"], row["window_start_s"]): float(row["mean"])
            for row in csv.DictReader(file)
            if row["field"] == "output_tokens"
        }
    weight = dict.fromkeys(mean, 0.0)
    with gzip.open(DEEPSEEK, "rt") as file:
        for row in csv.DictReader(file):
            weight[row["client_id"], str(int(row["t_start_s"]) // 21_600 * 21_600)] += float(row["rate_rps"])
    expected = sum(mean[key] * share for key, share in weight.items()) / sum(weight.values())
    assert read(DEEPSEEK).trace.output_tokens.mean() == pytest.approx(expected, rel=0.03)


def test_equal_seeds_draw_equal_requests_and_others_do_not() -> None:
    one, again, other = (read(M_LARGE, sampling=Sampling(0, 3600, seed, 0.1)).trace for seed in (7, 7, 8))
    for column in ("arrival_us", "prompt_tokens", "output_tokens"):
        assert getattr(one, column).tobytes() == getattr(again, column).tobytes()
    assert one.arrival_us.tobytes() != other.arrival_us.tobytes()


def test_a_thinned_trace_has_whole_clients_up_to_that_share(tmp_path: Path) -> None:
    rates = "".join(f"{client},0,1,1,Gamma,1,1\n" for client in range(1, 11))
    lengths = "".join(both(client, 0, f"{client},{client},{client}") for client in range(1, 11))
    trace = read(model(tmp_path, rates, lengths), sampling=Sampling(0, 600, 3, 0.35)).trace
    clients, requests = np.unique(trace.prompt_tokens, return_counts=True)
    assert (len(clients), set(requests.tolist())) == (3, {600})


def test_bursts_are_the_clients_own(tmp_path: Path) -> None:
    path = model(tmp_path, "1,0,10,9,Gamma,0.02,1\n1,600,10,1,Gamma,1,1\n1,1200,10,0.1,Weibull,12,1\n", FLAT)
    arrival_us = read(path).trace.arrival_us
    gaps = [np.diff(arrival_us[(arrival_us >= at) & (arrival_us < at + 6e8)]) for at in (0, 6e8, 12e8)]
    assert [len(one) + 1 for one in gaps] == [6000] * 3
    bursty, poisson, regular = (float(one.std() / one.mean()) for one in gaps)
    assert bursty > 5
    assert poisson == pytest.approx(1, rel=0.1)
    assert regular == pytest.approx(0.1, rel=0.1)


def test_a_shape_of_which_no_draw_is_above_zero_sends_all_at_once(tmp_path: Path) -> None:
    trace = read(model(tmp_path, "1,0,0.02,9,Gamma,0.000001,1\n", FLAT), sampling=Sampling(seed=1)).trace
    assert len(trace) == 12
    assert len(np.unique(trace.arrival_us)) == 1


def test_a_client_without_lengths_draws_those_of_others_by_their_requests(tmp_path: Path) -> None:
    rates = "1,0,10,1,Gamma,1,1\n2,0,3,1,Gamma,1,1\n3,0,1,1,Gamma,1,1\n"
    path = model(tmp_path, rates, both(2, 0, "200,200,200") + both(3, 0, "300,300,300"))
    prompts = read(path).trace.prompt_tokens
    assert np.bincount(prompts)[[200, 300]] == pytest.approx([1800 + 4500, 600 + 1500], rel=0.05)


def test_a_length_below_one_is_one(tmp_path: Path) -> None:
    trace = read(model(tmp_path, "1,0,1,1,Gamma,1,1\n", both(1, 0, "0,0,2"))).trace
    assert set(trace.output_tokens.tolist()) == {1, 2}


# Rates, lengths, header of the lengths, which file, line, why.
MALFORMED: dict[str, tuple[str, str, str, str, int, str]] = {
    "no client": ("", FLAT, LENGTHS, "rate", 1, "no client in it"),
    "a negative rate": ("1,0,-1,1,Gamma,1,1\n", FLAT, LENGTHS, "rate", 2, "rate_rps is -1"),
    "a shape of zero": ("1,0,1,1,Gamma,1,1\n1,600,1,1,Gamma,0,1\n", FLAT, LENGTHS, "rate", 3, "shape 0"),
    "a rate that is none": ("1,0,inf,1,Gamma,1,1\n", FLAT, LENGTHS, "rate", 2, "not a finite number"),
    "another distribution": ("1,0,1,1,Pareto,1,1\n", FLAT, LENGTHS, "rate", 2, "'Pareto', not Gamma or Weibull"),
    "a client by name": ("x,0,1,1,Gamma,1,1\n", FLAT, LENGTHS, "rate", 2, "client_id is 'x'"),
    "only idle clients": ("1,0,0,1,Gamma,1,1\n", FLAT, LENGTHS, "rate", 1, "no request in"),
    "a later span": ("1,864000,1,1,Gamma,1,1\n", FLAT, LENGTHS, "rate", 1, "it covers 0 to 864600 s"),
    "no lengths": ("1,0,1,1,Gamma,1,1\n", "", LENGTHS, "lengths", 1, "no client has both"),
    "lengths of another time": ("1,21600,1,1,Gamma,1,1\n", FLAT, LENGTHS, "lengths", 1, "no lengths from 21600 s on"),
    "quantiles that descend": ("1,0,1,1,Gamma,1,1\n", both(1, 0, "3,2,4"), LENGTHS, "lengths", 2, "must ascend"),
    "quantiles below 0": ("1,0,1,1,Gamma,1,1\n", both(1, 0, "-3,2,4"), LENGTHS, "lengths", 2, "from 0 or more"),
    "a quantile too few": ("1,0,1,1,Gamma,1,1\n", both(1, 0, "3,4"), LENGTHS, "lengths", 2, "7 fields where 8"),
    "no last quantile": ("1,0,1,1,Gamma,1,1\n", FLAT, LENGTHS.replace("q1", "q0.9"), "lengths", 1, "from q0 to q1"),
    "another header": ("1,0,1,1,Gamma,1,1\n", FLAT, LENGTHS.replace("q1", "most"), "lengths", 1, "a quantile's name"),
}


@pytest.mark.parametrize(("rates", "lengths", "header", "file", "line", "reason"), MALFORMED.values(), ids=MALFORMED)
def test_what_is_wrong_is_named(  # noqa: PLR0917 - columns of the table
    tmp_path: Path, rates: str, lengths: str, header: str, file: str, line: int, reason: str
) -> None:
    path = model(tmp_path, rates, lengths, header)
    with pytest.raises(TraceError, match=reason) as caught:
        read(path)
    assert (caught.value.path.name, caught.value.line) == (f"m-clients-{file}.csv", line)


def test_a_file_by_another_name_cannot_be_joined_to_its_lengths(tmp_path: Path) -> None:
    path = tmp_path / "rates.csv"
    path.write_text(RATES + "1,0,1,1,Gamma,1,1\n")
    with pytest.raises(TraceError, match=r"must be called MODEL-clients-rate.csv"):
        read(path)


@pytest.mark.parametrize("wrong", [{"from_s": -1}, {"span_s": 0}, {"thin": 0.0}, {"thin": 1.5}, {"thin": float("nan")}])
def test_a_part_that_holds_nothing_cannot_be_asked_for(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"a span of|a share of"):
        Sampling(**wrong)  # type: ignore[arg-type]
