"""The structure of a transformer: stacks of runs of equal layers, and numerics that affect neither time nor memory.

A ``TransformerShape`` is stacks of runs of equal layers (``model/layer.py``). The residual width (``hidden_size``)
belongs to the stack and is handed down to the layers' parts, so widening a model is one edit. Every size may be one
integer or an array of candidates (``Ints``).

They are carried with the shape for writing launch files; prices ignore them.

As a sequence of blocks a model is embedding, kinds of layers, multi-token-prediction modules, head. A pipeline stage
holds whole blocks, and every operator from `lower` belongs to one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

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
    StateSpaceMixer,
    Vectors,
)
from sartor.units import Ints, remembered

if TYPE_CHECKING:
    from sartor.model.traced import TracedModel

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


class BlockKind(Enum):
    EMBEDDING = "embedding"
    """Token and position tables, projections, and an encoder's final norm."""
    LAYER = "layer"
    MTP = "mtp"
    """A multi-token-prediction module (on the last stage, before the head), with its logits and loss."""
    HEAD = "head"
    """Final norms, the head's own linears, logits and loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One indivisible part of a model: the embedding, one layer of a kind, an MTP module, or the head.

    An operator's ``block`` is the index of its block in `blocks`. `lower` counts it for all ``count`` layers at once; a
    block is one.
    """

    name: str
    kind: BlockKind
    stack: Stack
    prefix: str = ""
    """Prefix of its operators' names."""
    layer: Layer | None = None
    count: Ints = 1
    weight_sets: Ints = 1
    """Number of the ``count`` layers with weights of their own (ALBERT: 1)."""


@remembered
def blocks(shape: TransformerShape) -> tuple[Block, ...]:
    """The blocks of a model in a fixed order: embedding, one for every kind of layer (the encoder's first), MTP modules
    if it has any, head. Towers that text does not pass (vision) are left out, as in `lower`.

    >>> from sartor.model.zoo import load_model
    >>> [(block.name, block.count) for block in blocks(load_model("deepseek-v3"))]
    [('embedding', 1), ('dense', 3), ('moe', 58), ('mtp', 1), ('head', 1)]
    """
    main = shape.main
    layers = [block for stack, prefix in text_stacks(shape) for block in _layers(stack, prefix)]
    last, extra = main.runs[-1].layer, shape.mtp_layers
    mtp = Block(name="mtp", kind=BlockKind.MTP, stack=main, prefix="mtp.", layer=last, count=extra, weight_sets=extra)
    return (
        Block(name="embedding", kind=BlockKind.EMBEDDING, stack=main),
        *layers,
        *((mtp,) if extra else ()),
        Block(name="head", kind=BlockKind.HEAD, stack=main),
    )


@remembered
def layer_order(shape: TransformerShape) -> np.ndarray[Any, Any]:
    """The index in `blocks` of every layer, in the order a token passes them: integers [layers of all text stacks].

    Runs with positions are placed there, others come one after another. If an edit of the depth removed the positions
    of some interleaved runs (local and global attention), all runs of the stack are spread evenly.
    """
    all_blocks = blocks(shape)
    out: list[np.ndarray[Any, Any]] = []
    for stack, _ in text_stacks(shape):
        index = [i for i, block in enumerate(all_blocks) if block.kind is BlockKind.LAYER and block.stack is stack]
        counts = [int(run.count) for run in stack.runs]
        out.append(np.repeat(index, counts)[np.argsort(_places(stack, counts), kind="stable")])
    order = np.concatenate(out)
    order.flags.writeable = False
    return order


def text_stacks(shape: TransformerShape) -> Iterator[tuple[Stack, str]]:
    """Stacks that text passes, the main one last, with the name prefix of their blocks."""
    main = shape.main
    others = [s for s in shape.stacks if s is not main and (s.is_text if s.tokens is None else s.tokens)]
    for stack in (*others, main):
        yield stack, f"{stack.name}." if others else ""


def _layers(stack: Stack, prefix: str) -> Iterator[Block]:
    """Blocks of a stack's runs. Where there are several kinds, names say what is special about each, with a number if
    that is not enough: ``moe``, ``local``, ``dense1``. Traced layers have names of their own."""
    kinds = [run.layer.name or _kind(run.layer) for run in stack.runs]
    for i, (run, kind) in enumerate(zip(stack.runs, kinds, strict=True)):
        number = f"{kinds[: i + 1].count(kind)}" if kinds.count(kind) > 1 else ""
        path = prefix + (f"{kind}{number}." if len(kinds) > 1 else "")
        yield Block(
            name=path.rstrip(".") or "layer",
            kind=BlockKind.LAYER,
            stack=stack,
            prefix=path,
            layer=run.layer,
            count=run.count,
            weight_sets=run.count if run.weight_sets is None else run.weight_sets,
        )


def _places(stack: Stack, counts: list[int]) -> np.ndarray[Any, Any]:
    """Positions of the layers of each run, run after run: only their order matters."""
    if all(len(run.positions) == count for run, count in zip(stack.runs, counts, strict=True)):
        return np.concatenate([run.positions for run in stack.runs])
    if not any(run.positions for run in stack.runs):
        return np.arange(sum(counts))
    return np.concatenate([(np.arange(count) + 0.5) / count for count in counts])


def _kind(part: Layer) -> str:
    """The kind of a layer: dense, moe, local, ssm, local_moe, ..."""
    if not part.mixers:
        return "moe" if any(isinstance(f, MoeFfn) for f in part.all_ffns) else "mlp"
    words = []
    if any(isinstance(mixer, StateSpaceMixer) for mixer in part.mixers):
        words.append("ssm")
    elif any(isinstance(mixer, AttentionMixer) and mixer.window for mixer in part.mixers):
        words.append("local")
    if any(isinstance(f, MoeFfn) for f in part.all_ffns):
        words.append("moe")
    return "_".join(words) or ("dense" if part.all_ffns else "attention")
