"""Finds the repeated layers of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch.nn import Module


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
