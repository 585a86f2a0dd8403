"""Golden inputs and outputs: fixed calls whose answers travel with the bundle.

They are how a bundle proves itself on a machine that its builder never saw. The arrays lie in plain
.npz files (stored, not compressed), and are read here without numpy's object loading: a shape that
doesn't fit its bytes is refused before anything is allocated.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from vengine.bundle.format import Tolerance
from vengine.errors import BundleError
from vengine.types import in_int8

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

    Arrays = Mapping[str, np.ndarray]

Side = Literal["left", "right"]
MAX_GOLDEN_BYTES = 256 << 20
_MAX_ARRAYS = 256

# Short and long, plain and odd: one of one word, capitals and digits, accents, Chinese, an emoji, and
# one long enough to reach past a window of 64 tokens. They are fixed, so no user's text gets into a bundle.
GOLDEN_TEXTS = (
    "Hello",
    "The invoice of 14 March (no. 2071) has still not been paid.",
    "Où est passée la clé de l'entrepôt? Naïve façade, señor!",
    "发动机还是那台发动机，只是多了一个涡轮。",
    "Great service 👍 would come again :-)",
    "When the pump runs dry, close valve B before valve A, wait until the pressure has fallen below two bar, open the "
    "drain, and only then restart the motor; if it stalls twice in a row, call the workshop, note the reading of "
    "each gauge in the log, and leave the machine switched off until somebody with the second key has arrived.",
)
GOLDEN_PAIRS = (
    ("How do I reset my password?", "Open the settings and choose a new password."),
    ("How do I reset my password?", "The museum closes at six on Sundays."),
    ("发动机怎么启动？", "先打开燃油阀，再按下启动按钮。"),
    ("Which valve comes first?", GOLDEN_TEXTS[-1]),
)


@dataclass(frozen=True, kw_only=True)
class Golden:
    """Golden calls as they are recorded: one call's inputs, and what each variant answered.

    `texts` are the texts (or pairs) that tokenise to `inputs`; () for models without a tokenizer.
    `outputs` maps a variant's digest to its named outputs.
    """

    inputs: Arrays
    outputs: Mapping[str, Arrays]
    texts: tuple[tuple[str, ...], ...] = ()
    tolerances: Mapping[str, tuple[Tolerance, Tolerance]] | None = None  # digest → (here, elsewhere)


@dataclass(frozen=True, kw_only=True)
class Distance:
    """How far outputs lie from the golden ones."""

    cosine: float  # the worst sample of the worst output; 1.0 where every sample has one value
    relative: float  # largest difference ÷ largest golden magnitude, of the worst output
    problem: str = ""  # a difference that no tolerance covers: a missing output, a shape, a NaN

    def within(self, tolerance: Tolerance) -> bool:
        close = self.cosine >= tolerance.min_cosine and self.relative <= tolerance.max_relative
        return close and not self.problem


def tolerances_for(precision: str) -> tuple[Tolerance, Tolerance]:
    """Default tolerances (same machine, other machine) of a precision.

    On the same machine only the order of additions moves (threads, batches). On another one the kernels
    differ: bf16 may be computed in float, and int8 kernels round and saturate in their own way.
    """
    if in_int8(precision):
        return Tolerance(min_cosine=0.9995, max_relative=0.05), Tolerance(min_cosine=0.99, max_relative=0.15)
    if "bf16" in precision or precision == "fp16":
        return Tolerance(min_cosine=0.9999, max_relative=0.02), Tolerance(min_cosine=0.998, max_relative=0.08)
    return Tolerance(min_cosine=0.99999, max_relative=1e-3), Tolerance(min_cosine=0.9999, max_relative=5e-3)


def text_golden(
    tokenizer: Path, *, names: Sequence[str], pad_id: int, max_tokens: int | None, side: Side = "right", pairs: bool
) -> tuple[tuple[tuple[str, ...], ...], dict[str, np.ndarray]]:
    """The golden texts of a text model, and the inputs ([texts, longest], int64) that they tokenise to."""
    texts = GOLDEN_PAIRS if pairs else tuple((text,) for text in GOLDEN_TEXTS)
    return texts, tokenised(tokenizer, texts, names=names, pad_id=pad_id, max_tokens=max_tokens, side=side)


def tokenised(
    tokenizer: Path,
    texts: Sequence[tuple[str, ...]],
    *,
    names: Sequence[str],
    pad_id: int,
    max_tokens: int | None,
    side: Side,
) -> dict[str, np.ndarray]:
    """Tokenise golden texts the way a runner does."""
    from vengine.text import Tokenizer, feeds

    items = [text[0] if len(text) == 1 else (text[0], text[1]) for text in texts]
    encodings = Tokenizer.from_file(tokenizer, max_tokens).encode(items, truncate=True)
    return feeds(encodings, names, pad_id, side=side)


def distance(golden: Arrays, outputs: Arrays) -> Distance:
    """Compare named outputs with the golden ones, sample by sample along axis 0."""
    import numpy as np

    worst = Distance(cosine=1.0, relative=0.0)
    for name, want in golden.items():
        got = outputs.get(name)
        if got is None or got.shape != want.shape:
            shape = "missing" if got is None else f"of shape {list(got.shape)} instead of {list(want.shape)}"
            return Distance(cosine=-1.0, relative=float("inf"), problem=f"output {name} is {shape}")
        if not np.isfinite(got).all():
            return Distance(cosine=-1.0, relative=float("inf"), problem=f"output {name} holds NaN or infinity")
        one = _distance(want.astype(np.float64), got.astype(np.float64))
        worst = Distance(cosine=min(worst.cosine, one.cosine), relative=max(worst.relative, one.relative))
    return worst


def _distance(want: np.ndarray, got: np.ndarray) -> Distance:
    import numpy as np

    if not want.size:
        return Distance(cosine=1.0, relative=0.0)
    scale = float(np.abs(want).max())
    largest = float(np.abs(got - want).max())
    relative = largest / scale if scale else (0.0 if largest == 0 else float("inf"))
    rows = want.shape[0] if want.ndim > 1 else 1
    a, b = want.reshape(rows, -1), got.reshape(rows, -1)
    if a.shape[1] == 1:  # one number a sample has no direction; `relative` judges it
        return Distance(cosine=1.0, relative=relative)
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    both_zero = (np.abs(a).max(axis=1) == 0) & (np.abs(b).max(axis=1) == 0)
    cosines = np.where(both_zero, 1.0, (a * b).sum(axis=1) / np.where(norms == 0, 1.0, norms))
    return Distance(cosine=float(min(1.0, cosines.min())), relative=relative)


def arrays_to_bytes(arrays: Arrays) -> bytes:
    """Write named arrays as .npz bytes: names sorted, nothing compressed, no dates. Equal arrays give equal bytes."""
    import numpy as np

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(arrays):
            member = io.BytesIO()
            np.lib.format.write_array(member, np.asarray(arrays[name], order="C"), version=(1, 0), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), member.getvalue())
    return buffer.getvalue()


def arrays_from_bytes(data: bytes, *, where: str) -> dict[str, np.ndarray]:
    """Read what `arrays_to_bytes` wrote.

    Raises:
        BundleError: not such a file, compressed, of objects, or a header that doesn't fit its bytes.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            if len(members) > _MAX_ARRAYS or any(m.compress_type != zipfile.ZIP_STORED for m in members):
                raise ValueError("too many or compressed arrays")
            if sum(m.file_size for m in members) > len(data):
                raise ValueError("its arrays overlap")
            arrays = {m.filename.removesuffix(".npy"): _array(archive.read(m)) for m in members}
    except (ValueError, zipfile.BadZipFile, EOFError, OSError, NotImplementedError, RuntimeError) as error:
        raise BundleError(
            f"golden arrays are damaged: {error}", where=where, next_step="fetch the bundle again"
        ) from error
    if len(arrays) != len(members):
        raise BundleError("golden arrays are damaged: a name appears twice", where=where)
    return arrays


def _array(data: bytes) -> np.ndarray:
    import numpy as np

    stream = io.BytesIO(data)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError("an array of another npy version")
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    body = data[stream.tell() :]
    count = 1
    for size in shape:
        count *= size
    if fortran or dtype.kind not in "biuf" or count * dtype.itemsize != len(body):
        raise ValueError("an array whose header doesn't fit its bytes")
    return np.frombuffer(body, dtype=dtype).reshape(shape).copy()
