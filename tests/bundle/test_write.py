"""Writing: the same parts give the same name; what was there before survives every kind of death."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.bundle.making import Toy, bundle, parts

from vengine.bundle import place
from vengine.bundle.read import open_bundle
from vengine.bundle.write import prepare, write_bundle
from vengine.errors import BundleError, LimitError

ROOT = Path(__file__).parents[2]


def tree(root: Path) -> dict[str, str]:
    """Every file below a folder, with its content."""
    return {
        p.relative_to(root).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(root.rglob("*"))
        if p.is_file()
    }


def test_the_same_parts_give_the_same_bytes(tmp_path: Path) -> None:
    toys = (Toy(precision="bf16", isa=("avx512_bf16",)), Toy())
    one, other = (bundle(tmp_path / name, toys) for name in ("one", "other"))
    assert tree(one.root) == tree(other.root)
    assert one.digest == other.digest


def test_any_change_of_content_changes_the_name(tmp_path: Path) -> None:
    base = prepare(parts(tmp_path / "base")).digest
    changed = {
        "weights": prepare(parts(tmp_path / "weights", (Toy(behaviour={"scale": 2}),))).digest,
        "precision": prepare(parts(tmp_path / "precision", (Toy(precision="bf16"),))).digest,
        "chunk": prepare(parts(tmp_path / "chunk", (Toy(chunk_tokens=512),))).digest,
        "labels": prepare(parts(tmp_path / "labels", labels=("a", "b"))).digest,
        "limit": prepare(parts(tmp_path / "limit", max_tokens=65)).digest,
    }
    assert len({base, *changed.values()}) == 1 + len(changed)


def test_files_that_two_variants_share_are_stored_once(tmp_path: Path) -> None:
    made = bundle(tmp_path, (Toy(precision="int8-static"), Toy(precision="fp32")))
    one, other = made.manifest.content.variants
    assert one.directory == other.directory
    assert len(list((made.root / "variants").iterdir())) == 1


def test_the_same_file_beside_another_one_is_linked(tmp_path: Path) -> None:
    made = parts(tmp_path / "build", (Toy(), Toy(behaviour={"delay_ms": 0})))
    for variant in made.variants:
        (variant.directory / "model.json.data").write_bytes(b"weights" * 1000)
    write_bundle(tmp_path / "toy.vengine", prepare(made))
    first, second = sorted((tmp_path / "toy.vengine" / "variants").rglob("model.json.data"))
    assert first.samefile(second)


def test_an_engine_finds_its_files_under_their_own_names(tmp_path: Path) -> None:
    made = bundle(tmp_path)
    (variant,) = made.manifest.content.variants
    assert made.path_of(variant).name == "model.json"
    assert json.loads((made.root / "report.json").read_text()) == {"format": 1}


def test_a_model_folder_gives_only_what_a_loader_reads(tmp_path: Path) -> None:
    made = parts(tmp_path / "build")
    folder = made.variants[0].directory
    for name in ("model.safetensors", "config.json", "1_Pooling/config.json", "tok.model"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(name)
    strangers = ("pytorch_model.bin", "training.pkl", "code.py", ".git/config.json", ".hidden.json")
    for stranger in (*strangers, "customers.json", "notes.txt", "data/train.txt", "model.json"):
        (folder / stranger).parent.mkdir(exist_ok=True)
        (folder / stranger).write_text(stranger)
    manifest = prepare(replace(made, variants=(replace(made.variants[0], entry="."),))).manifest
    (variant,) = manifest.content.variants
    names = [file.path.removeprefix(variant.directory + "/") for file in variant.files]
    assert names == ["1_Pooling/config.json", "config.json", "model.safetensors", "tok.model"]


def test_a_model_file_gives_itself_and_its_weights_and_no_neighbour(tmp_path: Path) -> None:
    made = parts(tmp_path / "build")
    folder = made.variants[0].directory
    for name in ("model.json.data", "job.json", "build.log", "other.onnx", "private/letters.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(name)
    (variant,) = prepare(made).manifest.content.variants
    names = [file.path.removeprefix(variant.directory + "/") for file in variant.files]
    assert names == ["model.json", "model.json.data"]


def test_a_new_version_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    old = bundle(tmp_path)
    new = prepare(parts(tmp_path / "new", (Toy(behaviour={"delay_ms": 0}),)))
    write_bundle(old.root, new)
    assert open_bundle(old.root).digest == new.digest != old.digest
    assert sorted(p.name for p in tmp_path.iterdir()) == ["build", "new", "toy.vengine"]


def test_a_link_to_a_bundle_is_followed(tmp_path: Path) -> None:
    old = bundle(tmp_path)
    (tmp_path / "latest").symlink_to(old.root)
    new = prepare(parts(tmp_path / "new", (Toy(behaviour={"delay_ms": 0}),)))
    write_bundle(tmp_path / "latest", new)
    assert (tmp_path / "latest").is_symlink()
    assert open_bundle(old.root).digest == new.digest


def test_a_copy_is_the_same_bundle_and_replaces_only_bundles(tmp_path: Path) -> None:
    made = bundle(tmp_path)
    copy = place.copy_bundle(made.root, tmp_path / "copy.vengine")
    assert place.copy_bundle(made.root, copy) == copy
    assert place.copy_bundle(made.root, made.root) == made.root
    assert tree(copy) == tree(made.root)
    with pytest.raises(BundleError, match="no bundle"):
        place.copy_bundle(made.root, tmp_path / "build")


@pytest.mark.parametrize("kind", ["folder", "file", "no parent"])
def test_what_is_no_bundle_is_not_replaced(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "thesis"
    if kind == "folder":
        target.mkdir()
        (target / "chapter1.txt").write_text("precious")
    elif kind == "file":
        target.write_text("precious")
    else:
        target = target / "toy.vengine"
    before = tree(tmp_path)
    draft = prepare(parts(tmp_path / "build"))
    with pytest.raises(BundleError, match="doesn't exist" if kind == "no parent" else "no bundle"):
        write_bundle(target, draft)
    assert {k: v for k, v in tree(tmp_path).items() if not k.startswith("build")} == before
    assert target.read_text() == "precious" if kind == "file" else True


def test_a_file_that_changes_meanwhile_is_noticed(tmp_path: Path) -> None:
    old = bundle(tmp_path)
    before = tree(old.root)
    made = parts(tmp_path / "new", (Toy(behaviour={"delay_ms": 0}),))
    draft = prepare(made)
    file = made.variants[0].directory / "model.json"
    file.write_bytes(b"x" * file.stat().st_size)
    with pytest.raises(BundleError, match="changed while"):
        write_bundle(old.root, draft)
    assert tree(old.root) == before
    assert not place.staging_of(old.root).exists()


# A process that writes a new version over an old one and dies at a chosen rename, as by `kill -9`.
KILLED = """
    import os, signal, sys
    from pathlib import Path
    from tests.bundle.making import Toy, parts
    from vengine.bundle.write import prepare, write_bundle

    folder, moment, when = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    real, renames = os.replace, []

    def replace(source, target):
        renames.append(source)
        dies = len(renames) == moment
        if dies and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        real(source, target)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)

    os.replace = replace
    new = prepare(parts(folder / "new", (Toy(behaviour={"delay_ms": 0}),)))
    print(new.digest, flush=True)
    write_bundle(folder / "toy.vengine", new)
"""


def die(folder: Path, moment: int, when: str) -> str:
    """Run KILLED and return the digest of the version it was writing."""
    code = [sys.executable, "-c", textwrap.dedent(KILLED), str(folder), str(moment), when]
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    done = subprocess.run(code, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, check=False, text=True)
    assert done.returncode == -signal.SIGKILL
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("moment", "when", "serves"),
    [
        (1, "before", "old"),  # the new version lies complete beside the old one
        (1, "after", "old"),  # no target: only the backup
        (2, "before", "old"),
        (2, "after", "new"),  # the new version is in place, the backup still there
    ],
)
def test_a_kill_at_any_rename_leaves_a_whole_bundle(tmp_path: Path, moment: int, when: str, serves: str) -> None:
    old = bundle(tmp_path)
    digests = {"old": old.digest, "new": die(tmp_path, moment, when)}
    survivor = open_bundle(old.root)
    survivor.check()
    assert survivor.digest == digests[serves]
    write_bundle(old.root, prepare(parts(tmp_path / "third", (Toy(precision="bf16"),))))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["build", "new", "third", "toy.vengine"]


def test_a_kill_before_the_first_version_leaves_nothing_in_its_place(tmp_path: Path) -> None:
    die(tmp_path, 1, "before")
    with pytest.raises(BundleError, match="no such bundle"):
        open_bundle(tmp_path / "toy.vengine")


def test_a_failing_swap_puts_the_old_version_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = bundle(tmp_path)
    real = os.replace

    def replace_(source: Path, target: Path) -> None:
        if Path(source).name.endswith(".new"):
            raise OSError(5, "Input/output error")
        real(source, target)

    draft = prepare(parts(tmp_path / "new", (Toy(behaviour={"delay_ms": 0}),)))
    monkeypatch.setattr(os, "replace", replace_)
    with pytest.raises(BundleError, match="can't be written"):
        write_bundle(old.root, draft)
    assert open_bundle(old.root).digest == old.digest
    assert sorted(p.name for p in tmp_path.iterdir()) == ["build", "new", "toy.vengine"]


def test_ctrl_c_while_copying_leaves_nothing(tmp_path: Path) -> None:
    def interrupted() -> None:
        with place.replacing(tmp_path / "toy.vengine") as new:
            new.mkdir()
            (new / "half").write_text("written")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    if (
        os.geteuid()
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], check=False).returncode
    ):
        pytest.skip("a small disk can't be mounted without the right to do so")
    yield disk
    subprocess.run(["umount", disk], check=True)


def big(folder: Path) -> Path:
    (folder / "model.json.data").write_bytes(os.urandom(300_000))
    return folder


@pytest.mark.parametrize("early", [True, False])
def test_a_full_disk(tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch, early: bool) -> None:
    old = bundle(tmp_path / "elsewhere")
    target = small_disk / "toy.vengine"
    write_bundle(target, prepare(parts(tmp_path / "small")))
    made = parts(tmp_path / "large", (Toy(behaviour={"delay_ms": 0}),))
    big(made.variants[0].directory)
    if not early:  # the disk fills up after it was looked at
        monkeypatch.setattr(place, "require_space", lambda folder, needed: None)
    with pytest.raises(LimitError, match="needs 0.3 MB" if early else "no space left"):
        write_bundle(target, prepare(made))
    assert open_bundle(target).digest == old.digest
    assert [p.name for p in small_disk.iterdir()] == ["toy.vengine"]


# Rights and limits of a process can't be given back, so these run in one of their own.
AS_NOBODY = """
    import fcntl, os, resource, sys  # all that is imported later: nobody may not read the interpreter's own folder
    from pathlib import Path
    from tests.bundle.making import parts
    from vengine.bundle.write import prepare, write_bundle
    from vengine.errors import VengineError

    folder, limit = Path(sys.argv[1]), int(sys.argv[2])
    draft = prepare(parts(folder / "build"))
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    elif os.geteuid() == 0:
        os.setuid(65534)
    try:
        write_bundle(folder / "closed" / "toy.vengine", draft)
    except VengineError as error:
        print(type(error).__name__, error.what)
"""


@pytest.mark.parametrize(
    ("limit", "says"), [(0, "BundleError no permission"), (64, "LimitError no space left")], ids=["rights", "file size"]
)
def test_what_the_system_refuses(tmp_path: Path, limit: int, says: str) -> None:
    (tmp_path / "closed").mkdir(mode=0o755)
    if not limit:
        (tmp_path / "closed").chmod(0o555)
        open_to_all(tmp_path)
    code = [sys.executable, "-c", textwrap.dedent(AS_NOBODY), str(tmp_path), str(limit)]
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    done = subprocess.run(code, env={**os.environ, "PYTHONPATH": path}, capture_output=True, check=False, text=True)
    assert done.stdout.startswith(says), done.stdout + done.stderr
    assert list((tmp_path / "closed").iterdir()) == []


def open_to_all(folder: Path) -> None:
    """Let another user walk to the folder: pytest's own are closed."""
    for parent in (folder, *folder.parents):
        if parent.stat().st_uid == os.geteuid() and parent != Path("/") and not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o011)
