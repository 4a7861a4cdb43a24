"""What the operator tells a replica's supervisor when it makes the pod: one JSON document in one variable."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Self

import orjson

ENV_CONFIG = "FOREBAY_REPLICA_CONFIG"
ENV_POD_UID = "FOREBAY_POD_UID"  # downward API: metadata.uid
ENV_POD_NAME = "FOREBAY_POD_NAME"  # downward API: metadata.name
ENGINE_VLLM = "VLLM"
ENGINE_EMULATED = "Emulated"
MODEL_MOUNT = "/models"  # where the operator mounts the claim of a pvc:// model; its path continues below it


class ReplicaConfigError(ValueError):
    """The environment variable is missing or not what the operator writes."""


@dataclass(frozen=True, slots=True)
class Emulation:
    """What the emulated engine needs beyond an engine's usual settings. The step-time constants are the prior's.

    Decode step = c0 + c1*B + c2*(context tokens of all sequences); prefill adds p1*n + p2*(n_total^2 - n_cached^2)
    (engine_model.step_time); picoseconds, p2 in femtoseconds per token squared.
    """

    step_c0_ps: int
    step_c1_ps: int
    step_c2_ps: int
    step_p1_ps: int
    step_p2_fs: int
    kv_tokens_total: int
    cold_start_ms: int
    wake_ms: int
    model_error_permille: int  # sigma of the lognormal factor by which the true constants differ from the prior
    step_noise_permille: int
    seed: int


@dataclass(frozen=True, slots=True)
class ReplicaConfig:
    """One replica's engine and how to run it."""

    engine: str  # ENGINE_VLLM or ENGINE_EMULATED
    model_uri: str
    served_names: tuple[str, ...]  # the first is the service's own name, the others are aliases
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    max_model_len: int = 8192
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    gpu_memory_utilization_permille: int = 900
    prefix_caching: bool = True
    tensor_parallel: int = 1
    extra_args: tuple[str, ...] = ()
    start_deadline_ms: int = 1_200_000  # an engine that is not READY after this has FAILED
    drain_deadline_ms: int = 600_000
    # Who may call /v1/drain, /v1/sleep, /v1/wake: "system:serviceaccount:<namespace>:<name>" of the operator.
    operator_username: str = ""
    emulation: Emulation | None = None

    def to_json(self) -> str:
        """Encode for ENV_CONFIG."""
        return orjson.dumps(asdict(self), option=orjson.OPT_SORT_KEYS).decode()

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Decode what `to_json` wrote.

        Raises
        ------
        ReplicaConfigError
            When the text is not such a document.
        """
        try:
            raw: dict[str, Any] = orjson.loads(text)
            names = {f.name for f in fields(cls)}
            known = {k: v for k, v in raw.items() if k in names}
            known["served_names"] = tuple(known["served_names"])
            known["extra_args"] = tuple(known.get("extra_args", ()))
            if known.get("emulation") is not None:
                known["emulation"] = Emulation(**known["emulation"])
            return cls(**known)
        except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError) as error:
            raise ReplicaConfigError(f"{ENV_CONFIG} is not a replica configuration: {error}") from error
