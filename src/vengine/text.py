"""Texts to token ids and token ids to feeds, with `tokenizers` alone: a server needs no transformers.

Padding and truncation that a tokenizer file brings are switched off: a file that pads every text to
128 tokens would make every latency figure wrong. Truncation is set once, at load; nothing is
changed afterwards, so one `Tokenizer` serves any number of threads.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from vengine.errors import DataError, SourceError, UsageError

Text = str | tuple[str, str]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Encoding:
    """One text (or pair of texts) as tokens, without padding."""

    ids: Ids  # [length]
    type_ids: Ids  # [length]; 1 where a token belongs to the second text of a pair
    truncated: bool

    @property
    def length(self) -> int:
        return len(self.ids)


class Tokenizer:
    """A tokenizer file, loaded once and never changed."""

    def __init__(self, text: str, max_tokens: int | None, *, where: str = "") -> None:
        from tokenizers import Tokenizer as Backend

        self.max_tokens = max_tokens
        try:
            self._spec: dict[str, Any] = json.loads(text)
            self._whole = Backend.from_str(text)
            self._cut = Backend.from_str(text) if max_tokens is not None else self._whole
        except Exception as error:
            raise SourceError(
                f"the tokenizer can't be read: {_first_line(error)}",
                where=where,
                next_step="give a tokenizer.json of the `tokenizers` library",
            ) from error
        for backend in (self._whole, self._cut):
            backend.no_padding()
            backend.no_truncation()
        if max_tokens is not None:
            self._limit(max_tokens, where)

    @classmethod
    def from_file(cls, path: Path, max_tokens: int | None) -> Tokenizer:
        """Load a `tokenizer.json`.

        Raises:
            SourceError: the file is missing, isn't UTF-8 or isn't a tokenizer.
            UsageError: `max_tokens` leaves no room for a token beside the special ones.
        """
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SourceError(
                f"the tokenizer can't be read: {_first_line(error)}",
                where=str(path),
                next_step="check that the model's folder is complete",
            ) from error
        return cls(text, max_tokens, where=str(path))

    def _limit(self, max_tokens: int, where: str) -> None:
        special = self._whole.num_special_tokens_to_add(False)
        if max_tokens <= special:
            raise UsageError(
                f"max_tokens is {max_tokens}, but {special} special tokens are added to each text",
                where=where,
                next_step=f"allow at least {special + 1} tokens",
            )
        own = self._spec.get("truncation") or {}
        self._cut.enable_truncation(max_tokens, direction=str(own.get("direction", "right")).lower())

    def encode(self, texts: Sequence[Text], truncate: bool = True) -> list[Encoding]:
        """Encode texts or pairs, special tokens included, in the order given.

        Args:
            texts: each a text, or a tuple of two for a model that reads pairs.
            truncate: cut to `max_tokens`; False gives every token, to measure or to refuse.

        Raises:
            DataError: a text isn't valid Unicode (a lone surrogate).
        """
        backend = self._cut if truncate else self._whole
        try:
            encoded = backend.encode_batch(list(texts))
        except (UnicodeEncodeError, TypeError) as error:
            self._refuse(texts)
            raise DataError(f"the texts can't be tokenised: {_first_line(error)}") from error
        return [
            Encoding(
                ids=np.array(item.ids, dtype=np.int64),
                type_ids=np.array(item.type_ids, dtype=np.int64),
                truncated=bool(item.overflowing),
            )
            for item in encoded
        ]

    def lengths(self, texts: Sequence[Text], truncate: bool = True) -> list[int]:
        """Tokens of each text, special tokens included."""
        return [encoding.length for encoding in self.encode(texts, truncate)]

    @staticmethod
    def _refuse(texts: Sequence[Text]) -> None:
        for index, text in enumerate(texts):
            for part in text if isinstance(text, tuple) else (text,):
                if not isinstance(part, str):
                    raise DataError(f"text {index} is {type(part).__name__}, not text")
                if any("\ud800" <= character <= "\udfff" for character in part):
                    raise DataError(
                        f"text {index} holds a lone surrogate, which is no character",
                        next_step="decode the text as UTF-8 before you pass it on",
                    )

    @cached_property
    def unknown_id(self) -> int | None:
        """The id that stands for what the vocabulary doesn't know; None when it knows every byte."""
        model = self._spec.get("model", {})
        if isinstance(model.get("unk_id"), int):
            return int(model["unk_id"])
        token = model.get("unk_token")
        found = self._whole.token_to_id(token) if isinstance(token, str) else None
        return None if found is None else int(found)

    @cached_property
    def vocabulary(self) -> int:
        """How many tokens there are, those that were added included."""
        return int(self._whole.get_vocab_size(with_added_tokens=True))

    @cached_property
    def pad_id(self) -> int:
        """The padding id that the file names; else that of a special token called "pad"; else 0."""
        padding = self._spec.get("padding") or {}
        if isinstance(padding.get("pad_id"), int):
            return int(padding["pad_id"])
        named = [t for t in self._spec.get("added_tokens", ()) if "pad" in t.get("content", "").lower()]
        return int(named[0]["id"]) if named else 0


def feeds(
    encodings: Sequence[Encoding],
    names: Sequence[str],
    pad_id: int,
    length: int | None = None,
    side: Literal["left", "right"] = "right",
) -> dict[str, Ids]:
    """Pad encodings into a model's inputs, int64 [batch, length]; only the inputs it names.

    Args:
        encodings: at least one.
        names: of `input_ids`, `attention_mask`, `token_type_ids`.
        pad_id: id of the padding token.
        length: pad to this many tokens; None pads to the longest encoding.
        side: where the padding goes.

    Raises:
        UsageError: no encodings, a name that tokens can't fill, or a length that is too short.
    """
    if not encodings:
        raise UsageError("there is nothing to run: the list of texts is empty")
    longest = max(1, max(encoding.length for encoding in encodings))
    width = longest if length is None else length
    if width < longest:
        raise UsageError(f"can't pad to {width} tokens: the longest text has {longest}")
    shape = (len(encodings), width)
    known = {
        "input_ids": np.full(shape, pad_id, dtype=np.int64),
        "attention_mask": np.zeros(shape, dtype=np.int64),
        "token_type_ids": np.zeros(shape, dtype=np.int64),
    }
    for row, encoding in enumerate(encodings):
        start = width - encoding.length if side == "left" else 0
        cells = slice(start, start + encoding.length)
        known["input_ids"][row, cells] = encoding.ids
        known["attention_mask"][row, cells] = 1
        known["token_type_ids"][row, cells] = encoding.type_ids
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(
            f"the model's input {unknown[0]!r} can't be made from a text",
            next_step=f"a text model's inputs are {', '.join(known)}; give tensors for others",
        )
    return {name: known[name] for name in names}


def padded_length(length: int, most: int | None = None) -> int:
    """The width to pad a text to: the next multiple of 8 up to 64 tokens, of 16 up to 128, of 32 up to 256, and so on.

    Engines compile and keep something for each shape that they meet: OpenVINO's int8 kernels take some 3 MB and 10 ms
    a new length. With these steps a model of 512 tokens meets 20 lengths instead of 512, for a quarter more tokens at
    most (beyond 64) and a tenth on average.

    Args:
        most: the model's longest text, which is never exceeded.
    """
    step = max(8, 1 << max(0, (max(length, 1) - 1).bit_length() - 3))
    width = -(-max(length, 1) // step) * step
    return width if most is None else max(length, min(width, most))


def batches(lengths: Sequence[int], max_tokens: int, max_items: int | None = None) -> list[list[int]]:
    """Group items of similar length so that items × padded length of the longest stays within `max_tokens`.

    Groups hold a power of two of items, again so that an engine meets few shapes.

    Returns:
        Lists of indices into `lengths`, longest first. Every index occurs exactly once; an item that is longer than
        `max_tokens` forms a batch of its own.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    packed: list[list[int]] = []
    while order:
        room = max(1, max_tokens // padded_length(lengths[order[0]]))
        count = min(room, len(order), max_items or len(order))
        count = 1 << (count.bit_length() - 1)
        packed.append(order[:count])
        del order[:count]
    return packed


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
