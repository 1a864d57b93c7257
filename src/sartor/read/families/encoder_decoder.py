"""Encoder-decoder families (BART, T5, Whisper and relatives), one row each: what the class does beyond the config.

T5 and its relatives: relative bias tables, head widths of their own, experts, and T5Gemma.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from sartor.model.layer import AttentionMixer, DenseFfn, Ffn, Layer, Linear, MoeFfn, Norm, VectorRole, Vectors
from sartor.model.shape import Stack, TransformerShape
from sartor.read.families import parts
from sartor.read.families.decoder import Choice, choose
from sartor.read.families.parts import Head, check_experts, group_layers, layer_norm, num_labels, plain, rms
from sartor.read.fields import Fields
from sartor.units import nearest_divisors


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """Sizes of one of the two stacks."""

    hidden: int
    layers: int
    heads: int
    ffn: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Seq2Seq:
    """Properties of a BART-like encoder-decoder class."""

    norm: Norm = field(default_factory=layer_norm)
    encoder_norms: int = 2
    decoder_norms: int = 3
    final_norm: bool = False
    embedding_norm: bool = False
    bias: Choice = True
    key_bias: bool = True
    out_bias: bool = True
    mlp_bias: bool = True
    gated_decoder: bool = False
    positions: Callable[[Fields], tuple[int, int]] | None = None
    """Rows of the position tables of (encoder, decoder)."""
    sparse_step: tuple[str, str] | None = None
    """Fields with the period of expert layers in (encoder, decoder)."""
    encoder_extra: Callable[[Fields, int], tuple[tuple[Linear, ...], tuple[Vectors, ...]]] | None = None
    """Additional parts of each encoder layer."""
    decoder_extra: Callable[[Fields, int], tuple[tuple[Linear, ...], tuple[Vectors, ...]]] | None = None
    front: Callable[[Fields, int], tuple[Vectors, ...]] | None = None
    """Parameters before the encoder's layers: convolutions over sound, global tokens."""
    encoder_tokens: str = ""
    """Field with the encoder's fixed length, if its input is not text."""
    encoder_stride: int = 1
    """Positions of that length per token of the encoder (strided convolutions)."""
    shared_table: bool = True
    """Encoder and decoder share one token table if tied, else have one each. False: no separate tables are counted."""
    names: tuple[str, str] = ("encoder_", "decoder_")


def read_seq2seq(f: Fields, family: Seq2Seq) -> TransformerShape:
    """The shape of an encoder-decoder model with the head its architecture names."""
    encoder, decoder = read_side(f, family.names[0]), read_side(f, family.names[1])
    rows = family.positions(f) if family.positions else (0, 0)
    stacks = (
        build_stack(f, family, encoder, rows[0], cross=False),
        build_stack(f, family, decoder, rows[1], cross=True),
    )
    if f.architecture.endswith("ForCausalLM") and not f.path:
        return _around_stacks(f, family, (decoder_alone(stacks[1]),), decoder.hidden)
    return _around_stacks(f, family, stacks, decoder.hidden)


def read_side(f: Fields, prefix: str) -> Side:
    """Sizes from the ``encoder_...`` or ``decoder_...`` fields, or the plain ones."""
    hidden = f.essential(*parts.HIDDEN)
    heads = f.size(
        f"{prefix}attention_heads", f"num_{prefix}attention_heads", f"{prefix}num_attention_heads", "num_heads"
    )
    if hidden % heads:
        must = f"must divide d_model {hidden}"
        raise f.refuse(f"{prefix}attention_heads", heads, must, nearest_divisors(hidden, heads))
    kv = f.optional_size(f"{prefix}num_key_value_heads") or heads
    layers = f.layers(f"{prefix}layers", f"num_{prefix}layers", f"{prefix}num_hidden_layers")
    ffn = f.size(f"{prefix}ffn_dim", "intermediate_size")
    return Side(hidden=hidden, layers=layers, heads=heads, ffn=ffn, kv_heads=kv, head_dim=hidden // heads)


def build_stack(f: Fields, family: Seq2Seq, side: Side, rows: int, *, cross: bool) -> Stack:
    """One of the two stacks."""
    extra = family.decoder_extra if cross else family.encoder_extra
    linears, vectors = extra(f, side.hidden) if extra else ((), ())
    mixer = _attention(f, family, side, causal=cross)
    mixers = (mixer, replace(mixer, cross=True, causal=False, name="cross_attention")) if cross else (mixer,)
    norms = (family.norm,) * (family.decoder_norms if cross else family.encoder_norms)
    plain_layer = Layer(
        mixers=mixers, ffn=_ffn_of(f, family, side, cross=cross), norms=norms, linears=linears, vectors=vectors
    )
    layers = [plain_layer] * side.layers
    if family.sparse_step:
        step = f.optional_size(family.sparse_step[int(cross)], least=0) or 0
        sparse = replace(plain_layer, ffn=_experts(f, side.ffn))
        layers = [sparse if step and (i + 1) % step == 0 else plain_layer for i in range(side.layers)]
    outer = (family.norm,) * (int(family.final_norm) + int(family.embedding_norm))
    tables = (Vectors(name="positions", per_hidden=rows, embedding=True),) if rows else ()
    front = family.front(f, side.hidden) if family.front and not cross else ()
    tokens = f.size(family.encoder_tokens) // family.encoder_stride if family.encoder_tokens and not cross else None
    return Stack(
        name="decoder" if cross else "encoder",
        hidden_size=side.hidden,
        runs=group_layers(layers),
        norms=outer,
        vectors=(*tables, *front),
        tokens=tokens,
    )


def _attention(f: Fields, family: Seq2Seq, side: Side, *, causal: bool) -> AttentionMixer:
    """The self-attention of one side."""
    bias = choose(f, family.bias)
    values_only = bias and not family.key_bias
    return AttentionMixer(
        num_heads=side.heads,
        num_kv_heads=side.kv_heads,
        head_dim=side.head_dim,
        causal=causal,
        q_bias=bias,
        kv_bias=bias and family.key_bias,
        out_bias=bias and family.out_bias,
        vectors=(Vectors(name="v_bias", fixed=side.hidden),) if values_only else (),
    )


def _ffn_of(f: Fields, family: Seq2Seq, side: Side, *, cross: bool) -> DenseFfn:
    """The feed-forward part of one side."""
    return DenseFfn(
        ffn_hidden_size=side.ffn,
        gated=cross and family.gated_decoder,
        up_bias=family.mlp_bias,
        down_bias=family.mlp_bias,
        activation=f.word("activation_function", "dense_act_fn", "decoder_hidden_act", default="gelu"),
    )


def _experts(f: Fields, width: int) -> MoeFfn:
    """NLLB-MoE's experts, two per token (arXiv 2207.04672)."""
    num = f.size("num_experts")
    check_experts(f, num, 2)
    expert = DenseFfn(ffn_hidden_size=width, gated=False, up_bias=True, down_bias=True, activation="relu")
    bias = f.flag("router_bias", default=False)
    return MoeFfn(num_experts=num, experts_per_token=2, expert=expert, router_bias=bias)


def decoder_alone(stack: Stack) -> Stack:
    """A decoder used alone has nothing to attend to: its cross-attention has weights but does not run."""
    return parts.in_every_layer(stack, lambda layer: _without_source(layer, int(stack.hidden_size)))


def _without_source(layer: Layer, hidden: int) -> Layer:
    """The layer with its cross-attention not run."""
    mixer, cross = layer.mixers
    assert isinstance(cross, AttentionMixer)
    idle = tuple(replace(x, rows=0) for x in cross.linears(hidden))
    return replace(layer, mixers=(mixer, replace(cross, own_linears=idle)))


def _around_stacks(f: Fields, family: Seq2Seq, stacks: tuple[Stack, ...], hidden: int) -> TransformerShape:
    """Token tables and head around the two stacks."""
    vocab = f.essential(*parts.VOCAB)
    tied = f.flag("tie_word_embeddings", default=True)
    classifies = f.architecture.endswith("ForSequenceClassification")
    bare = f.architecture.endswith(("Model", "ForQuestionAnswering")) and not f.architecture.endswith("MTModel")
    copies = 2 if not tied and family.shared_table and len(stacks) == 2 else 0
    tables = (Vectors(name="separate_tables", per_hidden=copies * vocab, embedding=True),) if copies else ()
    linears: tuple[Linear, ...] = ()
    if classifies:
        linears = (
            plain("classifier_dense", hidden, hidden, bias=True, rows=1),
            plain("classifier", hidden, num_labels(f, 3), bias=True, rows=1),
        )
    elif f.architecture.endswith("ForQuestionAnswering"):
        linears = (plain("qa_outputs", hidden, 2, bias=True),)
    return TransformerShape(
        name=f.model_type,
        stacks=stacks,
        vocab_size=vocab,
        max_positions=f.optional_size(*parts.POSITIONS, "max_target_positions") or 0,
        tied_embeddings=tied,
        lm_head=not bare and not classifies,
        linears=linears,
        vectors=tables,
        model_type=f.model_type,
    )


# -- positions and extras ------------------------------------------------------------------------------------


def offset_positions(extra: int) -> Callable[[Fields], tuple[int, int]]:
    """``max_position_embeddings`` plus ``extra`` rows on both sides."""

    def rows(f: Fields) -> tuple[int, int]:
        count = f.size(*parts.POSITIONS) + extra
        return count, count

    return rows


def apart(encoder: str, decoder: str) -> Callable[[Fields], tuple[int, int]]:
    """Rows from a field per side."""
    return lambda f: (f.size(encoder), f.size(decoder))


def global_projections(f: Fields, hidden: int) -> tuple[tuple[Linear, ...], tuple[Vectors, ...]]:
    """LED's second set of projections for global tokens, which plain text does not use."""
    return tuple(plain(f"{x}_global", hidden, hidden, bias=True, rows=0) for x in ("q", "k", "v")), ()


def ngram_positions(f: Fields, hidden: int) -> tuple[tuple[Linear, ...], tuple[Vectors, ...]]:
    """ProphetNet's relative positions, a projection of the hidden state (arXiv 2001.04063)."""
    return (
        plain("relative_positions", hidden, f.size("num_buckets") * f.size("num_decoder_attention_heads"), bias=True),
    ), ()


def whisper_front(f: Fields, hidden: int) -> tuple[Vectors, ...]:
    """Two convolutions of three taps over the spectrogram."""
    return (Vectors(name="convolutions", fixed=3 * hidden * (f.size("num_mel_bins") + hidden) + 2 * hidden),)


def speech_front(f: Fields, hidden: int) -> tuple[Vectors, ...]:
    """Speech-to-Text's convolutions with gated linear units in between."""
    sizes = f.sizes("conv_kernel_sizes") or [5, 5]
    channels, inputs, total = f.size("conv_channels"), f.size("input_feat_per_channel") * f.size("input_channels"), 0
    for i, taps in enumerate(sizes):
        d_in = inputs if i == 0 else channels // 2
        d_out = 2 * hidden if i == len(sizes) - 1 else channels
        total += d_in * d_out * taps + d_out
    return (Vectors(name="convolutions", fixed=total),)


def moonshine_front(f: Fields, hidden: int) -> tuple[Vectors, ...]:
    """Moonshine's three convolutions over raw sound and a group norm."""
    return (Vectors(name="convolutions", fixed=hidden * 127 + 2 * hidden * hidden * 10 + 3 * hidden + 2 * hidden),)


def global_tokens(f: Fields, hidden: int) -> tuple[Vectors, ...]:
    """PEGASUS-X's learned global tokens."""
    return (Vectors(name="global_tokens", per_hidden=f.size("num_global_tokens"), embedding=True),)


def read_prophetnet(f: Fields, family: Seq2Seq) -> TransformerShape:
    """ProphetNet: streams that predict several tokens ahead, each with an embedding."""
    shape = read_seq2seq(f, family)
    return replace(shape, vectors=(*shape.vectors, Vectors(name="streams", per_hidden=f.size("ngram"), embedding=True)))


def read_fsmt(f: Fields, family: Seq2Seq) -> TransformerShape:
    """FSMT: a vocabulary per language."""
    source, target = f.essential("src_vocab_size"), f.essential("tgt_vocab_size")
    shape = read_seq2seq(replace(f, raw={**f.raw, "vocab_size": target}), family)
    if shape.tied_embeddings and source == target:
        return shape
    table = Vectors(name="source_table", per_hidden=source, embedding=True)
    return replace(shape, vectors=(*shape.vectors, table))


def read_marian(f: Fields, family: Seq2Seq) -> TransformerShape:
    """Marian: one vocabulary for both sides, or (``share_encoder_decoder_embeddings`` false) the decoder's own."""
    shape = read_seq2seq(f, family)
    target = f.optional_size("decoder_vocab_size") or shape.vocab_size
    if f.flag("share_encoder_decoder_embeddings", default=True):
        extra = Vectors(name="narrower_decoder_table", per_hidden=target - shape.vocab_size, embedding=True)
        return shape if shape.tied_embeddings else replace(shape, vectors=(*shape.vectors, extra))
    table = Vectors(name="source_table", per_hidden=shape.vocab_size, embedding=True)
    return replace(shape, vocab_size=target, vectors=(table,))


def read_mvp(f: Fields, family: Seq2Seq) -> TransformerShape:
    """MVP: BART, with learned prompts before keys and values if ``use_prompt``."""
    shape = read_seq2seq(f, family)
    if not f.flag("use_prompt", default=False):
        return shape
    hidden, middle, rows = int(shape.hidden_size), f.size("prompt_mid_dim"), f.size("prompt_length")
    prompts = []
    for stack, sets in zip(shape.stacks, (1, 2), strict=True):
        prompt = (
            rows * hidden
            + hidden * middle
            + middle
            + middle * 2 * hidden * stack.num_layers
            + 2 * hidden * stack.num_layers
        )
        prompts.append(Vectors(name=f"{stack.name}_prompts", fixed=sets * prompt))
    return replace(shape, vectors=(*shape.vectors, *prompts))


# -- the table -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class T5Kind:
    """Properties of a T5 class: where the relative bias is, and whether its head is tied whatever the file says."""

    bias_everywhere: bool = False
    ties_always: bool = True
    sparse: bool = False


def read_t5(f: Fields, kind: T5Kind) -> TransformerShape:
    """T5 and its relatives: relative bias tables, key and value width independent of the hidden size, RMS norms."""
    hidden, count = f.essential("d_model", *parts.HIDDEN), f.layers("num_layers", *parts.LAYERS)
    decoder_count = f.layers("num_decoder_layers") if f.optional_size("num_decoder_layers") else count
    encoder_only = f.architecture.endswith(("EncoderModel", "ForTokenClassification"))
    counts = (count,) if encoder_only else (count, decoder_count)
    stacks = tuple(_t5_stack(f, kind, hidden, n, cross=bool(i)) for i, n in enumerate(counts))
    vocab = f.essential(*parts.VOCAB)
    has_head = "ForConditionalGeneration" in f.architecture or not f.architecture
    says_tied = f.flag("tie_word_embeddings", default=True)
    tied = says_tied or kind.ties_always
    copies = Vectors(name="separate_tables", per_hidden=2 * vocab, embedding=True)
    if has_head and tied and not says_tied:
        f.ledger.assume(
            "tie_word_embeddings is false: the checkpoint's own output head is in the total, while text and active "
            "parameters follow the published class, which ties it to the token table"
        )
    return TransformerShape(
        name=f.model_type,
        stacks=stacks,
        vocab_size=vocab,
        max_positions=f.optional_size("n_positions") or 0,
        tied_embeddings=tied,
        lm_head=has_head,
        stored_head=has_head and tied and not says_tied,
        encoder_only=encoder_only,
        linears=_t5_head(f, hidden),
        vectors=() if tied else (copies,),
        model_type=f.model_type,
    )


def _t5_head(f: Fields, hidden: int) -> tuple[Linear, ...]:
    """The head of a class that is not a language model."""
    match parts.head_of(f):
        case Head.SEQUENCE_CLASSIFICATION:
            dense = plain("classifier_dense", hidden, hidden, bias=True, rows=1)
            return (dense, plain("classifier", hidden, num_labels(f), bias=True, rows=1))
        case Head.TOKEN_CLASSIFICATION:
            return (plain("classifier", hidden, num_labels(f), bias=True),)
        case Head.QUESTION_ANSWERING:
            return (plain("qa_outputs", hidden, num_labels(f), bias=True),)
        case _:
            return ()


def _t5_stack(f: Fields, kind: T5Kind, hidden: int, count: int, *, cross: bool) -> Stack:
    """One of T5's stacks; its first layer has the relative bias that all layers use."""
    heads, head_dim, width = f.size(*parts.HEADS), f.size("d_kv"), f.size("d_ff")
    buckets = f.size("relative_attention_num_buckets")
    table = Vectors(name="relative_bias", role=VectorRole.RELATIVE_BIAS, fixed=buckets * heads, embedding=True)
    mixer = AttentionMixer(num_heads=heads, num_kv_heads=heads, head_dim=head_dim, causal=cross)
    cross_mixer = replace(mixer, cross=True, causal=False, name="cross_attention")
    scheme = f.word("feed_forward_proj", default="relu")
    gated = f.flag("is_gated_act") if f.has("is_gated_act") else scheme.startswith("gated")
    ffn: Ffn = DenseFfn(ffn_hidden_size=width, gated=gated, activation=scheme.split("-")[-1])
    extra = () if cross else _global_bias(f, heads)
    vectors = (*((table,) if kind.bias_everywhere else ()), *extra)
    layer = Layer(
        mixers=(mixer, cross_mixer) if cross else (mixer,),
        ffn=ffn,
        norms=(rms(),) * (3 if cross else 2),
        vectors=vectors,
    )
    layers = [layer] * count
    if kind.sparse:
        layers = _switch_layers(f, layer, count, cross=cross)
    if not kind.bias_everywhere:
        layers[0] = replace(layers[0], vectors=(table, *layers[0].vectors))
    return Stack(name="decoder" if cross else "encoder", hidden_size=hidden, runs=group_layers(layers), norms=(rms(),))


def _global_bias(f: Fields, heads: int) -> tuple[Vectors, ...]:
    """LongT5's transient global attention: a norm per layer (the bias table is in the first layer)."""
    if f.word("encoder_attention_type", default="local") != "transient-global":
        return ()
    return (Vectors(name="global_norm", per_hidden=1),)


def _switch_layers(f: Fields, layer: Layer, count: int, *, cross: bool) -> list[Layer]:
    """Switch Transformer: one expert per token in every ``step``-th layer (arXiv 2101.03961)."""
    dense = layer.ffn
    assert isinstance(dense, DenseFfn)
    dense = replace(dense, gated=False, activation=f.word("dense_act_fn", default="relu"))
    num, side = f.size("num_experts"), "decoder" if cross else "encoder"
    sparse = f.optional_size(f"num_sparse_{side}_layers", least=0) or 0
    step = count // sparse if sparse else count
    if f.has(f"{side}_sparse_step"):
        step = f.size(f"{side}_sparse_step", least=0)
    bias = f.flag("router_bias", default=False)
    moe = MoeFfn(num_experts=num, experts_per_token=1, expert=dense, router_bias=bias)
    return [replace(layer, ffn=moe if step and (step == 1 or i % step == 1) else dense) for i in range(count)]


def read_longt5(f: Fields, kind: T5Kind) -> TransformerShape:
    """LongT5: local or transient-global attention in the encoder (arXiv 2112.07916)."""
    shape = read_t5(f, kind)
    encoder = shape.stacks[0]
    local = f.optional_size("local_radius") or 127
    first = encoder.runs[0].layer.mixers[0]
    assert isinstance(first, AttentionMixer)
    runs = tuple(replace(run, layer=replace(run.layer, mixers=(replace(first, window=local),))) for run in encoder.runs)
    has_global = f.word("encoder_attention_type", default="local") == "transient-global"
    table = Vectors(
        name="global_relative_bias",
        fixed=f.size("relative_attention_num_buckets") * f.size(*parts.HEADS),
        embedding=True,
    )
    if has_global:
        lead = replace(runs[0], layer=replace(runs[0].layer, vectors=(table, *runs[0].layer.vectors)))
        runs = (lead, *runs[1:])
    return replace(shape, stacks=(replace(encoder, runs=runs), *shape.stacks[1:]))


def read_t5gemma(f: Fields) -> TransformerShape:
    """T5Gemma: two Gemma 2 stacks, with cross-attention in the decoder (arXiv 2504.06225)."""
    encoder, decoder = (f.part(name, "t5_gemma_module") for name in ("encoder", "decoder"))
    width, vocab = encoder.essential("hidden_size"), decoder.essential("vocab_size")
    stacks = [_t5gemma_stack(side, width, cross=side is decoder) for side in (encoder, decoder)]
    source = Vectors(name="encoder_table", fixed=encoder.essential("vocab_size") * width, embedding=True)
    return TransformerShape(
        name=f.model_type,
        stacks=tuple(stacks),
        vocab_size=vocab,
        tied_embeddings=f.flag("tie_word_embeddings", default=True),
        vectors=(source,),
        model_type=f.model_type,
    )


def _t5gemma_stack(side: Fields, source_width: int, *, cross: bool) -> Stack:
    """One of T5Gemma's stacks."""
    hidden = side.essential("hidden_size")
    count = side.layers()
    heads, kv_heads, head_dim = parts.heads(side, hidden)
    types = side.words("layer_types", length=count) or ["sliding" if i % 2 == 0 else "full" for i in range(count)]
    window, bias = side.optional_size("sliding_window", least=0) or 0, side.flag("attention_bias", default=False)
    self_mixer = AttentionMixer(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        causal=cross,
        q_bias=bias,
        kv_bias=bias,
        out_bias=bias,
    )
    cross_mixer = replace(self_mixer, cross=True, causal=False, kv_hidden_size=source_width, name="cross_attention")
    ffn = DenseFfn(ffn_hidden_size=side.essential("intermediate_size"), activation="gelu")
    layers = []
    for kind in types:
        mixer = replace(self_mixer, window=window if "sliding" in kind else 0)
        layers.append(
            Layer(mixers=(mixer, cross_mixer) if cross else (mixer,), ffn=ffn, norms=(rms(),) * (6 if cross else 4))
        )
    return Stack(name="decoder" if cross else "encoder", hidden_size=hidden, runs=group_layers(layers), norms=(rms(),))
