"""The profile of one engine on one machine: what a calibration found, as a file for people and programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from forebay.engine_model.step_time import StepTimes

if TYPE_CHECKING:
    from pathlib import Path

    from forebay.sim.calibrate.compare import Comparison
    from forebay.sim.calibrate.recording import EngineFacts


class ProfileError(ValueError):
    """A profile file cannot be used; the message names it and says why."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)


class StepTimeConstants(_Model):
    """The five constants of `engine_model.step_time`, in its whole units."""

    c0_ps: int
    c1_ps: int
    c2_ps: int
    p1_ps: int
    p2_fs: int


class Figure(_Model):
    """One line of the comparison that came with the fit."""

    load: str
    signal: str
    percentile: int
    predicted_us: int
    measured_us: int
    error_permille: int
    between_runs_permille: int


class Profile(_Model):
    """What a calibration found."""

    format: Literal["forebay-engine-profile/1"] = "forebay-engine-profile/1"
    engine: str
    model: str
    machine: str
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_tokens: int
    step_times: StepTimeConstants
    front_us: int  # of a request, outside the engine's loop
    step_noise_permille: int
    errors_permille: dict[str, int]  # standard error of each constant
    validation: tuple[Figure, ...]

    @classmethod
    def of(cls, facts: EngineFacts, comparison: Comparison) -> Self:
        """Put a calibration into a file's shape."""
        fit = comparison.fit
        return cls(
            engine=facts.engine,
            model=facts.model,
            machine=facts.machine,
            max_model_len=facts.max_model_len,
            max_num_seqs=facts.max_num_seqs,
            max_num_batched_tokens=facts.max_num_batched_tokens,
            kv_tokens=facts.kv_tokens,
            step_times=StepTimeConstants(
                c0_ps=fit.times.c0_ps,
                c1_ps=fit.times.c1_ps,
                c2_ps=fit.times.c2_ps,
                p1_ps=fit.times.p1_ps,
                p2_fs=fit.times.p2_fs,
            ),
            front_us=fit.front_us,
            step_noise_permille=fit.noise_permille,
            errors_permille=fit.errors_permille,
            validation=tuple(
                Figure(
                    load=row.load,
                    signal=row.signal,
                    percentile=row.percentile,
                    predicted_us=row.predicted_us,
                    measured_us=row.measured_us,
                    error_permille=row.error_permille,
                    between_runs_permille=row.between_runs_permille,
                )
                for row in comparison.rows
            ),
        )

    @property
    def times(self) -> StepTimes:
        """The constants as the engine model takes them."""
        return StepTimes(**self.step_times.model_dump())


def write(profile: Profile, path: Path) -> None:
    """Write a profile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(profile.model_dump_json(indent=2, by_alias=True) + "\n", encoding="utf-8")


def read(path: Path) -> Profile:
    """Read a profile.

    Raises
    ------
    ProfileError
        When the file is missing, or is no profile.
    """
    try:
        return Profile.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ProfileError(f"{path}: {error.strerror}; `forebay calibrate` writes such a file") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise ProfileError(f"{path} is no profile of an engine: {where}: {first['msg']}") from error
