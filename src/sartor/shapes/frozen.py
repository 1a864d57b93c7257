"""Fields that cannot be searched because of how a model is built, with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from sartor.model.layer import (
    AttentionMixer,
    DenseFfn,
    LatentAttentionMixer,
    Layer,
    MoeFfn,
    SharedWidth,
    StateSpaceMixer,
)
from sartor.model.shape import TransformerShape
from sartor.model.workload import Workload

EXPERT_FIELDS = (
    "num_experts",
    "experts_per_token",
    "expert_ffn_hidden_size",
    "num_shared_experts",
    "shared_ffn_hidden_size",
)
"""Sizes of a mixture of experts; at equal total and active parameters none changes alone."""


def frozen_by_structure(shape: TransformerShape, workload: Workload) -> dict[str, str]:
    """Field -> why a change of it would make a different model."""
    reasons = {
        **mixed(shape),
        **_latent(shape),
        **_given(shape),
        **_experts(shape),
        **_hidden(shape),
        **_layers(shape),
    }
    if not shape.lm_head and shape.encoder_only:
        reasons["vocab_size"] = "no matrix multiplication runs over the vocabulary"
    return {field: why for field, why in reasons.items() if field in shape.fields()}


def _layers_of(shape: TransformerShape) -> list[Layer]:
    return [run.layer for run in shape.main.runs]


def mixed(shape: TransformerShape) -> dict[str, str]:
    """Fields that differ between layers, so one value for all would be a different model."""
    seen: dict[str, set[Any]] = {}
    for field, value in (pair for layer in _layers_of(shape) for pair in _sizes(layer)):
        seen.setdefault(field, set()).add(value)
    return {
        field: f"differs between layers ({', '.join(str(v) for v in sorted(values))})"
        for field, values in seen.items()
        if len(values) > 1
    }


def _sizes(layer: Layer) -> Iterator[tuple[str, Any]]:
    for mixer in layer.mixers:
        if isinstance(mixer, (AttentionMixer, LatentAttentionMixer)):
            yield "num_heads", mixer.num_heads
            yield "num_kv_heads", mixer.num_kv_heads
            yield "head_dim", mixer.head_dim
    for part in layer.all_ffns:
        if isinstance(part, DenseFfn):
            yield "ffn_hidden_size", part.ffn_hidden_size
        else:
            yield "num_experts", part.num_experts
            yield "experts_per_token", part.experts_per_token
            yield "expert_ffn_hidden_size", part.expert.ffn_hidden_size
            if part.shared is not None and part.shared_width is SharedWidth.COUNTED:
                yield "num_shared_experts", part.num_shared
            elif part.shared is not None:
                yield "shared_ffn_hidden_size", part.shared.ffn_hidden_size


def _latent(shape: TransformerShape) -> dict[str, str]:
    if not isinstance(shape.attention, LatentAttentionMixer):
        return {}
    # Every head has its own keys and values, so their number follows the heads and needs no reason.
    return {"head_dim": "latent attention keeps its head dimensions", "num_kv_heads": ""}


def _experts(shape: TransformerShape) -> dict[str, str]:
    if shape.moe_ffn is None:
        return {}
    reasons: dict[str, str] = {}
    if shape.dense_ffn is not None:
        reasons["ffn_hidden_size"] = "the search varies the width of the experts"
    if shape.moe_ffn.shared_width is SharedWidth.TIED:
        reasons["experts_per_token"] = "one shared expert is as wide as a routed one, whatever their number"
    if isinstance(shape.moe_ffn, MoeFfn) and shape.moe_ffn.expert_hidden_size is not None:
        reasons["hidden_size"] = "experts have their own hidden size"
    return reasons


def _hidden(shape: TransformerShape) -> dict[str, str]:
    """The residual width, if something outside the linear layers depends on it."""
    layers, main = _layers_of(shape), shape.main
    mixers = [mixer for layer in layers for mixer in layer.mixers]
    parts = [part for layer in layers for part in layer.all_ffns]
    reasons = {
        "state-space projections are made for it": any(isinstance(m, StateSpaceMixer) for m in mixers),
        "another stack is projected to it": len(shape.stacks) > 1,
        "the token embedding has its own width": shape.embedding_size is not None,
        "linear layers outside attention and feed-forward are made for it": bool(
            shape.linears
            or main.linears
            or any(layer.linears for layer in layers)
            or any(m.projections for m in mixers if not isinstance(m, StateSpaceMixer))
            or any(p.projections for p in parts if isinstance(p, MoeFfn))
        ),
        "parameters outside its linear layers are tied to it": any(
            _is_given(owner) for owner in (shape, main, *layers, *mixers, *parts)
        ),
    }
    why = next((reason for reason, holds in reasons.items() if holds), "")
    return {"hidden_size": why} if why else {}


def _given(shape: TransformerShape) -> dict[str, str]:
    """Heads and widths of parts whose linear layers or vectors have fixed sizes in the config."""
    layers = _layers_of(shape)
    mixers = [m for layer in layers for m in layer.mixers if isinstance(m, (AttentionMixer, LatentAttentionMixer))]
    parts = [part for layer in layers for part in layer.all_ffns]
    reasons: dict[str, str] = {}
    if any(_is_given(m) or m.projections or getattr(m, "own_linears", None) for m in mixers):
        reasons |= dict.fromkeys(("num_heads", "num_kv_heads", "head_dim"), "attention has parts made for it")
    if any(p.vectors for p in parts if isinstance(p, DenseFfn)):
        reasons["ffn_hidden_size"] = "the feed-forward part has vectors made for it"
    if any(_is_given(p) or p.expert.vectors for p in parts if isinstance(p, MoeFfn)):
        reasons |= dict.fromkeys(EXPERT_FIELDS, "experts have vectors made for it")
    return reasons


def _is_given(owner: Any) -> bool:
    """Whether the part has vectors of a fixed size that ``edit`` does not adapt."""
    latent = isinstance(owner, LatentAttentionMixer)
    usual_fields = FOLLOWING | ({"q_norm", "kv_norm"} if latent else set())
    return any(not (isinstance(v.fixed, int) and v.fixed == 0) and v.name not in usual_fields for v in owner.vectors)


FOLLOWING = {"q_norm", "k_norm", "sinks", "score_bias"}
"""Vectors of fixed size that ``edit`` adapts to heads and experts; none depends on the hidden size."""


def _layers(shape: TransformerShape) -> dict[str, str]:
    """The depth, if layers of several kinds alternate, because another depth changes the mix. A few dense layers before
    the experts do not count."""
    runs = shape.main.runs
    kinds = {repr(replace(run.layer, ffn=None, ffns=())) for run in runs}
    if len(kinds) > 1 or (len(runs) > 1 and any(run.positions and not _first(run.positions) for run in runs[:-1])):
        return {"num_layers": "layers of several kinds alternate"}
    if any(run.weight_sets is not None for run in runs):
        return {"num_layers": "layers share weights"}
    return {}


def _first(positions: tuple[int, ...]) -> bool:
    """Whether the positions are the stack's first ones."""
    return positions == tuple(range(len(positions)))
