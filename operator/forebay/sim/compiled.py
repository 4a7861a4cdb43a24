"""The same rules, compiled: numba takes the functions of `engine_model`, `routing` and `datapath` as they stand."""

from __future__ import annotations

import os
from hashlib import blake2b
from inspect import getmembers, isfunction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numba
from numba.extending import register_jitable

from forebay.engine_model import bank, kv_blocks, scheduler, step_time
from forebay.routing import rules
from forebay.sim import datapath

if TYPE_CHECKING:
    from collections.abc import Callable

_MODULES = (bank, kv_blocks, scheduler, step_time, rules, datapath)
_PLAIN_ONLY = {"new_bank", "add_row", "chain_hash"}  # they make lists and hashes, which no simulation does

# Every array is passed on with every call. Counting references to 60 of them costs more than the rules (measured: 7
# times the whole), and so does handing them to the rules that run for each request of each step (2 times).
_OPTIONS: dict[str, Any] = {"cache": True, "_nrt": False}
_INLINE = {"allocate", "add_to_step", "prompt_pairs", "take", "hold", "free_among"}


def _sources() -> str:
    digest = blake2b(digest_size=8)
    for module in _MODULES:
        digest.update(Path(module.__file__ or "").read_bytes())
    return digest.hexdigest()


def _cache() -> Path:
    """Where compiled code is kept: by content, because numba looks at the time of one file only."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "forebay" / "numba" / _sources()


numba.config.CACHE_DIR = str(_cache())  # type: ignore[attr-defined]  # numba makes its settings at run time
for _module in _MODULES:
    for _name, _function in getmembers(_module, isfunction):
        if _function.__module__ == _module.__name__ and _name not in _PLAIN_ONLY:
            register_jitable(_nrt=False, inline="always" if _name in _INLINE else "never")(_function)

advance: Callable[[datapath.DataPath, int], None] = numba.njit(**_OPTIONS)(datapath.advance)
kill_lane: Callable[[datapath.DataPath, int], None] = numba.njit(**_OPTIONS)(datapath.kill_lane)
release_held: Callable[[datapath.DataPath, int], None] = numba.njit(**_OPTIONS)(datapath.release_held)
