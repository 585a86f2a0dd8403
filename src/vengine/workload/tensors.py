"""Samples that aren't texts: arrays and images."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vengine.errors import DataError, UsageError
from vengine.types import Sample, TensorSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")
ONLY_INPUT = "input"  # the tensor of a file that names none: it stands for the model's only input
LARGEST_UNPACKED = 4 << 30  # bytes
_RESERVED = ("labels", "scores")
_FREE_SIDE = 224  # pixels, where the model leaves an image's height or width open
# Mean and spread of ImageNet's RGB channels: what most vision models were trained with.
_MEAN, _SPREAD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def read_arrays(path: Path) -> list[Sample]:
    """`.npz`: arrays named like the model's inputs, perhaps `labels` or `scores`; `.npy`: one array.

    Axis 0 counts the samples everywhere.
    """
    arrays = _load(path)
    rows = {name: array.shape[0] if array.ndim else 0 for name, array in arrays.items()}
    if len(set(rows.values())) != 1:
        listed = ", ".join(f"{name} {count}" for name, count in rows.items()) or "no array at all"
        raise DataError(
            "the arrays don't have the same number of samples along their first axis",
            where=f"{path}: {listed}",
            next_step="give every array one row a sample",
        )
    inputs = {name: array for name, array in arrays.items() if name not in _RESERVED}
    if not inputs:
        raise DataError("the file holds no inputs", where=str(path), next_step="name arrays like the model's inputs")
    if not next(iter(rows.values())):
        return []
    _check_finite(inputs, path)
    labels, scores = arrays.get("labels"), arrays.get("scores")
    return [
        Sample(
            tensors={name: array[i] for name, array in inputs.items()},
            label=None if labels is None or labels.ndim > 1 else str(labels[i]),
            labels=None if labels is None or labels.ndim < 2 else _of_row(labels[i]),
            score=None if scores is None else float(scores[i]),
        )
        for i in range(next(iter(rows.values())))
    ]


def _of_row(row: Array) -> tuple[str, ...]:
    """The classes that a row of 0 and 1 names."""
    return tuple(str(i) for i in row.nonzero()[0].tolist())


def _load(path: Path) -> dict[str, Array]:
    import numpy as np

    try:
        if path.suffix.lower() == ".npy":
            return {ONLY_INPUT: np.load(path, allow_pickle=False)}
        _check_unpacked(path)
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise DataError(
            f"the arrays can't be read: {str(error).splitlines()[0] if str(error) else type(error).__name__}",
            where=str(path),
            next_step="write numbers with numpy.save or numpy.savez; Python objects are refused",
        ) from error


def _check_unpacked(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
    if size > LARGEST_UNPACKED:
        raise DataError(
            f"the arrays take {size:,} bytes unpacked; {LARGEST_UNPACKED:,} are the most",
            where=str(path),
            next_step="give fewer samples",
        )


def _check_finite(inputs: Mapping[str, Array], path: Path) -> None:
    import numpy as np

    for name, array in inputs.items():
        if array.dtype.kind != "f":
            continue
        bad = np.flatnonzero(~np.isfinite(array.reshape(len(array), -1)).all(axis=1))
        if len(bad):
            raise DataError(
                f"array {name!r} holds NaN or infinity", where=f"{path}, sample {bad[0] + 1}", next_step="leave it out"
            )


def image_files(root: Path) -> list[Path]:
    """The images below a directory, in the order of their names."""
    return sorted(p for p in root.rglob("*") if p.suffix.lower() in IMAGES and p.is_file())


def read_images(root: Path) -> list[Sample]:
    """A directory of images. Where all lie in subdirectories, the first of these is the class.

    Pixels stay on disk until `fit_tensors`: a sample's tensor is the image's path.
    """
    files = image_files(root)
    if not files:
        raise DataError("the directory holds no images", where=str(root), next_step=f"known kinds: {', '.join(IMAGES)}")
    parts = [p.relative_to(root).parts for p in files]
    classes = all(len(p) > 1 for p in parts) and len({p[0] for p in parts}) > 1
    return [
        Sample(text="/".join(part), label=part[0] if classes else None, tensors={ONLY_INPUT: file})
        for file, part in zip(files, parts, strict=True)
    ]


def fit_tensors(samples: Sequence[Sample], inputs: Sequence[TensorSpec]) -> tuple[Sample, ...]:
    """Fit the user's tensors to a model's inputs: names, shapes, types; images are read here.

    A sample's tensor has no batch axis; an input's axis 0 is the batch. A tensor that its file
    didn't name goes to the only input. Images become RGB, their shorter side scaled to the input's
    and the middle cut out, (value ÷ 255 − ImageNet's mean) ÷ spread for a float input, and raw for
    an integer one; 3 or 1 channels, before or after height and width as the input's shape says.

    Raises:
        DataError: a tensor is missing, unknown, or has a shape or type that the input can't take.
        UsageError: images, and Pillow isn't installed.
    """
    specs = {spec.name: spec for spec in inputs}
    return tuple(replace(s, tensors=_fit(s, specs, f"sample {i + 1}")) for i, s in enumerate(samples))


def _fit(sample: Sample, specs: Mapping[str, TensorSpec], where: str) -> dict[str, Any]:
    tensors = dict(sample.tensors or {})
    if set(tensors) == {ONLY_INPUT} and len(specs) == 1:
        tensors = {next(iter(specs)): tensors[ONLY_INPUT]}
    if set(tensors) != set(specs):
        raise DataError(
            f"the sample has {', '.join(sorted(tensors)) or 'no tensors'}, the model reads {', '.join(sorted(specs))}",
            where=where,
            next_step="name the arrays of the .npz file like the model's inputs",
        )
    return {name: _fit_one(value, specs[name], where) for name, value in tensors.items()}


def _fit_one(value: Any, spec: TensorSpec, where: str) -> Array:
    import numpy as np

    array = read_image(value, spec) if isinstance(value, Path) else np.asarray(value)
    wanted = spec.shape[1:]
    fits = array.ndim == len(wanted) and all(
        isinstance(w, str) or w == have for w, have in zip(wanted, array.shape, strict=True)
    )
    if not fits:
        raise DataError(
            f"input {spec.name!r} takes {_shape(wanted)}, the sample has {_shape(array.shape)}",
            where=where,
            next_step="give one row a sample along the first axis of the array",
        )
    if not np.can_cast(array.dtype, spec.dtype, casting="same_kind"):
        raise DataError(f"input {spec.name!r} is {spec.dtype}, the sample is {array.dtype}", where=where)
    return array.astype(spec.dtype, copy=False)


def _shape(dims: Sequence[int | str]) -> str:
    return "[" + ", ".join(map(str, dims)) + "]"


def read_image(path: Path, spec: TensorSpec) -> Array:
    """One image as the input takes it, without a batch axis; see `fit_tensors`."""
    import numpy as np

    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise UsageError("reading images needs Pillow", next_step="pip install pillow") from error
    channels_last, channels, height, width = _layout(spec)
    try:
        with Image.open(path) as image:
            pixels = np.asarray(_cut(image.convert("L" if channels == 1 else "RGB"), height, width))
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise DataError(f"the image can't be read: {error}", where=str(path), next_step="leave it out") from error
    pixels = pixels.reshape(height, width, channels)
    if np.dtype(spec.dtype).kind == "f":
        mean, spread = (_MEAN, _SPREAD) if channels == 3 else ((0.5,), (0.5,))
        pixels = ((pixels / 255.0 - mean) / spread).astype(spec.dtype)
    return pixels if channels_last else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _layout(spec: TensorSpec) -> tuple[bool, int, int, int]:
    """(channels last?, channels, height, width) of an image input [batch, …]."""
    dims = spec.shape[1:]
    if len(dims) != 3 or not {1, 3} & {dims[0], dims[2]}:
        raise DataError(
            f"input {spec.name!r} {_shape(spec.shape)} is no image of 1 or 3 channels",
            next_step="give tensors in a .npz file",
        )
    last = dims[0] not in (1, 3)
    channels, *sides = (dims[2], *dims[:2]) if last else dims
    height, width = (side if isinstance(side, int) else _FREE_SIDE for side in sides)
    return last, int(channels), height, width


def _cut(image: Any, height: int, width: int) -> Any:
    scale = max(height / image.height, width / image.width)
    wide, high = max(width, round(image.width * scale)), max(height, round(image.height * scale))
    left, top = (wide - width) // 2, (high - height) // 2
    return image.resize((wide, high)).crop((left, top, left + width, top + height))
