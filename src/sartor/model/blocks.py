"""A model as a sequence of blocks: embedding, kinds of layers, multi-token-prediction modules, head.

A pipeline stage holds whole blocks, and every operator from `lower` belongs to one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from sartor.model.layer import AttentionMixer, Layer, MoeFfn, StateSpaceMixer
from sartor.model.shape import Stack, TransformerShape
from sartor.units import Ints, remembered


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
