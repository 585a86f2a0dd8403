"""`vengine run BUNDLE --text …`: answers from a bundle, and who gave them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from vengine.bundle.load import Loaded, load, runner_of
from vengine.bundle.read import Bundle, open_bundle
from vengine.errors import DataError, UsageError

if TYPE_CHECKING:
    import numpy as np

    Arrays = Mapping[str, np.ndarray]

_MAX_TENSOR_BYTES = 4 << 30


def run(
    bundle: str | Path | Bundle,
    texts: Sequence[str | tuple[str, str]] = (),
    pairs: Sequence[str] | None = None,
    tensors: Path | Arrays | None = None,
    *,
    threads: int | None = None,
    variant: str | None = None,
) -> dict[str, Any]:
    """Run texts or tensors through a bundle.

    Args:
        bundle: a path, or an opened bundle.
        texts: texts, or tuples of two for a model that reads pairs.
        pairs: the second text of each, when `texts` are single.
        tensors: an .npz file, or arrays with their batch axis, one an input; instead of texts.
        threads: for every variant; None takes the measured ones.
        variant: run only this one: the start of its digest, or "ENGINE PRECISION".

    Returns:
        `outputs` (name → array, or a list of arrays for outputs with a length axis), `answers` (one a
        text or row: the label with its score and all `scores` for classifiers, the `score` of a scorer),
        `variant`, `engine`, `precision` (of the first call), `ms` (tokenising included, loading not),
        `load_ms`, `excluded` (variants that this machine can't run, with the reason), `bundle`, `digest`.

    Raises:
        UsageError: neither or both of texts and tensors, or another number of pairs.
        DataError: the tensors can't be read.
        BundleError: damaged, or no variant may run here.
    """
    if bool(texts) == (tensors is not None):
        raise UsageError("give texts or tensors, one of the two", next_step="vengine run BUNDLE --text 'some text'")
    items = _joined(texts, pairs)
    opened = bundle if isinstance(bundle, Bundle) else open_bundle(bundle)
    arrays = None if tensors is None else _tensors(tensors)
    start = perf_counter()
    loaded = load(opened, threads=threads, variant=variant)
    load_ms = (perf_counter() - start) * 1e3
    try:
        return {**_answer(opened, loaded, items, arrays), "load_ms": load_ms}
    finally:
        loaded.session.close()
