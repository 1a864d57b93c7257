"""One reader for encoder-only models: an `Encoder` row holds what the class does beyond its config.

The first part has heads that differ from BERT's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from sartor.model.layer import AttentionMixer, DenseFfn, Layer, Linear, Norm, VectorRole, Vectors
from sartor.model.shape import Stack, TransformerShape
from sartor.read.families import parts
from sartor.read.families.decoder import Choice, QkNorm, choose
from sartor.read.families.parts import Head, group_layers, heads, layer_norm, num_labels, plain
from sartor.read.fields import Fields

OwnHead: TypeAlias = tuple[tuple[Linear, ...], tuple[Vectors, ...]] | None


def summary_head(f: Fields, head: Head, hidden: int) -> OwnHead:
    """XLM and FlauBERT: labels from the first token; answers by begin, end given begin, and whether there is one."""
    labels = num_labels(f)
    summary = plain("summary", hidden, labels, bias=True, rows=1)
    match head:
        case Head.SEQUENCE_CLASSIFICATION:
            return (summary,), ()
        case Head.MULTIPLE_CHOICE:
            return (summary, plain("logits", labels, 1, bias=True, rows=1)), ()
        case Head.QUESTION_ANSWERING if not f.architecture.endswith("Simple"):
            end = (plain("end_dense", 2 * hidden, hidden, bias=True), plain("end", hidden, 1, bias=True))
            answer = (plain("answer_dense", 2 * hidden, hidden, bias=True, rows=1), plain("answer", hidden, 1, rows=1))
            return (plain("start", hidden, 1, bias=True), *end, *answer), (Vectors(name="end_norm", fixed=2 * hidden),)
        case _:
            return None


def choice_without_dense(f: Fields, head: Head, hidden: int) -> OwnHead:
    """ConvBERT and RoFormer: a choice is scored directly from the first token."""
    return ((plain("classifier", hidden, 1, bias=True, rows=1),), ()) if head is Head.MULTIPLE_CHOICE else None


def unpooled_spans(f: Fields, head: Head, hidden: int) -> OwnHead:
    """LUKE pools only for sequence tasks."""
    match head:
        case Head.TOKEN_CLASSIFICATION:
            return (plain("classifier", hidden, num_labels(f), bias=True),), ()
        case Head.QUESTION_ANSWERING:
            return (plain("qa_outputs", hidden, 2, bias=True),), ()
        case _:
            return None


def wide_answers(f: Fields, head: Head, hidden: int) -> OwnHead:
    """BigBird: a feed-forward part before the answer's span."""
    if head is not Head.QUESTION_ANSWERING:
        return None
    width = f.size("intermediate_size")
    wide = (plain("qa_up", hidden, width, bias=True), plain("qa_down", width, hidden, bias=True))
    return (*wide, plain("qa_outputs", hidden, 2, bias=True)), (Vectors(name="qa_norm", fixed=2 * hidden),)


def averaged(f: Fields, head: Head, hidden: int) -> OwnHead:
    """EuroBERT: every token through the classifier, then the average."""
    if head is not Head.SEQUENCE_CLASSIFICATION:
        return None
    dense = plain("classifier_dense", hidden, hidden, bias=True)
    return (dense, plain("classifier", hidden, num_labels(f), bias=True)), ()


def question_aware(f: Fields, head: Head, hidden: int) -> OwnHead:
    """Splinter: begin and end of a span scored against the question token (arXiv 2101.00438)."""
    if head is not Head.QUESTION_ANSWERING and not f.architecture.endswith("ForPreTraining"):
        return None
    names = ("query_start", "query_end", "start", "end")
    dense = tuple(plain(f"{name}_transform", hidden, hidden, bias=True) for name in names)
    scores = (plain("start_score", hidden, hidden), plain("end_score", hidden, hidden))
    return (*dense, *scores), (Vectors(name="transform_norms", fixed=8 * hidden),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """Additional parts outside the layers (around the embedding, in the stack), or in each layer."""

    linears: tuple[Linear, ...] = ()
    vectors: tuple[Vectors, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """Properties of an encoder class.

    ``pooler``: dense h x h on the first token, in the bare model and below a classifier; ``always_pools``: below a
    language-model head, too. ``transform``: dense (and norm) before the logits.
    """

    norm: Norm = field(default_factory=layer_norm)
    norms: int = 2
    final_norm: bool = False
    embedding_norm: bool = True
    positions: bool = True
    padded_positions: bool = False
    """Positions start at ``pad_token_id`` + 1, so no token uses the table's first rows (fairseq)."""
    token_types: bool = True
    embedding_size: tuple[str, ...] = ()
    """Fields with the token table's width; a projection to the hidden size follows."""
    projection: bool = True
    norm_after_projection: bool = False
    bias: Choice = True
    kv_bias: Choice | None = None
    """As ``bias`` when None."""
    out_bias: Choice | None = None
    mlp_bias: Choice = True
    up_bias: Choice | None = None
    gated: bool = False
    ffn: tuple[str, ...] = (*parts.FFN, "dim_ff", "hidden_dim")
    ffn_factor: int = 0
    pooler: bool = True
    always_pools: bool = False
    transform: bool = True
    transform_bias: Choice = True
    transform_norm: Norm | None = field(default_factory=layer_norm)
    wide_transform: bool = False
    """The transform keeps the hidden size even if the token table is narrower."""
    lm_head_bias: Choice = True
    spare_bias: bool = True
    """An untied head has the tied head's bias in addition to its own."""
    tied: Choice = "tie_word_embeddings"
    classifier_dense: bool = True
    classifier_norm: bool = False
    classifies_unpooled: bool = False
    """The classifier has its own dense layer although the model pools (BigBird)."""
    norm_bias: Choice | None = None
    """A field that says whether all norms have biases."""
    outer_norm: Norm | None = None
    """The final norm, if it differs from the layers'."""
    qk_norm: QkNorm = QkNorm.NONE
    window: str = ""
    """Field with the window of the layers that have one."""
    global_every: str = ""
    """Field with the period of full attention among windowed layers."""
    first_layer_norms: int | None = None
    own_head: Callable[[Fields, Head, int], OwnHead] | None = None
    """The parts of a head that differs from BERT's; returns None if it does not."""
    around: Callable[[Fields, int], Around] | None = None
    layer_around: Callable[[Fields, int], Around] | None = None


def read_encoder(f: Fields, family: Encoder) -> TransformerShape:
    """The shape of an encoder with the head its architecture names (masked language model if none)."""
    if family.norm_bias is not None:
        norm = layer_norm(bias=choose(f, family.norm_bias))
        family = replace(family, norm=norm, transform_norm=norm)
    hidden = f.essential(*parts.HIDDEN)
    count = f.layers(*parts.LAYERS)
    layers = _encoder_layers(f, family, hidden, count)
    runs = group_layers(layers)
    stack = Stack(
        name="encoder",
        hidden_size=hidden,
        runs=runs,
        norms=(family.outer_norm or family.norm,) if family.final_norm else (),
    )
    return around_encoder(f, family, stack)


def _encoder_layers(f: Fields, family: Encoder, hidden: int, count: int) -> list[Layer]:
    """The layers of an encoder; they differ at most in their windows."""
    num_heads, num_kv_heads, head_dim = heads(f, hidden)
    bias, mlp_bias = choose(f, family.bias), choose(f, family.mlp_bias)
    width = f.optional_size(*family.ffn) or family.ffn_factor * hidden
    if not width:
        raise f.missing(family.ffn[0])
    extra = family.layer_around(f, hidden) if family.layer_around else Around()
    mixer = AttentionMixer(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        causal=False,
        q_bias=bias,
        kv_bias=bias if family.kv_bias is None else choose(f, family.kv_bias),
        out_bias=bias if family.out_bias is None else choose(f, family.out_bias),
        vectors=_qk_norm_vectors(family.qk_norm, num_heads, num_kv_heads, head_dim),
    )
    ffn = DenseFfn(
        ffn_hidden_size=width,
        gated=family.gated,
        up_bias=mlp_bias if family.up_bias is None else choose(f, family.up_bias),
        down_bias=mlp_bias,
        activation=f.word("hidden_act", "hidden_activation", "activation", default="gelu"),
    )
    layer = Layer(
        mixers=(mixer,), ffn=ffn, norms=(family.norm,) * family.norms, linears=extra.linears, vectors=extra.vectors
    )
    layers = [_with_window(layer, window) for window in _windows(f, family, count)]
    if family.first_layer_norms is not None:
        layers[0] = replace(layers[0], norms=(family.norm,) * family.first_layer_norms)
    return layers


def _with_window(layer: Layer, window: int) -> Layer:
    """The layer with its attention windowed."""
    mixer = layer.mixers[0]
    assert isinstance(mixer, AttentionMixer)
    return replace(layer, mixers=(replace(mixer, window=window),))


def _windows(f: Fields, family: Encoder, count: int) -> list[int]:
    """The window of every layer, 0 for full attention."""
    if not family.window:
        return [0] * count
    window = f.optional_size(family.window, least=0) or 0
    types = f.words("layer_types", length=count)
    if types is not None:
        return [window if "sliding" in kind else 0 for kind in types]
    if not family.global_every:
        return [window] * count
    period = f.optional_size(family.global_every) or 1
    return [0 if i % period == 0 else window for i in range(count)]


def _qk_norm_vectors(kind: QkNorm, num_heads: int, num_kv_heads: int, head_dim: int) -> tuple[Vectors, ...]:
    """Weights of the norms on queries and keys."""
    if kind is QkNorm.NONE:
        return ()
    q, k = (head_dim, head_dim) if kind is QkNorm.HEAD else (num_heads * head_dim, num_kv_heads * head_dim)
    return (
        Vectors(name="q_norm", role=VectorRole.QUERY_NORM, fixed=q),
        Vectors(name="k_norm", role=VectorRole.KEY_NORM, fixed=k),
    )


def around_encoder(f: Fields, family: Encoder, stack: Stack) -> TransformerShape:
    """The whole model around an encoder's stack: tables, projections, head."""
    hidden = int(stack.hidden_size)
    table_width = (f.optional_size(*family.embedding_size) if family.embedding_size else None) or hidden
    head = parts.head_of(f)
    pretraining = f.architecture.endswith("ForPreTraining")
    extra = family.around(f, hidden) if family.around else Around()
    has_lm_head = head is Head.LM and not (pretraining and f.model_type in ("electra", "splinter"))
    vocab = f.essential(*parts.VOCAB)
    tied = choose(f, family.tied) if has_lm_head else True
    if pretraining and not has_lm_head:
        head, family = Head.LM, replace(family, transform_norm=None)
    linears, vectors = _head_parts(
        f, family, head, hidden, hidden if family.wide_transform or not has_lm_head else table_width
    )
    if has_lm_head and not tied and family.spare_bias and choose(f, family.lm_head_bias):
        vectors = (*vectors, Vectors(name="spare_bias", fixed=vocab))
    if table_width != hidden and family.projection:
        linears = (plain("embedding_projection", table_width, hidden, bias=family.token_types), *linears)
    if pretraining and f.model_type != "splinter":
        linears = (*linears, *_pretraining_parts(f, family, hidden))
    if f.architecture.endswith("ForNextSentencePrediction"):
        linears = (*linears, plain("sequence_relationship", hidden, 2, bias=True, rows=1))
    norm_width = hidden if family.norm_after_projection else table_width
    rows = f.optional_size(*parts.POSITIONS) or 0
    return TransformerShape(
        name=f.model_type,
        stacks=(stack,),
        vocab_size=vocab,
        embedding_size=None if table_width == hidden else table_width,
        max_positions=max(rows - _unused_positions(f, family), min(rows, 1)),
        learned_positions=rows if family.positions else 0,
        tied_embeddings=tied,
        lm_head=has_lm_head,
        lm_head_bias=has_lm_head and choose(f, family.lm_head_bias),
        encoder_only=True,
        linears=(*linears, *extra.linears),
        vectors=(*_embedding_vectors(f, family, table_width, norm_width), *vectors, *extra.vectors),
        model_type=f.model_type,
    )


def _unused_positions(f: Fields, family: Encoder) -> int:
    """Rows of the position table that no token uses: RoBERTa's 514 rows are 512 positions. The padding token defaults
    to 1."""
    if not (family.positions and family.padded_positions):
        return 0
    padding = f.optional_size("pad_token_id", least=0)
    return (1 if padding is None else padding) + 1


def _embedding_vectors(f: Fields, family: Encoder, table_width: int, norm_width: int) -> tuple[Vectors, ...]:
    """Token-type table and embedding norm."""
    types = (f.optional_size("type_vocab_size", least=0) or 0) if family.token_types else 0
    table = Vectors(name="token_types", fixed=types * table_width, embedding=True)
    norm = Vectors(name="embedding_norm", fixed=int(family.norm.params(norm_width)))
    return (*((table,) if types else ()), *((norm,) if family.embedding_norm else ()))


def _head_parts(
    f: Fields, family: Encoder, head: Head, hidden: int, table_width: int
) -> tuple[tuple[Linear, ...], tuple[Vectors, ...]]:
    """Linear layers and norms of the head; layers that read only the first token have one row per sequence."""
    if family.own_head and (built := family.own_head(f, head, hidden)):
        return built
    pooler = plain("pooler", hidden, hidden, bias=True, rows=1)
    norm = family.transform_norm
    dense = replace(
        pooler, name="classifier_dense", bias=not family.classifier_norm or choose(f, family.transform_bias)
    )
    first = (dense,) if family.classifier_dense else ()
    first_norm = (
        (Vectors(name="classifier_norm", fixed=int(family.norm.params(hidden))),) if family.classifier_norm else ()
    )
    always = (pooler,) if family.always_pools else ()
    match head:
        case Head.NONE:
            return ((pooler,) if family.pooler or family.always_pools else (), ())
        case Head.SEQUENCE_CLASSIFICATION:
            pooled = (*always, *first) if family.classifies_unpooled else first
            return ((*pooled, plain("classifier", hidden, num_labels(f), bias=True, rows=1)), first_norm)
        case Head.MULTIPLE_CHOICE:
            return ((*first, plain("classifier", hidden, 1, bias=True, rows=1)), first_norm)
        case Head.TOKEN_CLASSIFICATION | Head.QUESTION_ANSWERING if family.classifier_norm:
            labels = num_labels(f) if head is Head.TOKEN_CLASSIFICATION else 2
            return ((replace(dense, rows=None), plain("classifier", hidden, labels, bias=True)), first_norm)
        case Head.TOKEN_CLASSIFICATION:
            return ((*always, plain("classifier", hidden, num_labels(f), bias=True)), ())
        case Head.QUESTION_ANSWERING:
            return ((*always, plain("qa_outputs", hidden, 2, bias=True)), ())
        case _ if family.transform:
            dense = plain("transform", hidden, table_width, bias=choose(f, family.transform_bias))
            fixed = int(norm.params(table_width)) if norm else 0
            return ((*always, dense), (Vectors(name="transform_norm", fixed=fixed),))
        case _:
            return (always, ())


def _pretraining_parts(f: Fields, family: Encoder, hidden: int) -> tuple[Linear, ...]:
    """What pre-training adds to the masked language model: a pooler and a sentence-order classifier."""
    if f.model_type == "electra":
        return (plain("discriminator_prediction", hidden, 1, bias=True),)
    order = plain("sequence_relationship", hidden, 2, bias=True, rows=1)
    pooler = plain("pooler", hidden, hidden, bias=True, rows=1)
    if f.model_type == "roc_bert":
        return (pooler,)
    return (order,) if family.always_pools else (pooler, order)
