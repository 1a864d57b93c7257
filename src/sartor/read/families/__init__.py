"""Readers by ``model_type``: each module lists the families it reads in ``FAMILIES``.

A reader takes the `Fields` of a config and returns the `TransformerShape` it describes. It raises `InputError`, and
records in ``fields.ledger`` whatever was not in the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import TypeAlias

from sartor.model.shape import TransformerShape
from sartor.read.fields import Fields

Reader: TypeAlias = Callable[[Fields], TransformerShape]


_MODULES = (
    "classic",
    "compressed",
    "decoders",
    "frontier",
    "gemma",
    "latent",
    "linear_attention",
    "mixtures",
    "text_parts",
    "unusual",
    "audio",
    "composed",
    "composites",
    "documents",
    "encoder_decoder",
    "encoder_only",
    "multimodal",
    "state_space",
    "t5",
    "vision",
    "zamba",
)


def read_part(f: Fields) -> TransformerShape:
    """The shape of a config, or of a config inside another; an unknown model type is read by its field names."""
    reader = readers().get(f.model_type)
    shape: TransformerShape = reader(f) if reader else import_module("sartor.read.families.unknown").read_unknown(f)
    return shape


@cache
def readers() -> Mapping[str, Reader]:
    """Every reader by model type."""
    out: dict[str, Reader] = {}
    for name in _MODULES:
        families: dict[str, Reader] = import_module(f"sartor.read.families.{name}").FAMILIES
        again = out.keys() & families.keys()
        assert not again, f"two readers for {again}"
        out |= families
    return MappingProxyType(out)
