"""Decoders with latent attention: sparse by an indexer, compressed keys, several parallel residual streams."""

from __future__ import annotations

from dataclasses import replace

from sartor.json_types import JsonDict
from sartor.model.layer import AttentionMixer, Layer, Linear, Split, VectorRole, Vectors
from sartor.model.shape import TransformerShape
from sartor.read.families import parts
from sartor.read.families.decoder import Experts, Family, assemble, latent_attention, layers_of, moe_ffn, read_sizes
from sartor.read.families.patterns import Reach, all_sparse, dense_first
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


def indexer(f: Fields, hidden: int) -> tuple[tuple[Linear, ...], tuple[Vectors, ...]]:
    """The lightning indexer (DeepSeek-V3.2): narrow queries from the latent, one key, a weight per head."""
    num, d, rank = f.size("index_n_heads"), f.size("index_head_dim"), f.size("q_lora_rank")
    linears = (
        parts.plain("index_q", rank, num * d),
        parts.plain("index_k", hidden, d),
        parts.plain("index_weights", hidden, num),
    )
    return linears, (Vectors(name="index_norm", fixed=2 * d),)


def sparse_latent(f: Fields) -> TransformerShape:
    """DeepSeek-V3.2 and GLM-5: latent attention over the keys an indexer chose; some layers reuse the choice."""
    sizes = read_sizes(f, SPARSE)
    plain = latent_attention(f, sizes, SPARSE, Reach())
    linears, vectors = indexer(f, sizes.hidden)
    choosing = replace(plain, projections=linears, vectors=(*plain.vectors, *vectors))
    kinds = indexer_kinds(f, sizes.layers)
    mixers = [choosing if kind == "full" else plain for kind in kinds]
    return assemble(f, SPARSE, sizes.hidden, layers_of(f, SPARSE, sizes, mixers))


def indexer_kinds(f: Fields, layers: int) -> list[str]:
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


def hyper_connections(hidden: int, streams: int, outputs: int, scales: int, name: str) -> tuple[Linear, Vectors]:
    """Mixing of residual streams (arXiv 2409.19606): one projection of all of them, a base and scales."""
    return parts.plain(name, streams * hidden, outputs), Vectors(name=name, fixed=outputs + scales)


def hy_v4(f: Fields) -> TransformerShape:
    """Hunyuan 4: sparse latent attention with sinks and a gate, experts, four residual streams."""
    family = Family(latent=True, q_bias="attention_bias", experts=_shared(f))
    sizes = read_sizes(f, family)
    h, streams = sizes.hidden, f.size("hc_mult")
    plain = latent_attention(f, sizes, family, Reach())
    gate = Linear(name="gate", d_in=h, d_out=sizes.heads * int(plain.v_head_dim), gates=True)
    linears, vectors = indexer(f, h)
    sink = Vectors(name="sinks", role=VectorRole.SINKS, fixed=sizes.heads)
    reusing = replace(plain, projections=(gate,), vectors=(*plain.vectors, sink))
    choosing = replace(reusing, projections=(gate, *linears), vectors=(*reusing.vectors, *vectors))
    kinds = f.words("indexer_types", length=sizes.layers) or [
        "full" if i == 0 or (i - 1) % 4 == 0 else "shared" for i in range(sizes.layers)
    ]
    two = [hyper_connections(h, streams, 2 * streams, 2, name) for name in ("attention_streams", "ffn_streams")]
    mixers = [choosing if kind == "full" else reusing for kind in kinds]
    linears_of, vectors_of = tuple(x for x, _ in two), tuple(v for _, v in two)
    layers = layers_of(f, family, sizes, mixers, linears=linears_of, vectors=vectors_of)
    top = hyper_connections(h, streams, streams, 1, "head_streams")
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
    linears, vectors = indexer(f, h)
    window = f.optional_size("sliding_window", "sliding_window_size") or 512
    built: JsonDict = {}
    for kind in dict.fromkeys(kinds):
        fields = _sliding_fields(f, kinds.index(kind)) if kind == "sliding_attention" else f
        kind_sizes = read_sizes(fields, family)
        mixer = latent_attention(fields, kind_sizes, family, Reach(window if kind == "sliding_attention" else 0))
        gate = parts.gate(h, kind_sizes.heads)
        rope = Vectors(name="rope_norm", fixed=int(mixer.qk_rope_head_dim))
        extra = (linears, vectors) if kind == "indexed_attention" else ((), ())
        built[kind] = replace(mixer, projections=(gate, *extra[0]), vectors=(*mixer.vectors, rope, *extra[1]))
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
    sizes = replace(read_sizes(f, family), kv_heads=1)
    h, n, d, rank = sizes.hidden, sizes.layers, sizes.head_dim, f.size("q_lora_rank")
    kinds = f.words("layer_types", length=n) or _compressed_kinds(f, n)
    window, streams = f.optional_size("sliding_window") or 0, f.size("hc_mult")
    built: dict[str, Layer] = {}
    mixed = [hyper_connections(h, streams, (2 + streams) * streams, 3, x) for x in ("attention_streams", "ffn_streams")]
    moe = moe_ffn(f, sizes, family)
    for kind in dict.fromkeys(kinds):
        linears, vectors = _compressor(f, kind, h, d, rank)
        mixer = AttentionMixer(
            num_heads=sizes.heads,
            num_kv_heads=1,
            head_dim=d,
            window=window,
            pooled=_rate(f, kind),
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
    top = hyper_connections(h, streams, streams, 1, "head_streams")
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
