"""Samples that were given in memory, named by their content, so that other samples never get their answers."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vengine.digests import digest_file, digest_json
from vengine.types import Sample


def digest_samples(samples: Sequence[Sample]) -> str:
    """Digest of texts, labels and every element of every tensor, in order."""
    return digest_json([_plain(sample) for sample in samples])


def _plain(sample: Sample) -> Sample:
    if not sample.tensors:
        return sample
    return replace(sample, tensors={name: _named(value) for name, value in sample.tensors.items()})


def _named(value: Any) -> Any:
    import numpy as np

    if isinstance(value, Path):
        return digest_file(value)
    array = np.ascontiguousarray(value)
    return [str(array.dtype), list(array.shape), hashlib.sha256(array.tobytes()).hexdigest()]
