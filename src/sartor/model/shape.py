"""The structure of a transformer: stacks of runs of equal layers, and numerics that affect neither time nor memory.

A ``TransformerShape`` is stacks of runs of equal layers (``model/layer.py``). The residual width (``hidden_size``)
belongs to the stack and is handed down to the layers' parts, so widening a model is one edit. Every size may be one
integer or an array of candidates (``Ints``).

They are carried with the shape for writing launch files; prices ignore them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sartor.bounded import packaged_toml
from sartor.json_types import JsonDict
from sartor.model.layer import (
    AttentionMixer,
    DenseFfn,
    LatentAttentionMixer,
    Layer,
    Linear,
    Mixer,
    MoeFfn,
    Norm,
    SharedWidth,
    Vectors,
)
from sartor.model.traced import TracedModel
from sartor.units import Ints

Value = float | str | bool

_FAMILIES: dict[str, Mapping[str, Value]] = packaged_toml("model", "numerics.toml")
NEUTRAL = _FAMILIES.pop("neutral")
"""Every field with its value in a plain decoder. Fields without a known meaning have no value."""
SAME = {
    **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "gelu_tanh"),
    **dict.fromkeys(("swish", "swiglu"), "silu"),
    **dict.fromkeys(("squared_relu", "relu_squared"), "relu2"),
}
"""Synonyms of activations."""


@dataclass(frozen=True, slots=True)
class Numerics:
    """Values by the names of `NEUTRAL`; a name that is absent has its neutral value.

    ``compared`` is False if only the file's fields are known, not what the model's class does besides.
    """

    values: Mapping[str, Value] = field(default_factory=dict)
    compared: bool = True

    def get(self, name: str) -> Value | None:
        """The value, by default the neutral one; None for a field without one."""
        return self.values.get(name, NEUTRAL.get(name))

    @property
    def unusual(self) -> dict[str, Value]:
        """Values that differ from a plain decoder's."""
        return {name: value for name, value in self.values.items() if value != NEUTRAL.get(name)}


def family_numerics(family: str, stated: Mapping[str, Value], activation: str) -> Numerics:
    """A family's values, overridden by those ``said``; ``activation`` applies if the family has none of its own."""
    defaults = _FAMILIES.get(family)
    values = {"activation": activation, **(defaults or {}), **stated}
    values["activation"] = SAME.get(str(values["activation"]), values["activation"])
    return Numerics(values=values, compared=defaults is not None)


MAX_LAYERS = 65_536
"""Most layers of a model; the deepest published one has a few thousand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRun:
    """``count`` equal layers, consecutive or at ``positions``."""

    layer: Layer
    count: Ints
    positions: tuple[int, ...] = ()
    weight_sets: Ints | None = None
    """Number of layers with weights of their own (ALBERT: 1); None: all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A tower of layers on one residual width: the decoder, the encoder, a vision tower."""

    name: str
    hidden_size: Ints
    runs: tuple[LayerRun, ...]
    norms: tuple[Norm, ...] = ()
    """Norms outside the layers: final, embedding."""
    linears: tuple[Linear, ...] = ()
    vectors: tuple[Vectors, ...] = ()
    is_text: bool = True
    tokens: int | None = None
    """Fixed number of tokens (a speech encoder, an image); 0: the text's length."""

    @property
    def num_layers(self) -> Ints:
        return sum((run.count for run in self.runs), 0)

    @property
    def full_run(self) -> int | None:
        """Index of the run with full attention, if all other layers differ from it only by a window; else None."""
        if len(self.runs) != 2:
            return None
        windows = [[getattr(mixer, "window", None) for mixer in run.layer.mixers] for run in self.runs]
        bare = {repr(replace(run.layer, mixers=tuple(map(_unwindowed, run.layer.mixers)))) for run in self.runs}
        if len(bare) > 1 or sorted(map(bool, (window[0] for window in windows if len(window) == 1))) != [False, True]:
            return None
        return windows.index([0])


def _unwindowed(mixer: Mixer) -> Mixer:
    return replace(mixer, window=0) if isinstance(mixer, (AttentionMixer, LatentAttentionMixer)) else mixer


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerShape:
    """A whole model. The first text stack whose name is ``decoder`` (or the only one) is the *main* stack.

    ``lm_head`` False: no output projection over the vocabulary. ``mtp_layers``: multi-token-prediction modules,
    which train but are not part of the published main-model count.
    """

    name: str
    stacks: tuple[Stack, ...]
    vocab_size: Ints
    embedding_size: Ints | None = None
    """Width of the token table when it is not the hidden size (ALBERT, OPT-350M)."""
    max_positions: int = 0
    """Maximum sequence length; 0 if the config does not say."""
    learned_positions: Ints = 0
    """Rows of a learned position table."""
    tied_embeddings: bool = True
    lm_head: bool = True
    lm_head_bias: bool = False
    stored_head: bool = False
    """The checkpoint stores an output head of its own, although the published class ties it to the token table (T5 with
    ``tie_word_embeddings`` false): counted in the total, while text and active parameters follow the class."""
    encoder_only: bool = False
    linears: tuple[Linear, ...] = ()
    """Linear layers of the head or around the embedding (BERT's transform, embedding projections)."""
    vectors: tuple[Vectors, ...] = ()
    """Other parameters outside the stacks: token-type tables, head biases."""
    mtp_layers: int = 0
    model_type: str = ""
    traced: TracedModel | None = None
    """The trace of this shape: `lower` uses its operators, and the shape cannot be edited."""
    numerics: Numerics | None = field(default=None, compare=False)
    """Numerics beyond sizes; no price depends on them. None: not known."""

    @property
    def main(self) -> Stack:
        text = [stack for stack in self.stacks if stack.is_text] or list(self.stacks)
        return next((s for s in text if s.name == "decoder"), text[0])

    @property
    def hidden_size(self) -> Ints:
        return self.main.hidden_size

    @property
    def num_layers(self) -> Ints:
        return self.main.num_layers

    @property
    def attention(self) -> AttentionMixer | LatentAttentionMixer | None:
        """The attention of most layers of the main stack; None in a pure state-space model."""
        commonest: AttentionMixer | LatentAttentionMixer | None = _commonest(
            (mixer, run.count)
            for run in self.main.runs
            for mixer in run.layer.mixers
            if isinstance(mixer, (AttentionMixer, LatentAttentionMixer)) and not mixer.cross
        )
        return commonest

    @property
    def dense_ffn(self) -> DenseFfn | None:
        """The dense feed-forward part of most layers (None if all are experts)."""
        commonest: DenseFfn | None = _commonest(
            (f, r.count) for r in self.main.runs for f in r.layer.all_ffns if isinstance(f, DenseFfn)
        )
        return commonest

    @property
    def moe_ffn(self) -> MoeFfn | None:
        commonest: MoeFfn | None = _commonest(
            (f, r.count) for r in self.main.runs for f in r.layer.all_ffns if isinstance(f, MoeFfn)
        )
        return commonest

    @property
    def num_heads(self) -> Ints:
        return 0 if self.attention is None else self.attention.num_heads

    @property
    def num_kv_heads(self) -> Ints:
        return 0 if self.attention is None else self.attention.num_kv_heads

    @property
    def head_dim(self) -> Ints:
        return 0 if self.attention is None else self.attention.head_dim

    @property
    def ffn_hidden_size(self) -> Ints:
        """Width of the dense feed-forward part, or of one expert if there is none."""
        part = self.dense_ffn or self.moe_ffn
        return 0 if part is None else part.ffn_hidden_size

    def fields(self) -> JsonDict:
        """The main sizes by their glossary names, without those the model lacks."""
        out: JsonDict = {
            "num_layers": self.num_layers,
            "hidden_size": self.hidden_size,
            "vocab_size": self.vocab_size,
        }
        if self.attention is not None:
            out |= {"num_heads": self.num_heads, "num_kv_heads": self.num_kv_heads, "head_dim": self.head_dim}
        if isinstance(self.attention, LatentAttentionMixer):
            out |= self.attention.ranks
        if self.main.full_run is not None:
            out["num_full_layers"] = self.main.runs[self.main.full_run].count
        if self.dense_ffn is not None:
            out["ffn_hidden_size"] = self.dense_ffn.ffn_hidden_size
        if self.moe_ffn is not None:
            moe = self.moe_ffn
            out |= {
                "num_experts": moe.num_experts,
                "experts_per_token": moe.experts_per_token,
                "expert_ffn_hidden_size": moe.expert.ffn_hidden_size,
            }
            if moe.shared is not None and moe.shared_width is SharedWidth.COUNTED:
                out["num_shared_experts"] = moe.num_shared
            elif moe.shared is not None and moe.shared_width is SharedWidth.OWN:
                out["shared_ffn_hidden_size"] = moe.shared.ffn_hidden_size
        return out


def _commonest(parts: Iterator[tuple[Any, Ints]] | Any) -> Any:
    best, best_count = None, -1
    totals: dict[int, int] = {}
    for part, count in parts:
        n = int(count) if isinstance(count, int) else int(getattr(count, "flat", [count])[0])
        totals[id(part)] = totals.get(id(part), 0) + n
        if totals[id(part)] > best_count:
            best, best_count = part, totals[id(part)]
    return best
