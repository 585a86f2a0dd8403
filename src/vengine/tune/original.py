"""The untouched original: which engine runs it, and its answers, against which everything is compared."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from vengine.digests import digest_json
from vengine.engines.base import Session, model_files
from vengine.errors import LimitError
from vengine.tune.build import describe
from vengine.tune.prepare import Prepared
from vengine.tune.trial import Original, answers, open_worker
from vengine.types import Budget, Machine, Recipe, RuntimeProfile, Source, Variant
from vengine.verify.arrange import Output
from vengine.verify.compare import Judge
from vengine.verify.invariance import bears
from vengine.verify.noise import NoiseFloor, noise_floor
from vengine.verify.soundness import check_original, form_fault

# Which engine runs a source as its author meant it. For ONNX that is the runtime with all optimisation off.
_ENGINES: Mapping[str, tuple[str, str]] = {
    "huggingface": ("torch", "fp32"),
    "torch": ("torch", "fp32"),
    "onnx": ("onnxruntime", "reference"),
    "openvino": ("openvino", "fp32"),
}
# Loading holds the file's bytes and the live weights at once; torch alone needs some 300 MB.
_LOADING_FACTOR, _BASE_BYTES = 2.0, 300 << 20
# Shares of the time box: for the original's answers, and for one of its passes over what is timed.
_VERIFY_SHARE, _PASS_SHARE = 0.1, 0.0125
# The original is compared with itself on so many samples, fewer (eight at least) where a run of them takes longer than
# its share, in batches of so many tokens; other threads are tried where opening it again takes no longer than its.
_NOISE_SAMPLES, _LEAST_NOISE_SAMPLES, _NOISE_TOKENS, _NOISE_BATCH, _NOISE_SHARE = 64, 8, 256, 8, 0.01


def original_variant(source: Source, threads: int) -> Variant:
    """The source itself as a variant."""
    engine, precision = _ENGINES[source.kind]
    recipe = Recipe(engine=engine, precision=precision, profile=RuntimeProfile(threads=threads), exactness="bitwise")
    folder = source.path.is_dir()
    return Variant(
        recipe=recipe,
        directory=source.path if folder else source.path.parent,
        entry="." if folder else source.path.name,
        digest=digest_json([source.digest, recipe]),
        size_bytes=source.weight_bytes,
    )


def kept_variant(source: Source, model: Path, threads: int) -> Variant:
    """What ships where no variant may: the original, in a form that is safe to ship.

    A traced module's file may hold pickles, so its exported graph ships instead, with all optimisation off. So does
    an ONNX file's checked copy: its weights may lie under any name among the user's other files.
    """
    if source.kind not in ("torch", "onnx"):
        return original_variant(source, threads)
    engine, precision = _ENGINES["onnx"]
    recipe = Recipe(engine=engine, precision=precision, profile=RuntimeProfile(threads=threads), exactness="bitwise")
    return describe(recipe, model, model_files(model), ())


def refuse_too_large(source: Source, machine: Machine, budget: Budget) -> None:
    """Stop before loading a model that can't fit, with the arithmetic.

    Raises:
        LimitError: weights × 2 + 300 MB is more than the memory limit, or than what is free.
    """
    limit = min(budget.memory_limit_bytes or machine.memory_available_bytes, machine.memory_available_bytes)
    need = int(source.weight_bytes * _LOADING_FACTOR) + _BASE_BYTES
    if need > limit:
        raise LimitError(
            f"loading needs about {need >> 20:,} MiB (weights {source.weight_bytes >> 20:,} MiB × {_LOADING_FACTOR:g} "
            f"+ {_BASE_BYTES >> 20} MiB) and {limit >> 20:,} MiB are allowed",
            where=source.location,
            next_step="raise --memory-limit, free memory, or take a smaller model",
        )


def open_original(
    source: Source, prepared: Prepared, budget: Budget, threads: int, seconds: float
) -> tuple[Original, Prepared]:
    """Start the original and collect its answers.

    A slow model is verified on fewer samples, as many as it answers in a share of the time box, and timed on less.

    Returns:
        The original, paused, and the workload cut to what is verified and timed.
    """
    variant = original_variant(source, threads)
    started = time.monotonic()
    worker = open_worker(variant, None, source.task)
    opening = time.monotonic() - started
    try:
        prepared = _affordable(worker, prepared, seconds)
        started = time.monotonic()
        first = answers(worker, prepared)
        took = time.monotonic() - started
        judge = Judge(
            source.task,
            first,
            prepared.samples,
            budget,
            source.labels,
            several_labels=source.several_labels,
            seed=prepared.seed,
        )
        many = _noise_samples(len(prepared.samples), took, seconds)
        more = [threads - 1] if threads > 1 and opening < seconds * _NOISE_SHARE else []
        noise = own_noise(worker, variant, prepared, first, many, more)
        judge.noise = noise.max_relative if noise else None
        borne = _bears(worker, prepared, budget)
        worker.pause()
    except BaseException:
        worker.close()
        raise
    return Original(variant=variant, worker=worker, judge=judge, noise=noise, bears=borne), prepared


def own_noise(
    worker: Session,
    variant: Variant,
    prepared: Prepared,
    first: Mapping[str, Output],
    many: int,
    threads: Sequence[int],
) -> NoiseFloor | None:
    """How far the original's answers to some samples move with smaller batches, and with other thread counts.

    Args:
        first: its answers to all samples, which everything is compared with.
        many: so many samples.
        threads: counts that are tried beside its own, each in a process of its own.

    Returns:
        None where the outputs' very shape depends on the batch.
    """
    places, few = prepared.places(many), prepared.cut(many)
    runs = [{name: [rows[i] for i in places] for name, rows in first.items()}, _otherwise(worker, few)]
    for count in threads:
        profile = replace(variant.recipe.profile, threads=count)
        other = replace(variant, recipe=replace(variant.recipe, profile=profile))
        with open_worker(other, None, prepared.source.task) as session:
            runs.append(answers(session, few))
    for run in runs[1:]:
        if form_fault(runs[0], run):
            return None
        check_original(run, few.samples)
    return noise_floor(runs)


def _otherwise(session: Session, prepared: Prepared) -> Mapping[str, Output]:
    """The answers from other batches: smaller ones of texts, larger ones of tensors."""
    if prepared.tokenizer is not None:
        return answers(session, prepared, _NOISE_TOKENS)
    done = [session.run(call) for call in prepared.tensors_together(_NOISE_BATCH)]
    return {name: [row for outputs in done for row in outputs[name]] for name in done[0]}


def _noise_samples(samples: int, took: float, seconds: float) -> int:
    """How many samples are run again."""
    affordable = samples * seconds * _NOISE_SHARE / max(took, 1e-6)
    return min(samples, max(_LEAST_NOISE_SAMPLES, int(min(affordable, _NOISE_SAMPLES))))


def _bears(worker: Session, prepared: Prepared, budget: Budget) -> tuple[str, ...]:
    if prepared.tokenizer is None:
        return ()
    pad_id, task, longest = prepared.tokenizer.pad_id, prepared.source.task, prepared.source.max_tokens
    encodings, names = prepared.encodings, prepared.names
    return bears(worker.run, encodings, names, pad_id, task, budget.min_invariance, max_tokens=longest)


def _affordable(worker: Session, prepared: Prepared, seconds: float) -> Prepared:
    probe = prepared.cut(min(32, len(prepared.samples)))
    answers(worker, probe)  # the first calls compile and allocate
    started = time.monotonic()
    answers(worker, probe)
    took = max(time.monotonic() - started, 1e-6)
    prepared = prepared.thinned(probe.tokens / took * seconds * _PASS_SHARE)
    most = max(64, int(len(probe.samples) / took * seconds * _VERIFY_SHARE))
    return prepared if len(prepared.samples) <= most else prepared.cut(most)
