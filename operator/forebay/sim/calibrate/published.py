"""Our step time beside tables that others have published: how far the straight line is off, and how far the prior.

Two errors a table. *Form*: the five constants are fitted to every other size of the table and predict the rest, which
shows what five constants cannot say. *Prior*: what the product assumes of this model and GPU before it has seen
either, which shows what a calibration is worth. Tables of simulators are named so: agreement with one proves little.
"""

from __future__ import annotations

import csv
import gzip
from collections import defaultdict
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import nnls  # type: ignore[import-untyped]  # scipy ships no types

from forebay.resolve.profiles import find_model, load, lookup
from forebay.sim.calibrate import blis
from forebay.sim.calibrate.recording import RecordingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from forebay.resolve.profiles import Prior
    from forebay.sim.calibrate.follow import F64

MS_PER_S = 1000
SIZES_MIN = 4  # in the fitted half: fewer than that many sizes fit any line


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine of a table."""

    model: str  # as `resolve.profiles` finds it; another name: no prior
    gpu: str
    tensor_parallel: int
    dtype: str = "bfloat16"


@dataclass(frozen=True, slots=True)
class Step:
    """One size of a step and how long it took, the median of a table's repeats."""

    decoding: int
    context_tokens: int
    prompt_tokens: int
    pairs: int
    ms: float


@dataclass(frozen=True, slots=True)
class TableError:
    """One line of the result; errors in permille of what the table says, None where there is nothing to compare."""

    table: str
    what: str
    sizes: int
    form_median: int | None
    form_worst: int | None
    prior_median: int | None  # signed: negative where the product assumes a faster engine than the table's
    prior_worst: int | None


Rows = list[dict[str, str]]
Steps = dict[Engine, list[Step]]


def table_errors(folder: Path) -> list[TableError]:
    """Compare with every table of a folder, in the order of `TABLES`.

    Raises
    ------
    RecordingError
        When a table is missing or has other columns.
    """
    lines: list[TableError] = []
    for title, pattern, read, line_of in TABLES:
        paths = sorted(folder.glob(pattern))
        if not paths:
            raise RecordingError(f"{folder} has no {pattern}: tests/data/published of Forebay's sources has them all")
        try:
            steps: Steps = defaultdict(list)
            for path in paths:
                for engine, found in read(_rows(path)).items():
                    steps[engine] += found
        except (KeyError, ValueError) as error:
            raise RecordingError(f"{pattern} is not the table that it was: {error!r}") from error
        lines += _lines(title, steps, line_of)
    for experiment in blis.compare(folder):
        lines.append(
            TableError("BLIS (simulated)", experiment.what, experiment.figures, None, None, *experiment.errors)
        )
    return lines


def _rows(path: Path) -> Rows:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _lines(title: str, steps: Steps, line_of: Callable[[Engine], str]) -> Iterator[TableError]:
    form: dict[str, list[float]] = defaultdict(list)
    prior: dict[str, list[float]] = defaultdict(list)
    sizes: dict[str, int] = defaultdict(int)
    for engine, found in steps.items():
        line = line_of(engine)
        sizes[line] += len(found)
        form[line] += form_errors(found)
        prior[line] += prior_errors(engine, found)
    for line, count in sizes.items():
        yield TableError(title, line, count, *_summary(form[line], signed=False), *_summary(prior[line], signed=True))


def _summary(errors: list[float], *, signed: bool) -> tuple[int | None, int | None]:
    """Return median and worst, in permille."""
    if not errors:
        return None, None
    values = np.array(errors)
    median = np.median(values if signed else np.abs(values))
    return round(1000 * float(median)), round(1000 * float(values[np.argmax(np.abs(values))]))


def form_errors(steps: list[Step]) -> list[float]:
    """Fit to every other size, in ascending order of time, and return the signed errors at the others."""
    ordered = sorted(steps, key=lambda step: step.ms)
    seen, unseen = ordered[::2], ordered[1::2]
    if len(seen) < SIZES_MIN:
        return []
    work, ms = _matrix(seen)
    scale = np.sqrt(((work / ms[:, None]) ** 2).sum(axis=0))
    scale[scale == 0] = 1.0
    prices = nnls(work / ms[:, None] / scale, np.ones(len(ms)))[0] / scale
    asked, measured = _matrix(unseen)
    return list(asked @ prices / measured - 1)


def prior_errors(engine: Engine, steps: list[Step]) -> list[float]:
    """Return the signed errors of what is assumed of an engine; none where nothing is assumed."""
    prior = prior_of(engine)
    if prior is None:
        return []
    c0, c1, c2, p1, p2 = astuple(prior.times)
    asked, measured = _matrix(steps)
    return list(asked @ np.array([c0, c1, c2, p1, p2 / 1000]) / 1e9 / measured - 1)


def prior_of(engine: Engine) -> Prior | None:
    """Look an engine up as `forebay run` does for a service that has never run."""
    tables = load()
    if find_model(tables, engine.model) is None:
        return None
    return lookup(
        tables,
        model_uri=engine.model,
        gpu_type=engine.gpu,
        tensor_parallel=engine.tensor_parallel,
        dtype=engine.dtype,
    )


def _matrix(steps: list[Step]) -> tuple[F64, F64]:
    work = [(1, step.decoding, step.context_tokens, step.prompt_tokens, step.pairs) for step in steps]
    return np.array(work, np.float64), np.array([step.ms for step in steps])


def _middle(measured: Mapping[tuple[int, int, int, int], list[float]]) -> list[Step]:
    return [Step(*size, float(np.median(times))) for size, times in measured.items()]


def _runs(rows: Iterable[Mapping[str, str]], models: Mapping[str, str], unit_ms: int, *, in_all: bool) -> Steps:
    """Read the columns that Splitwise and SageServe share: B prompts of one length, then B answers of one length.

    Prompts only where B is 1: a batch's prompt_time is no step's. SageServe's is the same for 2 and for 32 prompts,
    Splitwise's falls to an eighth where the cache is full. `in_all`: token_time is that of all tokens, not of one.
    """
    measured: dict[Engine, dict[tuple[int, int, int, int], list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        batch, prompt, answer = int(row["batch_size"]), int(row["prompt_size"]), int(row["token_size"])
        gpu = row["hardware"].upper().replace("-80GB", "")
        times = measured[Engine(models.get(row["model"], row["model"]), gpu, int(row["tensor_parallel"]))]
        if batch == 1:
            times[0, 0, prompt, prompt**2].append(float(row["prompt_time"]) * unit_ms)
        token_ms = float(row["token_time"]) * unit_ms / (answer if in_all else 1)
        times[batch, batch * (prompt + answer // 2), 0, 0].append(token_ms)
    return {engine: _middle(times) for engine, times in measured.items()}


def _splitwise(rows: Rows) -> Steps:
    # The shape of Llama-2-70B is that of Llama-3.1-70B but for its vocabulary, 1 % of its weights.
    return _runs(rows, {"llama2-70b": "Llama-3.1-70B"}, 1, in_all=False)


def _sageserve(rows: Rows) -> Steps:
    return _runs(rows, {}, MS_PER_S, in_all=True)


def _sageserve_prompts(rows: Rows) -> Steps:
    times: dict[tuple[int, int, int, int], list[float]] = defaultdict(list)
    for row in rows:
        prompt = int(row["PromptLength"])
        times[0, 0, prompt, prompt**2].append(float(row["ExecTime"]) * MS_PER_S)
    return {Engine("Llama-3.1-8B", "A100", 4): _middle(times)}


def _kernels(rows: Rows) -> Steps:
    """Read kernel sums of aiconfigurator, of decode batches or of single prompts."""
    steps: Steps = defaultdict(list)
    for row in rows:
        gpu = row["gpu"].removesuffix("_sxm").upper()
        engine = Engine(row["model"], gpu, int(row["tp"]), row["dtype"])
        ms = float(row["kernel_sum_ms"])
        if "prompt_tokens" in row:
            prompt = int(row["prompt_tokens"])
            steps[engine].append(Step(0, 0, prompt, prompt**2, ms))
        else:
            batch = int(row["batch"])
            steps[engine].append(Step(batch, batch * int(row["context_tokens"]), 0, 0, ms))
    return steps


def _vidur(rows: Rows) -> Steps:
    """Read what one layer takes without attention and all-reduce: only the shape of the line can be compared."""
    steps: Steps = defaultdict(list)
    for row in rows:
        engine = Engine(f"{row['model']} (one layer)", row["gpu"], int(row["tensor_parallel"]))
        steps[engine].append(Step(0, 0, int(row["tokens"]), 0, int(row["layer_us"]) / MS_PER_S))
    return steps


def _each(engine: Engine) -> str:
    return f"{engine.model} on {engine.tensor_parallel} x {engine.gpu}"


TABLES: tuple[tuple[str, str, Callable[[Rows], Steps], Callable[[Engine], str]], ...] = (
    ("Splitwise", "splitwise-*.csv.gz", _splitwise, _each),
    ("SageServe", "sageserve-Llama*.csv.gz", _sageserve, _each),
    ("SageServe, prompts alone", "sageserve-prefill-*.csv.gz", _sageserve_prompts, _each),
    ("aiconfigurator, kernel sums", "aiconfigurator-*.csv.gz", _kernels, lambda engine: f"{engine.gpu}, all models"),
    ("Vidur, without attention", "vidur-*.csv.gz", _vidur, _each),
)
