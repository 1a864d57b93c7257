"""Readers by ``model_type``: each module lists the families it reads in ``FAMILIES``.

A reader takes the `Fields` of a config and answers the `TransformerShape` it describes. It refuses with
`InputError`, and tells ``fields.ledger`` whatever it had to take from elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import TypeAlias

from sartor.interop.fields import Fields
from sartor.model.shape import TransformerShape

Reader: TypeAlias = Callable[[Fields], TransformerShape]


@cache
def readers() -> Mapping[str, Reader]:
    """Every reader by model type."""
    from sartor.interop.families import classic, decoders, encoders, mixtures

    modules = (classic, decoders, mixtures, encoders)
    out: dict[str, Reader] = {}
    for module in modules:
        again = out.keys() & module.FAMILIES.keys()
        assert not again, f"two readers for {again}"
        out |= module.FAMILIES
    return MappingProxyType(out)
