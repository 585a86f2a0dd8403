"""What this machine is, as far as speed and right answers depend on it.

Cores are those this process may use: affinity, cgroup quota (v1 and v2) and physical cores, never
the host's count. `ONEDNN_MAX_CPU_ISA` hides flags above its level, so that the choices for another
CPU can be tried on this one.
"""

from __future__ import annotations

import math
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from vengine.types import Machine

# Flags that change which kernels run, under Linux's names. Arm's sit beside x86's: the names don't clash.
_X86_BASE = ("sse4_1", "sse4_2", "avx", "f16c", "fma", "avx2")
_AVX512 = ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512vbmi", "avx512ifma")
_ARM = ("asimd", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "sve2", "svei8mm", "svebf16", "sme")

# oneDNN's levels in ascending order: each allows its own flags and all those before it.
_ISA_LEVELS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("SSE41", ("sse4_1", "sse4_2")),
    ("AVX", ("avx", "f16c")),
    ("AVX2", ("fma", "avx2")),
    ("AVX2_VNNI", ("avx_vnni",)),
    ("AVX2_VNNI_2", ("avx_vnni_int8", "avx_ne_convert")),
    ("AVX512_CORE", _AVX512),
    ("AVX512_CORE_VNNI", ("avx512_vnni",)),
    ("AVX512_CORE_BF16", ("avx512_bf16",)),
    ("AVX512_CORE_FP16", ("avx512_fp16",)),
    ("AVX512_CORE_AMX", ("amx_tile", "amx_int8", "amx_bf16")),
    ("AVX512_CORE_AMX_FP16", ("amx_fp16",)),
)
_X86 = tuple(dict.fromkeys((*_X86_BASE, *(flag for _, flags in _ISA_LEVELS for flag in flags))))
_RELEVANT = frozenset((*_X86, *_ARM))
_LIMIT_VARIABLES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")

VNNI_FLAGS = ("avx512_vnni", "avx_vnni", "asimddp", "i8mm")
"""Any of these multiplies int8 without saturating at 16 bits."""
BF16_FLAGS = ("avx512_bf16", "amx_bf16", "avx_ne_convert", "bf16", "svebf16")
"""Any of these multiplies bf16 in hardware."""

FP16_FLAGS = ("avx512_fp16", "amx_fp16", "asimdhp")
"""Any of these multiplies fp16 in hardware. (F16C only converts it.)"""

_PACKAGES = ("numpy", "onnx", "onnxruntime", "openvino", "nncf", "tokenizers", "torch", "transformers")
_UNLIMITED = 1 << 60  # cgroup v1 says "no limit" with a number near 2**63


def machine(env: Mapping[str, str] | None = None, *, root: Path = Path("/")) -> Machine:
    """Describe the machine as this process may use it.

    Args:
        env: where `ONEDNN_MAX_CPU_ISA` is looked up; the process's environment by default.
        root: below it lie `proc` and `sys`; another one lets tests describe other machines.
    """
    model, flags = _cpu(root)
    allowed = _affinity() if root == Path("/") else _listed_cpus(root)
    group = _cgroup(root)
    total, available = _memory(root)
    if group.memory_bytes is not None:
        total = min(total, group.memory_bytes)
        available = max(0, min(available, group.memory_bytes - group.memory_used_bytes))
    return Machine(
        cpu=model,
        isa=_with_abilities(_without(flags, isa_limit(env))),
        physical_cores=_physical_cores(root, allowed),
        cores_allowed=float(len(allowed)) if group.cores is None else min(float(len(allowed)), group.cores),
        memory_bytes=total,
        memory_available_bytes=available,
        os=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        gpus=_gpus(root),
        versions=_versions(),
    )


def threads_for(machine: Machine, requested: int | None = None) -> int:
    """How many compute threads an engine gets: physical cores, but no more than the quota allows.

    A request wins: more threads than cores is a thing to measure, not to forbid.
    """
    if requested is not None:
        return max(1, requested)
    return max(1, min(machine.physical_cores, math.floor(machine.cores_allowed)))


def isa_limit(env: Mapping[str, str] | None = None) -> str | None:
    """The level that `ONEDNN_MAX_CPU_ISA` sets, upper case; None when it limits nothing or is unknown."""
    source = os.environ if env is None else env
    for variable in _LIMIT_VARIABLES:
        level = source.get(variable, "").strip().upper()
        if any(level == name for name, _ in _ISA_LEVELS):
            return level
    return None


def has_vnni(isa: tuple[str, ...]) -> bool:
    """Whether int8 products are summed in 32 bits by one instruction."""
    return any(flag in isa for flag in VNNI_FLAGS)


def has_bf16(isa: tuple[str, ...]) -> bool:
    """Whether bf16 products are computed in hardware."""
    return any(flag in isa for flag in BF16_FLAGS)


def has_fp16(isa: tuple[str, ...]) -> bool:
    """Whether fp16 products are computed in hardware."""
    return any(flag in isa for flag in FP16_FLAGS)


def _with_abilities(isa: tuple[str, ...]) -> tuple[str, ...]:
    """Add "vnni", "bf16" and "fp16", which several flags provide: a variant needs the ability, not one maker's flag."""
    found = {name for name, has in (("vnni", has_vnni), ("bf16", has_bf16), ("fp16", has_fp16)) if has(isa)}
    return tuple(sorted({*isa, *found}))


def _without(flags: frozenset[str], limit: str | None) -> tuple[str, ...]:
    if limit is None:
        return tuple(sorted(flags))
    names = [name for name, _ in _ISA_LEVELS]
    hidden = {flag for _, above in _ISA_LEVELS[names.index(limit) + 1 :] for flag in above}
    return tuple(sorted(flags - hidden))


def _text(path: Path) -> str:
    """A small kernel file's text; "" when it isn't there or can't be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _cpu(root: Path) -> tuple[str, frozenset[str]]:
    fields: dict[str, str] = {}
    for line in _text(root / "proc/cpuinfo").splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip(), value.strip())
    model = fields.get("model name") or fields.get("CPU part") or platform.processor() or platform.machine()
    flags = (fields.get("flags") or fields.get("Features") or "").split()
    return model, frozenset(flags) & _RELEVANT


def _affinity() -> tuple[int, ...]:
    if sys.platform == "linux":
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def _listed_cpus(root: Path) -> tuple[int, ...]:
    lines = _text(root / "proc/cpuinfo").splitlines()
    return tuple(range(max(1, sum(line.startswith("processor") for line in lines))))


def _physical_cores(root: Path, allowed: tuple[int, ...]) -> int:
    """Distinct cores below the logical ones that this process may run on."""
    cores = set()
    for cpu in allowed:
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        package, core = _text(topology / "physical_package_id"), _text(topology / "core_id")
        cores.add((package, core) if core else ("logical", str(cpu)))
    return max(1, len(cores))


def _memory(root: Path) -> tuple[int, int]:
    fields = dict(line.partition(":")[::2] for line in _text(root / "proc/meminfo").splitlines())
    if "MemTotal" in fields:
        total = int(fields["MemTotal"].split()[0]) * 1024
        available = fields.get("MemAvailable", fields.get("MemFree", "0"))
        return total, int(available.split()[0]) * 1024
    import psutil

    memory = psutil.virtual_memory()
    return int(memory.total), int(memory.available)


def _gpus(root: Path) -> tuple[str, ...]:
    found = []
    for information in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        fields = dict(line.partition(":")[::2] for line in _text(information).splitlines())
        found.append(fields.get("Model", "NVIDIA GPU").strip())
    return tuple(found)


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


@dataclass(frozen=True, kw_only=True)
class _Cgroup:
    cores: float | None = None  # None: no quota
    memory_bytes: int | None = None
    memory_used_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class _Mount:
    kind: str  # "cgroup" or "cgroup2"
    root: str  # the part of the hierarchy that is mounted
    point: Path
    options: frozenset[str]


def _cgroup(root: Path) -> _Cgroup:
    """The tightest limits on the way from this process's cgroup up to the root of what is mounted."""
    cores: list[float] = []
    memory: list[tuple[int, int]] = []
    mounts = _cgroup_mounts(root)
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        for mount in mounts:
            if number == "0" and not controllers:
                if mount.kind == "cgroup2":
                    folders = _upwards(mount, path)
                    cores += filter(None, map(_quota_v2, folders))
                    memory += filter(None, map(_memory_v2, folders))
            elif mount.kind == "cgroup" and mount.options & set(controllers.split(",")) & {"cpu", "memory"}:
                folders = _upwards(mount, path)
                cores += filter(None, map(_quota_v1, folders))
                memory += filter(None, map(_memory_v1, folders))
    limit, used = min(memory, default=(None, 0), key=lambda pair: pair[0] or 0)
    return _Cgroup(cores=min(cores, default=None), memory_bytes=limit, memory_used_bytes=used)


def _cgroup_mounts(root: Path) -> list[_Mount]:
    mounts = []
    for line in _text(root / "proc/self/mountinfo").splitlines():
        left, dash, right = line.partition(" - ")
        place, kind = left.split(), right.split()
        if dash and len(place) > 4 and len(kind) > 2 and kind[0] in ("cgroup", "cgroup2"):
            point = root / place[4].lstrip("/")
            mounts.append(_Mount(kind=kind[0], root=place[3], point=point, options=frozenset(kind[2].split(","))))
    return mounts


def _upwards(mount: _Mount, path: str) -> list[Path]:
    """Folders from the cgroup at `path` up to the mount point; those that aren't visible here fall away."""
    if mount.root != "/" and (path + "/").startswith(mount.root.rstrip("/") + "/"):
        path = path[len(mount.root.rstrip("/")) :]
    parts = [part for part in path.split("/") if part and part != ".."]
    folders = [mount.point.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]
    return [folder for folder in folders if folder.is_dir()]


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.lstrip("-").isdigit() else None


def _quota_v2(folder: Path) -> float | None:
    words = _text(folder / "cpu.max").split()
    if len(words) == 2 and words[0].isdigit() and int(words[1]) > 0:
        return int(words[0]) / int(words[1])
    return None


def _quota_v1(folder: Path) -> float | None:
    quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 and period > 0 else None


def _memory_v2(folder: Path) -> tuple[int, int] | None:
    limit = _number(folder / "memory.max")
    if limit is None:
        return None
    return limit, _used(folder / "memory.current", folder / "memory.stat", "inactive_file")


def _memory_v1(folder: Path) -> tuple[int, int] | None:
    limit = _number(folder / "memory.limit_in_bytes")
    if limit is None or limit > _UNLIMITED:
        return None
    return limit, _used(folder / "memory.usage_in_bytes", folder / "memory.stat", "total_inactive_file")


def _used(usage: Path, stat: Path, reclaimable: str) -> int:
    """Bytes in use that the kernel can't simply drop: files that were read once don't count."""
    fields = dict(line.partition(" ")[::2] for line in _text(stat).splitlines())
    return max(0, (_number(usage) or 0) - int(fields.get(reclaimable, "0")))
