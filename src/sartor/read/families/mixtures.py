"""Decoder families with a pattern of experts, heads or layers of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sartor.errors import Stated
from sartor.model.layer import AttentionMixer, DenseFfn, Layer, Linear, MoeFfn, Selection, SharedWidth, Vectors
from sartor.model.shape import TransformerShape
from sartor.read.families import parts
from sartor.read.families.decoder import (
    Experts,
    Family,
    QkNorm,
    Sizes,
    assemble,
    attention,
    dense_ffn,
    latent_attention,
    layers_of,
    read_decoder,
    read_sizes,
    sinks,
    sparse_layers,
    vectors,
)
from sartor.read.families.parts import (
    Reach,
    all_sparse,
    by_layer_types,
    check_experts,
    check_kv_heads,
    dense_first,
    layer_norm,
    window_everywhere,
)
from sartor.read.fields import Fields
from sartor.units import nearest_divisors

ATTENTION_BIAS = Family(q_bias="attention_bias", out_bias="attention_bias")
MOE_WIDTH = Experts(sparse=all_sparse)
FULL_WIDTH = Experts(sparse=all_sparse, width=("intermediate_size",))


def _layered(
    f: Fields, family: Family, sizes: Sizes, mixer: Callable[[int], AttentionMixer], sparse: list[bool], **kwargs: Any
) -> TransformerShape:
    """A decoder with a different attention from layer to layer."""
    layers = layers_of(f, family, sizes, (mixer(i) for i in range(sizes.layers)), sparse)
    return assemble(f, family, sizes.hidden, layers, **kwargs)


# -- families with a pattern ------------------------------------------------------------------------------------


def llama4_text(f: Fields) -> TransformerShape:
    """Llama 4: experts in every ``interleave_moe_layer_step``-th layer; dense layers have their own width; attention in
    chunks except in layers without positions."""
    family = replace(
        ATTENTION_BIAS,
        ffn=("intermediate_size_mlp",),
        spans=_llama4_spans,
        experts=Experts(sparse=_llama4_sparse, width=("intermediate_size",), shared_width=("intermediate_size",)),
    )
    return read_decoder(f, family)


def _llama4_sparse(f: Fields, layers: int) -> list[bool]:
    listed = f.sizes("moe_layers", least=0)
    if listed is not None:
        chosen = set(listed)
        return [i in chosen for i in range(layers)]
    step = f.optional_size("interleave_moe_layer_step", least=0) or 0
    return [bool(step) and (i + 1) % step == 0 for i in range(layers)]


def _llama4_spans(f: Fields, layers: int) -> list[Reach]:
    if (spans := by_layer_types(f, layers)) is not None:
        return spans
    period = f.optional_size("no_rope_layer_interval") or 4
    rotary = f.sizes("no_rope_layers", least=0) or [int((i + 1) % period != 0) for i in range(layers)]
    if len(rotary) != layers:
        raise f.refuse(
            "no_rope_layers", Stated(f"has {len(rotary)} entries"), f"must have {layers} entries, one per layer"
        )
    chunk = f.optional_size("attention_chunk_size") or 0
    return [Reach(chunk, chunked=True) if flag else Reach() for flag in rotary]


def _one_or_listed(f: Fields, name: str, *aliases: str) -> int:
    """A size that may be given once or per layer; the layers must agree."""
    listed = f.sizes(name, *aliases, least=0)
    if not listed:
        raise f.missing(name)
    if len(set(listed)) > 1:
        raise f.refuse(name, sorted(set(listed))[:4], "must be the same in every layer")
    return listed[0]


def hunyuan_moe(f: Fields) -> TransformerShape:
    """Hunyuan MoE: expert sizes may be listed per layer; one shared expert."""
    family = replace(ATTENTION_BIAS, qk_norm=QkNorm.HEAD)
    sizes = read_sizes(f, family)
    num, top_k = _one_or_listed(f, "num_experts"), _one_or_listed(f, "moe_topk")
    check_experts(f, num, top_k, "moe_topk")
    expert = DenseFfn(ffn_hidden_size=f.size("intermediate_size"))
    tied = SharedWidth.TIED
    moe = MoeFfn(num_experts=num, experts_per_token=top_k, expert=expert, shared=expert, shared_width=tied)
    mixer = attention(f, sizes, family, Reach())
    layer = Layer(mixers=(mixer,), ffn=moe, norms=(family.norm, family.norm))
    return assemble(f, family, sizes.hidden, [layer] * sizes.layers)


def dbrx(f: Fields) -> TransformerShape:
    """DBRX: attention and experts are in nested configs."""
    attn, ffn = f.part("attn_config"), f.part("ffn_config")
    hidden, num_heads = f.essential("d_model", "hidden_size"), f.essential("n_heads", "num_attention_heads")
    kv_heads = attn.size("kv_n_heads", "num_key_value_heads")
    check_kv_heads(attn, num_heads, kv_heads)
    if hidden % num_heads:
        must = f"must divide d_model {hidden}"
        raise f.refuse("n_heads", num_heads, must, nearest_divisors(hidden, num_heads))
    num, top_k = ffn.size("moe_num_experts"), ffn.size("moe_top_k")
    check_experts(ffn, num, top_k, "moe_top_k")
    norm = layer_norm(bias=False)
    layer = Layer(
        mixers=(AttentionMixer(num_heads=num_heads, num_kv_heads=kv_heads, head_dim=hidden // num_heads),),
        ffn=MoeFfn(
            num_experts=num,
            experts_per_token=top_k,
            expert=DenseFfn(ffn_hidden_size=ffn.size("ffn_hidden_size")),
        ),
        norms=(norm, norm),
    )
    return assemble(f, Family(norm=norm), hidden, [layer] * f.layers("n_layers", "num_hidden_layers"))


def jetmoe(f: Fields) -> TransformerShape:
    """JetMoE: query and output projections are experts too; a token uses ``num_experts_per_tok`` of each."""
    hidden, layers = f.essential("hidden_size"), f.layers()
    kv_heads, d = f.size("num_key_value_heads"), f.size("kv_channels")
    num, top_k = f.size("num_local_experts"), f.size("num_experts_per_tok")
    check_experts(f, num, top_k)
    idle = (num - top_k) * 2 * kv_heads * d
    mixer = AttentionMixer(
        num_heads=kv_heads * top_k,
        num_kv_heads=kv_heads,
        head_dim=d,
        rotary_dim=d,
        vectors=(Vectors(name="experts_not_chosen", per_hidden=idle, idle=True), Vectors(name="bias", per_hidden=1)),
        projections=(parts.plain("attention_router", hidden, num),),
    )
    expert = DenseFfn(ffn_hidden_size=f.size("intermediate_size"))
    bias = (Vectors(name="bias", per_hidden=1),)
    moe = MoeFfn(num_experts=num, experts_per_token=top_k, expert=expert, vectors=bias)
    layer = Layer(mixers=(mixer,), ffn=moe, norms=(parts.rms(), parts.rms()))
    return assemble(f, Family(), hidden, [layer] * layers)


def longcat_flash(f: Fields) -> TransformerShape:
    """LongCat-Flash: two latent attentions and two dense parts per layer around one expert part, whose router can also
    choose zero experts, which do nothing (but have gate and up weights)."""
    family = Family(latent=True, q_bias="attention_bias", ffn=("ffn_hidden_size",))
    sizes = read_sizes(f, family)
    num, idle = f.size("n_routed_experts"), f.optional_size("zero_expert_num", least=0) or 0
    top_k, width = f.size("moe_topk"), f.size("expert_ffn_hidden_size", "moe_intermediate_size")
    check_experts(f, num + idle, top_k, "moe_topk")
    if idle:
        billions = idle * 2 * width * sizes.hidden * sizes.layers / 1e9
        text = f"zero_expert_num={idle}: their gate and up weights are counted, as the published class makes them"
        f.ledger.assume(f"{text}; checkpoints without them have {billions:,.0f}B less")
    # Zero experts' weights spread over the real experts, so that the share of active experts applies to them too.
    whole = idle * 2 * width % num == 0
    vectors = (Vectors(name="zero_experts", per_hidden=idle * 2 * width // num),)
    moe = MoeFfn(
        num_experts=num,
        experts_per_token=top_k,
        expert=DenseFfn(ffn_hidden_size=width, vectors=vectors if whole else ()),
        router_bias=f.flag("router_bias", default=False),
        vectors=() if whole else (Vectors(name="zero_experts", per_hidden=idle * 2 * width, idle=True),),
        projections=(parts.plain("zero_router", sizes.hidden, idle),) if idle else (),
    )
    mixer, dense = latent_attention(f, sizes, family, Reach()), dense_ffn(f, sizes, family)
    layer = Layer(mixers=(mixer, mixer), ffn=moe, ffns=(dense, dense), norms=(family.norm,) * 4)
    return assemble(f, family, sizes.hidden, [layer] * sizes.layers)


def doge(f: Fields) -> TransformerShape:
    """Doge: scaled residuals, a dynamic mask made from the values; with ``is_moe`` a table of tiny experts."""
    family = replace(
        ATTENTION_BIAS,
        mlp_bias="mlp_bias",
        qk_norm=QkNorm.HEAD,
        attention_vectors=vectors("A", per_kv_head=1),
        attention_linears=_doge_mask,
        layer_vectors=vectors("residual_scales", per_hidden=2),
        ffn_vectors=_doge_experts,
    )
    return read_decoder(f, family)


def _doge_mask(f: Fields, s: Sizes) -> tuple[Linear, ...]:
    return (parts.plain("dt", s.kv_heads * s.head_dim, s.kv_heads, bias=f.flag("attention_bias")),)


def _doge_experts(f: Fields, s: Sizes, width: int) -> tuple[Vectors, ...]:
    if not f.flag("is_moe"):
        return ()
    num = f.size("num_experts")
    keys = int(num**0.5)
    return (
        Vectors(name="router", per_hidden=2 * keys),
        Vectors(name="expert_tables", per_hidden=2 * num, embedding=True),
    )


def laguna(f: Fields) -> TransformerShape:
    """Laguna: number of heads per layer, a gate per head (or per channel) on attention's output."""
    family = replace(
        ATTENTION_BIAS,
        qk_norm=QkNorm.HEAD,
        experts=Experts(
            sparse=dense_first(otherwise=1),
            shared_width=("shared_expert_intermediate_size",),
            score_bias=True,
        ),
    )
    sizes = read_sizes(f, family)
    listed = f.sizes("num_attention_heads_per_layer", length=sizes.layers) or [sizes.heads] * sizes.layers
    gating = f.given("gating", True)
    spans = by_layer_types(f, sizes.layers) or [Reach()] * sizes.layers

    def mixer(i: int) -> AttentionMixer:
        check_kv_heads(f, listed[i], sizes.kv_heads)
        layer_sizes = replace(sizes, heads=listed[i])
        width = (
            layer_sizes.heads if gating is True or gating == "per-head" else layer_sizes.heads * layer_sizes.head_dim
        )
        gate = parts.gate(layer_sizes.hidden, width)
        return replace(attention(f, layer_sizes, family, spans[i]), projections=(gate,))

    types = f.words("mlp_layer_types", length=sizes.layers)
    sparse = [t != "dense" for t in types] if types else [i > 0 for i in range(sizes.layers)]
    return _layered(f, family, sizes, mixer, sparse)


def mimo_v2_flash(f: Fields) -> TransformerShape:
    """MiMo-V2-Flash: sliding layers have sinks and twice the key/value heads; values narrower than keys."""
    family = Family(q_bias="attention_bias", experts=replace(MOE_WIDTH, sparse=dense_first("first_k_dense_replace")))
    sizes = read_sizes(f, family)
    window = f.optional_size("sliding_window") or 0
    types = f.words("layer_types", length=sizes.layers) or [
        "full_attention" if i == 0 or (i + 1) % 6 == 0 else "sliding_attention" for i in range(sizes.layers)
    ]
    values = f.size("v_head_dim")

    def mixer(i: int) -> AttentionMixer:
        local = types[i] == "sliding_attention"
        layer_sizes = replace(sizes, kv_heads=sizes.kv_heads * (2 if local else 1))
        check_kv_heads(f, layer_sizes.heads, layer_sizes.kv_heads)
        built = attention(f, layer_sizes, family, Reach(window if local else 0))
        return replace(built, v_head_dim=values, vectors=sinks(f, layer_sizes) if local else ())

    kinds = f.words("mlp_layer_types", length=sizes.layers)
    sparse = [t != "dense" for t in kinds] if kinds else [i > 0 for i in range(sizes.layers)]
    return _layered(f, family, sizes, mixer, sparse)


def minimax_m3_text(f: Fields) -> TransformerShape:
    """MiniMax-M3: some layers choose blocks of keys with an indexer of a few narrow heads."""
    family = Family(
        qk_norm=QkNorm.HEAD,
        ffn=("dense_intermediate_size",),
        experts=replace(FULL_WIDTH, shared_width=("shared_intermediate_size",)),
    )
    sizes = read_sizes(f, family)
    sparse_config = f.given("sparse_attention_config")
    section = f"{f.path}sparse_attention_config."
    inner = replace(f, raw=sparse_config, path=section) if isinstance(sparse_config, dict) else f
    types = f.words("layer_types", length=sizes.layers)
    freq = inner.sizes("sparse_attention_freq", length=sizes.layers, least=0) if inner is not f else None
    indexed = [t == "minimax_m3_sparse" for t in types] if types else [bool(x) for x in freq or [0] * sizes.layers]
    num = inner.optional_size("sparse_num_index_heads", "index_n_heads") or 4
    d = inner.optional_size("sparse_index_dim", "index_head_dim") or 128
    block = inner.optional_size("sparse_block_size", "index_block_size") or 128
    blocks = inner.optional_size("sparse_topk_blocks", "index_topk_blocks") or 16
    if any(indexed):
        f.ledger.note(f"sparse attention: {blocks} blocks of {block} keys per query, chosen by {num} heads of {d}")
    plain = attention(f, sizes, family, Reach())
    indexer = replace(
        plain,
        selection=Selection(keys=blocks * block, heads=num, head_dim=d, narrow=False),
        vectors=(*plain.vectors, Vectors(name="index_norms", fixed=2 * d)),
        projections=(parts.plain("index_q", sizes.hidden, num * d), parts.plain("index_k", sizes.hidden, d)),
    )
    listed = f.sizes("moe_layer_freq", length=sizes.layers, least=0) if f.has("moe_layer_freq") else None
    sparse = [bool(x) for x in listed] if listed else sparse_layers(f, sizes.layers, family)
    return _layered(f, family, sizes, lambda i: indexer if indexed[i] else plain, sparse)


LLAMA = Family(q_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias")
ATTENTION_BIAS = Family(q_bias="attention_bias", out_bias="attention_bias")
QWEN3 = replace(ATTENTION_BIAS, qk_norm=QkNorm.HEAD)
SHARED = Experts(
    sparse=dense_first(otherwise=1),
    num=("n_routed_experts", "num_experts"),
    shared_count=("n_shared_experts",),
)


def step3(f: Fields) -> TransformerShape:
    """Step 3.5: a gate per head; sliding layers may have more heads; experts except in the first three layers."""
    family = replace(
        LLAMA,
        qk_norm=QkNorm.HEAD,
        experts=Experts(
            sparse=all_sparse,
            num=("n_routed_experts", "moe_num_experts"),
            top_k=("num_experts_per_tok", "moe_top_k"),
            width=("moe_intermediate_size",),
            shared_width=("share_expert_dim",),
        ),
    )
    sizes = read_sizes(f, family)
    n = sizes.layers
    setting = f.given("attention_other_setting")
    wide_heads = setting.get("num_attention_heads") if isinstance(setting, dict) else None
    wide = (
        f.optional_size("num_sliding_attention_heads")
        or (wide_heads if isinstance(wide_heads, int) else None)
        or sizes.heads
    )
    trimmed = replace(f, raw={k: v[:n] if isinstance(v, list) and len(v) > n else v for k, v in f.raw.items()})
    spans = by_layer_types(trimmed, n) or [Reach()] * n
    kinds = trimmed.words("mlp_layer_types", length=n)
    listed = f.given("moe_layers_enum")
    chosen = range(3, n) if not isinstance(listed, str) else {int(x) for x in listed.split(",") if x.strip().isdigit()}
    sparse = [kind != "dense" for kind in kinds] if kinds else [i in chosen for i in range(n)]

    def mixer(i: int) -> AttentionMixer:
        layer_sizes = replace(sizes, heads=wide if spans[i].window else sizes.heads)
        check_kv_heads(f, layer_sizes.heads, layer_sizes.kv_heads)
        return replace(attention(f, layer_sizes, family, spans[i]), projections=(_per_head_gate(f, layer_sizes)))

    return _layered(f, family, sizes, mixer, sparse)


def _per_head_gate(f: Fields, sizes: Sizes) -> tuple[Linear, ...]:
    """A scalar gate for every head."""
    return (parts.gate(sizes.hidden, sizes.heads),)


def voxtral_realtime(f: Fields) -> TransformerShape:
    """Voxtral realtime's text part: Mistral with a second norm modulated through a bottleneck of 32."""
    shape = read_decoder(f, Family(spans=window_everywhere))
    main = shape.main
    h = int(main.hidden_size)
    inner = 32
    linears = (parts.plain("norm_down", h, inner, rows=1), parts.plain("norm_up", inner, h, rows=1))
    return parts.in_main_layers(shape, lambda layer: replace(layer, linears=linears))


def reference_window(f: Fields, layers: int) -> list[Reach]:
    """Unlimited-OCR: windows that also always see the reference tokens."""
    window = f.optional_size("sliding_window", least=0) or 0
    kinds = f.words("layer_types", length=layers) or ["reference_sliding_attention"] * layers
    return [Reach(window) if "sliding" in kind else Reach() for kind in kinds]
