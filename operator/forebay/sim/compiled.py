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
from forebay.sim import tables
from forebay.sim.datapath import advance as clockwork
from forebay.sim.datapath import engines, gateway, layout, scores
from forebay.sim.tables import Arrays

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Arrays", "advance", "clear_lane", "kill_lane"]

_MODULES = (bank, kv_blocks, scheduler, step_time, rules, layout, scores, engines, gateway, clockwork)
_PLAIN_ONLY = {"new_bank", "add_row", "chain_hash"}  # they make lists and hashes, which no simulation does
# The rules divide by nothing that can be 0, and their arrays are numpy's to count.
_OPTIONS: dict[str, Any] = {"error_model": "numpy", "_nrt": False}


def _sources() -> str:
    digest = blake2b(digest_size=8)
    for module in (*_MODULES, tables):
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
            register_jitable(**_OPTIONS)(_function)

advance: Callable[[Arrays, int], None] = numba.njit(cache=True, **_OPTIONS)(clockwork.advance)
clear_lane: Callable[[Arrays, int], None] = numba.njit(cache=True, **_OPTIONS)(engines.clear_lane)
kill_lane: Callable[[Arrays, int], None] = numba.njit(cache=True, **_OPTIONS)(engines.kill_lane)
