"""The sentence-transformers layout: modules.json lists an encoder, a pooling and what follows it.

Each step is read from JSON and safetensors; the modules' own code is never imported. Semantics follow
sentence-transformers' `Pooling`, `Dense` and `Normalize` (Reimers and Gurevych, 2019, and the library's
published source), including the order in which several poolings are joined.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vengine.errors import SourceError
from vengine.sources.metadata import read_json, read_settings
from vengine.sources.safetensors_file import Weights, read_weights

# Flag in 1_Pooling/config.json → name; the order is the order in which the library joins the vectors.
_FLAGS = (
    ("pooling_mode_cls_token", "cls"),
    ("pooling_mode_max_tokens", "max"),
    ("pooling_mode_mean_tokens", "mean"),
    ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len"),
    ("pooling_mode_weightedmean_tokens", "weightedmean"),
    ("pooling_mode_lasttoken", "lasttoken"),
)
POOLINGS = tuple(name for _, name in _FLAGS)
_SPELLINGS = {"mean_sqrt_len_tokens": "mean_sqrt_len", "weighted_mean": "weightedmean", "last_token": "lasttoken"}
ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU", "Sigmoid", "SiLU")


@dataclass(frozen=True, kw_only=True)
class DenseStep:
    """A linear layer with an activation after the pooling."""

    directory: Path
    in_features: int
    out_features: int
    bias: bool
    activation: str  # a class name of torch.nn, one of ACTIVATIONS


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What a sentence-transformers directory does with the encoder's hidden states."""

    encoder: Path  # the directory with config.json and the weights
    pooling: tuple[str, ...] = ()  # joined in this order
    steps: tuple[DenseStep | Literal["normalize"], ...] = ()  # after the pooling, in order
    max_tokens: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def label(self) -> str | None:
        """For people and for `Source.pooling`: "mean", "cls+max", None without pooling."""
        return "+".join(self.pooling) or None

    @property
    def normalize(self) -> bool:
        """True when the last step makes vectors of length 1."""
        return bool(self.steps) and self.steps[-1] == "normalize"

    def meaning(self) -> dict[str, Any]:
        """What a digest covers, besides the weights."""
        return {
            "pooling": list(self.pooling),
            "steps": [s if isinstance(s, str) else [s.in_features, s.out_features, s.activation] for s in self.steps],
        }


def read_layout(directory: Path) -> Layout:
    """The layout of a model directory; a directory without modules.json is its own encoder and has no pooling.

    Raises:
        SourceError: a module that isn't known, settings that don't fit, or a path out of the directory.
    """
    if not (directory / "modules.json").is_file():
        return Layout(encoder=directory, max_tokens=_max_tokens(directory))
    modules = read_json(directory / "modules.json")
    encoder, pooling = directory, ()  # type: tuple[Path, tuple[str, ...]]
    steps: list[DenseStep | Literal["normalize"]] = []
    for module in modules if isinstance(modules, list) else [modules]:
        kind, path = _module(directory, module)
        if kind == "Transformer":
            encoder = path
        elif kind == "Pooling":
            pooling = read_pooling(path / "config.json")
        elif kind == "Dense" and pooling:
            steps.append(_dense(path))
        elif kind == "Normalize" and pooling:
            steps.append("normalize")
        else:
            raise SourceError(
                f"modules.json has a step that isn't supported here: {kind}",
                where=str(directory / "modules.json"),
                next_step="known steps are Transformer, then Pooling, then Dense and Normalize",
            )
    return Layout(
        encoder=encoder, pooling=pooling, steps=tuple(steps), max_tokens=_max_tokens(encoder), notes=_prompts(directory)
    )


def _module(directory: Path, module: Any) -> tuple[str, Path]:
    try:
        kind, name = str(module["type"]).rsplit(".", 1)[-1], str(module.get("path", ""))
    except (TypeError, KeyError, AttributeError) as error:
        raise SourceError("modules.json is not a list of modules", where=str(directory / "modules.json")) from error
    path = (directory / name).resolve()
    if not path.is_relative_to(directory.resolve()):
        raise SourceError(f"modules.json points out of the model's directory: {name!r}", where=str(directory))
    return kind, path


def read_pooling(path: Path) -> tuple[str, ...]:
    """The poolings that a Pooling module joins.

    Raises:
        SourceError: none, or one that isn't known.
    """
    if not path.is_file():
        raise SourceError("the pooling's config.json is missing", where=str(path))
    config = read_settings(path)
    stated = config.get("pooling_mode")
    if stated is None:
        modes = tuple(name for flag, name in _FLAGS if config.get(flag) is True)
    else:
        listed = stated.split("+") if isinstance(stated, str) else list(stated)
        modes = tuple(_SPELLINGS.get(str(m), str(m)) for m in listed)
    wrong = [m for m in modes if m not in POOLINGS]
    if wrong or not modes:
        raise SourceError(
            f"unknown pooling {wrong[0]!r}" if wrong else "the pooling names no mode",
            where=str(path),
            next_step="known poolings: " + ", ".join(POOLINGS),
        )
    return modes


def _dense(path: Path) -> DenseStep:
    config = read_settings(path / "config.json")
    activation = str(config.get("activation_function", "torch.nn.modules.activation.Tanh")).rsplit(".", 1)[-1]
    if activation not in ACTIVATIONS:
        raise SourceError(f"unknown activation {activation!r} of a Dense module", where=str(path))
    try:
        step = DenseStep(
            directory=path,
            in_features=int(config["in_features"]),
            out_features=int(config["out_features"]),
            bias=bool(config.get("bias", True)),
            activation=activation,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise SourceError(f"the settings of a Dense module are wrong: {error}", where=str(path)) from error
    if not (path / "model.safetensors").is_file():
        raise SourceError(
            "the weights of a Dense module are not there as safetensors",
            where=str(path),
            next_step="save the model again with a current sentence-transformers: it writes model.safetensors",
        )
    return step


def dense_weights(step: DenseStep) -> Weights:
    """The checked weights of a Dense step: `linear.weight` [out, in] and perhaps `linear.bias` [out].

    Raises:
        SourceError: missing, of another shape, or truncated.
    """
    weights = read_weights((step.directory / "model.safetensors",))
    want: dict[str, tuple[int, ...]] = {"linear.weight": (step.out_features, step.in_features)}
    if step.bias:
        want["linear.bias"] = (step.out_features,)
    got = {name: entry.shape for name, entry in weights.entries.items()}
    if got != want:
        raise SourceError(f"the weights of a Dense module are {got}, expected {want}", where=str(step.directory))
    return weights


def _max_tokens(encoder: Path) -> int | None:
    for name in ("sentence_bert_config.json", "sentence_roberta_config.json", "sentence_xlm-roberta_config.json"):
        value = read_settings(encoder / name).get("max_seq_length")
        if isinstance(value, int) and value > 0:
            return value
    return None


def _prompts(directory: Path) -> tuple[str, ...]:
    settings: Mapping[str, Any] = read_settings(directory / "config_sentence_transformers.json")
    name = settings.get("default_prompt_name")
    if not name:
        return ()
    return (f"the model has a default prompt, {name!r}: put it before your texts, it is not added here",)
