"""Gemma 3n and Gemma 4: per-layer inputs, shared keys and values, layers of two head dimensions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sartor.model.layer import AttentionMixer, DenseFfn, Ffn, Layer, Linear, MoeFfn, VectorRole, Vectors
from sartor.model.shape import TransformerShape
from sartor.read.families import parts
from sartor.read.families.decoder import Family, QkNorm, Sizes, assemble, attention, read_sizes
from sartor.read.families.parts import check_experts, check_kv_heads
from sartor.read.families.patterns import Reach
from sartor.read.fields import Fields

GEMMA = Family(q_bias="attention_bias", out_bias="attention_bias", norms=4, qk_norm=QkNorm.HEAD)


def _layer_kinds(f: Fields, layers: int, period: int, *, last_is_full: bool = False) -> list[bool]:
    """Whether each layer's attention is local; every ``period``-th is not."""
    types = f.words("layer_types", length=layers)
    local = [t == "sliding_attention" for t in types] if types else [(i + 1) % period != 0 for i in range(layers)]
    if last_is_full:
        local[-1] = False
    return local


def _first_shared(f: Fields, layers: int) -> int:
    """Index of the first layer that takes its keys and values from an earlier one."""
    shared = f.optional_size("num_kv_shared_layers", least=0) or 0
    if shared >= layers:
        raise f.refuse("num_kv_shared_layers", shared, f"must be below the {layers} layers there are")
    return layers - shared


def _without_kv(mixer: AttentionMixer) -> AttentionMixer:
    """The attention with keys and values of another layer: no K and V projections, no key norm."""
    return replace(mixer, shares_kv=True, vectors=tuple(v for v in mixer.vectors if v.role is not VectorRole.KEY_NORM))


# -- Gemma 3n -----------------------------------------------------------------------------------------------------


def gemma3n_text(f: Fields) -> TransformerShape:
    """Gemma 3n: alternating updates over several residual streams, LAuReL, per-layer embeddings."""
    sizes = read_sizes(f, GEMMA)
    h, layers = sizes.hidden, sizes.layers
    widths = f.sizes("intermediate_size", length=layers) or []
    local, shared = _layer_kinds(f, layers, 5), _first_shared(f, layers)
    window = f.optional_size("sliding_window", least=0) or 0
    streams, rank = f.size("altup_num_inputs"), f.size("laurel_rank")
    per_layer = f.size("hidden_size_per_layer_input")
    linears = (
        parts.plain("router", h, streams),
        replace(parts.plain("router_again", h, streams), reused=True),
        parts.plain("predict", streams, streams * streams),
        parts.plain("correct", streams, streams),
        parts.plain("laurel_left", h, rank),
        parts.plain("laurel_right", rank, h),
        *per_layer_linears(h, per_layer),
    )
    scale = int(f.flag("altup_correct_scale"))
    vectors = (Vectors(name="altup_laurel_norms", per_hidden=3 + scale),)
    built: dict[Any, Layer] = {}
    for key in dict.fromkeys((local[i], i >= shared, widths[i]) for i in range(layers)):
        mixer = attention(f, sizes, GEMMA, Reach(window if key[0] else 0))
        built[key] = Layer(
            mixers=(_without_kv(mixer) if key[1] else mixer,),
            ffn=DenseFfn(ffn_hidden_size=key[2], activation="gelu_pytorch_tanh"),
            norms=(GEMMA.norm,) * 4,
            linears=linears,
            vectors=vectors,
        )
    around = (
        replace(parts.plain("altup_in", h, h), count=streams - 1),
        replace(parts.plain("altup_out", h, h), count=streams - 1),
    )
    tables = _per_layer_tables(f, h, layers, per_layer)
    return assemble(
        f,
        GEMMA,
        h,
        [built[local[i], i >= shared, widths[i]] for i in range(layers)],
        linears=(*around, tables[0]),
        vectors=tables[1],
    )


def per_layer_linears(hidden: int, per_layer: int) -> tuple[Linear, ...]:
    """A layer's projections for its per-layer input: gate down, projection up."""
    return (parts.plain("per_layer_gate", hidden, per_layer), parts.plain("per_layer_up", per_layer, hidden))


def _per_layer_tables(f: Fields, hidden: int, layers: int, per_layer: int) -> tuple[Linear, tuple[Vectors, ...]]:
    """The table of per-layer inputs, the projection that adds to them, its norm."""
    table = f.size("vocab_size_per_layer_input") * layers * per_layer
    return parts.plain("per_layer_inputs", hidden, layers * per_layer), (
        Vectors(name="per_layer_table", fixed=table, embedding=True),
        Vectors(name="per_layer_norm", fixed=per_layer),
    )


# -- Gemma 4 ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _GemmaLayer:
    """What distinguishes one Gemma 4 layer from the next."""

    local: bool
    shared: bool
    head_dim: int
    kv_heads: int


def gemma4_text(f: Fields) -> TransformerShape:
    """Gemma 4: global layers with wider heads, values equal to keys, an expert branch beside the dense part."""
    sizes = read_sizes(f, GEMMA)
    h, layers = sizes.hidden, sizes.layers
    kinds = gemma4_kinds(f, sizes)
    per_layer = f.optional_size("hidden_size_per_layer_input", least=0) or 0
    window = f.optional_size("sliding_window", least=0) or 0
    wide = 2 if f.flag("use_double_wide_mlp", default=False) else 1
    same = f.flag("attention_k_eq_v", default=False)
    width, experts = f.size("intermediate_size"), _gemma4_experts(f, h)
    norms = (GEMMA.norm,) * (4 + (3 if experts else 0) + (1 if per_layer else 0))
    built: dict[_GemmaLayer, Layer] = {}
    for kind in dict.fromkeys(kinds):
        check_kv_heads(f, sizes.heads, kind.kv_heads)
        kind_sizes = replace(sizes, head_dim=kind.head_dim, kv_heads=kind.kv_heads)
        mixer = attention(f, kind_sizes, GEMMA, Reach(window if kind.local else 0))
        mixer = replace(mixer, shares_k_as_v=same and not kind.local)
        built[kind] = Layer(
            mixers=(_without_kv(mixer) if kind.shared else mixer,),
            ffn=DenseFfn(ffn_hidden_size=width * (wide if kind.shared else 1), activation="gelu_pytorch_tanh"),
            ffns=experts,
            norms=norms,
            linears=per_layer_linears(h, per_layer) if per_layer else (),
        )
    tables = _per_layer_tables(f, h, layers, per_layer) if per_layer else None
    return assemble(
        f,
        GEMMA,
        h,
        [built[kind] for kind in kinds],
        linears=(tables[0],) if tables else (),
        vectors=tables[1] if tables else (),
    )


def gemma4_kinds(f: Fields, sizes: Sizes) -> list[_GemmaLayer]:
    """The kind of every layer, from ``per_layer_config`` if the file has it, else from the global sizes."""
    local = _layer_kinds(f, sizes.layers, 6, last_is_full=True)
    shared = _first_shared(f, sizes.layers)
    listed = f.given("per_layer_config")
    overrides = listed if isinstance(listed, dict) else None
    wide = f.optional_size("global_head_dim") or 512
    gated = f.flag("attention_k_eq_v", default=False) if "attention_k_eq_v" in f.defaults.values else True
    kv = (f.optional_size("num_global_key_value_heads") if gated else None) or sizes.kv_heads
    out = []
    for i in range(sizes.layers):
        head_dim, kv_heads = (sizes.head_dim, sizes.kv_heads) if local[i] else (wide, kv)
        if overrides is not None:
            override = overrides.get(str(i), overrides.get(f"{i:02d}", {}))
            inner = Fields(
                override if isinstance(override, dict) else {}, "", f"{f.path}per_layer_config.{i}.", f.ledger
            )
            head_dim = inner.optional_size("head_dim") or sizes.head_dim
            kv_heads = inner.optional_size("num_key_value_heads") or sizes.kv_heads
        out.append(_GemmaLayer(local[i], i >= shared, head_dim, kv_heads))
    return out


def _gemma4_experts(f: Fields, hidden: int) -> tuple[Ffn, ...]:
    """The expert branch (scaled router and experts) if ``enable_moe_block``."""
    if not f.flag("enable_moe_block", default=False):
        return ()
    num, top_k = f.size("num_experts"), f.size("top_k_experts")
    check_experts(f, num, top_k, "top_k_experts")
    return (
        MoeFfn(
            num_experts=num,
            experts_per_token=top_k,
            expert=DenseFfn(ffn_hidden_size=f.size("moe_intermediate_size"), activation="gelu_pytorch_tanh"),
            vectors=(Vectors(name="router_scale", per_hidden=1), Vectors(name="expert_scale", fixed=num)),
        ),
    )
