"""Settings that contradict each other or would have no effect are refused, never dropped in silence."""

from __future__ import annotations

from vengine.engines.base import ENGINES, get_engine
from vengine.errors import EngineMissing, UsageError
from vengine.types import Settings

_LEVELS = ("safe", "balanced", "aggressive")
_PRECISIONS = (None, "mixed", "fp32", "bf16", "fp16", "int8", "int4")


def refuse_conflicts(settings: Settings) -> None:
    """Check what the command line and Python may both ask for.

    Raises:
        UsageError: a value is unknown, or two settings contradict each other.
        EngineMissing: an engine that was asked for by name is not installed.
    """
    unknown = [name for name in settings.engines if name not in ENGINES]
    rows = (
        (settings.level not in _LEVELS, f"the level {settings.level!r} is unknown", ", ".join(_LEVELS)),
        (settings.precision not in _PRECISIONS, f"the precision {settings.precision!r} is unknown", "leave it out"),
        (bool(unknown), f"there is no engine {unknown[:1]}", f"choose from {', '.join(ENGINES)}"),
        (settings.time_seconds <= 0, f"a time of {settings.time_seconds:g} s leaves no trial", "give some minutes"),
        (
            settings.level == "safe" and settings.precision not in (None, "fp32"),
            f"the level 'safe' admits rounding only, and the precision {settings.precision!r} is lossy",
            "leave the precision out, or use the level 'balanced'",
        ),
        (
            settings.precision == "fp32" and bool(settings.op_types_to_quantize),
            f"op_types_to_quantize has no effect with the precision {settings.precision!r}",
            "leave one of them out",
        ),
        (
            not settings.keep_io_types and settings.precision != "fp16",
            "keep_io_types=False makes inputs and outputs fp16, which only the precision 'fp16' does",
            "ask for the precision 'fp16', or leave keep_io_types out",
        ),
    )
    for broken, what, step in rows:
        if broken:
            raise UsageError(what, next_step=step)
    for name in settings.engines:
        found = get_engine(name).availability()
        if not found.ok:
            raise EngineMissing(found.reason, where=f"the engine {name}, which was asked for", next_step=found.install)
