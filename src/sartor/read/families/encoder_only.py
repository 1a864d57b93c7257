"""The encoder-only families: one row each, or a reader of their own where they differ by more."""

from __future__ import annotations

from dataclasses import replace

from sartor.model.layer import AttentionMixer, DenseFfn, Layer, Linear, VectorRole, Vectors
from sartor.model.shape import LayerRun, Stack, TransformerShape
from sartor.read.families import parts
from sartor.read.families.encoders import Around, Encoder, around_encoder, read_encoder
from sartor.read.families.parts import plain
from sartor.read.fields import Fields

# -- families that differ by more than a row -----------------------------------------------------------------


def read_albert(f: Fields, family: Encoder) -> TransformerShape:
    """ALBERT: ``num_hidden_groups`` sets of weights that all layers share (arXiv 1909.11942)."""
    shape = read_encoder(f, family)
    sets = (f.optional_size("num_hidden_groups") or 1) * (f.optional_size("inner_group_num") or 1)
    runs = tuple(replace(run, weight_sets=sets) for run in shape.main.runs)
    return replace(shape, stacks=(replace(shape.main, runs=runs),))


def relative_tables(f: Fields, hidden: int) -> Around:
    """DeBERTa: one table of relative positions, normed or not, and (v2, v3) a convolution beside the first layer."""
    if not f.flag("relative_attention", default=False):
        return Around()
    reach = f.optional_size("max_relative_positions", least=-1) or -1
    reach = reach if reach > 0 else f.size(*parts.POSITIONS)
    buckets = f.optional_size("position_buckets", least=-1) or -1
    rows = 2 * (buckets if buckets > 0 and f.model_type == "deberta-v2" else reach)
    normed = "layer_norm" in f.word("norm_rel_ebd", default="none").lower()
    kernel = f.optional_size("conv_kernel_size", least=0) or 0 if f.model_type == "deberta-v2" else 0
    return Around(
        vectors=(
            Vectors(name="relative_positions", fixed=rows * hidden, embedding=True),
            *((Vectors(name="relative_norm", fixed=2 * hidden),) if normed else ()),
            *((Vectors(name="convolution", fixed=kernel * hidden * hidden + 3 * hidden),) if kernel else ()),
        )
    )


def relative_projections(f: Fields, hidden: int) -> Around:
    """DeBERTa's projections of relative positions; with ``share_att_key`` (v3) they reuse the layer's own weights."""
    v1 = f.model_type == "deberta"
    if not f.flag("relative_attention", default=False):
        return Around(vectors=(Vectors(name="v_bias", fixed=hidden),) if v1 else ())
    kinds = _position_kinds(f)
    buckets = f.optional_size("position_buckets", least=-1) or -1
    reach = f.optional_size("max_relative_positions", least=-1) or -1
    reach = reach if reach > 0 else f.size(*parts.POSITIONS)
    rows = 2 * (buckets if buckets > 0 and not v1 else reach)
    shared = not v1 and f.flag("share_att_key", default=False)
    projections = [("pos_key", "c2p", not v1), ("pos_query", "p2c", True)]
    linears = tuple(
        replace(plain(name, hidden, hidden, bias=bias, rows=rows), reused=shared)
        for name, kind, bias in projections
        if kind in kinds
    )
    return Around(linears=linears, vectors=(Vectors(name="v_bias", fixed=hidden),) if v1 else ())


def _position_kinds(f: Fields) -> list[str]:
    """``pos_att_type``: a list, or words separated by bars."""
    kinds = f.given("pos_att_type")
    if isinstance(kinds, str):
        return [x.strip() for x in kinds.lower().split("|")]
    return f.words("pos_att_type") or []


def read_deberta(f: Fields, family: Encoder) -> TransformerShape:
    """DeBERTa: absolute positions only with ``position_biased_input``; the embedding norm is on the hidden size."""
    absolute = f.flag("position_biased_input", default=True)
    return read_encoder(f, replace(family, positions=absolute))


def read_esm(f: Fields, family: Encoder) -> TransformerShape:
    """ESM: rotary or learned positions, and a regression of contacts from all attention maps."""
    kind = f.word("position_embedding_type", default="absolute")
    family = replace(
        family,
        positions=kind == "absolute",
        embedding_norm=f.flag("emb_layer_norm_before", default=False),
        final_norm=True,
    )
    shape = read_encoder(f, family)
    maps = int(shape.num_layers) * int(shape.num_heads)
    return replace(shape, vectors=(*shape.vectors, Vectors(name="contact_head", fixed=maps + 1)))


def read_xlm(f: Fields, family: Encoder) -> TransformerShape:
    """XLM and FlauBERT: language embeddings if there are several languages; no transform before the logits."""
    languages = f.optional_size("n_langs") or 1
    rows = languages if languages > 1 and f.flag("use_lang_emb", default=True) else 0
    shape = read_encoder(f, family)
    table = Vectors(name="languages", per_hidden=rows, embedding=True)
    return replace(shape, vectors=(*shape.vectors, table)) if rows else shape


def convbert_layer(f: Fields, hidden: int) -> Around:
    """ConvBERT's span-based dynamic convolution beside half of the heads (arXiv 2008.02496)."""
    num_heads, _, inner, kernel = _convbert_sizes(f, hidden)
    # Queries, keys and values are narrower than the residual, which the mixer handles; this is the convolution.
    return Around(
        linears=(
            Linear(name="conv_kernel", d_in=inner, d_out=num_heads * kernel, bias=True),
            Linear(name="conv_out", d_in=hidden, d_out=inner, bias=True),
        ),
        vectors=(Vectors(name="key_convolution", fixed=hidden * kernel + hidden * inner + inner),),
    )


def _convbert_sizes(f: Fields, hidden: int) -> tuple[int, int, int, int]:
    """Attention heads, their dimension, their total width, taps of the convolution."""
    all_heads, ratio = f.size(*parts.HEADS), f.size("head_ratio")
    num_heads = max(1, all_heads // ratio)
    head_dim = (hidden // ratio if num_heads > 1 else hidden) // num_heads
    return num_heads, head_dim, num_heads * head_dim, f.size("conv_kernel_size")


def read_convbert(f: Fields, family: Encoder) -> TransformerShape:
    """ConvBERT: fewer heads; their output and the convolution's are concatenated to the residual width."""
    shape = read_encoder(f, family)
    hidden = int(shape.hidden_size)
    num_heads, head_dim, inner, _ = _convbert_sizes(f, hidden)

    def narrow(layer: Layer) -> Layer:
        mixer = layer.mixers[0]
        assert isinstance(mixer, AttentionMixer)
        missing = plain("out_of_convolution", hidden - inner, hidden)
        mixer = replace(mixer, num_heads=num_heads, num_kv_heads=num_heads, head_dim=head_dim)
        return replace(layer, mixers=(mixer,), linears=(*layer.linears, missing))

    return parts.in_main_layers(shape, narrow)


def longformer_layer(f: Fields, hidden: int) -> Around:
    """Longformer's second set of projections, for tokens with global attention; plain text does not use it."""
    return Around(linears=tuple(plain(f"{x}_global", hidden, hidden, bias=True, rows=0) for x in ("q", "k", "v")))


def mpnet_around(f: Fields, hidden: int) -> Around:
    """MPNet's relative bias, one table for all layers."""
    buckets = f.size("relative_attention_num_buckets")
    return Around(
        vectors=(
            Vectors(
                name="relative_bias",
                role=VectorRole.RELATIVE_BIAS,
                fixed=buckets * f.size(*parts.HEADS),
                embedding=True,
            ),
        )
    )


def roformer_around(f: Fields, hidden: int) -> Around:
    """RoFormer keeps its sinusoidal rotary table among the parameters."""
    rows = f.size(*parts.POSITIONS)
    return Around(
        vectors=(Vectors(name="rotary_table", fixed=rows * (hidden // f.size(*parts.HEADS)), embedding=True),)
    )


def layoutlm_around(f: Fields, hidden: int) -> Around:
    """LayoutLM's tables of box coordinates."""
    rows = 4 * f.size("max_2d_position_embeddings")
    return Around(vectors=(Vectors(name="box_positions", per_hidden=rows, embedding=True),))


def nystrom_layer(f: Fields, hidden: int) -> Around:
    """Nystroemformer's depth-wise convolution over the values, one filter per head."""
    kernel = f.optional_size("conv_kernel_size", least=0) or 0
    return Around(vectors=(Vectors(name="value_convolution", fixed=kernel * f.size(*parts.HEADS)),) if kernel else ())


def padded_positions(f: Fields, hidden: int) -> Around:
    """Two position rows more than the file says (MRA, YOSO)."""
    return Around(vectors=(Vectors(name="padding_positions", per_hidden=2, embedding=True),))


def rocbert_around(f: Fields, hidden: int) -> Around:
    """RoCBert's pronunciation and shape tables, concatenated and mapped to the residual width."""
    sound, drawn = f.flag("enable_pronunciation", default=True), f.flag("enable_shape", default=True)
    sizes = [("pronunciation", sound), ("shape", drawn)]
    widths = [f.size(f"{name}_embed_dim") for name, used in sizes if used]
    tables = tuple(
        Vectors(name=name, fixed=f.size(f"{name}_vocab_size") * f.size(f"{name}_embed_dim"), embedding=True)
        for name, used in sizes
        if used
    )
    joined = f.flag("concat_input", default=True)
    map_in = (plain("map_inputs", hidden + sum(widths), hidden, bias=True),) if joined else ()
    return Around(linears=map_in, vectors=tables)


def xmod_layer(f: Fields, hidden: int) -> Around:
    """X-MOD's adapter per language; a text passes one of them."""
    languages = len(f.words("languages") or ["one"])
    inner = hidden // f.size("adapter_reduction_factor")
    norm = 2 * hidden if f.flag("adapter_layer_norm", default=False) else 0
    used = (plain("adapter_down", hidden, inner, bias=True), plain("adapter_up", inner, hidden, bias=True))
    idle = tuple(replace(x, name=f"other_{x.name}", count=languages - 1, rows=0) for x in used) if languages > 1 else ()
    return Around(linears=(*used, *idle), vectors=(Vectors(name="adapter_norm", fixed=norm),) if norm else ())


def read_fnet(f: Fields, family: Encoder) -> TransformerShape:
    """FNet mixes tokens by a Fourier transform, which has no parameters (arXiv 2105.03824)."""
    f = replace(f, raw={"num_attention_heads": 1, **f.raw})
    shape = read_encoder(f, family)
    shape = parts.in_main_layers(shape, lambda layer: replace(layer, mixers=()))
    hidden = int(shape.hidden_size)
    linears = (*shape.linears, plain("embedding_projection", hidden, hidden, bias=True))
    return replace(shape, linears=linears)


def read_squeezebert(f: Fields, family: Encoder) -> TransformerShape:
    """SqueezeBERT: projections as grouped convolutions, that is block-diagonal GEMMs (arXiv 2006.11316)."""
    shape = read_encoder(f, family)
    hidden = int(shape.hidden_size)

    def grouped(layer: Layer) -> Layer:
        mixer, ffn = layer.mixers[0], layer.ffn
        assert isinstance(mixer, AttentionMixer)
        assert isinstance(ffn, DenseFfn)
        width = int(ffn.ffn_hidden_size)
        linears = (
            _blocks(f, "q", hidden, hidden, "q_groups"),
            _blocks(f, "k", hidden, hidden, "k_groups"),
            _blocks(f, "v", hidden, hidden, "v_groups"),
            _blocks(f, "out", hidden, hidden, "post_attention_groups"),
        )
        both = (
            _blocks(f, "up", hidden, width, "intermediate_groups"),
            _blocks(f, "down", width, hidden, "output_groups"),
        )
        return replace(
            layer,
            mixers=(replace(mixer, own_linears=parts.with_roles(linears)),),
            ffn=None,
            linears=parts.with_roles(both),
        )

    return parts.in_main_layers(shape, grouped)


def _blocks(f: Fields, name: str, d_in: int, d_out: int, groups: str) -> Linear:
    """A block-diagonal linear layer with as many blocks as the field ``groups`` says."""
    count = f.size(groups)
    return replace(plain(name, d_in // count, d_out // count, bias=True), count=count)


def read_mobilebert(f: Fields, family: Encoder) -> TransformerShape:
    """MobileBERT: narrow layers between bottlenecks, with several small feed-forward parts (arXiv 2004.02984)."""
    hidden, table, narrow = f.essential("hidden_size"), f.size("embedding_size"), f.size("intra_bottleneck_size")
    bottleneck = f.flag("use_bottleneck", default=True)
    inner = narrow if bottleneck else hidden
    if not bottleneck or f.flag("use_bottleneck_attention") or not f.flag("key_query_shared_bottleneck"):
        f.ledger.guess("MobileBERT without its shared key/query bottleneck: its bottlenecks are counted as usual")
    num_heads, width = f.size(*parts.HEADS), f.essential("intermediate_size")
    pair = (plain("up", inner, width, bias=True), plain("down", width, inner, bias=True))
    repeats = f.size("num_feedforward_networks") - 1
    norms = 2 * (4 * inner + hidden + repeats * inner)
    mixer = AttentionMixer(num_heads=num_heads, num_kv_heads=num_heads, head_dim=inner // num_heads, causal=False)
    linears = (
        plain("q", inner, inner, bias=True),
        plain("k", inner, inner, bias=True),
        plain("v", hidden, inner, bias=True),
        plain("out", inner, inner, bias=True),
        plain("bottleneck_in", hidden, inner, bias=True),
        plain("bottleneck_shared", hidden, inner, bias=True),
        plain("bottleneck_out", inner, hidden, bias=True),
        *(replace(x, count=repeats + 1) for x in pair),
    )
    layer = Layer(
        mixers=(replace(mixer, own_linears=parts.with_roles(linears)),), vectors=(Vectors(name="norms", fixed=norms),)
    )
    stack = Stack(name="encoder", hidden_size=hidden, runs=(LayerRun(layer=layer, count=f.layers(*parts.LAYERS)),))
    shape = around_encoder(f, family, stack)
    trigram = 3 if f.flag("trigram_input", default=True) else 1
    extra = [plain("embedding_transformation", trigram * table, hidden, bias=True)]
    rest = hidden - table
    positions = int(shape.learned_positions) * (hidden - table)
    types = (f.optional_size("type_vocab_size", least=0) or 0) * (hidden - table)
    vectors = (Vectors(name="wider_positions", fixed=positions + types, embedding=True),)
    if shape.lm_head and rest:
        extra.append(plain("head_rest", rest, int(shape.vocab_size)))
    return replace(shape, linears=(*shape.linears, *extra), vectors=(*shape.vectors, *vectors))


def read_rembert(f: Fields, family: Encoder) -> TransformerShape:
    """RemBERT: a narrow input table and a separate, wide output table (arXiv 2010.12821)."""
    shape = read_encoder(f, family)
    if not shape.lm_head:
        return shape
    hidden, out = int(shape.hidden_size), f.size("output_embedding_size")
    linears = tuple(x for x in shape.linears if x.name != "transform")
    head = (plain("transform", hidden, out, bias=True), plain("lm_head", out, int(shape.vocab_size), bias=True))
    vectors = tuple(v for v in shape.vectors if v.name != "transform_norm")
    return replace(
        shape,
        lm_head=False,
        linears=(*linears, *head),
        vectors=(*vectors, Vectors(name="transform_norm", fixed=2 * out)),
    )


def read_luke(f: Fields, family: Encoder) -> TransformerShape:
    """LUKE: a second embedding, for entities, and queries between words and entities (arXiv 2010.01057)."""
    shape = read_encoder(f, family)
    hidden, entities, width = int(shape.hidden_size), f.size("entity_vocab_size"), f.size("entity_emb_size")
    positions, types = f.size(*parts.POSITIONS), f.optional_size("type_vocab_size", least=0) or 0
    side = [plain("entity_dense", width, hidden, rows=0)] if width != hidden else []
    head = [plain("entity_transform", hidden, width, bias=True, rows=0)] if shape.lm_head else []
    entity_head = 0 if f.flag("tie_word_embeddings") else entities * width + int(shape.vocab_size)
    tables = (
        Vectors(name="entities", fixed=entities * width + (positions + types) * hidden, embedding=True),
        Vectors(name="entity_norm", fixed=2 * hidden),
        *((Vectors(name="entity_head", fixed=2 * width + entities + entity_head),) if shape.lm_head else ()),
    )
    return replace(shape, linears=(*shape.linears, *side, *head), vectors=(*shape.vectors, *tables))


def luke_layer(f: Fields, hidden: int) -> Around:
    """Queries from words to entities and back, which text without entities does not use."""
    if not f.flag("use_entity_aware_attention", default=True):
        return Around()
    return Around(linears=tuple(plain(f"{x}_query", hidden, hidden, bias=True, rows=0) for x in ("w2e", "e2w", "e2e")))


# -- the table -----------------------------------------------------------------------------------------------
