"""The model of a published row: from its own columns, or the zoo's if it knows the name and the sizes agree."""

from __future__ import annotations

import math
from collections.abc import Mapping

from sartor.errors import InputError
from sartor.json_types import JsonDict
from sartor.model.shape import TransformerShape
from sartor.model.zoo import build_shape, load_model
from sartor.records.rows import Unexpressed
from sartor.records.targets import MODELS, named_model

SIZES = ("L", "h", "a", "kv", "head_dim", "d_ff", "vocab")


def training_shape(row: Mapping[str, str]) -> tuple[TransformerShape, tuple[str, ...]]:
    """The row's model and what was assumed. Raises ``Unexpressed``.

    Columns do not give norms, biases, windows or positions: if the zoo has a model of that name with the row's sizes,
    its shape is used.
    """
    named = _named(row["model"])
    sizes = {name: whole(row, name) for name in SIZES}
    if any(value is None for value in sizes.values()):
        if named is None:
            missing = ", ".join(name for name, value in sizes.items() if value is None)
            raise Unexpressed(f"no shape: {_count(missing)} not given and the zoo does not know the model")
        return named, ("shape from the zoo, by name",)
    if min(value for value in sizes.values() if value is not None) < 1:
        raise Unexpressed("a size of the shape is below 1")
    if named is not None and _agrees(named, sizes, row):
        return named, ()
    try:
        return build_shape(_entry(row, {name: int(value or 0) for name, value in sizes.items()})), ()
    except (InputError, KeyError) as error:
        raise Unexpressed(f"shape: {str(error)[:80]}") from None


def whole(row: Mapping[str, str], name: str) -> int | None:
    """A column as an integer; None if empty. Raises ``Unexpressed`` if it is not a number."""
    word = (row.get(name) or "").strip()
    if not word:
        return None
    try:
        value = float(word)
        if value != int(value):
            raise Unexpressed(f"{name} is not a whole number")
    except (ValueError, OverflowError):
        raise Unexpressed(f"{name} is not a number") from None
    if not (name in _FROM_ONE) <= value < 10**12:
        raise Unexpressed(f"{name} is below {int(name in _FROM_ONE)} or too large")
    return int(value)


def number(row: Mapping[str, str], name: str) -> float:
    """A column as a number above 0; NaN if it is none."""
    try:
        value = float(row.get(name) or "nan")
    except ValueError:
        return math.nan
    return value if value > 0 and math.isfinite(value) else math.nan


_FROM_ONE = frozenset(("tp", "pp", "dp", "cp", "ep", "mbs", "grad_accum"))
"""Columns where 0 is invalid; they are left empty if unknown."""


def _count(missing: str) -> str:
    return "sizes" if missing.count(",") > 1 else missing


def _named(name: str) -> TransformerShape | None:
    try:
        return load_model(MODELS.get(name, name))
    except InputError:
        return None


def _agrees(shape: TransformerShape, sizes: Mapping[str, int | None], row: Mapping[str, str]) -> bool:
    """Whether a zoo model is the row's model: equal sizes."""
    mine = (shape.num_layers, shape.hidden_size, shape.num_heads, shape.head_dim)
    same = mine == tuple(sizes[name] for name in ("L", "h", "a", "head_dim"))
    vocab, padded = int(shape.vocab_size), sizes["vocab"] or 0
    experts, chosen = whole(row, "experts") or 0, whole(row, "topk") or 0
    moe = shape.moe_ffn
    mtp = whole(row, "mtp_layers") or 0
    return (
        same
        and (moe.num_experts if moe else 0) == experts
        and (not moe or not chosen or moe.experts_per_token == chosen)
        and (moe is not None or shape.ffn_hidden_size == sizes["d_ff"])
        and vocab == padded
        and shape.mtp_layers == mtp
    )


def _sizes_of(row: Mapping[str, str], sizes: Mapping[str, int], gated: bool) -> JsonDict:
    """What every row says of its model, in the zoo's words."""
    return {
        "name": row["model"],
        "family": row.get("arch", ""),
        "num_layers": sizes["L"],
        "hidden_size": sizes["h"],
        "num_heads": sizes["a"],
        "num_kv_heads": sizes["kv"],
        "head_dim": sizes["head_dim"],
        "ffn_hidden_size": sizes["d_ff"],
        "activation": "silu" if gated else "gelu",
        "gated": gated,
        "parallel": False,
    }


def _entry(row: Mapping[str, str], sizes: Mapping[str, int]) -> JsonDict:
    """The row as a zoo entry. What the columns omit matters little: norms, activation, biases."""
    encoder = "bert" in row["model"].lower()
    gated, learned = whole(row, "gated") != 0, whole(row, "learned_pos") == 1
    entry: JsonDict = {
        **_sizes_of(row, sizes, gated),
        "architecture": "encoder" if encoder else "decoder",
        "vocab_size": sizes["vocab"],
        "max_positions": whole(row, "seq") or 0,
        "positions": "learned" if learned else "rope" if gated else "alibi",
        "position_rows": (whole(row, "seq") or 0) if learned else 0,
        "tied_embeddings": whole(row, "tied") == 1,
        "norm": "rmsnorm" if gated else "layernorm",
        "norms_per_layer": 2,
        "final_norm": True,
        "biases": [] if gated else ["q", "kv", "out", "up", "down"],
        "mtp_layers": whole(row, "mtp_layers") or 0,
    }
    return entry | _latent(row, sizes) | _experts(row)


def _latent(row: Mapping[str, str], sizes: Mapping[str, int]) -> JsonDict:
    if not whole(row, "mla"):
        return {}
    rope, value = whole(row, "mla_rope_dim"), whole(row, "mla_v_dim")
    latent = whole(row, "mla_kv_lora")
    if not (rope and value and latent):
        raise Unexpressed("latent attention without mla_kv_lora, mla_rope_dim and mla_v_dim")
    return {
        "latent": {
            "q_lora_rank": whole(row, "mla_q_lora") or 0,
            "kv_lora_rank": latent,
            "qk_nope_head_dim": sizes["head_dim"] - rope if sizes["head_dim"] > rope else sizes["head_dim"],
            "qk_rope_head_dim": rope,
            "v_head_dim": value,
        }
    }


def _experts(row: Mapping[str, str]) -> JsonDict:
    if not whole(row, "experts"):
        return {}
    chosen, width = whole(row, "topk"), whole(row, "moe_d_ff")
    if not (chosen and width):
        raise Unexpressed("experts without topk and moe_d_ff")
    if chosen > (whole(row, "experts") or 0):
        raise Unexpressed("topk is above experts")
    return {
        "experts": {
            "num_experts": whole(row, "experts"),
            "experts_per_token": chosen,
            "ffn_hidden_size": width,
            "shared_ffn_hidden_size": whole(row, "shared_d_ff") or 0,
            "first_dense_layers": whole(row, "first_dense_layers") or 0,
        }
    }


_SIZES = ("L", "h", "a", "kv", "head_dim", "d_ff", "gated", "vocab")


def shape_of(row: Mapping[str, str]) -> TransformerShape:
    """The row's model. Raises ``Unexpressed``."""
    if not all(row.get(name, "") != "" for name in _SIZES):
        return _zoo_named(row["model"])
    if row.get("mla", "") not in ("", "0"):
        return _zoo_named(row["model"])
    shape = _zoo(row["model"])
    try:
        entry = {name: _size_of(row[name]) for name in _SIZES}
    except (ValueError, OverflowError):
        raise Unexpressed(f"one of {', '.join(_SIZES)} is not a number") from None
    if min(entry[name] for name in _SIZES if name not in ("gated", "vocab")) < 1:
        raise Unexpressed(f"one of {', '.join(_SIZES)} is below 1")
    if shape is not None and _same_sizes(shape, entry):
        return shape
    if entry["vocab"] < 0:
        raise Unexpressed("vocab is below 0")
    try:
        return build_shape(_inference_entry(row, entry))
    except InputError as error:
        raise Unexpressed(f"shape: {str(error)[:80]}") from None


def _zoo_named(name: str) -> TransformerShape:
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


def _same_sizes(shape: TransformerShape, sizes: Mapping[str, int]) -> bool:
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


def _inference_entry(row: Mapping[str, str], sizes: Mapping[str, int]) -> JsonDict:
    """The row as a zoo entry. What the columns omit matters little: norms, activation, positions.

    A Switch Transformer is a T5 with experts and an equally deep decoder (arXiv 2101.03961; also in transformers'
    SwitchTransformersConfig).
    """
    bert, t5 = "bert" in row["model"].lower(), "switch" in row["model"].lower()
    gated = bool(sizes["gated"])
    entry: JsonDict = {
        **_sizes_of(row, sizes, gated),
        "architecture": "encoder" if bert else "encoder-decoder" if t5 else "decoder",
        "lm_head": not bert,
        "num_decoder_layers": sizes["L"],
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
