"""`vengine run BUNDLE --text …`: answers from a bundle, and who gave them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from vengine.api.answers import answers
from vengine.bundle.load import Loaded, load, runner_of
from vengine.bundle.read import Bundle, open_bundle
from vengine.errors import DataError, EngineError, UsageError

if TYPE_CHECKING:
    import numpy as np

    from vengine.engines.base import Feeds, Outputs
    from vengine.engines.planned import PlannedSession
    from vengine.engines.recording import Recording
    from vengine.types import TensorSpec

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


def _joined(texts: Sequence[str | tuple[str, str]], pairs: Sequence[str] | None) -> list[str | tuple[str, str]]:
    if not pairs:
        return list(texts)
    if len(pairs) != len(texts) or not all(isinstance(text, str) for text in texts):
        raise UsageError(
            f"{len(texts)} texts but {len(pairs)} second texts", next_step="give one second text for each text"
        )
    return [(str(text), pair) for text, pair in zip(texts, pairs, strict=True)]


def _tensors(tensors: Path | Arrays) -> Arrays:
    if not isinstance(tensors, Path):
        return tensors
    import zipfile

    import numpy as np

    step = "write it with numpy.savez(FILE, INPUT=array, …), one array an input, with the batch axis"
    try:
        with zipfile.ZipFile(tensors) as archive:
            if sum(member.file_size for member in archive.infolist()) > _MAX_TENSOR_BYTES:
                raise DataError("the tensors are larger than 4 GiB", where=str(tensors), next_step="run fewer rows")
        with np.load(tensors, allow_pickle=False) as loaded:
            return {name: loaded[name] for name in loaded.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"the tensors can't be read: {error}", where=str(tensors), next_step=step) from error


def _answer(
    bundle: Bundle, loaded: Loaded, texts: list[str | tuple[str, str]], tensors: Arrays | None
) -> dict[str, Any]:
    witness = _Witness(loaded.session)
    if tensors is None:
        runner = runner_of(bundle, witness)
        start = perf_counter()
        outputs: dict[str, Any] = dict(runner.run_texts(texts))
    else:
        start = perf_counter()
        outputs = dict(witness.run(tensors))
    ms = (perf_counter() - start) * 1e3
    _must_be_finite(outputs)
    answered = bundle.manifest.variant(witness.answered[0])
    return {
        "bundle": str(bundle.root),
        "digest": bundle.digest,
        "task": bundle.manifest.content.task,
        "variant": answered.digest,
        "variants": list(dict.fromkeys(witness.answered)),
        "label": answered.recipe.label,
        "engine": answered.recipe.engine,
        "precision": answered.recipe.precision,
        "ms": ms,
        "texts": texts,
        "outputs": outputs,
        "answers": answers(bundle.manifest.content, outputs),
        "excluded": [
            {"variant": digest, "status": out.status, "reason": out.reason} for digest, out in loaded.excluded.items()
        ],
    }


def _must_be_finite(outputs: dict[str, Any]) -> None:
    """A NaN is no answer: JSON has no word for it, and whoever reads a null would take it for one."""
    import numpy as np

    for name, rows in outputs.items():
        for i, row in enumerate(rows):
            if not np.isfinite(row).all():
                raise EngineError(
                    f"output {name} of input {i + 1} is NaN or infinite",
                    next_step="run `vengine verify` on the bundle, and look at the input",
                )


class _Witness:
    """A planned session that remembers which variant answered each call."""

    def __init__(self, session: PlannedSession) -> None:
        self._session = session
        self.answered: list[str] = []

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return self._session.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return self._session.outputs

    @property
    def precision_run(self) -> str:
        return self._session.precision_run

    @property
    def batch_tokens(self) -> int | None:
        return self._session.batch_tokens

    def run(self, feeds: Feeds) -> Outputs:
        outputs = self._session.run(feeds)
        self._note(feeds)
        return outputs

    def run_many(self, many: Sequence[Feeds]) -> list[Outputs]:
        outputs = self._session.run_many(many)
        for feeds in many:
            self._note(feeds)
        return outputs

    def record(self, many: Sequence[Feeds]) -> list[Recording]:
        return self._session.record(many)

    def close(self) -> None:
        self._session.close()

    def _note(self, feeds: Feeds) -> None:
        self.answered.append(self._session.variant_for(feeds))
