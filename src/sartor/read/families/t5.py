"""T5 and its relatives: relative bias tables, head widths of their own, experts, and T5Gemma."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sartor.model.layer import AttentionMixer, DenseFfn, Ffn, Layer, Linear, MoeFfn, VectorRole, Vectors
from sartor.model.shape import Stack, TransformerShape
from sartor.read.families import parts
from sartor.read.families.parts import Head, group_layers, num_labels, plain, rms
from sartor.read.fields import Fields


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
