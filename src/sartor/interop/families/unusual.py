"""Decoders built like no other: two-stream attention, hyper-connections, compressed keys, recurrent depth."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sartor.interop.families import Reader, parts
from sartor.interop.families.classic import GPT2
from sartor.interop.families.decoder import (
    Experts,
    Family,
    QkNorm,
    assemble,
    attention,
    dense_ffn,
    head_gate,
    latent_attention,
    moe_ffn,
    read_decoder,
    read_sizes,
    sparse_layers,
)
from sartor.interop.families.gemma import gemma4_kinds, per_layer_linears
from sartor.interop.families.latent import indexer
from sartor.interop.families.linear_attention import alternating, kinds_of
from sartor.interop.families.own_heads import summary_head
from sartor.interop.families.parts import Head, check_experts, check_kv_heads, head_of, layer_norm, num_labels
from sartor.interop.families.patterns import Span, all_sparse, by_layer_types, dense_first, window_pattern
from sartor.interop.fields import Fields
from sartor.model.shape import (
    AttentionMixer,
    DenseFfn,
    Ffn,
    Layer,
    Linear,
    Mixer,
    MoeFfn,
    Run,
    Split,
    StateSpaceMixer,
    TransformerShape,
    Vectors,
)

ATTENTION_BIAS = Family(q_bias="attention_bias", out_bias="attention_bias")


# -- of the GPT-2 era -------------------------------------------------------------------------------------------


def imagegpt(f: Fields) -> TransformerShape:
    """ImageGPT: GPT-2 over colour clusters, norms without bias; its head leaves the start token out."""
    family = replace(GPT2, norm=layer_norm(bias=False))
    shape = read_decoder(replace(f, architecture="ImageGPTModel"), family)
    h, vocab = int(shape.hidden_size), int(shape.vocab_size)
    if f.architecture.endswith("ForCausalImageModeling"):
        return replace(shape, linears=(parts.plain("lm_head", h, vocab - 1),))
    if f.architecture.endswith("ForImageClassification"):
        return replace(shape, linears=(parts.plain("score", h, num_labels(f), rows=1),))
    return shape


def decision_transformer(f: Fields) -> TransformerShape:
    """Decision Transformer: GPT-2 over returns, states and actions, each with an embedding and a head of its own."""
    quiet = replace(f, architecture="DecisionTransformerModel", raw={"vocab_size": 1, **f.raw})
    shape = read_decoder(quiet, GPT2)
    h, state, action = int(shape.hidden_size), f.size("state_dim"), f.size("act_dim")
    linears = (
        parts.plain("embed_return", 1, h, bias=True),
        parts.plain("embed_state", state, h, bias=True),
        parts.plain("embed_action", action, h, bias=True),
        parts.plain("predict_state", h, state, bias=True),
        parts.plain("predict_action", h, action, bias=True),
        parts.plain("predict_return", h, 1, bias=True),
    )
    vectors = (
        Vectors(name="timesteps", per_hidden=f.size("max_ep_len"), embedding=True),
        Vectors(name="embedding_norm", per_hidden=2),
    )
    return replace(shape, linears=linears, vectors=vectors)


def xlnet(f: Fields) -> TransformerShape:
    """XLNet (arXiv 1906.08237): relative attention with a projection of positions and three biases per head."""
    h, num_heads, d = (
        f.essential("d_model", "hidden_size"),
        f.essential("n_head", "num_attention_heads"),
        f.size("d_head"),
    )
    norm, width = layer_norm(), num_heads * d
    mixer = AttentionMixer(
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=d,
        projections=(Linear(name="positions", d_in=h, d_out=width),),
        vectors=(Vectors(name="relative_biases", fixed=5 * width),),
    )
    ffn = DenseFfn(ffn_hidden_size=f.size("d_inner"), gated=False, up_bias=True, down_bias=True)
    layer = Layer(mixers=(mixer,), ffn=ffn, norms=(norm, norm))
    family = Family(norm=norm, final_norm=False, lm_head_bias=True)
    head: tuple[Linear, ...] = ()
    kind = head_of(f)
    summary = parts.plain("summary", h, h, bias=True, rows=1)
    if kind is Head.SEQUENCE_CLASSIFICATION:
        head = (summary, parts.plain("logits", h, num_labels(f), bias=True, rows=1))
    elif kind is Head.MULTIPLE_CHOICE:
        head = (summary, parts.plain("logits", h, 1, bias=True, rows=1))
    shape = assemble(f, family, h, [layer] * f.layers("n_layer", "num_hidden_layers"))
    vectors: tuple[Vectors, ...] = (Vectors(name="mask", per_hidden=1),)
    if own := (summary_head(f, kind, h) if kind is Head.QUESTION_ANSWERING else None):
        head, vectors = own[0], (*vectors, *own[1])
    return replace(shape, vectors=vectors, linears=head or shape.linears)


# -- hybrids and recurrent depth --------------------------------------------------------------------------------


def olmo_hybrid(f: Fields) -> TransformerShape:
    """OLMo hybrid: gated delta nets, every fourth layer attention with norms over the whole width."""
    family = replace(ATTENTION_BIAS, qk_norm=QkNorm.WIDTH)
    sizes = read_sizes(f, family)
    kinds = kinds_of(f, sizes.layers, 4, last="full_attention", others="linear_attention")
    if "full_attention" not in kinds:
        kinds = [*kinds[:-1], "full_attention"]
    h = sizes.hidden
    key_heads = f.optional_size("linear_num_key_heads") or sizes.heads
    value_heads = f.optional_size("linear_num_value_heads") or sizes.heads
    d_key = f.optional_size("linear_key_head_dim") or int(0.75 * h / key_heads)
    d_value = f.optional_size("linear_value_head_dim") or 2 * d_key
    keys, values, taps = key_heads * d_key, value_heads * d_value, f.size("linear_conv_kernel_dim")
    widths = {"q": keys, "k": keys, "v": values, "a": value_heads, "b": value_heads, "gate": values}
    delta = StateSpaceMixer(
        inner_size=values,
        state_size=d_key,
        num_heads=value_heads,
        conv_channels=2 * keys + values,
        conv_size=taps,
        projections=(
            *(Linear(name=name, d_in=h, d_out=width) for name, width in widths.items()),
            Linear(name="out", d_in=values, d_out=h, split=Split.ROW),
        ),
        vectors=(
            Vectors(name="conv", fixed=(2 * keys + values) * taps),
            Vectors(name="dt_bias_and_A", fixed=2 * value_heads),
            Vectors(name="norm", fixed=d_value),
        ),
        variant="gated_delta_net",
        name="linear_attention",
    )
    mixers: dict[str, Mixer] = {"linear_attention": delta, "full_attention": attention(f, sizes, family, Span())}
    return alternating(f, family, sizes, kinds, mixers)


def hrm_text(f: Fields) -> TransformerShape:
    """HRM: a slow and a fast stack of equal layers, run in cycles over the same weights."""
    family = replace(
        ATTENTION_BIAS,
        mlp_bias="mlp_bias",
        attention_linears=head_gate,
        norms=0,
        final_norm=False,
    )
    slow, fast = f.size("H_cycles"), f.size("L_cycles")
    own = f.optional_size("num_layers_per_stack") or f.layers()
    sizes = replace(read_sizes(f, family), layers=own)
    layer = Layer(mixers=(attention(f, sizes, family, Span()),), ffn=dense_ffn(f, sizes, family))
    vectors = (Vectors(name="fast_start", per_hidden=1),)
    shape = assemble(f, family, sizes.hidden, [layer] * own, vectors=vectors)
    run = Run(layer=layer, count=own * slow * fast, weight_sets=own)
    main = replace(shape.main, runs=(run,))
    return replace(shape, stacks=(main, replace(main, name="slow", runs=(replace(run, count=own * slow),))))


# -- latent attention, hyper-connections ---------------------------------------------------------------------------


def hyper_connections(hidden: int, streams: int, outputs: int, scales: int, name: str) -> tuple[Linear, Vectors]:
    """A mixing of residual streams (arXiv 2409.19606): one projection of them all, its base and scales."""
    return parts.plain(name, streams * hidden, outputs), Vectors(name=name, fixed=outputs + scales)


def hy_v4(f: Fields) -> TransformerShape:
    """Hunyuan 4: sparse latent attention with sinks and a gate, experts, four residual streams."""
    family = Family(latent=True, q_bias="attention_bias", experts=_shared(f))
    sizes = read_sizes(f, family)
    h, streams = sizes.hidden, f.size("hc_mult")
    plain = latent_attention(f, sizes, family, Span())
    gate = Linear(name="gate", d_in=h, d_out=sizes.heads * int(plain.v_head_dim))
    linears, vectors = indexer(f, h)
    sink = Vectors(name="sinks", fixed=sizes.heads)
    reusing = replace(plain, projections=(gate,), vectors=(*plain.vectors, sink))
    choosing = replace(reusing, projections=(gate, *linears), vectors=(*reusing.vectors, *vectors))
    kinds = f.words("indexer_types", length=sizes.layers) or [
        "full" if i == 0 or (i - 1) % 4 == 0 else "shared" for i in range(sizes.layers)
    ]
    two = [hyper_connections(h, streams, 2 * streams, 2, name) for name in ("attention_streams", "ffn_streams")]
    layers = _latent_layers(
        f,
        family,
        [choosing if kind == "full" else reusing for kind in kinds],
        two,
        sparse_layers(f, sizes.layers, family),
    )
    top = hyper_connections(h, streams, streams, 1, "head_streams")
    return assemble(f, family, h, layers, linears=(top[0],), vectors=(top[1],))


def _latent_layers(
    f: Fields, family: Family, mixers: list[Any], streams: list[tuple[Linear, Vectors]], sparse: list[bool]
) -> list[Layer]:
    sizes = read_sizes(f, family)
    dense = None if all(sparse) else dense_ffn(f, sizes, family)
    moe = moe_ffn(f, sizes, family) if any(sparse) else None
    out = []
    for mixer, is_sparse in zip(mixers, sparse, strict=True):
        part: Ffn | None = moe if is_sparse else dense
        out.append(
            Layer(
                mixers=(mixer,),
                ffn=part,
                norms=(family.norm, family.norm),
                linears=tuple(linear for linear, _ in streams),
                vectors=tuple(vector for _, vector in streams),
            )
        )
    return out


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
    made: dict[str, Any] = {}
    for kind in dict.fromkeys(kinds):
        one = _sliding_fields(f, kinds.index(kind)) if kind == "sliding_attention" else f
        own = read_sizes(one, family)
        mixer = latent_attention(one, own, family, Span(window if kind == "sliding_attention" else 0))
        gate = parts.plain("gate", h, own.heads)
        rope = Vectors(name="rope_norm", fixed=int(mixer.qk_rope_head_dim))
        more = (linears, vectors) if kind == "indexed_attention" else ((), ())
        made[kind] = replace(mixer, projections=(gate, *more[0]), vectors=(*mixer.vectors, rope, *more[1]))
    layers = _latent_layers(f, family, [made[kind] for kind in kinds], [], sparse_layers(f, n, family))
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
"""Published sizes of Dots 3's sliding layers where a file has no ``swa_*`` fields."""


def _sliding_fields(f: Fields, layer: int) -> Fields:
    """The fields as its sliding layers see them: by ``per_layer_config`` or by ``swa_*``."""
    overrides = f.raw.get("per_layer_config")
    if isinstance(overrides, dict):
        own = overrides.get(str(layer), overrides.get(f"{layer:02d}", {}))
        own = own if isinstance(own, dict) else {}
    else:
        own = {name: f.raw.get(f"swa_{name}", default) for name, default in _SLIDING.items()}
        own["qk_rope_head_dim"] = f.raw.get("swa_qk_rope_head_dim", own["head_dim"] - own["qk_nope_head_dim"])
    return replace(f, raw={**f.raw, **own})


def deepseek_v4(f: Fields) -> TransformerShape:
    """DeepSeek-V4: one key head read through compressors, grouped low-rank output, four residual streams.

    Scores are counted over the sequence and its compressed keys, as the published class computes them.
    """
    family = Family(
        mlp_bias="mlp_bias", experts=replace(_shared(f), sparse=all_sparse, width=("moe_intermediate_size",))
    )
    sizes = replace(read_sizes(f, family), kv_heads=1)
    h, n, d, rank = sizes.hidden, sizes.layers, sizes.head_dim, f.size("q_lora_rank")
    kinds = f.words("layer_types", length=n) or _compressed_kinds(f, n)
    window, streams = f.optional_size("sliding_window") or 0, f.size("hc_mult")
    made: dict[str, Layer] = {}
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
            own_linears=(*_v4_linears(f, h, sizes.heads * d, d, rank), *linears),
            vectors=(
                Vectors(name="sinks", fixed=sizes.heads),
                Vectors(name="q_norm", fixed=rank),
                Vectors(name="kv_norm", fixed=d),
                *vectors,
            ),
        )
        made[kind] = Layer(
            mixers=(mixer,),
            ffn=moe,
            norms=(family.norm, family.norm),
            linears=tuple(x for x, _ in mixed),
            vectors=tuple(v for _, v in mixed),
        )
    top = hyper_connections(h, streams, streams, 1, "head_streams")
    return assemble(f, family, h, [made[kind] for kind in kinds], linears=(top[0],), vectors=(top[1],))


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
    """How many tokens one compressed key stands for; 0 for layers without a compressor."""
    if kind not in _RATES:
        return 0
    said = f.raw.get("compress_rates")
    inner = Fields(said if isinstance(said, dict) else {}, "", f"{f.path}compress_rates.", f.ledger)
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


# -- experts in a latent space, compressed convolutional attention ------------------------------------------------


def muse_spark_text(f: Fields) -> TransformerShape:
    """Muse Spark: experts between two projections, gates on attention and on both residual sums."""
    family = replace(ATTENTION_BIAS, norms=3, attention_linears=head_gate, spans=window_pattern(2))
    sizes = read_sizes(f, family)
    h, inner = sizes.hidden, f.size("moe_hidden_size")
    num, top_k = f.size("num_local_experts", "num_experts"), f.size("num_experts_per_tok")
    check_experts(f, num, top_k)
    moe = MoeFfn(
        num_experts=num,
        experts_per_token=top_k,
        expert=DenseFfn(ffn_hidden_size=f.size("moe_intermediate_size")),
        expert_hidden_size=inner,
        projections=(parts.plain("experts_in", h, inner), parts.plain("experts_out", inner, h)),
        vectors=(Vectors(name="expert_norms", fixed=2 * inner),),
    )
    spans = by_layer_types(f, sizes.layers) or (window_pattern(2))(f, sizes.layers)
    kinds = f.words("mlp_layer_types", length=sizes.layers) or ["sparse"] * sizes.layers
    dense = dense_ffn(f, sizes, family) if "dense" in kinds else None
    gates = (Vectors(name="residual_gates", per_hidden=2),)
    layers = []
    for span, kind in zip(spans, kinds, strict=True):
        part: Ffn | None = dense if kind == "dense" else moe
        layers.append(
            Layer(mixers=(attention(f, sizes, family, span),), ffn=part, norms=(family.norm,) * 3, vectors=gates)
        )
    return assemble(f, family, h, layers)


def molmo2_text(f: Fields) -> TransformerShape:
    """Molmo 2: query and key norms per head, further rows of the token table for image tokens."""
    family = Family(q_bias="attention_bias", qk_norm=QkNorm.HEAD)
    shape = read_decoder(f, family)
    rows = f.optional_size("additional_vocab_size", least=0) or 0
    return replace(shape, vectors=(*shape.vectors, Vectors(name="image_tokens", per_hidden=rows, embedding=True)))


def embedding_gemma2_text(f: Fields) -> TransformerShape:
    """EmbeddingGemma 2: Gemma 4 layers that look both ways, per-layer inputs made from the hidden state alone."""
    family = replace(ATTENTION_BIAS, norms=4, qk_norm=QkNorm.HEAD)
    sizes = read_sizes(f, family)
    h, kinds = sizes.hidden, gemma4_kinds(f, sizes)
    per_layer = f.optional_size("hidden_size_per_layer_input", least=0) or 0
    window, layers = f.optional_size("sliding_window", least=0) or 0, []
    ffn = DenseFfn(ffn_hidden_size=f.size("intermediate_size"), activation="gelu_pytorch_tanh")
    for kind in kinds:
        check_kv_heads(f, sizes.heads, kind.kv_heads)
        one = replace(sizes, head_dim=kind.head_dim, kv_heads=kind.kv_heads)
        mixer = replace(attention(f, one, family, Span(window if kind.local else 0)), causal=False)
        layers.append(
            Layer(
                mixers=(mixer,),
                ffn=ffn,
                norms=(family.norm,) * (5 if per_layer else 4),
                linears=per_layer_linears(h, per_layer) if per_layer else (),
            )
        )
    out = parts.plain("embedding_projection", h, f.size("embedding_dim"))
    inputs = (parts.plain("per_layer_inputs", h, sizes.layers * per_layer),) if per_layer else ()
    vectors = (Vectors(name="per_layer_norm", fixed=per_layer),) if per_layer else ()
    bare = replace(f, architecture="EmbeddingGemma2TextModel")
    return assemble(bare, family, h, layers, linears=(*inputs, out), vectors=vectors)


def zaya(f: Fields) -> TransformerShape:
    """Zaya: attention in a compressed space with convolutions over queries and keys; a router of its own depth."""
    family = replace(ATTENTION_BIAS, lm_head_bias="lm_head_bias")
    sizes = read_sizes(f, family)
    h, d, a, kv = sizes.hidden, sizes.head_dim, sizes.heads, sizes.kv_heads
    r, num, top_k = f.size("router_hidden_size"), f.size("num_experts"), f.size("num_experts_per_tok")
    check_experts(f, num, top_k)
    bias, qk = f.flag("attention_bias"), (a + kv) * d
    mixer = AttentionMixer(
        num_heads=a,
        num_kv_heads=kv,
        head_dim=d,
        own_linears=(
            Linear(name="q", d_in=h, d_out=a * d, bias=bias, fused="qkv"),
            Linear(name="k", d_in=h, d_out=kv * d, bias=bias, split=Split.KV_HEADS, fused="qkv"),
            Linear(name="v", d_in=h, d_out=kv * d // 2, bias=bias, split=Split.KV_HEADS, fused="qkv"),
            Linear(name="v_delayed", d_in=h, d_out=kv * d // 2, bias=bias, split=Split.KV_HEADS),
            replace(parts.plain("v_first", h, kv * d // 2, rows=1), reused=True),
            Linear(name="out", d_in=a * d, d_out=h, bias=bias, split=Split.ROW),
        ),
        vectors=(
            Vectors(name="conv", fixed=qk * (f.size("cca_time0") + d * f.size("cca_time1") + 2)),
            Vectors(name="temperature", fixed=kv),
        ),
    )
    moe = MoeFfn(
        num_experts=num,
        experts_per_token=top_k,
        expert=DenseFfn(ffn_hidden_size=f.size("moe_intermediate_size")),
        router=False,
        vectors=(Vectors(name="router_norm", fixed=r),),
        projections=(
            parts.plain("router_down", h, r, bias=True),
            parts.plain("router_1", r, r, bias=True),
            parts.plain("router_2", r, r, bias=True),
            parts.plain("router_out", r, num + 1),
        ),
    )
    scales = Vectors(name="residual_scales", per_hidden=8)
    layer = Layer(mixers=(mixer,), ffn=moe, norms=(family.norm,) * 2, vectors=(scales,))
    later = replace(layer, vectors=(scales, Vectors(name="router_states", fixed=r)))
    vectors = (Vectors(name="input_scale", per_hidden=2),)
    return assemble(f, family, h, [layer] + [later] * (sizes.layers - 1), vectors=vectors)


FAMILIES: dict[str, Reader] = {
    "imagegpt": imagegpt,
    "decision_transformer": decision_transformer,
    "xlnet": xlnet,
    "olmo_hybrid": olmo_hybrid,
    "hrm_text": hrm_text,
    "hy_v4": hy_v4,
    "dots3_note_text": dots3_note_text,
    "deepseek_v4": deepseek_v4,
    "muse_spark_text": muse_spark_text,
    "molmo2_text": molmo2_text,
    "embedding_gemma2_text": embedding_gemma2_text,
    "zaya": zaya,
}
