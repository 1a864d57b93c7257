"""Decoder-only families, one row each: what distinguishes the class from Llama's."""

from __future__ import annotations

from functools import partial

from sartor.interop.families import Reader
from sartor.interop.families.decoder import Family, read_decoder

LLAMA = Family(q_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias")

_ROWS: dict[str, Family] = {
    "llama": LLAMA,
}

FAMILIES: dict[str, Reader] = {name: partial(read_decoder, family=family) for name, family in _ROWS.items()}
