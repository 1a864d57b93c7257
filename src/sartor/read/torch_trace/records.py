"""What a traced run of a module did: its operators with their tensors, its layers, and what autograd keeps."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from sartor.json_types import JsonDict
from sartor.operators import Pass

if TYPE_CHECKING:
    from torch.nn import Module
from collections.abc import Mapping

from sartor.read.torch_trace.kernels import Traffic


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


def find_layers(model: Module) -> tuple[LayerPlace, ...]:
    """Members of the outermost lists (``ModuleList``, ``Sequential``) that hold repeated parts; empty if there is no
    such list."""
    found: list[LayerPlace] = []
    _descend(model, "", found)
    return tuple(found)


def _descend(module: Module, path: str, found: list[LayerPlace]) -> None:
    for name, child in module.named_children():
        here = f"{path}.{name}" if path else name
        if _is_stack(child):
            found += [LayerPlace(f"{here}.{key}", here) for key, each in child.named_children() if _has_params(each)]
        else:
            _descend(child, here, found)


def _is_stack(module: Module) -> bool:
    """Whether it is a list of layers: two members of one class, or one member with parts (a layer run many times)."""
    if not isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)):
        return False
    children = [child for child in module.children() if _has_params(child)]
    if len(children) == 1:
        return isinstance(module, torch.nn.ModuleList) and any(True for _ in children[0].children())
    return len({type(child) for child in children}) < len(children)


def _has_params(module: Module) -> bool:
    return next(module.parameters(), None) is not None


def kept_tensors(saved: Mapping[tuple[int, int], Saved], records: list[Record], traffic: Traffic) -> tuple[Saved, ...]:
    """Every tensor kept, once: those saved, or the inputs of the fused kernel that makes them and writes none out."""
    out: dict[tuple[int, int], Saved] = {}
    for tensor, each in saved.items():
        group = traffic.group_of.get(each.producer, ()) if each.producer >= 0 else ()
        if len(group) < 2 or traffic.writes(each.producer, group):
            out.setdefault(tensor, each)
            continue
        for read in (r for i in group for r in records[i].reads if r.producer not in group and not r.held):
            found = Saved(path=each.path, producer=read.producer, bytes=read.whole_bytes, varies=read.varies)
            out.setdefault(read.tensor, found)
    return tuple(out.values())


def recomputed_tensors(records: list[Record], traffic: Traffic) -> tuple[Saved, ...]:
    """What checkpointing computes again and backward reads: there while one layer's backward runs."""
    read: dict[tuple[int, int], Saved] = {}
    for record in (each for each in records if each.backward):
        for one in record.reads:
            if one.producer >= 0 and records[one.producer].pass_ is Pass.RECOMPUTE:
                path = records[one.producer].path
                found = Saved(path=path, producer=one.producer, bytes=one.whole_bytes, varies=one.varies)
                read.setdefault(one.tensor, found)
    kept = kept_tensors(read, records, traffic)
    return tuple(each for each in kept if each.producer >= 0 and records[each.producer].pass_ is Pass.RECOMPUTE)
