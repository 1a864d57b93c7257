"""Decoders with latent attention: sparse by an indexer, compressed keys, several parallel residual streams.

Text decoders that combine several of the other modules' parts: delta attention with indexed latent attention, short
convolutions in attention, layers without positions.
"""

from __future__ import annotations

from dataclasses import replace

from sartor.json_types import JsonDict
from sartor.model.layer import (
    AttentionMixer,
    DenseFfn,
    Ffn,
    Layer,
    Linear,
    Mixer,
    MoeFfn,
    Selection,
    SharedWidth,
    Split,
    VectorRole,
    Vectors,
    lightning_indexer,
)
from sartor.model.shape import TransformerShape
from sartor.read.families import parts
from sartor.read.families.decoder import (
    Experts,
    Family,
    QkNorm,
    assemble,
    attention,
    latent_attention,
    layers_of,
    moe_ffn,
    read_sizes,
)
from sartor.read.families.linear_attention import delta_attention
from sartor.read.families.parts import Reach, all_sparse, check_experts, dense_first
from sartor.read.fields import Fields

SPARSE = Family(
    latent=True,
    q_bias="attention_bias",
    experts=Experts(
        sparse=dense_first("first_k_dense_replace"),
        num=("n_routed_experts", "num_experts"),
        shared_count=("n_shared_experts",),
    ),
)


def _indexer(f: Fields, hidden: int) -> tuple[tuple[Linear, ...], tuple[Vectors, ...]]:
    num, d, rank = f.size("index_n_heads"), f.size("index_head_dim"), f.size("q_lora_rank")
    return lightning_indexer(hidden, rank, heads=num, head_dim=d)


def _selection(f: Fields, most: str = "index_topk") -> Selection:
    """How many keys the indexer leaves, said in the answer: it changes no parameter count."""
    keys, heads, d = f.size(most), f.size("index_n_heads"), f.size("index_head_dim")
    f.ledger.note(
        f"sparse attention: {keys:,} keys per query ({f.path}{most}), chosen by an indexer that scores every key with "
        f"{heads} heads of {d}"
    )
    return Selection(keys=keys, heads=heads, head_dim=d)


def sparse_latent(f: Fields) -> TransformerShape:
    """DeepSeek-V3.2 and GLM-5: latent attention over the keys an indexer chose; some layers reuse the choice."""
    sizes = read_sizes(f, SPARSE)
    plain = latent_attention(f, sizes, SPARSE, Reach())
    linears, vectors = _indexer(f, sizes.hidden)
    selection = _selection(f)
    reusing = replace(plain, selection=Selection(keys=selection.keys))
    choosing = replace(plain, projections=linears, vectors=(*plain.vectors, *vectors), selection=selection)
    kinds = _indexer_kinds(f, sizes.layers)
    mixers = [choosing if kind == "full" else reusing for kind in kinds]
    return assemble(f, SPARSE, sizes.hidden, layers_of(f, SPARSE, sizes, mixers))


def _indexer_kinds(f: Fields, layers: int) -> list[str]:
    """For each layer "full" (has its own indexer) or "shared" (reuses an earlier layer's choice)."""
    listed = f.words("indexer_types", length=layers)
    if listed is not None:
        return listed
    if f.model_type != "glm_moe_dsa":
        return ["full"] * layers
    pattern = f.given("index_topk_pattern")
    if isinstance(pattern, str) and len(pattern) == layers:
        return ["full" if c == "F" else "shared" for c in pattern]
    period = f.optional_size("index_topk_freq") or 1
    offset = f.given("index_skip_topk_offset", 2)
    offset = offset if isinstance(offset, int) else 2
    return ["full" if max(i - offset + 1, 0) % period == 0 else "shared" for i in range(layers)]


def _hyper_connections(hidden: int, streams: int, outputs: int, scales: int, name: str) -> tuple[Linear, Vectors]:
    """Mixing of residual streams (arXiv 2409.19606): one projection of all of them, a base and scales."""
    return parts.plain(name, streams * hidden, outputs), Vectors(name=name, fixed=outputs + scales)


def hy_v4(f: Fields) -> TransformerShape:
    """Hunyuan 4: sparse latent attention with sinks and a gate, experts, four residual streams."""
    family = Family(latent=True, q_bias="attention_bias", experts=_shared(f))
    sizes = read_sizes(f, family)
    h, streams = sizes.hidden, f.size("hc_mult")
    plain = latent_attention(f, sizes, family, Reach())
    gate = Linear(name="gate", d_in=h, d_out=sizes.heads * int(plain.v_head_dim), gates=True)
    linears, vectors = _indexer(f, h)
    sink = Vectors(name="sinks", role=VectorRole.SINKS, fixed=sizes.heads)
    selection = _selection(f)
    reused = Selection(keys=selection.keys)
    reusing = replace(plain, projections=(gate,), vectors=(*plain.vectors, sink), selection=reused)
    choosing = replace(reusing, projections=(gate, *linears), vectors=(*reusing.vectors, *vectors), selection=selection)
    kinds = f.words("indexer_types", length=sizes.layers) or [
        "full" if i == 0 or (i - 1) % 4 == 0 else "shared" for i in range(sizes.layers)
    ]
    two = [_hyper_connections(h, streams, 2 * streams, 2, name) for name in ("attention_streams", "ffn_streams")]
    mixers = [choosing if kind == "full" else reusing for kind in kinds]
    linears_of, vectors_of = tuple(x for x, _ in two), tuple(v for _, v in two)
    layers = layers_of(f, family, sizes, mixers, linears=linears_of, vectors=vectors_of)
    top = _hyper_connections(h, streams, streams, 1, "head_streams")
    return assemble(f, family, h, layers, linears=(top[0],), vectors=(top[1],))


def _shared(f: Fields) -> Experts:
    return Experts(
        sparse=dense_first(otherwise=1),
        num=("n_routed_experts", "num_experts"),
        shared_count=("n_shared_experts",),
    )


def dots3_note_text(f: Fields) -> TransformerShape:
    """Dots 3: indexed and sliding latent attention of different sizes, a gate per head, experts."""
    experts = replace(
        _shared(f),
        shared_count=(),
        shared_width=("moe_shared_expert_intermediate_size", "shared_experts_intermediate_size"),
    )
    family = Family(latent=True, q_bias="attention_bias", experts=experts)
    sizes = read_sizes(f, family)
    n, h = sizes.layers, sizes.hidden
    indexed = f.flag("use_dsa", default=True)
    full = "indexed_attention" if indexed else "full_attention"
    kinds = f.words("layer_types", length=n) or [full if i < 2 or i % 4 == 1 else "sliding_attention" for i in range(n)]
    kinds = [full if kind in ("full_attention", "indexed_attention") else kind for kind in kinds]
    linears, vectors = _indexer(f, h)
    window = f.optional_size("sliding_window", "sliding_window_size") or 512
    built: JsonDict = {}
    for kind in dict.fromkeys(kinds):
        fields = _sliding_fields(f, kinds.index(kind)) if kind == "sliding_attention" else f
        kind_sizes = read_sizes(fields, family)
        mixer = latent_attention(fields, kind_sizes, family, Reach(window if kind == "sliding_attention" else 0))
        gate = parts.gate(h, kind_sizes.heads)
        rope = Vectors(name="rope_norm", fixed=int(mixer.qk_rope_head_dim))
        extra = (linears, vectors) if kind == "indexed_attention" else ((), ())
        built[kind] = replace(
            mixer,
            projections=(gate, *extra[0]),
            vectors=(*mixer.vectors, rope, *extra[1]),
            selection=_selection(f) if kind == "indexed_attention" else None,
        )
    layers = layers_of(f, family, sizes, [built[kind] for kind in kinds])
    return assemble(f, family, h, layers)


_SLIDING = {
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "q_lora_rank": 1024,
    "kv_lora_rank": 1024,
    "head_dim": 256,
    "qk_nope_head_dim": 192,
    "v_head_dim": 128,
}
"""Published sizes of Dots 3's sliding layers, for files without ``swa_*`` fields."""


def _sliding_fields(f: Fields, layer: int) -> Fields:
    """The fields with the sliding layers' values, from ``per_layer_config`` or ``swa_*``."""
    overrides = f.given("per_layer_config")
    if isinstance(overrides, dict):
        override = overrides.get(str(layer), overrides.get(f"{layer:02d}", {}))
        override = override if isinstance(override, dict) else {}
    else:
        override = {name: f.given(f"swa_{name}", default) for name, default in _SLIDING.items()}
        override["qk_rope_head_dim"] = f.given(
            "swa_qk_rope_head_dim", override["head_dim"] - override["qk_nope_head_dim"]
        )
    return replace(f, raw={**f.raw, **override})


def deepseek_v4(f: Fields) -> TransformerShape:
    """DeepSeek-V4: one key head read through compressors, grouped low-rank output, four residual streams.

    Scores are counted over both the sequence and its compressed keys, like in the published class.
    """
    family = Family(
        mlp_bias="mlp_bias", experts=replace(_shared(f), sparse=all_sparse, width=("moe_intermediate_size",))
    )
    if f.optional_size("num_hash_layers", least=0):
        f.ledger.guess(
            "layers that route by a table of tokens (num_hash_layers) are counted with a router as the others"
        )
    sizes = replace(read_sizes(f, family), kv_heads=1)
    h, n, d, rank = sizes.hidden, sizes.layers, sizes.head_dim, f.size("q_lora_rank")
    kinds = f.words("layer_types", length=n) or _compressed_kinds(f, n)
    window, streams = f.optional_size("sliding_window") or 0, f.size("hc_mult")
    built: dict[str, Layer] = {}
    mixed = [
        _hyper_connections(h, streams, (2 + streams) * streams, 3, x) for x in ("attention_streams", "ffn_streams")
    ]
    moe = moe_ffn(f, sizes, family)
    for kind in dict.fromkeys(kinds):
        linears, vectors = _compressor(f, kind, h, d, rank)
        mixer = AttentionMixer(
            num_heads=sizes.heads,
            num_kv_heads=1,
            head_dim=d,
            window=window,
            pooled=_rate(f, kind),
            selection=replace(_selection(f), pool=_rate(f, kind)) if kind == "compressed_sparse_attention" else None,
            shares_k_as_v=True,
            own_linears=parts.with_roles((*_v4_linears(f, h, sizes.heads * d, d, rank), *linears)),
            vectors=(
                Vectors(name="sinks", role=VectorRole.SINKS, fixed=sizes.heads),
                Vectors(name="q_norm", role=VectorRole.QUERY_NORM, fixed=rank),
                Vectors(name="kv_norm", role=VectorRole.LATENT_NORM, fixed=d),
                *vectors,
            ),
        )
        built[kind] = Layer(
            mixers=(mixer,),
            ffn=moe,
            norms=(family.norm, family.norm),
            linears=tuple(x for x, _ in mixed),
            vectors=tuple(v for _, v in mixed),
        )
    top = _hyper_connections(h, streams, streams, 1, "head_streams")
    return assemble(f, family, h, [built[kind] for kind in kinds], linears=(top[0],), vectors=(top[1],))


def _v4_linears(f: Fields, h: int, width: int, d: int, rank: int) -> tuple[Linear, ...]:
    groups, narrow = f.size("o_groups"), f.size("o_lora_rank")
    return (
        parts.plain("q_down", h, rank),
        Linear(name="q_up", d_in=rank, d_out=width),
        parts.plain("kv", h, d),
        Linear(name="out_down", d_in=width // groups, d_out=narrow, count=groups),
        Linear(name="out_up", d_in=groups * narrow, d_out=h, split=Split.ROW),
    )


def _compressed_kinds(f: Fields, layers: int) -> list[str]:
    ratios = f.sizes("compress_ratios", least=0)
    names = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
    if ratios is not None:
        unknown = next((r for r in ratios[:layers] if r not in names), None)
        if unknown is not None or len(ratios) < layers:
            raise f.refuse(
                "compress_ratios", ratios[:4] if unknown is None else unknown, "must be 0, 4 or 128 per layer"
            )
        return [names[r] for r in ratios[:layers]]
    return [names[128] if i < 2 or i % 2 == 0 else names[4] for i in range(layers)]


_RATES = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}


def _rate(f: Fields, kind: str) -> int:
    """Number of tokens per compressed key; 0 for layers without a compressor."""
    if kind not in _RATES:
        return 0
    rates = f.given("compress_rates")
    inner = Fields(rates if isinstance(rates, dict) else {}, "", f"{f.path}compress_rates.", f.ledger)
    return inner.optional_size(kind) or _RATES[kind]


def _compressor(f: Fields, kind: str, h: int, d: int, rank: int) -> tuple[tuple[Linear, ...], tuple[Vectors, ...]]:
    rate = _rate(f, kind)
    if kind == "heavily_compressed_attention":
        return (parts.plain("pool", h, d), parts.plain("pool_gate", h, d)), (
            Vectors(name="pool_positions", fixed=rate * d + d),
        )
    if kind != "compressed_sparse_attention":
        return (), ()
    num, narrow = f.size("index_n_heads"), f.size("index_head_dim")
    linears = (
        parts.plain("pool", h, 2 * d),
        parts.plain("pool_gate", h, 2 * d),
        parts.plain("index_pool", h, 2 * narrow),
        parts.plain("index_pool_gate", h, 2 * narrow),
        parts.plain("index_q", rank, num * narrow),
        parts.plain("index_weights", h, num),
    )
    return linears, (Vectors(name="pool_positions", fixed=rate * 2 * (d + narrow) + d + narrow),)


def glm5_next_text(f: Fields) -> TransformerShape:
    """GLM-5-Next: delta attention, every fourth layer indexed latent attention without rotary part, four streams."""
    family = Family(
        latent=True,
        q_bias="attention_bias",
        experts=Experts(sparse=dense_first(otherwise=3), num=("n_routed_experts",), shared_count=("n_shared_experts",)),
    )
    sizes = read_sizes(f, family)
    h, n, streams = sizes.hidden, sizes.layers, f.size("hc_mult")
    nested = f.given("linear_attn_config")
    inner = replace(f, raw=nested, path=f"{f.path}linear_attn_config.") if isinstance(nested, dict) else f
    heads, d = inner.size("linear_num_heads", "num_heads"), inner.size("linear_head_dim", "head_dim")
    delta = delta_attention(h, heads, d, inner.size("linear_conv_kernel_dim", "short_conv_kernel_size"))
    plain = latent_attention(f, sizes, family, Reach())
    linears, vectors = _indexer(f, h)
    narrow, pool = f.size("index_head_dim"), f.optional_size("index_kpool_compress_ratio", "index_kpool_ratio") or 16
    pooled = (*linears, parts.plain("index_pool_gate", h, narrow))
    table = Vectors(name="index_pool", fixed=pool * narrow)
    selection = replace(_selection(f), pool=pool)
    choosing = replace(plain, projections=pooled, vectors=(*plain.vectors, *vectors, table), selection=selection)
    reusing = replace(plain, selection=Selection(keys=selection.keys))
    kinds = f.words("layer_types", length=n) or ["indexed" if i % 4 == 3 else "linear_attention" for i in range(n)]
    owners = _indexer_kinds(replace(f, model_type="glm_moe_dsa"), n)
    two = [_hyper_connections(h, streams, (2 + streams) * streams, 3, x) for x in ("attention_streams", "ffn_streams")]
    mixers: list[Mixer] = [
        delta if kind == "linear_attention" else choosing if owner == "full" else reusing
        for kind, owner in zip(kinds, owners, strict=True)
    ]
    linears_of, vectors_of = tuple(x for x, _ in two), tuple(v for _, v in two)
    layers = layers_of(f, family, sizes, mixers, linears=linears_of, vectors=vectors_of)
    return assemble(f, family, h, layers)


def inkling_text(f: Fields) -> TransformerShape:
    """Inkling: short convolutions on keys, values and both sums, relative logits, a router with sink experts."""
    family = Family(qk_norm=QkNorm.HEAD, embedding_norm=True)
    sizes = read_sizes(f, family)
    h, n, taps, rel = sizes.hidden, sizes.layers, f.size("conv_kernel_size"), f.size("d_rel")
    local_ids = f.sizes("local_layer_ids", least=0)
    local = {i for i in range(n) if (i + 1) % 6} if local_ids is None else set(local_ids)
    kinds = f.words("layer_types", length=n) or ["hybrid_sliding" if i in local else "hybrid" for i in range(n)]
    window = f.optional_size("sliding_window_size", "sliding_window") or 0
    narrow = replace(
        sizes,
        heads=f.size("swa_num_attention_heads"),
        kv_heads=f.size("swa_num_key_value_heads"),
        head_dim=f.size("swa_head_dim"),
    )
    mixers: dict[str, Mixer] = {}
    for kind, span_sizes, span in (("hybrid_sliding", narrow, window), ("hybrid", sizes, 0)):
        mixer = attention(f, span_sizes, family, Reach(span))
        extent = span or f.size("rel_extent")
        mixers[kind] = replace(
            mixer,
            projections=(Linear(name="relative", d_in=h, d_out=span_sizes.heads * rel),),
            vectors=(
                *mixer.vectors,
                Vectors(name="convs", fixed=2 * span_sizes.kv_heads * span_sizes.head_dim * taps),
                Vectors(name="relative_logits", fixed=rel * extent),
            ),
        )
    dense_width = f.optional_size("dense_intermediate_size")
    expert_width = f.size("intermediate_size") if dense_width else f.size("moe_intermediate_size")
    moe = _sink_experts(f, h, expert_width)
    dense = DenseFfn(ffn_hidden_size=dense_width or f.size("intermediate_size"))
    first = f.optional_size("dense_mlp_idx", least=0) or 0
    types = f.words("mlp_layer_types", length=n) or ["dense" if i < first else "sparse" for i in range(n)]
    convs = (Vectors(name="sum_convs", per_hidden=2 * taps),)
    layers = []
    for kind, sparse in zip(kinds, types, strict=True):
        part: Ffn = dense if sparse == "dense" else moe
        layers.append(Layer(mixers=(mixers[kind],), ffn=part, norms=(family.norm,) * 2, vectors=convs))
    return assemble(f, family, h, layers)


def _sink_experts(f: Fields, hidden: int, width: int) -> MoeFfn:
    num, top_k, shared = f.size("n_routed_experts"), f.size("num_experts_per_tok"), f.size("n_shared_experts")
    check_experts(f, num, top_k)
    return MoeFfn(
        num_experts=num,
        experts_per_token=top_k,
        expert=DenseFfn(ffn_hidden_size=width),
        shared=DenseFfn(ffn_hidden_size=shared * width),
        shared_width=SharedWidth.COUNTED,
        router=False,
        projections=(parts.plain("router", hidden, num + shared),),
        vectors=(Vectors(name="global_scale", fixed=1),),
    )


def mistral_large4_text(f: Fields) -> TransformerShape:
    """Mistral Large 4: indexed latent attention without query latent; every fourth layer has no rotary part."""
    family = Family(
        latent=True,
        q_bias="attention_bias",
        experts=Experts(
            sparse=dense_first(), num=("n_routed_experts", "num_experts"), shared_count=("n_shared_experts",)
        ),
    )
    sizes = read_sizes(f, family)
    h, n = sizes.hidden, sizes.layers
    period = f.optional_size("no_rope_layer_interval") or 4
    rotary = f.sizes("no_rope_layers", length=n, least=0) or [int((i + 1) % period != 0) for i in range(n)]
    num, d = f.size("index_n_heads"), f.size("index_head_dim")
    linears = (
        parts.plain("index_q", h, num * d),
        parts.plain("index_k", h, d),
        parts.plain("index_weights", h, num),
    )
    vectors = (
        Vectors(name="index_norms", fixed=2 * d + 2 * num, per_hidden=2),
        Vectors(name="softmax_scaling", fixed=2 * sizes.heads),
    )
    quiet = replace(f, raw={**f.raw, "q_lora_rank": None})
    with_rope = latent_attention(quiet, sizes, family, Reach())
    whole = int(with_rope.qk_nope_head_dim) + int(with_rope.qk_rope_head_dim)
    without = replace(with_rope, qk_nope_head_dim=whole, qk_rope_head_dim=0)
    mixers = [
        replace(mixer, projections=linears, vectors=(*mixer.vectors, *vectors), selection=_selection(f))
        for mixer in (without, with_rope)
    ]
    layers = layers_of(f, family, sizes, (mixers[1 if has_rope else 0] for has_rope in rotary))
    return assemble(f, family, h, layers)
