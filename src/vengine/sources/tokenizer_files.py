"""Finds a model's tokenizer as one `tokenizer.json`, converts older vocabularies, and says what it found.

A tokenizer file can carry its own padding and truncation; Vengine switches both off (padding to a fixed
length would make every text cost as much as the longest) and a note says so.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vengine.digests import digest_json, digest_tree
from vengine.errors import SourceError
from vengine.sources.metadata import FETCH_AGAIN, read_json, read_settings
from vengine.sources.silence import quiet
from vengine.types import Source

_SLOW = (
    "vocab.txt", "vocab.json", "merges.txt", "spm.model", "spiece.model", "tokenizer.model",
    "sentencepiece.bpe.model", "bpe.codes",
)  # fmt: skip
_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "config.json")
# Both must come out alike from transformers' own tokenizer and from the file that was written.
_PROBES = (
    "The quick brown fox jumps over 13 lazy dogs.",
    "Naïve café, 3.5 % off — isn't it?",
    "引擎 v2.0 很快",
    "  spaces\tand\nlines  ",
    "unpronounceablezxqv",
)
_PAD_TOKENS = ("[PAD]", "<pad>", "<|padding|>", "<|pad|>")


@dataclass(frozen=True, kw_only=True)
class FoundTokenizer:
    """A tokenizer file, what it means for a digest, and what a user should know."""

    path: Path
    digest: str
    notes: tuple[str, ...]


def find_tokenizer(directory: Path, *, cache: Path) -> FoundTokenizer | None:
    """The tokenizer of a model directory; None when there is none.

    A directory with only an older vocabulary (vocab.txt, SentencePiece) gets a `tokenizer.json` in `cache`,
    converted by transformers and compared with it on ids.

    Raises:
        SourceError: the file is damaged, or the conversion disagrees with its origin.
    """
    path = directory / "tokenizer.json"
    if path.is_file():
        return _described(path, ())
    slow = [directory / name for name in _SLOW if (directory / name).is_file()]
    if not slow:
        return None
    used = slow + [directory / name for name in _SETTINGS if (directory / name).is_file()]
    target = cache / "tokenizers" / digest_tree(directory, used)[7:23] / "tokenizer.json"
    if not target.is_file():
        convert_tokenizer(directory, target)
    return _described(target, (f"tokenizer.json was made from {slow[0].name}; ids agree",))


def _described(path: Path, notes: tuple[str, ...]) -> FoundTokenizer:
    data = read_json(path)
    if not isinstance(data, dict) or "model" not in data:
        raise SourceError("this is not a tokenizer file", where=str(path), next_step=FETCH_AGAIN)
    load_tokenizer(path)
    return FoundTokenizer(
        path=path,
        # Padding and truncation are switched off, so they are no part of what the tokenizer does.
        digest=digest_json({k: v for k, v in data.items() if k not in ("padding", "truncation")}),
        notes=notes + own_limits(data),
    )


def own_limits(data: dict[str, Any]) -> tuple[str, ...]:
    """Notes about the padding and truncation that a tokenizer file brings and that are switched off."""
    notes = []
    padding, truncation = data.get("padding"), data.get("truncation")
    if isinstance(padding, dict):
        strategy = padding.get("strategy")
        to = f" to {strategy['Fixed']}" if isinstance(strategy, dict) and "Fixed" in strategy else ""
        notes.append(f"the tokenizer's own padding{to} is switched off")
    if isinstance(truncation, dict):
        notes.append(f"the tokenizer's own truncation at {truncation.get('max_length')} tokens is switched off")
    return tuple(notes)


def load_tokenizer(path: Path) -> Any:
    """A `tokenizers.Tokenizer` as the file describes it.

    Raises:
        SourceError: the file can't be read.
    """
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise SourceError(f"the tokenizer can't be read: {error}", where=str(path), next_step=FETCH_AGAIN) from error


def convert_tokenizer(directory: Path, target: Path) -> None:
    """Write `target` (a tokenizer.json) from an older vocabulary and compare ids with transformers' own.

    Raises:
        SourceError: transformers can't read the vocabulary, or the ids differ.
    """
    with quiet():
        from transformers import AutoTokenizer

        try:
            original = AutoTokenizer.from_pretrained(
                str(directory), trust_remote_code=False, local_files_only=True, use_fast=True
            )
            text = original.backend_tokenizer.to_str()
        except Exception as error:
            raise SourceError(
                f"the tokenizer can't be converted: {_first_line(error)}",
                where=str(directory),
                next_step="install what the message names (often: pip install sentencepiece), "
                "or put a tokenizer.json beside the model",
            ) from error
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{os.getpid()}.tokenizer.json")
    draft.write_text(text, "utf-8")
    try:
        _compare(original, draft, directory)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def _compare(original: Any, written: Path, directory: Path) -> None:
    copy = load_tokenizer(written)
    copy.no_padding()
    copy.no_truncation()
    for text in _PROBES:
        want, got = original(text)["input_ids"], copy.encode(text).ids
        if list(want) != list(got):
            raise SourceError(
                f"the converted tokenizer gives other ids for {text!r}: {got[:8]} instead of {want[:8]}",
                where=str(directory),
                next_step="put a tokenizer.json beside the model",
            )
    vocabulary = directory / "vocab.txt"
    if vocabulary.is_file():
        lines = vocabulary.read_text("utf-8").splitlines()
        wrong = next((line for i, line in enumerate(lines) if line and copy.token_to_id(line) != i), None)
        if wrong is not None and lines.count(wrong) == 1:
            raise SourceError(f"the converted tokenizer moved the token {wrong!r}", where=str(vocabulary))


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:300]


def pad_id(source: Source) -> int:
    """The id that fills padded positions: the model's own when it states one, else the tokenizer's, else 0."""
    beside = source.path if source.path.is_dir() else source.path.parent
    for directory in (beside, beside.parent):
        stated = read_settings(directory / "config.json").get("pad_token_id")
        if isinstance(stated, int) and stated >= 0:
            return stated
    if source.tokenizer is None:
        return 0
    padding = read_json(source.tokenizer).get("padding")
    if isinstance(padding, dict) and isinstance(padding.get("pad_id"), int):
        return int(padding["pad_id"])
    tokenizer = load_tokenizer(source.tokenizer)
    known = (tokenizer.token_to_id(token) for token in _PAD_TOKENS)
    return next((int(i) for i in known if i is not None), 0)
