"""Image models (ViT and its relatives), image-text pairs (CLIP, SigLIP), and models of raw sound (wav2vec 2.0 and its
relatives).

Encoders of documents and pages: text with boxes, tables, markup or image regions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from sartor.model.layer import AttentionMixer, DenseFfn, Layer, Linear, VectorRole, Vectors
from sartor.model.shape import Stack, TransformerShape
from sartor.read.families import parts
from sartor.read.families.encoders import Around, Encoder, read_encoder
from sartor.read.families.parts import Head, group_layers, head_of, heads, in_every_layer, layer_norm, num_labels, plain
from sartor.read.families.towers import grid, read_tower, tower_of
from sartor.read.fields import Fields


@dataclass(frozen=True, slots=True, kw_only=True)
class _ImageModel:
    """A tower that is the whole model, by its row in ``towers.toml``.

    ``pooler``: the bare model ends in a dense layer on the first token;
    ``doubled``: the classifier reads the first token concatenated with the mean of the others."""

    tokens: Callable[[Fields], int] | None = None
    """Tokens of one image (sound, video), if not its patches plus the learned ones."""
    pooler: bool = False
    doubled: bool = False


def read_image_model(f: Fields, model: _ImageModel) -> TransformerShape:
    """The shape of an image model, with the classifier its architecture names."""
    tower = tower_of(f.model_type)
    assert tower is not None, f"{f.model_type} has no row in towers.toml"
    stack = _swiglu(f, read_tower(f, tower, name="encoder"))
    hidden, tokens = int(stack.hidden_size), model.tokens(f) if model.tokens else grid(f) + tower.class_token
    top: tuple[Linear, ...] = ()
    if f.architecture.endswith("ForImageClassification"):
        top = (plain("classifier", hidden * (2 if model.doubled else 1), num_labels(f), bias=True, rows=1),)
    elif f.architecture.endswith("ForImageClassificationWithTeacher"):
        classifier = plain("classifier", hidden, num_labels(f), bias=True, rows=1)
        top = (classifier, replace(classifier, name="distillation_classifier"))
    elif f.architecture.endswith("ForObjectDetection"):
        top = _detection_heads(f, hidden)
    elif model.pooler and head_of(f) in (Head.NONE, Head.LM):
        top = (plain("pooler", hidden, f.optional_size("pooler_output_size") or hidden, bias=True, rows=1),)
    return TransformerShape(
        name=f.model_type,
        stacks=(replace(stack, tokens=tokens),),
        vocab_size=0,
        max_positions=tokens,
        lm_head=False,
        encoder_only=True,
        linears=top,
        model_type=f.model_type,
    )


def _detection_heads(f: Fields, hidden: int) -> tuple[Linear, ...]:
    """YOLOS: class and box of each detection token, by three linear layers each (arXiv 2106.00666)."""
    rows = f.size("num_detection_tokens")
    inner = plain("detection", hidden, hidden, bias=True, rows=rows)
    ends = (("class", num_labels(f) + 1), ("box", 4))
    out = (plain(f"{name}_out", hidden, width, bias=True, rows=rows) for name, width in ends)
    return (replace(inner, count=4), *out)


def _swiglu(f: Fields, stack: Stack) -> Stack:
    """DINOv2's largest model has a gated feed-forward part of two thirds the width, rounded up to a multiple of 8."""
    if not f.flag("use_swiglu_ffn", default=False):
        return stack
    width = (int(int(stack.hidden_size) * (f.number("mlp_ratio") or 4) * 2 / 3) + 7) // 8 * 8
    ffn = DenseFfn(ffn_hidden_size=width, up_bias=True, down_bias=True)
    return in_every_layer(stack, lambda layer: replace(layer, ffn=ffn))


def spectrogram_patches(f: Fields) -> int:
    """Overlapping patches of a spectrogram and two learned tokens (AST, arXiv 2104.01778)."""
    side = f.size("patch_size")
    down = (f.size("num_mel_bins") - side) // f.size("frequency_stride") + 1
    return down * ((f.size("max_length") - side) // f.size("time_stride") + 1) + 2


def film_patches(f: Fields) -> int:
    """Patches over several frames each (VideoMAE, ViViT)."""
    depth, *_ = f.sizes("tubelet_size") or [2]
    learned = int(f.model_type == "vivit")
    side = (f.sizes("tubelet_size") or [0])[-1] if learned else f.size("patch_size")
    return (f.size("num_frames") // depth) * (f.size("image_size") // side) ** 2 + learned


def unmasked_patches(f: Fields) -> int:
    """The unmasked patches of a masked autoencoder, and the class token (arXiv 2111.06377)."""
    return int(grid(f) * (1 - (f.number("mask_ratio") or 0.75))) + 1


def patches_and_detections(f: Fields) -> int:
    """Patches, the class token and the detection tokens (YOLOS)."""
    return grid(f) + 1 + f.size("num_detection_tokens")


def patches_and_registers(f: Fields) -> int:
    """Patches, the class token and the registers (DINOv3)."""
    return grid(f) + 1 + f.size("num_register_tokens", least=0)


def mask_token(f: Fields, hidden: int) -> tuple[tuple[Linear, ...], tuple[Vectors, ...]]:
    """DINOv2's mask token."""
    return (), (Vectors(name="mask_token", per_hidden=1),)


def mask_and_registers(f: Fields, hidden: int) -> tuple[tuple[Linear, ...], tuple[Vectors, ...]]:
    """DINOv2's mask token and registers (arXiv 2309.16588)."""
    return (), (Vectors(name="mask_and_registers", per_hidden=1 + f.size("num_register_tokens")),)


def relative_positions(f: Fields, hidden: int) -> tuple[Vectors, ...]:
    """BEiT's optional table of relative positions in each layer."""
    if not f.flag("use_relative_position_bias", default=False):
        return ()
    side = f.size("image_size") // f.size("patch_size")
    rows = (2 * side - 1) ** 2 + 3
    return (Vectors(name="relative_positions", fixed=rows * f.size("num_attention_heads"), embedding=True),)


TEXT = Encoder(
    token_types=False, embedding_norm=False, final_norm=True, pooler=False, transform=False, lm_head_bias=False
)


def read_clip_text(f: Fields) -> TransformerShape:
    """CLIP's causal text encoder, with a projection if the class has one."""
    return _text_tower(replace(f, architecture="CLIPTextModel"), "WithProjection" in f.architecture)


def read_siglip_text(f: Fields) -> TransformerShape:
    """SigLIP's text encoder with its pooling layer."""
    shape = _text_tower(replace(f, architecture="SiglipTextModel"), False)
    out = f.optional_size("projection_size") or int(shape.hidden_size)
    return replace(shape, linears=(plain("head", int(shape.hidden_size), out, bias=True, rows=1),))


def _text_tower(f: Fields, projected: bool) -> TransformerShape:
    shape = read_encoder(f, TEXT)
    if not projected:
        return shape
    return replace(shape, linears=(plain("projection", int(shape.hidden_size), f.size("projection_dim"), rows=1),))


def read_pair(f: Fields, *, text: str, vision: str) -> TransformerShape:
    """CLIP and SigLIP: a text and an image encoder with outputs that are compared."""
    t = f.part("text_config", text)
    v = f.part("vision_config", vision)
    clip = text.startswith("clip")
    shape = read_clip_text(t) if clip else read_siglip_text(t)
    kind = tower_of(vision)
    assert kind is not None
    tower = read_tower(v, kind)
    scalars = Vectors(name="logit_scale", fixed=1 if clip else 2)
    if clip:
        out = f.size("projection_dim")
        seen = plain("visual_projection", int(tower.hidden_size), out, rows=0)
        shape = replace(shape, linears=(plain("text_projection", int(shape.hidden_size), out, rows=1),))
        tower = replace(tower, linears=(*tower.linears, seen))
    return replace(shape, stacks=(*shape.stacks, tower), vectors=(*shape.vectors, scalars), model_type=f.model_type)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sound:
    """``stacked``: positions from several plain convolutions; ``gated``: WavLM's relative position bias."""

    stacked: bool = False
    gated: bool = False
    masks: float = 0.05
    """Default of ``mask_time_prob``; if above 0 there is a learned mask."""


def read_sound(f: Fields, family: _Sound) -> TransformerShape:
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
        table = Vectors(
            name="relative_bias", role=VectorRole.RELATIVE_BIAS, fixed=f.size("num_buckets") * num_heads, embedding=True
        )
        layers[0] = replace(layer, vectors=(table,))
    stack = Stack(
        name="encoder",
        hidden_size=hidden,
        runs=group_layers(layers),
        norms=(layer_norm(),),
        linears=(plain("feature_projection", _last_width(f), hidden, bias=True),),
        vectors=_front(f, family, hidden),
    )
    linears, vectors = _top(f, hidden)
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


def _last_width(f: Fields) -> int:
    """Output channels of the last convolution."""
    widths = f.sizes("conv_dim") or [512]
    return widths[-1]


def _front(f: Fields, family: _Sound, hidden: int) -> tuple[Vectors, ...]:
    """Convolutions over the waveform, their norms, the position convolution, the learned mask."""
    widths, taps = f.sizes("conv_dim") or [512], f.sizes("conv_kernel") or [10]
    all_layers = family.stacked or f.word("feat_extract_norm", default="group") == "layer"
    bias = f.flag("conv_bias", default=False)
    total = 0
    for i, (width, kernel) in enumerate(zip(widths, taps, strict=False)):
        total += (widths[i - 1] if i else 1) * width * kernel
        total += (width if bias else 0) + (2 * width if all_layers or i == 0 else 0)
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


def _top(f: Fields, hidden: int) -> tuple[tuple[Linear, ...], tuple[Vectors, ...]]:
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
            plain("codes", _last_width(f), words, bias=True, rows=0),
            plain("project_hidden", hidden, out, bias=True),
            plain("project_quantised", width, out, bias=True, rows=0),
        ), (codebook,)
    return (), ()


def layoutlmv3_around(f: Fields, hidden: int) -> Around:
    """LayoutLMv3: narrow tables of box coordinates, image patches beside the text, biases of relative places."""
    rows = f.size("max_2d_position_embeddings")
    boxes = 2 * rows * (f.size("coordinate_size") + f.size("shape_size"))
    num_heads = f.size(*parts.HEADS)
    bins = f.size("rel_pos_bins") if f.flag("has_relative_attention_bias", default=True) else 0
    bins += 2 * f.size("rel_2d_pos_bins") if f.flag("has_spatial_attention_bias", default=True) else 0
    seen = 0
    if f.flag("visual_embed", default=True):
        side, patch = f.size("input_size"), f.size("patch_size")
        seen = (1 + (side // patch) ** 2 + 1) * hidden + patch * patch * f.size("num_channels") * hidden + hidden
        seen += 4 * hidden
    return Around(
        vectors=(
            Vectors(name="box_positions", fixed=boxes, embedding=True),
            Vectors(name="relative_biases", fixed=bins * num_heads),
            Vectors(name="image", fixed=seen),
        )
    )


def markuplm_around(f: Fields, hidden: int) -> Around:
    """MarkupLM: tables of tags and subscripts per depth of the path, mixed by two matrices (arXiv 2110.08518)."""
    depth, unit = f.size("max_depth"), f.size("xpath_unit_hidden_size")
    tags, subscripts = f.size("max_xpath_tag_unit_embeddings"), f.size("max_xpath_subs_unit_embeddings")
    wide = depth * unit
    linears = (
        plain("path_to_hidden", wide, hidden, bias=True, rows=0),
        plain("path_in", wide, 4 * hidden, bias=True),
        plain("path_out", 4 * hidden, hidden, bias=True),
    )
    return Around(
        linears=linears, vectors=(Vectors(name="paths", fixed=depth * unit * (tags + subscripts), embedding=True),)
    )


def bros_around(f: Fields, hidden: int) -> Around:
    """BROS: sinusoids of box corners through one matrix for all heads (arXiv 2108.04539)."""
    sides = f.optional_size("dim_bbox_sinusoid_emb_2d") or hidden // 4
    projection = f.optional_size("dim_bbox_projection") or hidden // f.size(*parts.HEADS)
    return Around(linears=(plain("boxes", sides, projection, rows=0),))


def visual_bert_around(f: Fields, hidden: int) -> Around:
    """VisualBERT: image regions through a matrix, with their own tables."""
    rows = f.size(*parts.POSITIONS) + f.size("type_vocab_size")
    return Around(
        linears=(plain("visual_projection", f.size("visual_embedding_dim"), hidden, bias=True, rows=0),),
        vectors=(Vectors(name="visual_tables", per_hidden=rows, embedding=True),),
    )


def read_lilt(f: Fields, family: Encoder) -> TransformerShape:
    """LiLT: a narrow layout stream next to the text's in every layer (arXiv 2202.13669)."""
    shape = read_encoder(f, family)
    hidden = int(shape.hidden_size)
    ratio = f.size("channel_shrink_ratio")
    narrow, rows, width = hidden // ratio, f.size("max_2d_position_embeddings"), f.size("intermediate_size") // ratio
    names = ("q", "k", "v", "out")
    num_heads = int(shape.num_heads)
    layout = AttentionMixer(
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=narrow // num_heads,
        causal=False,
        own_linears=parts.with_roles(plain(x, narrow, narrow, bias=True) for x in names),
        name="layout_attention",
    )
    beside = (
        plain("layout_up", narrow, width, bias=True),
        plain("layout_down", width, narrow, bias=True),
    )
    norms = (Vectors(name="layout_norms", fixed=4 * narrow),)
    shape = parts.in_main_layers(
        shape, lambda layer: replace(layer, mixers=(*layer.mixers, layout), linears=beside, vectors=norms)
    )
    tables = 4 * rows * (hidden // 6) + f.size(*parts.POSITIONS) * narrow
    return replace(
        shape,
        linears=(*shape.linears, plain("boxes", hidden // 6 * 6, narrow, bias=True)),
        vectors=(
            *shape.vectors,
            Vectors(name="layout_tables", fixed=tables, embedding=True),
            Vectors(name="layout_norm", fixed=2 * narrow),
        ),
    )


def read_tapas(f: Fields, family: Encoder) -> TransformerShape:
    """TAPAS: seven token-type tables (rows, columns, ranks), cells and columns by a vector each (arXiv 2004.02349)."""
    shape = read_encoder(f, family)
    hidden = int(shape.hidden_size)
    sizes = f.sizes("type_vocab_sizes") or [3, 256, 256, 2, 256, 256, 10]
    tables = Vectors(name="token_types", per_hidden=sum(sizes), embedding=True)
    shape = replace(shape, vectors=(*shape.vectors, tables))
    if not f.architecture.endswith("ForQuestionAnswering"):
        return shape
    labels = f.optional_size("num_aggregation_labels", least=0) or 0
    linears = [x for x in shape.linears if x.name != "qa_outputs"]
    linears += [plain("pooler", hidden, hidden, bias=True, rows=1)]
    linears += [plain("aggregation", hidden, labels, bias=True, rows=1)] if labels else []
    cells = Vectors(name="cell_and_column", fixed=2 * hidden + 2)
    return replace(shape, linears=tuple(linears), vectors=(*shape.vectors, cells))


def read_dpr(f: Fields, family: Encoder) -> TransformerShape:
    """DPR's encoders: BERT without a pooler, with an optional projection (arXiv 2004.04906)."""
    shape = read_encoder(replace(f, architecture="DPRModel"), family)
    hidden, out = int(shape.hidden_size), f.optional_size("projection_dim", least=0) or 0
    linears = [plain("projection", hidden, out, bias=True, rows=1)] if out else []
    if f.architecture.endswith("Reader"):
        linears += [plain("spans", out or hidden, 2, bias=True), plain("passage", out or hidden, 1, bias=True, rows=1)]
    return replace(shape, linears=(*shape.linears, *linears))
