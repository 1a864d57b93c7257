"""Decoders with unusual structures: two-stream attention, recurrent depth, convolved queries and keys; Gemma 3n and 4
with per-layer inputs, shared keys and values, layers of two head dimensions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sartor.model.layer import (
    AttentionMixer,
    DenseFfn,
    Ffn,
    Layer,
    Linear,
    Mixer,
    MoeFfn,
    Split,
    StateSpaceMixer,
    VectorRole,
    Vectors,
)
from sartor.model.shape import LayerRun, TransformerShape
from sartor.read.families import parts
from sartor.read.families.classic import GPT2
from sartor.read.families.decoder import (
    Family,
    QkNorm,
    Sizes,
    assemble,
    attention,
    dense_ffn,
    head_gate,
    read_decoder,
    read_sizes,
)
from sartor.read.families.encoders import summary_head
from sartor.read.families.linear_attention import alternating, kinds_of
from sartor.read.families.parts import (
    Head,
    Reach,
    by_layer_types,
    check_experts,
    check_kv_heads,
    head_of,
    layer_norm,
    num_labels,
    window_pattern,
)
from sartor.read.fields import Fields

ATTENTION_BIAS = Family(q_bias="attention_bias", out_bias="attention_bias")


# -- of the GPT-2 era -------------------------------------------------------------------------------------------


def imagegpt(f: Fields) -> TransformerShape:
    """ImageGPT: GPT-2 over colour clusters, norms without bias; the head has no start token."""
    family = replace(GPT2, norm=layer_norm(bias=False))
    shape = read_decoder(replace(f, architecture="ImageGPTModel"), family)
    h, vocab = int(shape.hidden_size), int(shape.vocab_size)
    if f.architecture.endswith("ForCausalImageModeling"):
        return replace(shape, linears=(parts.plain("lm_head", h, vocab - 1),))
    if f.architecture.endswith("ForImageClassification"):
        return replace(shape, linears=(parts.plain("score", h, num_labels(f), rows=1),))
    return shape


def decision_transformer(f: Fields) -> TransformerShape:
    """Decision Transformer: GPT-2 over returns, states and actions, each with its own embedding and head."""
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
    if own_head := (summary_head(f, kind, h) if kind is Head.QUESTION_ANSWERING else None):
        head, vectors = own_head[0], (*vectors, *own_head[1])
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
    mixers: dict[str, Mixer] = {"linear_attention": delta, "full_attention": attention(f, sizes, family, Reach())}
    return alternating(f, family, sizes, kinds, mixers)


def hrm_text(f: Fields) -> TransformerShape:
    """HRM: a slow and a fast stack of equal layers, run repeatedly with the same weights."""
    family = replace(
        ATTENTION_BIAS,
        mlp_bias="mlp_bias",
        attention_linears=head_gate,
        norms=0,
        final_norm=False,
    )
    slow, fast = f.size("H_cycles"), f.size("L_cycles")
    per_stack = f.optional_size("num_layers_per_stack") or f.layers()
    sizes = replace(read_sizes(f, family), layers=per_stack)
    layer = Layer(mixers=(attention(f, sizes, family, Reach()),), ffn=dense_ffn(f, sizes, family))
    vectors = (Vectors(name="fast_start", per_hidden=1),)
    shape = assemble(f, family, sizes.hidden, [layer] * per_stack, vectors=vectors)
    run = LayerRun(layer=layer, count=per_stack * slow * fast, weight_sets=per_stack)
    main = replace(shape.main, runs=(run,))
    return replace(shape, stacks=(main, replace(main, name="slow", runs=(replace(run, count=per_stack * slow),))))


# -- latent attention, hyper-connections ---------------------------------------------------------------------------


# -- experts in a latent space, compressed convolutional attention ------------------------------------------------


def muse_spark_text(f: Fields) -> TransformerShape:
    """Muse Spark: experts between two projections, gates on attention and both residual sums."""
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
    """Molmo 2: query and key norms per head, additional token-table rows for image tokens."""
    family = Family(q_bias="attention_bias", qk_norm=QkNorm.HEAD)
    shape = read_decoder(f, family)
    rows = f.optional_size("additional_vocab_size", least=0) or 0
    return replace(shape, vectors=(*shape.vectors, Vectors(name="image_tokens", per_hidden=rows, embedding=True)))


def embedding_gemma2_text(f: Fields) -> TransformerShape:
    """EmbeddingGemma 2: bidirectional Gemma 4 layers, per-layer inputs computed from the hidden state alone."""
    family = replace(ATTENTION_BIAS, norms=4, qk_norm=QkNorm.HEAD)
    sizes = read_sizes(f, family)
    h, kinds = sizes.hidden, _gemma4_kinds(f, sizes)
    per_layer = f.optional_size("hidden_size_per_layer_input", least=0) or 0
    window, layers = f.optional_size("sliding_window", least=0) or 0, []
    ffn = DenseFfn(ffn_hidden_size=f.size("intermediate_size"), activation="gelu_pytorch_tanh")
    for kind in kinds:
        check_kv_heads(f, sizes.heads, kind.kv_heads)
        kind_sizes = replace(sizes, head_dim=kind.head_dim, kv_heads=kind.kv_heads)
        mixer = replace(attention(f, kind_sizes, family, Reach(window if kind.local else 0)), causal=False)
        layers.append(
            Layer(
                mixers=(mixer,),
                ffn=ffn,
                norms=(family.norm,) * (5 if per_layer else 4),
                linears=_per_layer_linears(h, per_layer) if per_layer else (),
            )
        )
    out = parts.plain("embedding_projection", h, f.size("embedding_dim"))
    inputs = (parts.plain("per_layer_inputs", h, sizes.layers * per_layer),) if per_layer else ()
    vectors = (Vectors(name="per_layer_norm", fixed=per_layer),) if per_layer else ()
    bare = replace(f, architecture="EmbeddingGemma2TextModel")
    return assemble(bare, family, h, layers, linears=(*inputs, out), vectors=vectors)


def zaya(f: Fields) -> TransformerShape:
    """Zaya: attention in a compressed space with convolutions over queries and keys; a router of several layers."""
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
        own_linears=parts.with_roles(
            (
                Linear(name="q", d_in=h, d_out=a * d, bias=bias, fused="qkv"),
                Linear(name="k", d_in=h, d_out=kv * d, bias=bias, split=Split.KV_HEADS, fused="qkv"),
                Linear(name="v", d_in=h, d_out=kv * d // 2, bias=bias, split=Split.KV_HEADS, fused="qkv"),
                Linear(name="v_delayed", d_in=h, d_out=kv * d // 2, bias=bias, split=Split.KV_HEADS),
                replace(parts.plain("v_first", h, kv * d // 2, rows=1), reused=True),
                Linear(name="out", d_in=a * d, d_out=h, bias=bias, split=Split.ROW),
            )
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
        *_per_layer_linears(h, per_layer),
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


def _per_layer_linears(hidden: int, per_layer: int) -> tuple[Linear, ...]:
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
    kinds = _gemma4_kinds(f, sizes)
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
            linears=_per_layer_linears(h, per_layer) if per_layer else (),
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


def _gemma4_kinds(f: Fields, sizes: Sizes) -> list[_GemmaLayer]:
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
