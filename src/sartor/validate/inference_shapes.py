"""The model of an inference row: from its own columns, or from the zoo if the row gives only a name."""

from __future__ import annotations

from collections.abc import Mapping

from sartor.errors import InputError
from sartor.json_types import JsonDict
from sartor.model.shape import TransformerShape
from sartor.model.zoo.build import build_shape
from sartor.records.rows import Unexpressed
from sartor.records.whole_models import named_model

_SIZES = ("L", "h", "a", "kv", "head_dim", "d_ff", "gated", "vocab")


def shape_of(row: Mapping[str, str]) -> TransformerShape:
    """The row's model. Raises ``Unexpressed``."""
    if not all(row.get(name, "") != "" for name in _SIZES):
        return _named(row["model"])
    if row.get("mla", "") not in ("", "0"):
        return _named(row["model"])
    shape = _zoo(row["model"])
    try:
        entry = {name: _size_of(row[name]) for name in _SIZES}
    except (ValueError, OverflowError):
        raise Unexpressed(f"one of {', '.join(_SIZES)} is not a number") from None
    if min(entry[name] for name in _SIZES if name not in ("gated", "vocab")) < 1:
        raise Unexpressed(f"one of {', '.join(_SIZES)} is below 1")
    if shape is not None and _agrees(shape, entry):
        return shape
    if entry["vocab"] < 0:
        raise Unexpressed("vocab is below 0")
    try:
        return build_shape(_entry(row, entry))
    except InputError as error:
        raise Unexpressed(f"shape: {str(error)[:80]}") from None


def _named(name: str) -> TransformerShape:
    shape = _zoo(name)
    if shape is None:
        raise Unexpressed(f"model {name[:40]}: the row has no shape and the zoo does not know it")
    return shape


def _zoo(name: str) -> TransformerShape | None:
    """The zoo's model of a name, or of the first known of two that share a shape (``A/B``); None if unknown."""
    for spelling in (name, *name.split("/")):
        try:
            return named_model(spelling)
        except InputError:
            continue
    return None


def _agrees(shape: TransformerShape, sizes: Mapping[str, int]) -> bool:
    """Whether a zoo model has these sizes; it also has what no column gives (windows, shared experts)."""
    same = {"num_layers": "L", "hidden_size": "h", "num_heads": "a", "num_kv_heads": "kv", "head_dim": "head_dim"}
    fields = shape.fields()
    return all(fields.get(name) == sizes[column] for name, column in same.items())


def _size_of(word: str) -> int:
    """A size as a whole number within limits. Raises ``ValueError``."""
    value = float(word)
    if value != int(value) or abs(value) > MAX_SIZE:
        raise ValueError(word)
    return int(value)


MAX_SIZE = 2**28
"""Largest size accepted, as in a config.json."""


def _entry(row: Mapping[str, str], sizes: Mapping[str, int]) -> JsonDict:
    """The row as a zoo entry. What the columns omit matters little: norms, activation, positions.

    A Switch Transformer is a T5 with experts and an equally deep decoder (arXiv 2101.03961; also in transformers'
    SwitchTransformersConfig).
    """
    bert, t5 = "bert" in row["model"].lower(), "switch" in row["model"].lower()
    gated = bool(sizes["gated"])
    entry: JsonDict = {
        "name": row["model"],
        "family": row.get("arch", ""),
        "architecture": "encoder" if bert else "encoder-decoder" if t5 else "decoder",
        "lm_head": not bert,
        "num_layers": sizes["L"],
        "num_decoder_layers": sizes["L"],
        "hidden_size": sizes["h"],
        "num_heads": sizes["a"],
        "num_kv_heads": sizes["kv"],
        "head_dim": sizes["head_dim"],
        "ffn_hidden_size": sizes["d_ff"],
        "activation": "silu" if gated else "gelu",
        "gated": gated,
        "parallel": False,
        "vocab_size": sizes["vocab"] or 1024,  # a single layer has no vocabulary: it is not counted
        "max_positions": 0,
        "positions": "relative" if t5 else "rope" if gated else "learned",
        "tied_embeddings": False,
        "norm": "rmsnorm" if gated or t5 else "layernorm",
        "norms_per_layer": 2,
        "final_norm": True,
        "biases": [],
    }
    if row.get("experts", "") not in ("", "0"):
        try:
            experts, topk, width = (_size_of(row[name]) for name in ("experts", "topk", "moe_d_ff"))
            shared = _size_of(row.get("shared_d_ff", "") or "0")
        except (KeyError, ValueError, OverflowError):
            raise Unexpressed("experts without topk and moe_d_ff") from None
        entry["experts"] = {
            "num_experts": experts,
            "experts_per_token": topk,
            "ffn_hidden_size": width,
            "shared_ffn_hidden_size": shared,
            "first_dense_layers": 0,
        }
    return entry
