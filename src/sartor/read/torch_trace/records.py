"""What a traced run of a module did: its operators with their tensors and facts, and its layers."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from sartor.json_types import JsonDict, JsonMap
from sartor.operators import Pass

if TYPE_CHECKING:
    from torch import Tensor
    from torch._ops import OpOverload


@dataclass(slots=True, kw_only=True)
class Read:
    """A tensor that an operator read: its producer (a record's index; -1: a parameter or input) and its size."""

    producer: int
    storage: int
    """Distinguishes tensors of one producer, and parameters from each other."""
    shape: tuple[int, ...]
    bytes: float
    """Bytes of the elements in memory: expanded dimensions are read once."""
    tensor: tuple[int, int] = (0, -1)
    """Its memory: the storage, and the record that allocated it."""
    whole_bytes: float = 0.0
    """Bytes of that memory, of which this may be a view."""
    param: str = ""
    held: bool = False
    """Whether it is a parameter or a buffer."""
    varies: bool = False
    """Whether it depends on the model's inputs; only then it grows with the batch."""


@dataclass(slots=True, kw_only=True)
class Record:
    """One dispatched operator. ``path`` is the module it ran in; for a backward operator, that of the forward one.

    ``facts`` are what its kind needs besides shapes: strides of a product's operands, heads of an attention.
    """

    call: str
    path: str
    pass_: Pass
    """Forward, backward or recompute."""
    reads: tuple[Read, ...]
    outputs: tuple[tuple[int, ...], ...]
    output_bytes: float
    dtype: str
    facts: JsonDict = field(default_factory=dict)
    twin: int = -1
    """For a backward operator, the index of the forward record."""

    @property
    def backward(self) -> bool:
        return self.pass_ is Pass.BACKWARD

    @property
    def varies(self) -> bool:
        return any(read.varies for read in self.reads)


@dataclass(slots=True, kw_only=True)
class Saved:
    """A tensor that autograd keeps until backward: the module that kept it first, its producer, bytes of its memory."""

    path: str
    producer: int
    bytes: float
    varies: bool


NOT_THE_USERS = (*torch.__path__, str(Path(__file__).parents[2]), "<")
"""Prefixes of frames' file names that are PyTorch's, sartor's or no file: whole folders, since a user's path may
contain either name."""


def line_of(error: BaseException) -> str:
    """`` at file:line`` of the innermost frame outside PyTorch and sartor, or empty."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(NOT_THE_USERS)]
    return f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""


@dataclass(frozen=True, slots=True)
class LayerPlace:
    """One layer module: its path, and the path of the list that contains it."""

    path: str
    container: str


PRODUCTS = {
    "aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1, "aten::addbmm": 1, "aten::mv": 0,
    "aten::dot": 0, "aten::addmv": 1, "aten::_grouped_mm": 0, "aten::_int_mm": 0, "aten::_scaled_mm": 0,
    "aten::_scaled_mm_v2": 0, "aten::_scaled_grouped_mm": 0, "aten::_scaled_grouped_mm_v2": 0,
}  # fmt: skip
"""Index of a product's first operand among the arguments."""
BUILT_IN = ("aten", "prims", "prim", "sartor")
"""Namespaces whose operators are known: those without a rule here are memory-bound."""
ATTENTION = ("flash", "attention", "attn", "fmha")


def facts_of(func: OpOverload, args: Sequence[Any], kwargs: JsonMap, tensors: Sequence[Tensor]) -> JsonDict:
    """Facts of one dispatched operator, by its kind; empty for most."""
    name = func._schema.name
    if name in PRODUCTS:
        first = PRODUCTS[name]
        a, b = args[first], args[first + 1]
        strides = (tuple(a.stride()), tuple(b.stride()))
        return {"operands": (first, first + 1), "strides": strides, "dtype": _operands_dtype(a, tensors)}
    if name in ("aten::convolution", "aten::convolution_backward"):
        return _convolution(name, args)
    if name == "aten::_trilinear":
        return _trilinear(args)
    if any(word in name for word in ATTENTION):
        named = {a.name: value for a, value in zip(func._schema.arguments, args, strict=False)}
        return _attention(name, {**named, **kwargs})
    return {}


def has_no_rule(name: str) -> bool:
    """Whether an operator comes from another library, so that nothing is known of what it computes."""
    return name.partition("::")[0] not in BUILT_IN


def written(func: OpOverload, args: Sequence[Any], kwargs: JsonMap) -> list[Tensor]:
    """Tensors that an operator of another library writes in place: its real outputs, where it returns others."""
    if not has_no_rule(func._schema.name):
        return []
    named = {a.name: value for a, value in zip(func._schema.arguments, args, strict=False)} | dict(kwargs)
    names = [a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return [named[name] for name in names if isinstance(named.get(name), torch.Tensor)]


def _operands_dtype(first: Tensor, tensors: Iterable[Tensor]) -> str:
    """The element type of a product's operands; ``mx`` before those with one scale for 32 elements."""
    word = str(first.dtype).removeprefix("torch.")
    scaled = any("e8m0" in str(t.dtype) for t in tensors)
    return f"mx_{word}" if scaled else word


def _convolution(name: str, args: Sequence[Any]) -> JsonDict:
    if name == "aten::convolution":
        weight, groups, transposed = args[1], args[8], args[6]
        return {"weight": tuple(weight.shape), "groups": int(groups), "transposed": bool(transposed)}
    weight, transposed, groups, mask = args[2], args[7], args[9], args[10]
    return {
        "weight": tuple(weight.shape),
        "groups": int(groups),
        "transposed": bool(transposed),
        "mask": tuple(mask),
        "grad": tuple(args[0].shape),
        "data": tuple(args[1].shape),
    }


def _trilinear(args: Sequence[Any]) -> JsonDict:
    """Sizes of the GEMM that a product of three tensors, summed over some axes, amounts to."""
    operands, expands, summed = args[:3], args[3:6], set(args[6])
    spread = []
    for tensor, axes in zip(operands, expands, strict=True):
        lengths = iter(tensor.shape)
        total = tensor.dim() + len(axes)
        spread.append([1 if i in axes else int(next(lengths)) for i in range(total)])
    whole = [max(lengths) for lengths in zip(*spread, strict=True)]
    remaining = [length for i, length in enumerate(whole) if i not in summed]
    return {"m": remaining[0], "n": prod(remaining[1:]), "k": prod(whole[i] for i in summed), "over_batch": 0 in summed}


def _attention(name: str, named: JsonMap) -> JsonDict:
    """Sizes of a fused attention kernel, from arguments named q, k and v or query, key and value: heads before tokens
    in PyTorch's own, tokens before heads elsewhere. Sequences of several lengths in one ([tokens, heads, width]) are
    taken as equally long."""
    operands = [named.get(short, named.get(long)) for short, long in (("q", "query"), ("k", "key"), ("v", "value"))]
    if not all(isinstance(t, torch.Tensor) and t.dim() in (3, 4) for t in operands):
        return {}
    shapes = [_heads_first(t, named, builtin=not has_no_rule(name)) for t in operands]
    q, k, v = shapes
    if q is None or k is None or v is None or q[3] != k[3] or k[:3] != v[:3] or q[0] != k[0] or q[1] % k[1]:
        return {}
    left = named.get("window_size_left")
    return {
        "batch": q[0],
        "num_heads": q[1],
        "num_kv_heads": k[1],
        "seq_q": q[2],
        "seq_kv": k[2],
        "head_dim": q[3],
        "v_head_dim": v[3],
        "causal": bool(named.get("causal", named.get("is_causal", False))) and q[2] > 1,
        "window": left + 1 if isinstance(left, int) and left >= 0 else 0,
        "dtype": str(operands[0].dtype).removeprefix("torch."),
        "backward": "backward" in name or "bwd" in name,
    }


def _heads_first(tensor: Tensor, named: JsonMap, *, builtin: bool) -> tuple[int, int, int, int] | None:
    """Sequences, heads, tokens and width of an operand."""
    shape = [int(length) for length in tensor.shape]
    if len(shape) == 4:
        b, s, a, d = shape
        return (b, s, a, d) if builtin else (b, a, s, d)
    starts = next((named[n] for n in ("cu_seqlens_q", "cu_seq_q", "cum_seq_q") if named.get(n) is not None), None)
    if not isinstance(starts, torch.Tensor) or starts.numel() < 2:
        return None
    tokens, a, d = shape
    sequences = int(starts.numel()) - 1
    return sequences, a, max(tokens // sequences, 1), d
