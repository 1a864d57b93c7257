"""A model as a pipeline sees it: its embedding, its kinds of layers, its head, and the parameters of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from sartor.model.layer import Layer
from sartor.model.lower.graph import run_prefixes
from sartor.model.lower.kernels import Kernels
from sartor.model.lower.optimizer import (
    expert_params,
    layer_params,
    outer_params,
    stack_params,
)
from sartor.model.lower.setting import Setting
from sartor.model.parallel import ParallelDims
from sartor.model.shape import Stack, TransformerShape
from sartor.model.training import TrainingJob
from sartor.model.workload import Workload
from sartor.units import Ints


class BlockKind(Enum):
    EMBEDDING = "embedding"
    """Token and position tables, projections, and an encoder's final norm; operators of ``Part.EMBEDDING``."""
    LAYER = "layer"
    MTP = "mtp"
    """A module that predicts a later token (on the last stage, before the head), its logits and loss included: all
    operators whose name starts with ``mtp.``, also those of ``Part.HEAD``."""
    HEAD = "head"
    """Final norms, the head's own linears, logits and loss; operators of ``Part.HEAD``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One part of a model that a stage holds whole: the embedding, one layer of a kind, an MTP module, or the head.

    ``prefix`` starts the names that `lower` gives the operators of this block (``"moe."``, ``"encoder."``, ``"mtp."``;
    empty where a model has one kind of layer, and for embedding and head, which are told by ``Part``). An operator with
    ``Part.LAYER`` belongs to the LAYER or MTP block of the longest prefix that its name starts with; if its stack has
    one kind only, that is its stack's prefix. `lower` counts it for all ``count`` layers at once; a block is one.
    """

    name: str
    kind: BlockKind
    stack: Stack
    prefix: str = ""
    layer: Layer | None = None
    count: Ints = 1
    weight_sets: Ints = 1
    """How many of the ``count`` layers have weights of their own (ALBERT: 1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockParams:
    """Parameters of one layer (or of embedding, MTP module, head) that one device holds, over arrays of tp and ep.

    ``dense`` ones are replicated over all of dp x cp, ``expert`` ones over dp x cp / ep, or tp times as many devices
    where experts are whole (``Trainer.splits_experts``). ``tied`` is the token table
    the head borrows from the embedding: a copy of its own only where the two lie on different stages.
    """

    dense: Ints
    expert: Ints = 0
    tied: Ints = 0


def blocks(shape: TransformerShape) -> tuple[Block, ...]:
    """The blocks of a model in a fixed order: embedding, one for every kind of layer (the encoder's first), MTP modules
    if it has any, head. Towers that text does not run are left out, as in `lower`.

    >>> from sartor.model.zoo import load_model
    >>> [(block.name, block.count) for block in blocks(load_model("deepseek-v3"))]
    [('embedding', 1), ('dense', 3), ('moe', 58), ('mtp', 1), ('head', 1)]
    """
    main = shape.main
    layers = [block for stack, prefix in _text_stacks(shape) for block in _layers(stack, prefix)]
    last = main.runs[-1].layer
    mtp = Block(name="mtp", kind=BlockKind.MTP, stack=main, prefix="mtp.", layer=last, count=shape.mtp_layers)
    return (
        Block(name="embedding", kind=BlockKind.EMBEDDING, stack=main),
        *layers,
        *((mtp,) if shape.mtp_layers else ()),
        Block(name="head", kind=BlockKind.HEAD, stack=main),
    )


def layer_order(shape: TransformerShape) -> np.ndarray[Any, Any]:
    """Which of `blocks` every layer is, in the order a token passes them: integers [layers of all text stacks].

    Runs that know their positions are laid there, others follow one another. Where an edit of the depth has taken the
    positions from some of several interleaved runs (local and global attention), all of the stack are spread evenly.
    """
    every = blocks(shape)
    out: list[np.ndarray[Any, Any]] = []
    for stack, _ in _text_stacks(shape):
        index = [i for i, block in enumerate(every) if block.kind is BlockKind.LAYER and block.stack is stack]
        counts = [int(run.count) for run in stack.runs]
        out.append(np.repeat(index, counts)[np.argsort(_places(stack, counts), kind="stable")])
    return np.concatenate(out)


def block_params(job: TrainingJob, dims: ParallelDims) -> tuple[BlockParams, ...]:
    """Parameters of every block of ``job.shape`` (in the order of `blocks`) held by one device of ``dims``, before any
    sharding over data ranks. Those of a LAYER block are one layer's."""
    return tuple(_block_params(job, dims, block) for block in blocks(job.shape))


def _block_params(job: TrainingJob, dims: ParallelDims, block: Block) -> BlockParams:
    shape = job.shape
    setting = _setting(shape, dims, block.stack, Kernels(splits_experts=job.trainer.splits_experts))
    if block.layer is not None:
        return _layer_params(setting, block)
    outer = dict(outer_params(setting, shape))
    tables: Ints = sum((stack_params(_setting(shape, dims, s), s) for s, _ in _text_stacks(shape)), 0)
    own = _final_norms(block.stack)
    if block.kind is BlockKind.EMBEDDING:
        return BlockParams(dense=outer["embedding"] + tables - own)
    tied = shape.lm_head and shape.tied_embeddings
    return BlockParams(dense=outer["head"] + own, tied=outer["embedding"] - _positions(shape) if tied else 0)


def _layer_params(setting: Setting, block: Block) -> BlockParams:
    assert block.layer is not None
    parts: Ints = sum((params for _, params in layer_params(setting, block.layer)), 0)
    experts: Ints = sum((expert_params(setting, part) for part in block.layer.all_ffns), 0)
    h = setting.hidden_size
    joining = 2 * h**2 + 2 * h if block.kind is BlockKind.MTP else 0
    return BlockParams(dense=parts - experts + joining, expert=experts)


def _final_norms(stack: Stack) -> Ints:
    return sum((norm.params(stack.hidden_size) for norm in stack.norms), 0)


def _positions(shape: TransformerShape) -> Ints:
    width = shape.hidden_size if shape.embedding_size is None else shape.embedding_size
    return shape.learned_positions * width


def _setting(shape: TransformerShape, dims: ParallelDims, stack: Stack, kernels: Kernels | None = None) -> Setting:
    return Setting(
        workload=Workload(shape=shape),
        dims=dims,
        hidden_size=stack.hidden_size,
        seq_q=1,
        seq_kv=1,
        kernels=kernels or Kernels(),
    )


def _text_stacks(shape: TransformerShape) -> Iterator[tuple[Stack, str]]:
    """Stacks that text runs, the main one last, with the prefix of their operators' names: as `lower` has them."""
    main = shape.main
    others = [s for s in shape.stacks if s is not main and (s.is_text if s.tokens is None else s.tokens)]
    for stack in (*others, main):
        yield stack, f"{stack.name}." if others else ""


def _layers(stack: Stack, prefix: str) -> Iterator[Block]:
    for run, name in zip(stack.runs, run_prefixes(stack, prefix), strict=True):
        sets = run.count if run.weight_sets is None else run.weight_sets
        yield Block(
            name=name.rstrip(".") or "layer",
            kind=BlockKind.LAYER,
            stack=stack,
            prefix=name,
            layer=run.layer,
            count=run.count,
            weight_sets=sets,
        )


def _places(stack: Stack, counts: list[int]) -> np.ndarray[Any, Any]:
    """Where the layers of each run lie, run after run: only their order matters."""
    if all(len(run.positions) == count for run, count in zip(stack.runs, counts, strict=True)):
        return np.concatenate([run.positions for run in stack.runs])
    if not any(run.positions for run in stack.runs):
        return np.arange(sum(counts))
    return np.concatenate([(np.arange(count) + 0.5) / count for count in counts])
