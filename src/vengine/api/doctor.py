"""What this machine is, what can run on it, and what to expect: `vengine doctor`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from vengine.digests import to_json
from vengine.engines.base import ENGINES, get_engine
from vengine.hardware import has_bf16, has_vnni, isa_limit, machine, threads_for
from vengine.types import Machine

_LITTLE_MEMORY = 2 << 30


def doctor(env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Describe the machine; nothing is measured and no engine is imported.

    Args:
        env: where ISA limits are looked up; the process's environment by default.

    Returns:
        `machine` (the noun as JSON), `threads` (the plan) and `threads_why`, `engines` [{name, ok,
        version, reason, install}] and `notes`, sentences about what will and won't help here.
    """
    here = machine(env)
    return {
        "machine": to_json(here),
        "threads": threads_for(here),
        "threads_why": _why(here),
        "engines": [{"name": name, **to_json(get_engine(name).availability())} for name in ENGINES],
        "notes": _notes(here, isa_limit(env)),
    }


def _why(here: Machine) -> str:
    cores = f"{here.physical_cores} physical core{'s' * (here.physical_cores != 1)}"
    allowed = f"{here.cores_allowed:g} allowed by affinity and quota"
    return f"the smaller of {cores} and {allowed}"


def _notes(here: Machine, limit: str | None) -> list[str]:
    told = []
    if limit is not None:
        told.append(
            f"ONEDNN_MAX_CPU_ISA={limit} hides newer instructions from OpenVINO and torch; "
            "ONNX Runtime doesn't know that variable"
        )
    if not has_vnni(here.isa):
        told.append("no VNNI or dot-product instructions: int8 may lose to fp32, and u8×s8 sums may saturate")
    if not has_bf16(here.isa):
        told.append("no bf16 instructions: bf16 is not offered")
    if here.cores_allowed != math.floor(here.cores_allowed):
        told.append(
            f"the quota is {here.cores_allowed:g} cores: more threads than whole cores would be throttled in bursts"
        )
    if here.cores_allowed < here.physical_cores:
        told.append(f"the quota allows {here.cores_allowed:g} of {here.physical_cores} physical cores")
    if here.memory_available_bytes < _LITTLE_MEMORY:
        told.append(f"only {here.memory_available_bytes / 2**30:.1f} GiB of memory are available")
    return told
