"""`view`: a model's graph in Netron, as it was and as it runs, side by side in the browser.

| what | left | right |
|---|---|---|
| a bundle | its variant of the highest precision | the one for the largest calls, or `--variant` |
| a source, or an .onnx file | the graph as it is; checkpoints are exported | as ONNX Runtime rewrites it for this CPU |
| another graph file (.xml, .tflite, …) | the file | |
"""

from __future__ import annotations

import tempfile
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vengine.api.graph_server import GraphServer, Picture, netron_files
from vengine.bundle.place import is_bundle
from vengine.cache import default_cache
from vengine.engines.base import model_files
from vengine.errors import BundleError, UsageError

if TYPE_CHECKING:
    from vengine.bundle.format import BundledVariant
    from vengine.bundle.read import Bundle

_GRAPHS = (".onnx", ".xml", ".pt2", ".tflite", ".gguf", ".safetensors")
_PRECISE = ("fp32", "reference", "fp16", "bf16")  # what stands on the left, the first that a bundle has


def view(
    target: str | Path,
    *,
    variant: str | None = None,
    port: int = 0,
    browser: bool = True,
    tell: Callable[[str], None] = print,
    cache: Path | None = None,
) -> dict[str, Any]:
    """Open the graphs and serve them until Ctrl-C.

    Args:
        target: a bundle, a source as `optimize` takes it, or a graph file.
        variant: of a bundle, the one on the right: start of its digest, or "ENGINE PRECISION".
        port: of the page on this machine; 0 takes a free one.
        browser: whether the page is opened, or its address only told.
        tell: is given the address.

    Returns:
        {"url", "pictures": titles}, after Ctrl-C.

    Raises:
        EngineMissing: Netron isn't installed.
        UsageError: the port is taken, or a variant was asked for of what is no bundle.
        VengineError: the target can't be opened.
    """
    with served(target, variant=variant, port=port, cache=cache) as server:
        tell(f"{server.url}  (Ctrl-C ends it)")
        if browser:
            webbrowser.open(server.url)
        with suppress(KeyboardInterrupt):  # the usual end
            server.serve_forever(poll_interval=0.2)
        return {"url": server.url, "pictures": [p.title for p in server.pictures]}


@contextmanager
def served(
    target: str | Path, *, variant: str | None = None, port: int = 0, cache: Path | None = None
) -> Iterator[GraphServer]:
    """The server with the target's pictures, not yet answering; what had to be made for them goes with it."""
    netron_files()  # before minutes of export
    with tempfile.TemporaryDirectory(prefix="vengine-view-") as folder:
        found = pictures(target, Path(folder), variant=variant, cache=cache or default_cache())
        with GraphServer(found, port) as server:
            yield server


def pictures(target: str | Path, folder: Path, *, variant: str | None, cache: Path) -> list[Picture]:
    """What is shown for a target. `folder` takes the files that are made for it."""
    path = Path(target)
    if str(target) and is_bundle(path):
        found = _of_bundle(path, variant)
        return [*found, _as_it_runs(found[0].path, folder)] if _alone(found) else found
    if variant is not None:
        raise UsageError(
            f"{str(target)!r:.80} is no bundle, and only a bundle has variants", next_step="leave --variant out"
        )
    if path.is_file() and path.suffix in _GRAPHS:
        first = _picture(path.name, path)
        return [first, _as_it_runs(path, folder)] if path.suffix == ".onnx" else [first]
    return _of_source(str(target), folder, cache)


def _of_bundle(target: Path, wanted: str | None) -> list[Picture]:
    from vengine.bundle.choose import find_variant
    from vengine.bundle.read import open_bundle

    bundle = open_bundle(target)
    content = bundle.manifest.content
    if wanted is not None:
        chosen = find_variant(content, wanted)
    else:
        chosen = bundle.manifest.variant(content.plan.entries[-1].variant)
    drawn = [v for v in content.variants if bundle.path_of(v).suffix in _GRAPHS]
    if chosen not in drawn:
        raise BundleError(
            f"{chosen.recipe.label} is no graph but a folder of weights",
            where=str(target),
            next_step=f"view one of: {', '.join(v.recipe.label for v in drawn) or 'none here has a graph'}",
        )
    left = min(drawn, key=lambda v: _rank(v.recipe.precision))
    return [_of_variant(bundle, v) for v in dict.fromkeys((left, chosen))]


def _alone(found: list[Picture]) -> bool:
    return len(found) == 1 and found[0].path.suffix == ".onnx"


def _rank(precision: str) -> int:
    return _PRECISE.index(precision) if precision in _PRECISE else len(_PRECISE)


def _of_variant(bundle: Bundle, variant: BundledVariant) -> Picture:
    bundle.check_files(variant.files)
    title = f"{bundle.manifest.name}: {variant.recipe.label}  {variant.digest[:19]}"
    return _picture(title, bundle.path_of(variant))


def _of_source(spec: str, folder: Path, cache: Path) -> list[Picture]:
    from vengine.graph.export import export
    from vengine.sources import open_source

    source = open_source(spec, cache=cache / "sources")
    if source.path.suffix == ".xml":
        return [_picture(f"{source.name}: as it is", source.path)]
    graph = export(source, folder / "exported").path
    return [_picture(f"{source.name}: as it is", graph), _as_it_runs(graph, folder)]


def _as_it_runs(path: Path, folder: Path) -> Picture:
    """The graph as ONNX Runtime rewrites it before it runs it here."""
    import onnxruntime

    from vengine.errors import EngineError

    made = folder / f"{path.stem}-as-it-runs.onnx"
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(made)
    options.log_severity_level = 3
    # Weights aside: the picture needs none, and a protobuf file holds 2 GB at most.
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", made.name + ".data")
    options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "1024")
    try:
        onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # whatever the runtime throws: the left picture's file can't be run
        raise EngineError(f"ONNX Runtime refuses the graph: {str(error)[:200]}", where=str(path)) from error
    return _picture("as ONNX Runtime runs it here", made)


def _picture(title: str, path: Path) -> Picture:
    return Picture(title=title, path=path, beside=tuple(p.name for p in model_files(path) if p != path))
