"""Opening and loading: a folder holds exactly what it says, and what can't answer here is replaced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.bundle.making import BUILDER, FEEDS, Toy, bundle, honest, tokenizer

from vengine.bundle.choose import Exclusion, find_variant, plan_without
from vengine.bundle.load import load
from vengine.bundle.read import Bundle, open_bundle
from vengine.errors import BundleError, NoVariantForThisCpu
from vengine.types import Machine, PlanEntry

INT8 = Toy(precision="int8-static", isa=("avx512_vnni",))
BF16 = Toy(precision="bf16", isa=("avx512_bf16",))
FP32 = Toy(precision="fp32")
THREE = (INT8, BF16, FP32)
PLAN = ((0, 1, 64), (1, 65, 512), (2, 513, None))
FULL = replace(BUILDER, isa=("avx2", "avx512_bf16", "avx512_vnni", "avx512f"))
NO_VNNI = replace(BUILDER, isa=("avx2", "avx512_bf16", "avx512f"))
OLD = replace(BUILDER, isa=("avx2",))


def _move(root: Path, old: str, new: str) -> None:
    (root / old).rename(root / new)


TREES: list[tuple[str, Callable[[Path], object], str]] = [
    ("nothing", lambda r: None, ""),
    ("an empty folder", lambda r: (r / "empty").mkdir(), ""),
    ("an extra file", lambda r: (r / "extra.json").write_text("{}"), "does not belong"),
    ("a hidden file", lambda r: (r / ".hidden").write_text(""), "does not belong"),
    ("a file in the model's folder", lambda r: (_model(r).parent / "adapter.json").write_text(""), "does not belong"),
    ("a missing file", lambda r: (r / "report.json").unlink(), "report.json is missing"),
    ("a missing model", lambda r: _model(r).unlink(), "is missing"),
    ("a missing manifest", lambda r: (r / "manifest.json").unlink(), "no readable manifest"),
    ("a longer file", lambda r: (r / "report.html").write_text("<p>report</p> "), "14 bytes instead of 13"),
    ("an empty model", lambda r: _model(r).write_text(""), "0 bytes"),
    ("a link to the same bytes", lambda r: _link(r / "report.html"), "is a link"),
    ("a link to a folder", lambda r: (r / "golden2").symlink_to(r / "golden"), "is a link"),
    ("a renamed file", lambda r: _move(r, "report.json", "Report.json"), "does not belong"),
]


def _model(root: Path) -> Path:
    return next((root / "variants").rglob("model.json"))


def _link(path: Path) -> None:
    outside = path.parent.parent / "outside"
    path.rename(outside)
    path.symlink_to(outside)


@pytest.mark.parametrize(("change", "says"), [row[1:] for row in TREES], ids=[row[0] for row in TREES])
def test_the_folder_holds_exactly_what_the_manifest_lists(
    tmp_path: Path, change: Callable[[Path], object], says: str
) -> None:
    root = bundle(tmp_path).root
    change(root)
    if not says:
        open_bundle(root).check()
        return
    with pytest.raises(BundleError, match=says):
        open_bundle(root)


@pytest.mark.parametrize("name", ["report.html", "golden/inputs.npz", "model.json", "tokenizer.json"])
def test_check_reads_every_byte(tmp_path: Path, name: str) -> None:
    root = bundle(tmp_path, tokenizer=tokenizer(tmp_path / "tok")).root
    path = _model(root) if name == "model.json" else root / name
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(BundleError, match=f"the bytes of .*{name} are not"):
        open_bundle(root).check()


@pytest.mark.parametrize("what", ["nothing there", "a text file", "an empty folder"])
def test_what_is_no_bundle(tmp_path: Path, what: str) -> None:
    path = tmp_path / "x.vengine"
    if what == "a text file":
        path.write_text("hello")
    elif what == "an empty folder":
        path.mkdir()
    with pytest.raises(BundleError, match="no "):
        open_bundle(path)


CHOICES: list[tuple[str, Machine, tuple[int, ...]]] = [
    # the machine, and which of (int8, bf16, fp32) serves 64, 512 and more tokens there
    ("all flags", FULL, (0, 1, 2)),
    ("no vnni", NO_VNNI, (2, 1, 2)),
    ("only avx2", OLD, (2, 2, 2)),
    ("no flags at all", replace(BUILDER, isa=()), (2, 2, 2)),
]


@pytest.mark.parametrize(("machine", "serves"), [row[1:] for row in CHOICES], ids=[row[0] for row in CHOICES])
def test_flags_decide_which_variant_serves_which_range(
    tmp_path: Path, machine: Machine, serves: tuple[int, ...]
) -> None:
    made = bundle(tmp_path, THREE, plan=PLAN)
    loaded = load(made, machine=machine)
    digests = [v.digest for v in made.manifest.content.variants]
    assert [digests.index(e.variant) for e in loaded.plan.entries] == list(serves)
    assert [(e.tokens_min, e.tokens_max) for e in loaded.plan.entries] == [(1, 64), (65, 512), (513, None)]
    assert set(loaded.excluded) == {d for d, toy in zip(digests, THREE, strict=True) if set(toy.isa) - set(machine.isa)}
    assert np.array_equal(loaded.session.run(FEEDS)["sentence_embedding"], honest(FEEDS)["sentence_embedding"])


WRONG: list[tuple[str, dict[str, object], str, str]] = [
    ("honest", {}, "", ""),
    ("slower, but right", {"delay_ms": 1}, "", ""),
    ("scaled", {"scale": 3}, "refused", "golden outputs disagree"),
    ("neighbours leak", {"neighbours": 1}, "refused", "golden outputs disagree"),
    ("NaN", {"nan_on": 1}, "refused", "NaN"),
    ("raises when it runs", {"raise_on": 1}, "refused", "fails on the golden inputs"),
    ("raises when it is opened", {"raise_on": "open"}, "failed", "refuses"),
    ("another output", {"outputs": [{"name": "y", "dtype": "float32", "shape": ["batch", 8]}]}, "refused", "missing"),
    (
        "another width",
        {"outputs": [{"name": "sentence_embedding", "dtype": "float32", "shape": ["batch", 4]}]},
        "refused",
        "of shape",
    ),
]


@pytest.mark.parametrize(("behaviour", "status", "says"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_a_variant_that_answers_wrongly_here_never_serves(
    tmp_path: Path, behaviour: dict[str, object], status: str, says: str
) -> None:
    made = bundle(tmp_path, (Toy(precision="int8-static", behaviour=behaviour), FP32))
    first, second = (v.digest for v in made.manifest.content.variants)
    loaded = load(made, machine=FULL)
    assert [e.variant for e in loaded.plan.entries] == [second if status else first]
    if status:
        assert loaded.excluded[first].status == status
        assert says in loaded.excluded[first].reason
    answer = loaded.session.run(FEEDS)["sentence_embedding"]
    assert np.array_equal(answer, honest(FEEDS)["sentence_embedding"])


def test_without_the_golden_check_it_would_have_served(tmp_path: Path) -> None:
    """The row "scaled" above can fail: the check is what refuses it."""
    made = bundle(tmp_path, (Toy(precision="int8-static", behaviour={"scale": 3}), FP32))
    session = load(made, machine=FULL, checks=("digests",)).session
    assert not np.allclose(session.run(FEEDS)["sentence_embedding"], honest(FEEDS)["sentence_embedding"])


def test_damage_is_an_error_and_not_a_reason_to_fall_back(tmp_path: Path) -> None:
    made = bundle(tmp_path, (Toy(behaviour={"scale": 1}), FP32))
    path = made.path_of(made.manifest.content.variants[0])
    path.write_text('{"scale": 2}')
    with pytest.raises(BundleError, match="not what its digest says"):
        load(made, machine=FULL)


def test_an_unknown_engine_is_skipped(tmp_path: Path) -> None:
    made = bundle(tmp_path, (Toy(engine="warp"), FP32))
    loaded = load(made, machine=FULL)
    (out,) = loaded.excluded.values()
    assert (out.status, out.reason) == ("skipped", "there is no engine 'warp'")


@pytest.mark.parametrize("toys", [(BF16, Toy(engine="warp")), (BF16, Toy(behaviour={"scale": 2}))])
def test_nothing_that_may_run_is_an_error_that_says_why(tmp_path: Path, toys: tuple[Toy, ...]) -> None:
    with pytest.raises(NoVariantForThisCpu, match="fake bf16: needs avx512_bf16"):
        load(bundle(tmp_path, toys), machine=OLD)


def test_when_the_fallback_is_out_too_another_variant_serves(tmp_path: Path) -> None:
    made = bundle(tmp_path, (INT8, BF16, Toy(behaviour={"scale": 2})), plan=PLAN)
    loaded = load(made, machine=NO_VNNI)
    assert {e.variant for e in loaded.plan.entries} == {made.manifest.content.variants[1].digest}


def test_an_entry_for_large_batches_is_dropped_with_its_variant(tmp_path: Path) -> None:
    content = bundle(tmp_path, (INT8, FP32), plan=((1, 1, None),)).manifest.content
    one, two = (v.digest for v in content.variants)
    entries = (PlanEntry(variant=one, tokens_min=1, batch_min=8), PlanEntry(variant=two, tokens_min=1))
    content = replace(content, plan=replace(content.plan, entries=entries))
    assert plan_without(content, {}).entries == entries
    assert plan_without(content, {one: Exclusion(status="skipped", reason="")}).entries == entries[1:]


@pytest.mark.parametrize(
    ("wanted", "index"),
    [
        ("fake int8-static", 0),
        ("fake fp32", 2),
        ("DIGEST", 1),
        ("SHORT", 1),
        ("fake", None),
        ("sha256:", None),
        ("", None),
    ],
)
def test_one_variant_by_name(tmp_path: Path, wanted: str, index: int | None) -> None:
    content = bundle(tmp_path, THREE).manifest.content
    digest = content.variants[1].digest
    wanted = {"DIGEST": digest, "SHORT": digest[7:15]}.get(wanted, wanted)
    if index is None:
        with pytest.raises(BundleError, match="none of the bundle's"):
            find_variant(content, wanted)
    else:
        assert find_variant(content, wanted) == content.variants[index]


def test_a_variant_that_was_asked_for_has_no_stand_in(tmp_path: Path) -> None:
    made = bundle(tmp_path, THREE, plan=PLAN)
    assert load(made, machine=FULL, variant="fake bf16").session.precision_run == "bf16"
    with pytest.raises(NoVariantForThisCpu, match="needs avx512_bf16"):
        load(made, machine=OLD, variant="fake bf16")


@pytest.mark.parametrize(
    ("cores", "requested", "threads"), [(2.0, None, 1), (8.0, None, 4), (8.0, 3, 3)], ids=["same", "other", "asked"]
)
def test_threads(tmp_path: Path, cores: float, requested: int | None, threads: int) -> None:
    from vengine.bundle.load import profile_of

    made = bundle(tmp_path)
    (variant,) = made.manifest.content.variants
    machine = replace(BUILDER, cores_allowed=cores, physical_cores=4)
    assert profile_of(made, variant, requested, machine).threads == threads


def test_texts_in_and_vectors_out(tmp_path: Path) -> None:
    made = bundle(tmp_path, tokenizer=tokenizer(tmp_path / "tok"))
    answers = made.runner().run_texts(["hello", "the invoice", "hello"])
    assert answers["sentence_embedding"].shape == (3, 8)
    assert np.array_equal(answers["sentence_embedding"][0], answers["sentence_embedding"][2])


def test_texts_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="takes tensors"):
        bundle(tmp_path).runner()


def test_serving_needs_neither_torch_nor_onnx(tmp_path: Path) -> None:
    import subprocess
    import sys

    root = bundle(tmp_path).root
    code = (
        "import sys; from vengine.bundle.read import open_bundle; import numpy as np;"
        "feeds = {n: np.ones((1, 4), 'int64') for n in ('input_ids', 'attention_mask')};"
        f"open_bundle({str(root)!r}).session().run(feeds);"
        "print([m for m in ('torch', 'onnx', 'transformers', 'nncf', 'openvino', 'sklearn') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_bundle_is_opened_from_a_read_only_backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    from vengine.bundle import place

    made: Bundle = bundle(tmp_path)
    made.root.rename(place.backup_of(made.root))

    def refuse(source: Path, target: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", refuse)
    assert open_bundle(made.root).digest == made.digest
