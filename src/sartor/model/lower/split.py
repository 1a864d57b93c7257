"""Which shapes tensor and expert parallelism can split: a mask for arrays, an error for a single shape."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from sartor.errors import InputError
from sartor.model.layer import AttentionMixer, DenseFfn, LatentAttentionMixer, Layer
from sartor.model.shape import TransformerShape
from sartor.model.workload import ParallelDims, Workload
from sartor.units import Array, Bools, Ints

MOST_DEGREES = 4096
"""Degrees that are tried for the nearest valid ones."""


@dataclass(frozen=True, slots=True)
class Division:
    """``value`` of ``field`` must be a multiple of ``degree`` (or, with ``or_divides``, a divisor of it)."""

    field: str
    value: Ints
    by: str
    degree: Ints
    or_divides: bool = False

    @property
    def ok(self) -> Any:
        whole = np.equal(self.value % self.degree, 0)
        return whole | np.equal(self.degree % self.value, 0) if self.or_divides else whole


def feasible(shape: TransformerShape, dims: ParallelDims) -> Bools:
    """Whether every device gets whole heads, columns, vocabulary rows and experts: a bool, or a mask that broadcasts
    over the arrays in ``shape`` and ``dims``."""
    mask: Any = True
    for division in divisions(shape, dims):
        mask = mask & division.ok
    return bool(mask) if np.ndim(mask) == 0 else mask


def check(shape: TransformerShape, dims: ParallelDims) -> None:
    """Raise ``InputError`` for the first degree that does not divide a single size, with the nearest degrees that
    divide all sizes. For arrays use ``feasible``."""
    for division in divisions(shape, dims):
        if np.ndim(division.ok) == 0 and not division.ok:
            value, degree = int(division.value), int(division.degree)
            below, above = value // degree * degree, (value // degree + 1) * degree
            sizes = f"{below} and {above} do" if below else f"{above} does"
            must = f"does not split {division.field}={value} ({sizes})"
            raise InputError(division.by, degree, must, near_degrees(shape, division.by, degree))


def near_degrees(shape: TransformerShape, by: str, degree: int) -> str:
    """The valid degrees below and above one that is not; the model runs on one device in any case."""
    degrees = np.arange(1, min(2 * degree, MOST_DEGREES) + 1)
    single = (
        division
        for division in divisions(shape, ParallelDims(tp=degrees) if by == "tp" else ParallelDims(ep=degrees))
        if np.ndim(division.value) == 0
    )
    works = degrees[np.logical_and.reduce([division.ok for division in single]) | (degrees == 1)]
    near = [*works[works < degree][-1:], *works[works > degree][:1]]
    return " or ".join(map(str, near))


def contexts_divide(seq_len: Ints, cp: Ints) -> Array:
    """Whether each of ``cp`` devices gets two equal pieces of a sequence, from both ends, to balance causal attention
    (as in Megatron and Llama 3)."""
    return np.asarray(np.equal(cp, 1) | np.equal(seq_len % (2 * np.asarray(cp)), 0))


def sequence_divides(seq_len: Ints, tp: Ints, cp: Ints) -> Array:
    """Whether sequence parallelism gives each of ``tp`` x ``cp`` devices an equal piece."""
    return np.asarray(np.equal(tp, 1) | np.equal(seq_len % np.multiply(tp, cp), 0))


def check_sizes(workload: Workload, dims: ParallelDims) -> None:
    """Raise ``InputError`` for a single (not array) count of sequences, tokens or devices that is not positive."""
    counts: list[tuple[str, Ints, int]] = [
        ("microbatch_size", workload.microbatch_size, 1),
        ("seq_len", workload.seq_len, 1),
        ("context_len", workload.context_len, 0),
        ("tp", dims.tp, 1),
        ("cp", dims.cp, 1),
        ("ep", dims.ep, 1),
    ]
    for name, value, smallest in counts:
        if np.ndim(value) == 0 and value < smallest:
            raise InputError(name, value, f"must be at least {smallest}", str(smallest))


def divisions(shape: TransformerShape, dims: ParallelDims) -> Iterator[Division]:
    """All divisions that must come out even; none for a degree of 1."""
    tp, ep = dims.tp, dims.ep
    layers = [run.layer for stack in shape.stacks if stack.is_text for run in stack.runs]
    if not _is_one(tp):
        for layer in layers:
            yield from _layer_divisions(layer, tp)
        yield Division("vocab_size", shape.vocab_size, "tp", tp)
    if not _is_one(ep):
        for layer in layers:
            for part in layer.all_ffns:
                if not isinstance(part, DenseFfn):
                    yield Division("num_experts", part.num_experts, "ep", ep)


def _layer_divisions(layer: Layer, tp: Ints) -> Iterator[Division]:
    for mixer in layer.mixers:
        if isinstance(mixer, (AttentionMixer, LatentAttentionMixer)):
            yield Division("num_heads", mixer.num_heads, "tp", tp)
            yield Division("num_kv_heads", mixer.num_kv_heads, "tp", tp, or_divides=True)
        else:
            yield Division("inner_size", mixer.inner_size, "tp", tp)
    for part in layer.all_ffns:
        if isinstance(part, DenseFfn):
            yield Division("ffn_hidden_size", part.ffn_hidden_size, "tp", tp)
            continue
        yield Division("expert_ffn_hidden_size", part.expert.ffn_hidden_size, "tp", tp)
        if part.shared is not None:
            yield Division("shared_ffn_hidden_size", part.shared.ffn_hidden_size, "tp", tp)


def _is_one(degree: Ints) -> bool:
    return isinstance(degree, int) and degree == 1
