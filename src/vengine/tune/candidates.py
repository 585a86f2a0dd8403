"""Which recipes are worth a trial for this model, on this machine, at this level.

The rows are one table. A row that can't run here is not dropped in silence: it comes back as a refused trial with
its reason, so that the report shows it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from vengine.graph.quantize import COULD_SATURATE
from vengine.types import Exactness, Level, Machine, PassResult, Recipe, RuntimeProfile, Settings, Source, Trial


@dataclass(frozen=True, kw_only=True)
class Row:
    """One kind of variant. `wants` is the CPU flag without which it is pointless here."""

    engine: str
    precision: str
    exactness: Exactness
    levels: tuple[Level, ...] = ("safe", "balanced", "aggressive")
    wants: str = ""
    asked_by: tuple[str, ...] = ()  # values of `precision=` that ask for it


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
    Row(engine="onnxruntime", precision="fp32", exactness="reassociates", asked_by=("fp32",)),
    Row(engine="onnxruntime", precision="int8-static", exactness="lossy", levels=_LOSSY, asked_by=("int8",)),
    Row(engine="openvino", precision="fp32", exactness="reassociates", asked_by=("fp32",)),
    Row(engine="onnxruntime", precision="int8-dynamic", exactness="lossy", levels=_LOSSY, asked_by=("int8",)),
)


def candidates(
    source: Source, machine: Machine, settings: Settings, threads: int, engines: Collection[str]
) -> tuple[tuple[Recipe, ...], tuple[Trial, ...]]:
    """Recipes to try, fastest hopes first among equals, and those refused without a try.

    Args:
        engines: names of the engines that are installed.
    """
    recipes, refused = [], []
    for row in ROWS:
        if settings.level not in row.levels or (settings.precision and settings.precision not in row.asked_by):
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
    if not row.precision.startswith("int8"):
        return ()
    words = [f"only:{op}" for op in settings.op_types_to_quantize] + [f"keep:{k}" for k in settings.force_fp32]
    if not has_vnni(machine):
        # Without VNNI, u8×s8 pair sums saturate at 16 bits. A static ONNX graph is shrunk where it could happen.
        found_per_node = row.precision.startswith("int8-static") and source.kind != "openvino"
        words.append(PORTABLE if found_per_node else HALF_RANGE)
    return tuple(words)


def _refusal(row: Row, source: Source, machine: Machine, settings: Settings, engines: Collection[str]) -> str:
    if settings.engines and row.engine not in settings.engines:
        return "not among the engines that were asked for"
    if row.engine not in engines:
        return f"{row.engine} is not installed: pip install 'vengine[optimize]'"
    if row.wants and row.wants not in machine.isa:
        return f"this CPU has no {row.wants}: it would be emulated and slower"
    if source.kind == "openvino" and row.engine != "openvino":
        return "the source is an OpenVINO IR, which only OpenVINO opens"
    if settings.force_fp32 and row.precision == "bf16":
        return "OpenVINO's bf16 is a switch for the whole graph: it can't keep single nodes in fp32"
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
    if recipe.precision.startswith("int8") and not safe:
        flags.append("vnni")
    if recipe.precision.endswith("bf16"):
        flags.append("bf16")
    return tuple(flags)
