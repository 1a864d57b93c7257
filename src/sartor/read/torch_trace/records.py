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
    places: list[LayerPlace] = []
    _descend(model, "", places)
    return tuple(places)


def _descend(module: Module, path: str, places: list[LayerPlace]) -> None:
    for name, child in module.named_children():
        child_path = f"{path}.{name}" if path else name
        if _is_stack(child):
            places += [
                LayerPlace(f"{child_path}.{key}", child_path)
                for key, grandchild in child.named_children()
                if _has_params(grandchild)
            ]
        else:
            _descend(child, child_path, places)


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
