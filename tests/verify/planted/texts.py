"""Made-up texts on six topics, from one sentence to beyond the models' window, and the tokenizer that reads them."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np

TOPICS: dict[str, dict[str, str]] = {
    "garden": {
        "thing": "tomato rake hedge compost seedling trowel orchard snail",
        "deed": "waters prunes plants harvests weeds",
        "kind": "muddy ripe thorny leafy sunny",
    },
    "railway": {
        "thing": "platform ticket locomotive carriage conductor timetable signal tunnel",
        "deed": "departs couples delays boards announces",
        "kind": "crowded punctual overnight regional electric",
    },
    "kitchen": {
        "thing": "saucepan dough oven ladle recipe onion whisk pantry",
        "deed": "stirs bakes chops tastes simmers",
        "kind": "salty crisp buttery raw warm",
    },
    "harbour": {
        "thing": "anchor ferry lighthouse crane sailor rope cargo buoy",
        "deed": "moors loads steers anchors unloads",
        "kind": "rusty stormy tidal foggy deep",
    },
    "clinic": {
        "thing": "nurse bandage patient vaccine ward thermometer doctor crutch",
        "deed": "heals examines injects admits discharges",
        "kind": "feverish sterile urgent pale swollen",
    },
    "workshop": {
        "thing": "hammer drill chisel plank varnish bolt hinge clamp",
        "deed": "saws glues sands tightens measures",
        "kind": "wooden crooked polished dusty blunt",
    },
}
CLASSES = ("other", "thing", "deed", "kind")  # of a token
NAMES = ("Anna", "Boris", "Chloe", "Dmitri", "Elif", "Farid")
PLAIN = (
    "the a an and but not with without near under because again today yesterday while every no one two three "
    "slowly quickly never always before after very it is was has in on of to for we they please thanks , . ? ! ;"
)
SENTENCES = (
    "The {kind} {thing} {deed} the {thing}.",
    "{name} {deed} a {thing} with the {kind} {thing}, but not the {thing}.",
    "Every {thing} near the {thing} is {kind} and {kind}.",
    "Yesterday {name} {deed} two {thing}, because it was {kind}!",
    "They {deed} slowly while the {kind} {thing} {deed}.",
    "No {thing} is without a {thing}; please {deed} it again.",
    "Is the {thing} {kind}? Thanks, {name} {deed} it.",
    "We {deed} it before {name} {deed} the {kind} {thing} of the {thing}.",
    "{kind} {thing}, {kind} {thing}.",
)
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PAD, UNKNOWN, FIRST, LAST = 0, 1, 2, 3
WINDOW = 96  # tokens that the models read

Table = dict[str, dict[str, list[str]]]
_WORDS: Table = {topic: {part: words.split() for part, words in parts.items()} for topic, parts in TOPICS.items()}


def vocabulary() -> list[str]:
    """Every token by its id: special ones, words, then letters for what no word covers. About 300."""
    words = [word for parts in _WORDS.values() for listed in parts.values() for word in listed]
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    plain = [*PLAIN.split(), *(name.lower() for name in NAMES)]
    return list(dict.fromkeys((*SPECIAL, *plain, *words, *letters, *(f"##{c}" for c in letters))))


def token_classes() -> dict[str, int]:
    """Which of `CLASSES` a token belongs to."""
    found = dict.fromkeys(vocabulary(), 0)
    for parts in _WORDS.values():
        for part, words in parts.items():
            found.update(dict.fromkeys(words, CLASSES.index(part)))
    return found


def sentence(draw: random.Random, topic: str) -> str:
    """One sentence about the topic."""
    text = draw.choice(SENTENCES)
    while "{" in text:
        start, end = text.index("{"), text.index("}")
        slot = text[start + 1 : end]
        word = draw.choice(NAMES) if slot == "name" else draw.choice(_WORDS[topic][slot])
        text = text[:start] + word + text[end + 1 :]
    return text[0].upper() + text[1:]


def written(count: int, *, seed: int = 0, most: int = 11) -> list[tuple[str, str]]:
    """So many (text, topic): most of them short, every twelfth near the window or beyond it."""
    draw = random.Random(seed)
    topics = list(TOPICS)
    found = []
    for i in range(count):
        topic = topics[i % len(topics)]
        sentences = most if i % 12 == 7 else 1 + min(most - 1, int(draw.expovariate(0.4)))
        found.append((" ".join(sentence(draw, topic) for _ in range(sentences)), topic))
    return found


def pictures(count: int, size: int, *, seed: int = 0) -> list[np.ndarray]:
    """Discs and bars of random colours on a shaded ground, float32 [3, size, size] of about unit spread."""
    random_ = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:size, 0:size] / size
    found = []
    for i in range(count):
        ground = random_.normal(0, 0.7, (3, 1, 1)) + random_.normal(0, 1, (3, 1, 1)) * rows
        x, y, reach = random_.uniform(0.2, 0.8, 3)
        inside = (rows - x) ** 2 + (columns - y) ** 2 < (reach / 3) ** 2 if i % 2 else abs(rows - x) < reach / 4
        picture = np.where(inside, random_.normal(0, 1.5, (3, 1, 1)), ground) + random_.normal(0, 0.1, (3, size, size))
        found.append(picture.astype(np.float32))
    return found


def tokenizer_json(*, lowercase: bool = True, frame: str = "[CLS] $A [SEP]", pad: int = PAD) -> str:
    """A WordPiece tokenizer; the keywords are what a careless conversion gets wrong.

    Args:
        frame: what stands around a text. A pair's second text is followed by [SEP].
        pad: the id that the file names for padding.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    tokens = vocabulary()
    backend = Tokenizer(models.WordPiece({t: i for i, t in enumerate(tokens)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = [(token, tokens.index(token)) for token in ("[CLS]", "[SEP]") if token in frame or token == "[SEP]"]
    backend.post_processor = processors.TemplateProcessing(
        single=frame, pair=f"{frame} $B:1 [SEP]:1", special_tokens=special
    )
    backend.enable_padding(pad_id=pad, pad_token=tokens[pad])
    return str(backend.to_str())


def tokenizer_settings() -> str:
    """tokenizer_config.json."""
    settings: dict[str, Any] = {"model_max_length": WINDOW, "tokenizer_class": "PreTrainedTokenizerFast"}
    return json.dumps(settings)
