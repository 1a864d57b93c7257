"""Models of raw sound (wav2vec 2.0, HuBERT, WavLM and their relatives): convolutions, then an encoder."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sartor.model.layer import AttentionMixer, DenseFfn, Layer, Linear, Vectors
from sartor.model.shape import Stack, TransformerShape
from sartor.read.families import parts
from sartor.read.families.parts import group_layers, heads, layer_norm, num_labels, plain
from sartor.read.fields import Fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Sound:
    """``stacked``: positions from several plain convolutions; ``gated``: WavLM's relative position bias."""

    stacked: bool = False
    gated: bool = False
    masks: float = 0.05
    """Default of ``mask_time_prob``; if above 0 there is a learned mask."""


def read_sound(f: Fields, family: Sound) -> TransformerShape:
    """The shape of an encoder over raw sound."""
    hidden, count = f.essential("hidden_size"), f.layers()
    num_heads, _, head_dim = heads(f, hidden)
    bias_table = (Vectors(name="gates", fixed=num_heads + 8 * head_dim + 8),) if family.gated else ()
    mixer = AttentionMixer(
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=head_dim,
        causal=False,
        q_bias=True,
        kv_bias=True,
        out_bias=True,
        vectors=bias_table,
    )
    ffn = DenseFfn(ffn_hidden_size=f.size("intermediate_size"), gated=False, up_bias=True, down_bias=True)
    layer = Layer(mixers=(mixer,), ffn=ffn, norms=(layer_norm(), layer_norm()))
    layers = [layer] * count
    if family.gated:
        table = Vectors(name="relative_bias", fixed=f.size("num_buckets") * num_heads, embedding=True)
        layers[0] = replace(layer, vectors=(table,))
    stack = Stack(
        name="encoder",
        hidden_size=hidden,
        runs=group_layers(layers),
        norms=(layer_norm(),),
        linears=(plain("feature_projection", last_width(f), hidden, bias=True),),
        vectors=front(f, family, hidden),
    )
    linears, vectors = top(f, hidden)
    return TransformerShape(
        name=f.model_type,
        stacks=(stack,),
        vocab_size=0,
        lm_head=False,
        encoder_only=True,
        linears=linears,
        vectors=vectors,
        model_type=f.model_type,
    )


def last_width(f: Fields) -> int:
    """Output channels of the last convolution."""
    widths = f.sizes("conv_dim") or [512]
    return widths[-1]


def front(f: Fields, family: Sound, hidden: int) -> tuple[Vectors, ...]:
    """Convolutions over the waveform, their norms, the position convolution, the learned mask."""
    widths, taps = f.sizes("conv_dim") or [512], f.sizes("conv_kernel") or [10]
    every = family.stacked or f.word("feat_extract_norm", default="group") == "layer"
    bias = f.flag("conv_bias", default=False)
    total = 0
    for i, (width, kernel) in enumerate(zip(widths, taps, strict=False)):
        total += (widths[i - 1] if i else 1) * width * kernel
        total += (width if bias else 0) + (2 * width if every or i == 0 else 0)
    normed = 2 * widths[-1] if f.flag("feat_proj_layer_norm", default=True) else 0
    kernel, groups = f.size("num_conv_pos_embeddings"), f.size("num_conv_pos_embedding_groups")
    positions = hidden * (hidden // groups) * kernel + kernel + hidden
    if family.stacked:
        depth, kernel = f.size("num_conv_pos_embeddings"), f.size("conv_pos_kernel_size")
        positions = depth * (hidden * (hidden // groups) * kernel + hidden)
    spoken = (f.number("mask_time_prob") if f.has("mask_time_prob") else family.masks) or f.number("mask_feature_prob")
    return (
        Vectors(name="convolutions", fixed=total + normed),
        Vectors(name="position_convolution", fixed=positions),
        *((Vectors(name="mask", fixed=hidden),) if spoken else ()),
    )


def top(f: Fields, hidden: int) -> tuple[tuple[Linear, ...], tuple[Vectors, ...]]:
    """The head by architecture: letters, classes, or the quantiser of pre-training."""
    if f.architecture.endswith("ForCTC"):
        return (plain("lm_head", hidden, f.essential(*parts.VOCAB), bias=True),), ()
    if f.architecture.endswith(("ForSequenceClassification", "ForAudioClassification")):
        width = f.size("classifier_proj_size")
        return (
            plain("projector", hidden, width, bias=True),
            plain("classifier", width, num_labels(f), bias=True, rows=1),
        ), ()
    if f.architecture.endswith("ForPreTraining") and f.has("num_codevectors_per_group", "codevector_dim"):
        words = f.size("num_codevector_groups") * f.size("num_codevectors_per_group")
        width, out = f.size("codevector_dim"), f.size("proj_codevector_dim")
        codebook = Vectors(name="codebook", fixed=words * (width // f.size("num_codevector_groups")))
        return (
            plain("codes", last_width(f), words, bias=True, rows=0),
            plain("project_hidden", hidden, out, bias=True),
            plain("project_quantised", width, out, bias=True, rows=0),
        ), (codebook,)
    return (), ()
