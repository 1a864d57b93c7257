"""Encoders of documents and pages: text with boxes, tables, markup or image regions."""

from __future__ import annotations

from dataclasses import replace

from sartor.model.layer import AttentionMixer, Vectors
from sartor.model.shape import TransformerShape
from sartor.read.families import parts
from sartor.read.families.encoders import Around, Encoder, read_encoder
from sartor.read.families.parts import plain
from sartor.read.fields import Fields


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
