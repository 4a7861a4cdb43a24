"""One calibration of a running engine, from the first probe to the last recorded load; what was recorded is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from forebay.sim.calibrate.client import record
from forebay.sim.calibrate.fit import fit
from forebay.sim.calibrate.loads import OVERLOAD, first_guess, probe, seconds_of, service, sweep
from forebay.sim.calibrate.recording import SUFFIX, write

if TYPE_CHECKING:
    from pathlib import Path

    import aiohttp

    from forebay.sim.calibrate.loads import Load
    from forebay.sim.calibrate.recording import EngineFacts, Recording

SERVICE_LOADS = 4


class Tell(Protocol):
    """What wants to know how far a calibration is."""

    def plan(self, seconds: float) -> None:
        """Note how long it takes in all."""

    def begin(self, load: str, run: int) -> None:
        """Note that a load is recorded now."""

    def advance(self, seconds: float) -> None:
        """Note that a load has come so much further, of its planned time."""


async def record_all(
    http: aiohttp.ClientSession, facts: EngineFacts, *, seconds: int, runs: int, seed: int, folder: Path, tell: Tell
) -> list[Recording]:
    """Record the sweep once and each service load `runs` times, each into a file of `folder`.

    Parameters
    ----------
    http, facts
        The engine.
    seconds
        How long requests of a service load arrive.
    runs
        How often each service load is recorded; 2 at least show how alike the engine is to itself.
    seed
        Of all lengths, arrivals and prompts.
    folder
        Exists.
    tell
        Told how far it is.
    """

    async def run(load: Load, number: int, planned_s: float) -> Recording:
        tell.begin(load.name, number)
        share = planned_s / sum(map(len, load.stages))
        return await record(http, facts, load, number, seed=seed, on_request=lambda: tell.advance(share))

    guess = first_guess(await run(probe(facts), 1, 0.0))
    swept = sweep(facts, guess)
    sweep_s = seconds_of(swept, facts, guess)
    service_s = runs * seconds * (SERVICE_LOADS - 1 + OVERLOAD)
    tell.plan(sweep_s + service_s)
    recordings = [await run(swept, 1, sweep_s)]
    write(recordings[0], folder / f"{swept.name}-1{SUFFIX}")
    loads = service(facts, fit(recordings).times, seconds, seed)
    for number in range(1, runs + 1):
        for load in loads:
            recordings.append(await run(load, number, service_s / runs / SERVICE_LOADS))
            write(recordings[-1], folder / f"{load.name}-{number}{SUFFIX}")
    return recordings
