"""Which recipes are worth a trial for this model, on this machine, at this level.

The rows are one table. A row that can't run here is not dropped in silence: it comes back as a refused trial with
its reason, so that the report shows it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from vengine.graph.quantize import COULD_SATURATE
from vengine.types import (
    WEIGHTS_ONLY,
    Exactness,
    Level,
    Machine,
    Objective,
    PassResult,
    Recipe,
    RuntimeProfile,
    Settings,
    Source,
    Trial,
    in_int8,
)

When = Literal["memory", "words", "asked"]  # the objective; force_fp32 or op_types_to_quantize; precision=


@dataclass(frozen=True, kw_only=True)
class Row:
    """One kind of variant. `wants` is the CPU flag without which it is pointless here."""

    engine: str
    precision: str
    exactness: Exactness
    levels: tuple[Level, ...] = ("safe", "balanced", "aggressive")
    wants: str = ""
    asked_by: tuple[str, ...] = ()  # values of `precision=` that ask for it
    pipelines: tuple[str, ...] = ()  # of graph passes; see PIPELINE_WORDS
    when: tuple[When, ...] = ()  # tried only where one of these holds; () = always


HALF_RANGE = "half-range-weights"  # 7-bit weights everywhere: no pair sum can overflow
PORTABLE = "portable-weights"  # fewer bits only where a pair sum could
IN_FLOAT = "float:"  # and a node's name: it is taken back into float after the quantiser
_LOSSY: tuple[Level, ...] = ("balanced", "aggressive")

# The largest gains first: a slow model may leave time for some only.
ROWS = (
    Row(
        engine="openvino",
        precision="int8-static-bf16",
        exactness="lossy",
        levels=_LOSSY,
        wants="bf16",
        asked_by=("mixed", "int8"),
    ),
    Row(engine="openvino", precision="int8-static", exactness="lossy", levels=_LOSSY, asked_by=("int8",)),
    Row(
        engine="openvino",
        precision="bf16",
        exactness="lossy",
        levels=_LOSSY,
        wants="bf16",
        asked_by=("bf16", "mixed"),
    ),
    Row(
        engine="openvino",
        precision="mixed-bf16",
        exactness="lossy",
        levels=_LOSSY,
        wants="bf16",
        asked_by=("bf16", "mixed"),
        when=("memory", "words"),
    ),
    Row(
        engine="openvino",
        precision="int8-static-mixed-bf16",
        exactness="lossy",
        levels=_LOSSY,
        wants="bf16",
        asked_by=("mixed", "int8"),
        when=("words",),
    ),
    Row(
        engine="openvino",
        precision="fp16-weights",
        exactness="lossy",
        levels=_LOSSY,
        asked_by=("fp16",),
        when=("memory", "asked"),
    ),
    Row(
        engine="openvino",
        precision="int8-weights",
        exactness="lossy",
        levels=_LOSSY,
        asked_by=("int8",),
        when=("memory", "asked"),
    ),
    Row(
        engine="openvino",
        precision="int4-weights",
        exactness="lossy",
        levels=_LOSSY,
        asked_by=("int4",),
        when=("memory", "asked"),
    ),
    Row(engine="onnxruntime", precision="fp32", exactness="reassociates", asked_by=("fp32",)),
    Row(engine="onnxruntime", precision="int8-static", exactness="lossy", levels=_LOSSY, asked_by=("int8",)),
    Row(engine="openvino", precision="fp32", exactness="reassociates", asked_by=("fp32",)),
    Row(engine="onnxruntime", precision="int8-dynamic", exactness="lossy", levels=_LOSSY, asked_by=("int8",)),
    Row(engine="onnxruntime", precision="fp16", exactness="lossy", levels=_LOSSY, wants="fp16", asked_by=("fp16",)),
    Row(engine="onnxruntime", precision="fp32", exactness="reassociates", asked_by=("fp32",), pipelines=("fused",)),
)
# A switch for the whole graph → the same with a file that says which nodes stay in fp32.
_MIXED = {"bf16": "mixed-bf16", "int8-static-bf16": "int8-static-mixed-bf16"}
KEEP_LIST, TIGHT_KEEP_LIST, HALF_IO = "keep-list", "keep-list-tight", "half-io"


def candidates(
    source: Source,
    machine: Machine,
    settings: Settings,
    threads: int,
    engines: Collection[str],
    objective: Objective = "latency",
) -> tuple[tuple[Recipe, ...], tuple[Trial, ...]]:
    """Recipes to try, fastest hopes first among equals, and those refused without a try.

    Args:
        engines: names of the engines that are installed.
    """
    recipes, refused = [], []
    for row in ROWS:
        if settings.level not in row.levels or (settings.precision and settings.precision not in row.asked_by):
            continue
        if row.when and not _holds(settings, objective) & set(row.when):
            continue
        recipe = Recipe(
            engine=row.engine,
            precision=row.precision,
            profile=RuntimeProfile(threads=threads),
            passes=_passes(row, source, machine, settings),
            exactness=row.exactness,
        )
        if reason := _refusal(row, source, machine, settings, engines):
            refused.append(Trial(recipe=recipe, status="refused", reason=reason))
        else:
            recipes.append(recipe)
    return tuple(recipes), tuple(refused)


def _passes(row: Row, source: Source, machine: Machine, settings: Settings) -> tuple[str, ...]:
    """The options that make the artefact another one, so that they are part of the recipe's name."""
    if row.precision in ("fp32", "bf16"):
        return row.pipelines
    words = [*row.pipelines]
    words += [f"only:{op}" for op in settings.op_types_to_quantize] + [f"keep:{k}" for k in settings.force_fp32]
    if in_int8(row.precision) and not has_vnni(machine):
        # Without VNNI, u8×s8 pair sums saturate at 16 bits. A static ONNX graph is shrunk where it could happen.
        found_per_node = row.precision.startswith("int8-static") and source.kind != "openvino"
        words.append(PORTABLE if found_per_node else HALF_RANGE)
    if "mixed" in row.precision or row.precision == "fp16":
        words.append(KEEP_LIST)
    if row.precision.startswith("fp16") and not settings.keep_io_types:
        words.append(HALF_IO)
    return tuple(words)


def _holds(settings: Settings, objective: Objective) -> set[When]:
    held: tuple[tuple[When, bool], ...] = (
        ("memory", objective == "memory"),
        ("words", bool(settings.force_fp32 or settings.op_types_to_quantize)),
        ("asked", settings.precision is not None),
    )
    return {name for name, holds in held if holds}


def second_thoughts(trials: Sequence[Trial]) -> tuple[Recipe, ...]:
    """What is worth a try after the first round: bf16 that was refused for its answers, with a tighter keep-list.

    The keep-list is searched again until the rounding's error is a quarter of what it was. Where int8 alone is refused
    too, bf16 is not what is to blame.
    """
    good = {t.recipe.precision for t in trials if t.status == "ok"}
    recipes = []
    for trial in trials:
        recipe, found = trial.recipe, trial.verdict
        if trial.status != "refused" or found is None or found.outcome == "pass" or recipe.engine != "openvino":
            continue
        precision = _MIXED.get(recipe.precision, recipe.precision)
        sound_base = not in_int8(precision) or "int8-static" in good
        if precision in _MIXED.values() and sound_base and TIGHT_KEEP_LIST not in recipe.passes:
            words = (*(word for word in recipe.passes if word != KEEP_LIST), TIGHT_KEEP_LIST)
            recipes.append(replace(recipe, precision=precision, passes=words))
    return tuple(dict.fromkeys(recipes))


def _refusal(row: Row, source: Source, machine: Machine, settings: Settings, engines: Collection[str]) -> str:
    if settings.engines and row.engine not in settings.engines:
        return "not among the engines that were asked for"
    if row.engine not in engines:
        return f"{row.engine} is not installed: pip install 'vengine[optimize]'"
    if row.wants and row.wants not in machine.isa:
        return f"this CPU has no {row.wants}: it would be emulated and slower"
    if source.kind == "openvino" and row.engine != "openvino":
        return "the source is an OpenVINO IR, which only OpenVINO opens"
    if source.kind == "openvino" and row.precision in _MIXED.values():
        return "a keep-list needs an ONNX graph, and the source is an OpenVINO IR"
    if _holds(settings, "latency") & {"words"} and row.precision in _MIXED:
        return (
            f"OpenVINO's bf16 is a switch for the whole graph: {_MIXED[row.precision]} keeps what was asked for in fp32"
        )
    if row.precision in WEIGHTS_ONLY and settings.op_types_to_quantize:
        return "it narrows weights, whatever operator reads them: use force_fp32 to name those that stay"
    return ""


def has_vnni(machine: Machine) -> bool:
    """True when int8 products add up in 32 bits, without saturation on the way."""
    return "vnni" in machine.isa


def required_isa(recipe: Recipe, passes: Sequence[PassResult] = ()) -> tuple[str, ...]:
    """Flags without which the variant's answers were never verified (see `Variant.required_isa`).

    Args:
        passes: what building it told: an artefact whose products were each proven safe needs no VNNI.
    """
    flags = []
    unsafe = {result.name: result.matched for result in passes}.get(COULD_SATURATE)
    safe = HALF_RANGE in recipe.passes if unsafe is None else unsafe == 0
    if in_int8(recipe.precision) and not safe:
        flags.append("vnni")
    if recipe.precision.endswith("bf16"):
        flags.append("bf16")
    if recipe.precision == "fp16":
        flags.append("fp16")
    return tuple(flags)
