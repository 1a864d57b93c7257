"""Text decoders that combine several of the other modules' parts: delta attention with indexed latent attention, short
convolutions in attention, layers without positions."""

from __future__ import annotations

from dataclasses import replace

from sartor.model.layer import DenseFfn, Ffn, Layer, Linear, Mixer, MoeFfn, SharedWidth, Vectors
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
    read_sizes,
)
from sartor.read.families.latent import hyper_connections, indexer, indexer_kinds
from sartor.read.families.linear_attention import delta_attention
from sartor.read.families.parts import check_experts
from sartor.read.families.patterns import Reach, dense_first
from sartor.read.fields import Fields


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
    linears, vectors = indexer(f, h)
    narrow, pool = f.size("index_head_dim"), f.optional_size("index_kpool_compress_ratio", "index_kpool_ratio") or 16
    pooled = (*linears, parts.plain("index_pool_gate", h, narrow))
    table = Vectors(name="index_pool", fixed=pool * narrow)
    choosing = replace(plain, projections=pooled, vectors=(*plain.vectors, *vectors, table))
    kinds = f.words("layer_types", length=n) or ["indexed" if i % 4 == 3 else "linear_attention" for i in range(n)]
    owners = indexer_kinds(replace(f, model_type="glm_moe_dsa"), n)
    two = [hyper_connections(h, streams, (2 + streams) * streams, 3, x) for x in ("attention_streams", "ffn_streams")]
    mixers: list[Mixer] = [
        delta if kind == "linear_attention" else choosing if owner == "full" else plain
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
    mixers = [replace(mixer, projections=linears, vectors=(*mixer.vectors, *vectors)) for mixer in (without, with_rope)]
    layers = layers_of(f, family, sizes, (mixers[1 if has_rope else 0] for has_rope in rotary))
    return assemble(f, family, h, layers)
