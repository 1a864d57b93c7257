"""Models composed of an encoder and a decoder of other types (TrOCR, ViT-GPT2, BERT2BERT)."""

from __future__ import annotations

from dataclasses import replace

from sartor.model.counts import count_params
from sartor.model.layer import AttentionMixer, Layer, Linear, Vectors
from sartor.model.shape import Stack, TransformerShape
from sartor.read import families
from sartor.read.families import parts
from sartor.read.families.encoder_decoder import Seq2Seq, build_stack, decoder_alone, read_side
from sartor.read.fields import Fields


def read_composed(f: Fields) -> TransformerShape:
    """A decoder that attends to an encoder, each read by its own type, with a projection where widths differ."""
    encoder, decoder = part(f, "encoder"), part(f, "decoder")
    e, d = read_part(encoder, "Model"), read_part(decoder, "ForCausalLM")
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
    second = attending(d.main, decoder)
    stated = decoder.optional_size("cross_attention_hidden_size")
    between = source != int(d.hidden_size) and stated is None
    bridge = (Linear(name="encoder_to_decoder", d_in=source, d_out=d.hidden_size, bias=True),) if between else ()
    return replace(
        d, stacks=(first, second), encoder_only=False, linears=(*d.linears, *bridge), model_type=f.model_type
    )


def part(f: Fields, name: str) -> Fields:
    """One of the two configs; both must be present with a model_type."""
    found = f.nested(name)
    if found is None or not found.model_type:
        raise f.refuse(name, "missing", "must be an object with its own model_type")
    return found


def read_part(f: Fields, ending: str) -> TransformerShape:
    """One of the two models, with no head or with a language-model head."""
    return families.read_part(replace(f, architecture=ending))


def attending(stack: Stack, f: Fields) -> Stack:
    """The decoder's stack with a cross-attention in every layer that has none."""
    return replace(parts.in_every_layer(stack, lambda layer: with_cross(layer, f)), name="decoder")


def with_cross(layer: Layer, f: Fields) -> Layer:
    """A layer with causal self-attention, cross-attention and a norm for it."""
    own = layer.mixers[0]
    assert isinstance(own, AttentionMixer)
    if any(isinstance(m, AttentionMixer) and m.cross for m in layer.mixers):
        return layer
    cross = replace(own, cross=True, causal=False, name="cross_attention")
    return replace(layer, mixers=(replace(own, causal=True), cross), norms=(*layer.norms, layer.norms[-1]))


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
    own, cross = layer.mixers
    assert isinstance(cross, AttentionMixer)
    return replace(layer, mixers=(own, replace(cross, kv_hidden_size=width)))
