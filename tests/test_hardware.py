"""Machines described as trees of kernel files: what is read from each, and what must not be."""

from __future__ import annotations

from pathlib import Path

import pytest

from vengine.hardware import has_bf16, has_vnni, isa_limit, machine, threads_for

V1 = "30 25 0:26 {root} /sys/fs/cgroup/{name} rw - cgroup cgroup rw,{name}\n"
V2 = "31 25 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
CPUINFO = "model name : Test CPU\nflags : sse4_1 avx avx2 fma avx512f avx512bw avx512_vnni avx512_bf16 rdrand\n"
MEMINFO = "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n"
GIB = 1 << 30


def build(root: Path, files: dict[str, str], *, cpus: int = 8, cores: int = 8) -> Path:
    """A machine with `cpus` logical CPUs on `cores` physical ones, and further kernel files."""
    listed = "".join(f"processor : {cpu}\n{CPUINFO}" for cpu in range(cpus))
    topology = {
        f"sys/devices/system/cpu/cpu{cpu}/topology/{name}": value
        for cpu in range(cpus)
        for name, value in (("physical_package_id", "0"), ("core_id", str(cpu % cores)))
    }
    everything = {"proc/cpuinfo": listed, "proc/meminfo": MEMINFO, **topology, **files}
    for name, text in everything.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def v1(name: str, mounted: str = "/") -> str:
    return V1.format(root=mounted, name=name)


# what, files, cores allowed, threads
QUOTAS = [
    ("no cgroup at all", {}, 8.0, 8),
    (
        "v2 quota of 2.5",
        {
            "proc/self/cgroup": "0::/\n",
            "proc/self/mountinfo": V2,
            "sys/fs/cgroup/cpu.max": "250000 100000",
        },
        2.5,
        2,
    ),
    (
        "v2 without quota",
        {"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": V2, "sys/fs/cgroup/cpu.max": "max 100000"},
        8.0,
        8,
    ),
    (
        "v2, the parent is tighter than the child",
        {
            "proc/self/cgroup": "0::/pod/app\n",
            "proc/self/mountinfo": V2,
            "sys/fs/cgroup/pod/cpu.max": "100000 100000",
            "sys/fs/cgroup/pod/app/cpu.max": "400000 100000",
        },
        1.0,
        1,
    ),
    (
        "v2, another process's quota is not ours",
        {
            "proc/self/cgroup": "0::/mine\n",
            "proc/self/mountinfo": V2,
            "sys/fs/cgroup/mine/cpu.max": "max 100000",
            "sys/fs/cgroup/other/cpu.max": "100000 100000",
        },
        8.0,
        8,
    ),
    (
        "v1 quota",
        {
            "proc/self/cgroup": "4:cpu,cpuacct:/job\n",
            "proc/self/mountinfo": v1("cpu"),
            "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "300000",
            "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000",
        },
        3.0,
        3,
    ),
    (
        "v1 says -1 for no quota",
        {
            "proc/self/cgroup": "4:cpu:/\n",
            "proc/self/mountinfo": v1("cpu"),
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
        },
        8.0,
        8,
    ),
    (
        "v1 in a container: the host's path is not visible, the mount's root is",
        {
            "proc/self/cgroup": "4:cpu:/docker/abc\n",
            "proc/self/mountinfo": v1("cpu", "/docker/abc"),
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "150000",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
        },
        1.5,
        1,
    ),
    (
        "less than one core is still one thread",
        {"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": V2, "sys/fs/cgroup/cpu.max": "20000 100000"},
        0.2,
        1,
    ),
    (
        "rubbish is no quota",
        {"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": V2 + "broken\n", "sys/fs/cgroup/cpu.max": "lots"},
        8.0,
        8,
    ),
]


@pytest.mark.parametrize(("files", "cores", "threads"), [row[1:] for row in QUOTAS], ids=[row[0] for row in QUOTAS])
def test_cores_and_threads_follow_the_quota(tmp_path: Path, files: dict[str, str], cores: float, threads: int) -> None:
    here = machine({}, root=build(tmp_path, files))
    assert here.cores_allowed == pytest.approx(cores)
    assert threads_for(here) == threads


@pytest.mark.parametrize(("cpus", "cores", "threads"), [(8, 4, 4), (8, 8, 8), (1, 1, 1)])
def test_hyper_threads_are_no_cores(tmp_path: Path, cpus: int, cores: int, threads: int) -> None:
    here = machine({}, root=build(tmp_path, {}, cpus=cpus, cores=cores))
    assert (here.physical_cores, here.cores_allowed, threads_for(here)) == (cores, cpus, threads)


@pytest.mark.parametrize(("requested", "threads"), [(None, 4), (1, 1), (6, 6), (0, 1)])
def test_a_request_for_threads_wins(tmp_path: Path, requested: int | None, threads: int) -> None:
    assert threads_for(machine({}, root=build(tmp_path, {}, cores=4)), requested) == threads


MEMORY = [
    ("no cgroup", {}, 8 * GIB, 4 * GIB),
    (
        "v2 limit; files that can be dropped are not in use",
        {
            "proc/self/cgroup": "0::/\n",
            "proc/self/mountinfo": V2,
            "sys/fs/cgroup/memory.max": str(2 * GIB),
            "sys/fs/cgroup/memory.current": str(GIB),
            "sys/fs/cgroup/memory.stat": f"anon 5\ninactive_file {GIB // 2}\n",
        },
        2 * GIB,
        2 * GIB - GIB // 2,
    ),
    (
        "v1 limit",
        {
            "proc/self/cgroup": "4:memory:/\n",
            "proc/self/mountinfo": v1("memory"),
            "sys/fs/cgroup/memory/memory.limit_in_bytes": str(GIB),
            "sys/fs/cgroup/memory/memory.usage_in_bytes": str(GIB // 4),
        },
        GIB,
        GIB - GIB // 4,
    ),
    (
        "v1 says no limit with a huge number",
        {
            "proc/self/cgroup": "4:memory:/\n",
            "proc/self/mountinfo": v1("memory"),
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        },
        8 * GIB,
        4 * GIB,
    ),
]


@pytest.mark.parametrize(("files", "total", "free"), [row[1:] for row in MEMORY], ids=[row[0] for row in MEMORY])
def test_memory_is_the_smaller_of_machine_and_cgroup(
    tmp_path: Path, files: dict[str, str], total: int, free: int
) -> None:
    here = machine({}, root=build(tmp_path, files))
    assert (here.memory_bytes, here.memory_available_bytes) == (total, free)


# environment, flags that must be there, flags that must not
LIMITS = [
    ({}, {"avx2", "avx512f", "avx512_vnni", "avx512_bf16", "vnni", "bf16"}, set()),
    ({"ONEDNN_MAX_CPU_ISA": "AVX2"}, {"avx2", "fma"}, {"avx512f", "avx512_vnni", "avx512_bf16", "vnni", "bf16"}),
    ({"ONEDNN_MAX_CPU_ISA": "avx512_core"}, {"avx512f", "avx512bw"}, {"avx512_vnni", "avx512_bf16"}),
    ({"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI"}, {"avx512_vnni", "vnni"}, {"avx512_bf16", "bf16"}),
    ({"DNNL_MAX_CPU_ISA": "AVX"}, {"avx"}, {"avx2", "avx512f"}),
    ({"ONEDNN_MAX_CPU_ISA": "ALL"}, {"avx512_bf16"}, set()),
    ({"ONEDNN_MAX_CPU_ISA": "nonsense"}, {"avx512_bf16"}, set()),
    ({"OTHER_MAX_CPU_ISA": "AVX2"}, {"avx512_bf16"}, set()),
]


@pytest.mark.parametrize(("env", "present", "absent"), LIMITS)
def test_the_isa_limit_hides_newer_flags(
    tmp_path: Path, env: dict[str, str], present: set[str], absent: set[str]
) -> None:
    isa = set(machine(env, root=build(tmp_path, {})).isa)
    assert present <= isa
    assert not absent & isa
    assert "rdrand" not in isa, "flags that change no kernel are noise"


@pytest.mark.parametrize(
    ("isa", "vnni", "bf16"),
    [
        (("avx2",), False, False),
        (("avx2", "avx_vnni"), True, False),
        (("avx512_vnni", "avx512f"), True, False),
        (("avx512_bf16",), False, True),
        (("asimd",), False, False),
        (("asimd", "asimddp"), True, False),
        (("bf16", "i8mm"), True, True),
    ],
)
def test_what_the_flags_mean(isa: tuple[str, ...], vnni: bool, bf16: bool) -> None:
    assert (has_vnni(isa), has_bf16(isa)) == (vnni, bf16)


def test_an_arm_machine_names_its_features(tmp_path: Path) -> None:
    arm = "processor : 0\nFeatures : fp asimd asimddp i8mm bf16 crc32\nCPU part : 0xd4f\n"
    here = machine({}, root=build(tmp_path, {"proc/cpuinfo": arm}, cpus=1))
    assert here.isa == ("asimd", "asimddp", "bf16", "i8mm", "vnni")
    assert here.cpu == "0xd4f"


def test_a_gpu_is_named(tmp_path: Path) -> None:
    files = {"proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: \t NVIDIA Test\nIRQ: 4\n"}
    assert machine({}, root=build(tmp_path, files)).gpus == ("NVIDIA Test",)
    assert machine({}, root=build(tmp_path / "none", {})).gpus == ()


def test_this_machine_is_described() -> None:
    here = machine()
    assert here.cpu
    assert 0 < here.memory_available_bytes <= here.memory_bytes
    assert 1 <= threads_for(here) <= here.physical_cores
    assert "numpy" in here.versions


def test_unknown_levels_limit_nothing() -> None:
    assert isa_limit({"ONEDNN_MAX_CPU_ISA": "DEFAULT"}) is None
    assert isa_limit({"ONEDNN_MAX_CPU_ISA": " avx2 "}) == "AVX2"
