"""``--set field=value``: change one size of a shape, with the checks of a model file."""

from __future__ import annotations

import difflib
from dataclasses import replace

from sartor.errors import InputError
from sartor.json_types import JsonMap
from sartor.model.divisors import nearest_divisors
from sartor.model.editing import EDITABLE, edit
from sartor.model.shape import TransformerShape
from sartor.units import Floats

LARGEST = {"num_layers": 100_000, "vocab_size": 2**31 - 1, "mtp_layers": 64}
"""Largest plausible sizes; other fields stop at 2^24."""


def edit_fields(shape: TransformerShape, changes: JsonMap) -> tuple[TransformerShape, tuple[str, ...]]:
    """The shape with ``changes`` (integers, or their digits), and the derived changes as text.

    If heads times head dimension equals the hidden size, ``head_dim`` is adjusted to keep it so unless given. Raises
    ``InputError`` for unknown fields, values that are not positive integers, and heads that do not divide.
    """
    if "mtp_layers" in changes:
        shape = replace(shape, mtp_layers=_integer("mtp_layers", changes["mtp_layers"], least=0))
    wanted = {_field(name): _integer(name, value) for name, value in changes.items() if name != "mtp_layers"}
    missing = sorted(set(wanted) - set(shape.fields()))
    if missing:
        raise InputError("set", missing[0], f"{shape.name or 'this model'} has none", ", ".join(shape.fields()))
    notes: tuple[str, ...] = ()
    if {"num_heads", "hidden_size"} & set(wanted) and "head_dim" not in wanted and _heads_fill_hidden(shape):
        hidden = wanted.get("hidden_size", int(shape.hidden_size))
        heads = wanted.get("num_heads", int(shape.num_heads))
        wanted["head_dim"] = _share(hidden, heads)
        notes = (f"head_dim={wanted['head_dim']} (hidden_size / num_heads, as before)",)
    return edit(shape, **wanted), notes


def _field(name: str) -> str:
    if name not in EDITABLE:
        near = difflib.get_close_matches(name, EDITABLE, 3, 0.5)
        raise InputError("set", name, "is not a field of a shape", ", ".join(near or EDITABLE))
    return name


def _integer(name: str, value: Floats, least: int = 1) -> int:
    most = LARGEST.get(name, 2**24)
    text = str(value)
    digits = text.isascii() and text.isdigit() and not isinstance(value, bool)
    if not digits or not least <= int(text[:20]) <= most:
        raise InputError(name, value, f"must be an integer from {least} to {most}")
    return int(text)


def _heads_fill_hidden(shape: TransformerShape) -> bool:
    return int(shape.num_heads) > 0 and int(shape.num_heads * shape.head_dim) == int(shape.hidden_size)


def _share(hidden: int, heads: int) -> int:
    if hidden % heads:
        must = f"must divide hidden_size={hidden} (or set head_dim)"
        raise InputError("num_heads", heads, must, nearest_divisors(hidden, heads))
    return hidden // heads
