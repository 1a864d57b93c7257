"""Models composed of others: an encoder and a decoder of other types, text encoders beside towers, sound."""

from __future__ import annotations

from dataclasses import replace

from sartor.model.counts import count_params
from sartor.model.layer import AttentionMixer, DenseFfn, Layer, Linear, VectorRole, Vectors
from sartor.model.shape import Stack, TransformerShape
from sartor.read.families import parts, read_as, read_part
from sartor.read.families.encoder_decoder import Seq2Seq, Side, build_stack, decoder_alone, read_side
from sartor.read.families.encoders import Encoder, read_encoder
from sartor.read.families.parts import group_layers, plain, rms
from sartor.read.families.tabled import is_tabled
from sartor.read.fields import Fields


def read_composed(f: Fields) -> TransformerShape:
    """A decoder that attends to an encoder, each read by its own type, with a projection where widths differ."""
    encoder, decoder = _part(f, "encoder"), _part(f, "decoder")
    e, d = _read_side_of_class(encoder, "Model"), _read_side_of_class(decoder, "ForCausalLM")
    vision = e.vocab_size == 0
    source = int(e.hidden_size)
    side = e.stacks[0]
    bare = replace(e, vocab_size=0, learned_positions=0, vectors=())
    rest = int(count_params(e).total) - int(count_params(bare).total)
    first = replace(
        side,
        name="encoder",
        is_text=not vision,
        linears=(*side.linears, *e.linears),
        vectors=(*side.vectors, Vectors(name="encoder_tables", fixed=rest)),
    )
    second = _attending(d.main, decoder)
    stated = decoder.optional_size("cross_attention_hidden_size")
    between = source != int(d.hidden_size) and stated is None
    bridge = (Linear(name="encoder_to_decoder", d_in=source, d_out=d.hidden_size, bias=True),) if between else ()
    return replace(
        d, stacks=(first, second), encoder_only=False, linears=(*d.linears, *bridge), model_type=f.model_type
    )


def _part(f: Fields, name: str) -> Fields:
    """One of the two configs; both must be present with a model_type."""
    fields = f.nested(name)
    if fields is None or not fields.model_type:
        raise f.refuse(name, "missing", "must be an object with its own model_type")
    return fields


def _read_side_of_class(f: Fields, ending: str) -> TransformerShape:
    """One of the two models, with no head or with a language-model head."""
    return read_part(replace(f, architecture=ending))


def _attending(stack: Stack, f: Fields) -> Stack:
    """The decoder's stack with a cross-attention in every layer that has none."""
    return replace(parts.in_every_layer(stack, lambda layer: _with_cross(layer, f)), name="decoder")


def _with_cross(layer: Layer, f: Fields) -> Layer:
    """A layer with causal self-attention, cross-attention and a norm for it."""
    mixer = layer.mixers[0]
    assert isinstance(mixer, AttentionMixer)
    if any(isinstance(m, AttentionMixer) and m.cross for m in layer.mixers):
        return layer
    cross = replace(mixer, cross=True, causal=False, name="cross_attention")
    return replace(layer, mixers=(replace(mixer, causal=True), cross), norms=(*layer.norms, layer.norms[-1]))


def read_trocr(f: Fields) -> TransformerShape:
    """TrOCR's decoder: BART's without its encoder."""
    side = read_side(f, "decoder_")
    normed = f.flag("layernorm_embedding", default=True)
    learned = f.flag("use_learned_position_embeddings", default=True)
    rows = f.size(*parts.POSITIONS) + 2 if learned else 0
    width = f.optional_size("cross_attention_hidden_size")
    stack = build_stack(f, Seq2Seq(embedding_norm=normed), side, rows, cross=True)
    if not f.path:
        stack = decoder_alone(stack)
    if width is not None:
        stack = parts.in_every_layer(stack, lambda layer: _from_width(layer, width))
    return TransformerShape(
        name=f.model_type,
        stacks=(stack,),
        vocab_size=f.essential(*parts.VOCAB),
        max_positions=f.size(*parts.POSITIONS),
        tied_embeddings=f.flag("tie_word_embeddings", default=True),
        model_type=f.model_type,
    )


def _from_width(layer: Layer, width: int | None) -> Layer:
    mixer, cross = layer.mixers
    assert isinstance(cross, AttentionMixer)
    return replace(layer, mixers=(mixer, replace(cross, kv_hidden_size=width)))


PLAIN = Encoder(token_types=False, pooler=False)


def read_text_encoder(f: Fields, family: Encoder = PLAIN, path: str = "text_config") -> TransformerShape:
    """A text encoder in a nested config (``path`` empty: at the top), with no head of its own."""
    inner = f.part(path) if path else f
    shape = read_encoder(replace(inner, architecture="Model"), family)
    return replace(shape, model_type=f.model_type)


def read_nested(f: Fields, fallback: str, path: str = "text_config") -> TransformerShape:
    """A language model in a nested config, by the reader of its own type."""
    inner = f.part(path, fallback)
    return read_part(inner)


def read_captions(f: Fields) -> TransformerShape:
    """Text layers that run with the image's tokens in front (GIT): a decoder of BERT's layers."""
    shape = read_encoder(replace(f, architecture=""), Encoder(token_types=False, transform=False))
    tied = f.flag("tie_word_embeddings", default=False)
    return replace(shape, tied_embeddings=tied, linears=(), vectors=())


def read_blip(f: Fields) -> TransformerShape:
    """BLIP: BERT's layers with a cross-attention to the image, which text alone does not use (arXiv 2201.12086)."""
    shape = read_text_encoder(f)
    inner = f.part("text_config")
    hidden, source = int(shape.hidden_size), inner.size("encoder_hidden_size")
    cross = tuple(
        plain(name, d_in, hidden, bias=True, rows=0)
        for name, d_in in (("cross_q", hidden), ("cross_k", source), ("cross_v", source), ("cross_out", hidden))
    )
    if f.architecture in ("BlipModel",):
        cross = ()
    return _with_more(shape, cross, Vectors(name="cross_norm", per_hidden=2))


def read_flava(f: Fields) -> TransformerShape:
    """FLAVA: a text encoder, pooled and projected for the multimodal one (arXiv 2112.04482)."""
    shape = read_text_encoder(f, replace(PLAIN, bias="qkv_bias", out_bias=True))
    hidden = int(shape.hidden_size)
    towards = plain("text_to_multimodal", hidden, hidden, bias=True)
    return replace(shape, linears=(*shape.linears, plain("pooler", hidden, hidden, bias=True, rows=1), towards))


def _with_more(shape: TransformerShape, linears: tuple[Linear, ...], norm: Vectors) -> TransformerShape:
    """The shape with further parts in every layer of its main stack."""
    if not linears:
        return shape
    return parts.in_main_layers(shape, lambda x: replace(x, linears=(*x.linears, *linears), vectors=(*x.vectors, norm)))


def read_lxmert(f: Fields) -> TransformerShape:
    """LXMERT: the language layers; object and cross-modality layers come from the table (arXiv 1908.07490)."""
    named = replace(f, raw={**f.raw, "num_hidden_layers": f.size("l_layers")}, architecture="Model")
    return read_encoder(named, Encoder())


def read_sound_decoder(f: Fields, source: str = "") -> TransformerShape:
    """A BART-like decoder over a sound encoder."""
    inner = (f.part(source) if source else None) or f
    side = read_side(inner, "decoder_") if f.model_type == "speecht5" else _plain_side(inner)
    stack = build_stack(inner, Seq2Seq(), side, 0, cross=True)
    return TransformerShape(
        name=f.model_type,
        stacks=(replace(stack, name="decoder"),),
        vocab_size=inner.size(*parts.VOCAB),
        tied_embeddings=f.flag("tie_word_embeddings", default=True),
        model_type=f.model_type,
    )


def _plain_side(f: Fields) -> Side:
    """A decoder's sizes from the plain field names."""
    hidden = f.size("hidden_size")
    num_heads, num_kv_heads, head_dim = parts.heads(f, hidden)
    layers, ffn = f.layers(), f.size("intermediate_size")
    return Side(hidden=hidden, layers=layers, heads=num_heads, ffn=ffn, kv_heads=num_kv_heads, head_dim=head_dim)


def read_pix2struct(f: Fields) -> TransformerShape:
    """Pix2Struct: T5's decoder with gated feed-forward parts over patches (arXiv 2210.03347)."""
    t = f.part("text_config", "pix2struct_text_model")
    hidden, heads, width = t.size("hidden_size"), t.size("num_heads"), t.size("d_ff")
    mixer = AttentionMixer(num_heads=heads, num_kv_heads=heads, head_dim=hidden // heads)
    cross = replace(mixer, cross=True, causal=False, name="cross_attention")
    layer = Layer(mixers=(mixer, cross), ffn=DenseFfn(ffn_hidden_size=width), norms=(rms(),) * 3)
    table = Vectors(
        name="relative_bias",
        role=VectorRole.RELATIVE_BIAS,
        fixed=t.size("relative_attention_num_buckets") * heads,
        embedding=True,
    )
    layers = [replace(layer, vectors=(table,)), *[layer] * (t.layers("num_layers") - 1)]
    return TransformerShape(
        name=f.model_type,
        stacks=(Stack(name="decoder", hidden_size=hidden, runs=group_layers(layers), norms=(rms(),)),),
        vocab_size=t.size("vocab_size"),
        tied_embeddings=f.flag("tie_word_embeddings", default=False),
        model_type=f.model_type,
    )


def conformer(f: Fields, path: str = "encoder_config") -> TransformerShape:
    """An encoder of conformer blocks (arXiv 2005.08100).

    Two half feed-forward parts, attention with relative positions (Lasr: rotary ones, norms without bias), and a
    convolution between two point-wise GEMMs.
    """
    relative = f.model_type != "lasr_ctc"
    e = (f.part(path) if path else None) or f
    hidden, count, heads, width = e.size("hidden_size"), e.layers(), e.size(*parts.HEADS), e.size("intermediate_size")
    bias = e.flag("attention_bias", default=True)
    conv_bias, taps = e.flag("convolution_bias", default=True), e.size("conv_kernel_size")
    mixer = AttentionMixer(
        num_heads=heads,
        num_kv_heads=e.optional_size(*parts.KV_HEADS) or heads,
        head_dim=hidden // heads,
        causal=False,
        q_bias=bias,
        kv_bias=bias,
        out_bias=bias,
        projections=(plain("relative_k", hidden, hidden),) if relative else (),
        vectors=(Vectors(name="position_biases", fixed=2 * hidden),) if relative else (),
    )
    ffn = DenseFfn(ffn_hidden_size=width, gated=False, up_bias=bias, down_bias=bias)
    around = (
        plain("conv_in", hidden, 2 * hidden, bias=conv_bias),
        plain("conv_out", hidden, hidden, bias=conv_bias),
    )
    taps_of = Vectors(name="depthwise", fixed=hidden * taps + (hidden if conv_bias else 0) + 2 * hidden)
    layer = Layer(
        mixers=(mixer,),
        ffn=ffn,
        ffns=(replace(ffn, name="mlp_2"),),
        norms=(parts.layer_norm(bias=relative),) * 5,
        linears=around,
        vectors=(taps_of,),
    )
    stack = Stack(name="encoder", hidden_size=hidden, runs=group_layers([layer] * count))
    return TransformerShape(
        name=f.model_type, stacks=(stack,), vocab_size=0, lm_head=False, encoder_only=True, model_type=f.model_type
    )


def read_omni(f: Fields, thinker: str) -> TransformerShape:
    """Qwen Omni: a thinker that reads and writes text, and a talker that outputs sound."""
    inner = f.part("thinker_config", thinker)
    if not is_tabled(f.model_type, f.architecture):
        f.ledger.guess(f"the talker of {f.model_type} is left out: only the thinker is counted, its text part exact")
    return read_as(inner, thinker)
