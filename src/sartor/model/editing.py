"""A model with some of its fields changed: by name, with what follows from them, checked."""

from __future__ import annotations

import difflib
from dataclasses import replace

from sartor.errors import InputError
from sartor.json_types import JsonMap
from sartor.model.layer import (
    AttentionMixer,
    DenseFfn,
    Ffn,
    LatentAttentionMixer,
    Layer,
    Linear,
    Mixer,
    MoeFfn,
    SharedWidth,
    Split,
    StateSpaceMixer,
    VectorRole,
    Vectors,
)
from sartor.model.shape import LayerRun, Stack, TransformerShape
from sartor.units import Floats, Ints, nearest_divisors

EDITABLE = (
    "num_layers",
    "hidden_size",
    "vocab_size",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "ffn_hidden_size",
    "num_experts",
    "experts_per_token",
    "expert_ffn_hidden_size",
    "num_shared_experts",
    "shared_ffn_hidden_size",
    "q_lora_rank",
    "kv_lora_rank",
    "num_full_layers",
)
"""Fields that ``edit`` (and so ``--set`` and the shape search) can change."""


CONFIG_KEYS: dict[str, tuple[str, ...]] = {
    "num_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden_size": ("hidden_size", "n_embd", "d_model", "dim"),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
    "num_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "num_kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num", "multi_query"),
    "head_dim": ("head_dim", "d_kv", "kv_channels", "qk_nope_head_dim", "num_attention_heads", "n_head", "n_heads"),
    "ffn_hidden_size": ("intermediate_size", "ffn_hidden_size", "n_inner", "d_ff", "ffn_dim", "hidden_size", "n_embd"),
    "num_experts": ("num_local_experts", "n_routed_experts", "num_experts"),
    "experts_per_token": ("num_experts_per_tok", "moe_topk", "top_k"),
    "expert_ffn_hidden_size": ("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size"),
    "num_shared_experts": ("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts"),
    "shared_ffn_hidden_size": (
        "shared_expert_intermediate_size",
        "moe_shared_expert_intermediate_size",
        "shared_intermediate_size",
    ),
    "q_lora_rank": ("q_lora_rank",),
    "kv_lora_rank": ("kv_lora_rank",),
    "num_full_layers": ("layer_types",),
}
"""Keys of a field in published config.json files, the most specific first; a derived size by the keys it is derived
from (a head dimension by the heads)."""


def edit(shape: TransformerShape, **changes: Ints) -> TransformerShape:
    """The shape with some of its ``EDITABLE`` fields changed, in every layer of the main stack that has them.

    An encoder beside a decoder changes too where its size equals the decoder's, as if one key of config.json set both.

    Values may be arrays of candidates that broadcast against each other. Changing only the heads keeps ``head_dim`` and
    the rotary share of a head; a shape whose key/value heads equal its heads keeps them equal unless ``num_kv_heads``
    is given too. ``num_layers`` keeps the first layers (dense ones before the experts) and the mix of the rest. Other
    linear layers (gates, projections) are resized where their width equals the old ``hidden_size``.

    Raises `InputError` for a field the model does not have, and, for plain integers, for inconsistent sizes (heads that
    key/value heads do not divide, more experts per token than experts).
    """
    _check_edit(shape, changes)
    old = shape.main
    stacks = tuple(_edit_stack(stack, _that_follow(shape, stack, changes)) for stack in shape.stacks)
    if "hidden_size" in changes:
        shape = replace(shape, linears=_follow(shape.linears, old.hidden_size, changes["hidden_size"]))
    return replace(shape, stacks=stacks, vocab_size=changes.get("vocab_size", shape.vocab_size))


def _that_follow(shape: TransformerShape, stack: Stack, changes: dict[str, Ints]) -> dict[str, Ints]:
    """The changes that apply to a stack: to the main one all, to other text stacks those of sizes shared with it."""
    if stack is shape.main:
        return changes
    if not stack.is_text:
        return {}
    main, stack_fields = shape.fields(), replace(shape, stacks=(stack,)).fields()
    return {
        name: new
        for name, new in changes.items()
        if name in stack_fields and _plain(stack_fields[name]) == _plain(main[name])
    }


def _edit_stack(stack: Stack, changes: dict[str, Ints]) -> Stack:
    runs, linears = tuple(replace(run, layer=_edit_layer(run.layer, changes)) for run in stack.runs), stack.linears
    if "hidden_size" in changes:
        width, wider = stack.hidden_size, changes["hidden_size"]
        runs = tuple(replace(run, layer=_follow_layer(run.layer, width, wider)) for run in runs)
        linears = _follow(linears, width, wider)
    if "num_layers" in changes:
        runs = _rescale(runs, changes["num_layers"])
    if "num_full_layers" in changes and stack.full_run is not None:
        runs = _reach(runs, stack.full_run, changes["num_full_layers"])
    return replace(
        stack,
        runs=runs,
        linears=linears,
        vectors=_follow_biases(stack.vectors, stack.runs[0].layer if stack.runs else None, changes),
        hidden_size=changes.get("hidden_size", stack.hidden_size),
    )


def _follow_biases(vectors: tuple[Vectors, ...], layer: Layer | None, changes: dict[str, Ints]) -> tuple[Vectors, ...]:
    """Resize relative-position biases: one per head and bucket (Raffel et al. 2020, sec. 2.1)."""
    heads = getattr(layer.mixers[0], "num_heads", 0) if layer and layer.mixers else 0
    if "num_heads" not in changes or not heads:
        return vectors
    return tuple(
        replace(v, fixed=v.fixed // heads * changes["num_heads"]) if v.role is VectorRole.RELATIVE_BIAS else v
        for v in vectors
    )


def _check_edit(shape: TransformerShape, changes: dict[str, Ints]) -> None:
    """Reject invalid changes: unknown or absent fields, inconsistent sizes."""
    for name, value in changes.items():
        if name not in EDITABLE:
            near = difflib.get_close_matches(name, EDITABLE, 2, 0.5)
            must = f"cannot be set; fields that can: {', '.join(EDITABLE)}"
            raise InputError(name, _plain(value), must, " and ".join(near))
        if _plain(value) is not None and int(value) < 1:
            raise InputError(name, value, "must be a positive integer")
        if name not in shape.fields():
            raise InputError(name, _plain(value), f"this model has none; it has {', '.join(shape.fields())}")
    if isinstance(shape.attention, LatentAttentionMixer):
        follows = {"head_dim": shape.head_dim, "num_kv_heads": changes.get("num_heads", shape.num_heads)}
        for name, value in follows.items():
            if name in changes and _plain(changes[name]) != _plain(value):
                raise InputError(name, _plain(changes[name]), "is fixed by latent attention; num_heads can be set")
    after = {name: _plain(changes.get(name, value)) for name, value in shape.fields().items()}
    heads, kv_heads = after.get("num_heads"), after.get("num_kv_heads")
    if shape.num_heads is shape.num_kv_heads or _plain(shape.num_heads) == _plain(shape.num_kv_heads):
        kv_heads = _plain(changes.get("num_kv_heads", heads))
    if heads and kv_heads and heads % kv_heads:
        name = "num_heads" if "num_heads" in changes else "num_kv_heads"
        below = kv_heads * max(1, heads // kv_heads)
        if name == "num_heads":
            raise InputError(
                name, heads, f"must be a multiple of num_kv_heads {kv_heads}", f"{below} and {below + kv_heads}"
            )
        raise InputError(name, kv_heads, f"must divide num_heads {heads}", nearest_divisors(heads, kv_heads))
    experts, chosen = after.get("num_experts"), after.get("experts_per_token")
    if experts and chosen and chosen > experts:
        raise InputError("experts_per_token", chosen, f"must be at most num_experts {experts}", str(experts))
    full, depth = after.get("num_full_layers"), after.get("num_layers")
    if "num_full_layers" in changes and full and depth and full >= depth:
        raise InputError("num_full_layers", full, f"must be below the {depth} layers", str(depth - 1))
    layers, others = after.get("num_layers"), _layers_beside_the_largest_run(shape.main)
    if "num_layers" in changes and layers and layers <= others:
        must = f"must be more than the {others} layers that differ from the rest"
        raise InputError("num_layers", layers, must, str(others + 1))


def _plain(value: object) -> int | None:
    """The value if it is one integer, None for an array of candidates."""
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _layers_beside_the_largest_run(stack: Stack) -> int:
    counts = [_plain(run.count) or 0 for run in stack.runs]
    return sum(counts) - max(counts, default=0)


def _follow_layer(layer: Layer, old: Ints, new: Ints) -> Layer:
    return replace(
        layer,
        linears=_follow(layer.linears, old, new),
        mixers=tuple(replace(m, projections=_follow(m.projections, old, new)) for m in layer.mixers),
    )


def _follow(linears: tuple[Linear, ...], old: Ints, new: Ints) -> tuple[Linear, ...]:
    """Linears with the residual side(s) resized: the input of a column-parallel one, the output of a row-parallel one,
    both of one that is not split."""
    if not isinstance(old, int):
        return linears
    return tuple(
        replace(
            x,
            d_in=new if x.split is not Split.ROW and _plain(x.d_in) == old else x.d_in,
            d_out=new if x.split in (Split.ROW, Split.REPLICATED) and _plain(x.d_out) == old else x.d_out,
        )
        for x in linears
    )


def _edit_layer(layer: Layer, changes: dict[str, Ints]) -> Layer:
    return replace(
        layer,
        mixers=tuple(_edit_mixer(mixer, changes) for mixer in layer.mixers),
        ffn=None if layer.ffn is None else _edit_ffn(layer.ffn, changes),
        ffns=tuple(_edit_ffn(part, changes) for part in layer.ffns),
        vectors=_follow_biases(layer.vectors, layer, changes),
    )


def _edit_mixer(mixer: Mixer, changes: dict[str, Ints]) -> Mixer:
    if isinstance(mixer, StateSpaceMixer):
        return mixer
    heads = changes.get("num_heads", mixer.num_heads)
    if isinstance(mixer, LatentAttentionMixer):
        return replace(
            mixer,
            num_heads=heads,
            q_lora_rank=changes.get("q_lora_rank", mixer.q_lora_rank),
            kv_lora_rank=changes.get("kv_lora_rank", mixer.kv_lora_rank),
            vectors=tuple(_follow_rank(vector, mixer, changes) for vector in mixer.vectors),
        )
    multi_head = isinstance(mixer.num_heads, int) and mixer.num_heads == mixer.num_kv_heads
    kv_heads = changes.get("num_kv_heads", heads if multi_head else mixer.num_kv_heads)
    head_dim = changes.get("head_dim", mixer.head_dim)
    has_rotary = not (isinstance(mixer.rotary_dim, int) and mixer.rotary_dim == 0)
    rotary_dim = mixer.rotary_dim * head_dim // mixer.head_dim if has_rotary else 0
    edited = replace(mixer, num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim, rotary_dim=rotary_dim)
    return replace(
        edited,
        vectors=tuple(_follow_heads(vector, mixer, edited) for vector in mixer.vectors),
        projections=tuple(_follow_gate(linear, mixer, edited) for linear in mixer.projections),
    )


def _follow_rank(vector: Vectors, old: LatentAttentionMixer, changes: dict[str, Ints]) -> Vectors:
    """Resize the norm of a latent to the latent's new width."""
    rank = {VectorRole.QUERY_NORM: "q_lora_rank", VectorRole.LATENT_NORM: "kv_lora_rank"}.get(vector.role, "")
    follows = rank in changes and _plain(vector.fixed) == _plain(old.ranks[rank])
    return replace(vector, fixed=changes[rank]) if follows else vector


def _follow_heads(vector: Vectors, old: AttentionMixer, new: AttentionMixer) -> Vectors:
    """Resize query and key norms, which cover one head or all heads, and sinks, one per query head."""
    if vector.role is VectorRole.SINKS:
        return replace(vector, fixed=vector.fixed // old.num_heads * new.num_heads)
    if vector.role not in (VectorRole.QUERY_NORM, VectorRole.KEY_NORM):
        return vector
    is_query = vector.role is VectorRole.QUERY_NORM
    was, now = (old.num_heads, new.num_heads) if is_query else (old.num_kv_heads, new.num_kv_heads)
    covers_all = isinstance(vector.fixed, int) and vector.fixed % (was * old.head_dim) == 0
    was, now = (was, now) if covers_all else (1, 1)
    return replace(vector, fixed=vector.fixed // (was * old.head_dim) * (now * new.head_dim))


def _follow_gate(linear: Linear, old: AttentionMixer, new: AttentionMixer) -> Linear:
    """Resize a gate on attention's output: as wide as all heads, or one value per head."""
    width = _plain(linear.d_out)
    if not linear.gates or width is None:
        return linear
    if width == _plain(old.num_heads * old.head_dim):
        return replace(linear, d_out=new.num_heads * new.head_dim)
    return replace(linear, d_out=new.num_heads) if width == _plain(old.num_heads) else linear


def _edit_ffn(part: Ffn, changes: dict[str, Ints]) -> Ffn:
    if isinstance(part, DenseFfn):
        return replace(part, ffn_hidden_size=changes.get("ffn_hidden_size", part.ffn_hidden_size))
    width = changes.get("expert_ffn_hidden_size", part.expert.ffn_hidden_size)
    experts = changes.get("num_experts", part.num_experts)
    return replace(
        part,
        num_experts=experts,
        vectors=tuple(
            replace(v, fixed=v.fixed // part.num_experts * experts) if v.role is VectorRole.SCORE_BIAS else v
            for v in part.vectors
        ),
        experts_per_token=changes.get("experts_per_token", part.experts_per_token),
        expert=replace(part.expert, ffn_hidden_size=width),
        shared=_edit_shared(part, width, changes),
    )


def _edit_shared(part: MoeFfn, width: Ints, changes: dict[str, Ints]) -> DenseFfn | None:
    """Shared experts counted in routed ones get the new width of those; one with a width of its own keeps it."""
    if part.shared is None:
        return None
    if part.shared_width is SharedWidth.TIED:
        return replace(part.shared, ffn_hidden_size=width)
    if part.shared_width is SharedWidth.COUNTED:
        return replace(part.shared, ffn_hidden_size=changes.get("num_shared_experts", part.num_shared) * width)
    shared_width = part.shared.ffn_hidden_size
    return replace(part.shared, ffn_hidden_size=changes.get("shared_ffn_hidden_size", shared_width))


def _rescale(runs: tuple[LayerRun, ...], num_layers: Ints) -> tuple[LayerRun, ...]:
    """Layer counts for a new depth: the largest run takes the difference."""
    largest = max(range(len(runs)), key=lambda i: runs[i].count)
    others = sum(run.count for i, run in enumerate(runs) if i != largest)
    return tuple(
        replace(run, count=num_layers - others, positions=()) if i == largest else run for i, run in enumerate(runs)
    )


def _reach(runs: tuple[LayerRun, ...], full: int, count: Ints) -> tuple[LayerRun, ...]:
    """``count`` layers with full attention, evenly spread, each the last of its group; the others keep the window."""
    if _plain(runs[full].count) == _plain(count) is not None:
        return runs
    layers = sum((run.count for run in runs), 0)
    places = _last_of_each(_plain(layers), _plain(count))
    others = tuple(i for i in range(_plain(layers) or 0) if places and i not in places)
    return tuple(
        replace(run, count=count, positions=places)
        if i == full
        else replace(run, count=layers - count, positions=others)
        for i, run in enumerate(runs)
    )


def _last_of_each(layers: int | None, groups: int | None) -> tuple[int, ...]:
    """The last layer of each of ``groups`` even groups; empty for arrays of candidates."""
    return () if not layers or not groups else tuple((i + 1) * layers // groups - 1 for i in range(groups))


LARGEST = {"num_layers": 100_000, "vocab_size": 2**31 - 1, "mtp_layers": 64}
"""Largest plausible sizes; other fields stop at 2^24."""


def edit_fields(shape: TransformerShape, changes: JsonMap) -> tuple[TransformerShape, tuple[str, ...]]:
    """The shape with ``changes`` (integers, or their digits), and the derived changes as text.

    If heads times head dimension equals the hidden size, ``head_dim`` is adjusted to keep it so unless given. Raises
    ``InputError`` for unknown fields, values that are not positive integers, and heads that do not divide.
    """
    if "mtp_layers" in changes:
        shape = replace(shape, mtp_layers=_integer("mtp_layers", changes["mtp_layers"], least=0))
    sizes = {_field(name): _integer(name, value) for name, value in changes.items() if name != "mtp_layers"}
    missing = sorted(set(sizes) - set(shape.fields()))
    if missing:
        raise InputError("set", missing[0], f"{shape.name or 'this model'} has none", ", ".join(shape.fields()))
    notes: tuple[str, ...] = ()
    if {"num_heads", "hidden_size"} & set(sizes) and "head_dim" not in sizes and _heads_fill_hidden(shape):
        hidden = sizes.get("hidden_size", int(shape.hidden_size))
        heads = sizes.get("num_heads", int(shape.num_heads))
        sizes["head_dim"] = _share(hidden, heads)
        notes = (f"head_dim={sizes['head_dim']} (hidden_size / num_heads, as before)",)
    return edit(shape, **sizes), notes


def _field(name: str) -> str:
    if name not in EDITABLE:
        near = difflib.get_close_matches(name, EDITABLE, 3, 0.5)
        raise InputError("set", name, "is not a field of a shape", ", ".join(near or EDITABLE))
    return name


def _integer(name: str, value: Floats, least: int = 1) -> int:
    largest = LARGEST.get(name, 2**24)
    text = str(value)
    digits = text.isascii() and text.isdigit() and not isinstance(value, bool)
    if not digits or not least <= int(text[:20]) <= largest:
        raise InputError(name, value, f"must be an integer from {least} to {largest}")
    return int(text)


def _heads_fill_hidden(shape: TransformerShape) -> bool:
    return int(shape.num_heads) > 0 and int(shape.num_heads * shape.head_dim) == int(shape.hidden_size)


def _share(hidden: int, heads: int) -> int:
    if hidden % heads:
        must = f"must divide hidden_size={hidden} (or set head_dim)"
        raise InputError("num_heads", heads, must, nearest_divisors(hidden, heads))
    return hidden // heads
