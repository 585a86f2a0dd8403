"""`optimize`: from a model and some traffic to a verified bundle and its report.

    open the source → export → prepare the workload → search → write the bundle → run it side by side

Work that can be used again (exports, quantised artefacts, the journal of trials) lies in the cache under a key made
of everything that it depends on, so a killed run resumes and another question never gets this one's answer.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import vengine
from vengine.api.conflicts import refuse_conflicts
from vengine.api.places import Places, places, write_page
from vengine.cache import default_cache
from vengine.digests import digest_file, digest_json
from vengine.engines.base import ENGINES, get_engine
from vengine.errors import UsageError
from vengine.hardware import machine as this_machine
from vengine.hardware import threads_for
from vengine.types import Budget, Machine, Objective, Settings, Source, Task, Workload
from vengine.workload.identity import digest_samples

if TYPE_CHECKING:
    from vengine.tune.prepare import Prepared

Tell = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was asked for, resolved: the source is open, the workload is read."""

    source: Source
    workload: Workload
    budget: Budget
    settings: Settings
    machine: Machine
    threads: int
    cache: Path
    resume: bool
    tell: Tell


def optimize(
    source: str | Path | Source,
    *,
    data: str | Path | Workload | None = None,
    lengths: str | Path | Sequence[int] | None = None,
    concurrency: int = 1,
    objective: Objective = "latency",
    budget: Budget = Budget(),  # noqa: B008 - frozen
    settings: Settings = Settings(),  # noqa: B008 - frozen
    out: str | Path | None = None,
    html: str | Path | None = None,
    pack: bool = False,
    resume: bool = True,
    progress: Tell | None = None,
    task: Task | None = None,
    text_column: str | None = None,
    pair_column: str | None = None,
    label_column: str | None = None,
    cache: Path | None = None,
) -> dict[str, Any]:
    """Make a model faster, prove that it answers the same, and write the bundle.

    Args:
        source: what `open_source` takes, or an open Source.
        data: the user's samples; without, built-in texts (or noise for a tensor model), and the report says so.
        out: the bundle to write; default NAME.vengine in the working directory.
        html: also write the report there, as one HTML file.
        resume: use what an interrupted run of the same question left.
        progress: called with events (see `vengine.report.progress`).

    Returns:
        The report (docs/report-format.md). `report["met"]` says whether the target was met; when not, the bundle
        holds the original.

    Raises:
        VengineError: bad input, or no room; nothing that existed before is touched.
    """
    started = time.monotonic()
    refuse_conflicts(settings)
    _refuse_unknown_metric(budget)
    if out is not None:
        places(out, html, pack=pack)
    busy = _busy()
    cache = cache or default_cache()
    tell = progress or (lambda _: None)
    if busy:
        tell({"event": "note", "text": busy})
    tell({"event": "phase", "name": "read the source"})
    opened = source if isinstance(source, Source) else _open(source, cache, task)
    to = places(out if out is not None else f"{opened.name}.vengine", html, pack=pack)
    columns = {"text_column": text_column, "pair_column": pair_column, "label_column": label_column}
    machine = this_machine()
    request = Request(
        source=opened,
        workload=_workload(opened, data, lengths, concurrency, objective, columns, settings),
        budget=budget,
        settings=settings,
        machine=machine,
        threads=threads_for(machine, settings.threads),
        cache=cache,
        resume=resume,
        tell=tell,
    )
    with _workplace(request) as folder:
        report = _run(request, folder, to.bundle, started, (busy,) if busy else ())
    _write_extras(report, to)
    return report


def _busy() -> str:
    """A sentence when other programs load the machine: rounds are interleaved, but what disturbs one side may spare
    the other."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load < 0.5 * cores:
        return ""
    return f"other programs are using this machine (load {load:.1f} on {cores} cores): the times will be less certain"


def _open(source: str | Path, cache: Path, task: Task | None) -> Source:
    from vengine.sources import open_source

    return open_source(source, cache=cache / "sources", task=task)


def _workload(
    source: Source,
    data: str | Path | Workload | None,
    lengths: str | Path | Sequence[int] | None,
    concurrency: int,
    objective: Objective,
    columns: dict[str, str | None],
    settings: Settings,
) -> Workload:
    from vengine.tune import sample_texts
    from vengine.tune.prepare import synthetic
    from vengine.workload import read_lengths, read_workload

    if isinstance(data, Workload):
        _refuse_double(data, lengths, concurrency, objective)
        return data if data.digest else replace(data, digest=digest_samples(data.samples))
    if data is not None:
        return read_workload(data, lengths=lengths, concurrency=concurrency, objective=objective, **columns)
    made = sample_texts.workload() if source.tokenizer is not None else synthetic(source, settings)
    arriving = read_lengths(lengths) if isinstance(lengths, (str, Path)) else tuple(lengths or ())
    return replace(made, lengths=arriving, concurrency=concurrency, objective=objective)


def _refuse_double(data: Workload, lengths: object, concurrency: int, objective: Objective) -> None:
    """A Workload says itself how its texts arrive: the arguments would be dropped."""
    said = (
        ("lengths", lengths is not None),
        ("concurrency", concurrency not in (1, data.concurrency)),
        ("objective", objective not in ("latency", data.objective)),
    )
    for name, twice in said:
        if twice:
            raise UsageError(f"{name} was given beside a Workload", next_step=f"set it in the Workload: {name}=…")


def _refuse_unknown_metric(budget: Budget) -> None:
    from vengine.verify.compare import AGREEMENT_NAMES
    from vengine.verify.metrics import get_metric
    from vengine.verify.ranking import depth_of

    if budget.metric is not None and budget.metric not in AGREEMENT_NAMES and depth_of(budget.metric) is None:
        get_metric(budget.metric, budget.direction)


def _refuse_foreign_labels(prepared: Prepared, metric: str | None) -> None:
    """Labels that are no classes of the model are found before the export, not after it."""
    from vengine.verify.label_sets import true_sets

    classes = prepared.source.labels
    if prepared.source.task == "classification" and metric is None and classes:
        true_sets(prepared.samples, classes, len(classes))


@contextmanager
def _workplace(request: Request) -> Iterator[Path]:
    """The folder of this question's work, owned by one process at a time."""
    question = [
        vengine.__version__,
        request.source.digest,
        request.source.task,
        request.workload.digest,
        request.workload.lengths,
        request.workload.objective,
        request.workload.concurrency,
        request.budget,
        replace(request.settings, time_seconds=0.0),
        replace(request.machine, memory_available_bytes=0),
        request.threads,
    ]
    folder = request.cache / "work" / digest_json(question)[7:23]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise UsageError(
                f"another run is at work on the same question (process {lock.read().strip() or 'unknown'})",
                where=str(folder),
                next_step="wait for it, stop it and run the same command to go on from where it was, or name another "
                "folder for unfinished work with VENGINE_CACHE",
            ) from None
        with suppress(OSError):  # a word for whoever waits; a full disk is told where it matters
            lock.truncate(0)
            os.pwrite(lock.fileno(), str(os.getpid()).encode(), 0)
        if not request.resume:
            for item in folder.iterdir():
                if item.name != "lock":
                    shutil.rmtree(item) if item.is_dir() else item.unlink()
        yield folder


def _run(request: Request, folder: Path, target: Path, started: float, warnings: tuple[str, ...]) -> dict[str, Any]:
    """Everything between an open source and a written bundle."""
    from vengine.api.shipping import Shipment
    from vengine.graph.keep_list import require_words
    from vengine.tune.calibration import calibration
    from vengine.tune.candidates import candidates
    from vengine.tune.journal import Journal
    from vengine.tune.original import kept_variant, open_original, refuse_too_large
    from vengine.tune.planner import lint_notes
    from vengine.tune.prepare import prepare
    from vengine.tune.search import Bench, search

    source, settings = request.source, request.settings
    refuse_too_large(source, request.machine, request.budget)
    prepared = prepare(source, request.workload, settings)
    _refuse_foreign_labels(prepared, request.budget.metric)
    model = _exported(request, folder)
    if model.suffix == ".onnx":
        require_words(model, (*settings.force_fp32, *settings.op_types_to_quantize))
    request.tell({"event": "phase", "name": "run the original"})
    original, prepared = open_original(source, prepared, request.budget, request.threads, settings.time_seconds)
    calls, uncovered = calibration(prepared, original.judge.original, settings.calibration_samples)
    with original.worker:
        bench = Bench(
            prepared=prepared,
            workshop=_workshop(request, folder, model, calls),
            original=original,
            machine=request.machine,
            settings=settings,
            budget=request.budget,
            journal=Journal(folder / "journal.jsonl"),
            tell=request.tell,
        )
        installed = {name for name in ENGINES if get_engine(name).availability().ok}
        found = search(
            bench,
            *candidates(source, request.machine, settings, request.threads, installed, request.workload.objective),
        )
        shipment = Shipment(
            found=found,
            prepared=prepared,
            original=original,
            kept=kept_variant(source, model, request.threads),
            machine=request.machine,
            budget=request.budget,
            settings=settings,
            threads=request.threads,
            ladder=bench.workshop.measured_ladder(),
        )
        return _ship(request, shipment, target, started, (*warnings, *uncovered, *lint_notes(found.winners)))


def _exported(request: Request, folder: Path) -> Path:
    """The graph that every variant starts from; an OpenVINO IR is one already."""
    from vengine.graph.export import export

    if request.source.kind == "openvino":
        return request.source.path
    model = folder / "export" / "model.onnx"
    done = folder / "export" / "done"  # written last: a killed export is done again
    if not done.exists():
        request.tell({"event": "phase", "name": "export"})
        shutil.rmtree(model.parent, ignore_errors=True)
        model = export(request.source, model.parent).path
        done.write_text(digest_file(model))
    return model


def _workshop(request: Request, folder: Path, model: Path, calibration: list[Any]) -> Any:
    from vengine.graph.structure import has_attention
    from vengine.tune.build import Workshop

    return Workshop(
        model=model,
        directory=folder / "built",
        calibration=calibration,
        transformer=request.source.tokenizer is not None or has_attention(model),
        source=request.source,
    )


def _ship(request: Request, shipment: Any, target: Path, started: float, warnings: tuple[str, ...]) -> dict[str, Any]:
    """Write the bundle, and run it from there beside the original."""
    from vengine.api.breakdown import breakdown
    from vengine.api.compare import side_by_side
    from vengine.api.shipping import draft_bundle, report_of
    from vengine.bundle.write import write_bundle
    from vengine.report.html import html

    request.tell({"event": "phase", "name": "write the bundle"})
    draft = draft_bundle(shipment)
    report = report_of(shipment, bundle=_shown(target), digest=draft.digest, command=_command())
    report["warnings"] = list(warnings)
    report["breakdown"] = breakdown(shipment)
    report["side_by_side"] = side_by_side(shipment)
    report["seconds"] = round(time.monotonic() - started, 1)
    write_bundle(target, draft, report=report, page=html(report))
    return report


def _write_extras(report: dict[str, Any], to: Places) -> None:
    from vengine.bundle.read import open_bundle
    from vengine.report.html import html as render

    if to.page is not None:
        write_page(to.page, render(report))
    if to.pack is not None:
        open_bundle(to.bundle).pack(to.pack)


def _shown(path: Path) -> str:
    """The path as a user would type it: relative where it lies below the working directory."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _command() -> tuple[str, ...]:
    """The command line, for the report; a call from Python is said to be one."""
    name = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else ""
    return ("vengine", *sys.argv[1:]) if name in ("vengine", "vengine.exe") else ("vengine.optimize(…)",)
