"""A model type nobody described: read by its field names, every guess said, the interval widened."""

from __future__ import annotations

from sartor.interop.families.decoder import Family, read_decoder
from sartor.interop.fields import Fields
from sartor.model.shape import TransformerShape


def read_unknown(f: Fields) -> TransformerShape:
    """The shape the field names suggest."""
    f.ledger.guess(
        f"model_type {f.model_type or 'missing'} is unknown: read by its field names as a Llama-like decoder"
    )
    return read_decoder(f, Family())
