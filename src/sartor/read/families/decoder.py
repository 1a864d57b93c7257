"""One reader for the decoder-only families: a `Family` holds what the class does beyond the config.

A family is a small record (which norms, where biases are, gated or not, which layers have experts); the sizes come from
the config's fields. Most model types are one row in ``decoders.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cache
from math import gcd
from typing import TypeAlias

from sartor.model.layer import (
    MOST_ROUTING_GROUPS,
    AttentionMixer,
    DenseFfn,
    Ffn,
    LatentAttentionMixer,
    Layer,
    Linear,
    Mixer,
    MoeFfn,
    Norm,
    Selection,
    SharedWidth,
    VectorRole,
    Vectors,
)
from sartor.model.shape import Stack, TransformerShape
from sartor.read.families import parts
from sartor.read.families.parts import (
    Head,
    Reach,
    Spans,
    Sparse,
    check_experts,
    everywhere,
    group_layers,
    head_of,
    heads,
    num_labels,
)
from sartor.read.fields import Fields

Choice: TypeAlias = bool | str
"""Fixed by the class, or the name of the field that decides (``"!field"``: its negation)."""


class QkNorm(Enum):
    """Norms on queries and keys: none, one weight of ``head_dim`` each, one over all heads' width, one per head."""

    NONE = "none"
    HEAD = "head"
    WIDTH = "width"
    PER_HEAD = "per_head"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Main sizes of a decoder, read once."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The fields with a family's expert sizes, and which extras its expert layers have."""

    sparse: Sparse
    """Which layers have experts."""
    num: tuple[str, ...] = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    top_k: tuple[str, ...] = ("num_experts_per_tok", "experts_per_token", "num_experts_per_token", "moe_k", "moe_topk")
    width: tuple[str, ...] = ("moe_intermediate_size", *parts.FFN)
    shared_width: tuple[str, ...] = ()
    """Fields that hold the shared expert's width."""
    shared_count: tuple[str, ...] = ()
    """Fields with the shared expert's width as a number of experts."""
    shared_gate: bool = False
    router_bias: bool = False
    bias: Choice = False
    """Expert linears have biases."""
    score_bias: bool = False
    """A trained correction per expert, as wide as the router's output."""
    gated: bool = True
    latent: tuple[str, ...] = ()
    """Fields with the width of the experts' input, if it is not the hidden size: a projection each way around them."""
    vectors: Callable[[Fields, Sizes], tuple[Vectors, ...]] | None = None
    """Additional vectors of a sparse layer's feed-forward part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What a class does that its config does not say."""

    norm: Norm = field(default_factory=parts.rms)
    norms: int = 2
    """Norms over the residual width in one layer."""
    final_norm: bool = True
    embedding_norm: bool = False
    qk_norm: QkNorm = QkNorm.NONE
    qk_norm_if: Choice = True
    qk_norm_bias: bool = False
    q_bias: Choice = False
    kv_bias: Choice | None = None
    """As ``q_bias`` when None."""
    out_bias: Choice = False
    mlp_bias: Choice = False
    gated: bool = True
    parallel: Choice = False
    activation: tuple[str, ...] = ("hidden_act", "hidden_activation", "activation_function")
    ffn: tuple[str, ...] = parts.FFN
    ffn_factor: int = 0
    """Feed-forward width / hidden size, if no field gives the width (0: a field must)."""
    spans: Spans | None = None
    experts: Experts | None = None
    positions: Callable[[Fields], int] | None = None
    """Rows of a learned position table."""
    lm_head_bias: Choice = False
    tied: Choice = "tie_word_embeddings"
    heads: Callable[[Fields, int], tuple[int, int, int]] = heads
    hidden_name: tuple[str, ...] = parts.HIDDEN
    attention_vectors: Callable[[Fields, Sizes], tuple[Vectors, ...]] | None = None
    attention_linears: Callable[[Fields, Sizes], tuple[Linear, ...]] | None = None
    layer_vectors: Callable[[Fields, Sizes], tuple[Vectors, ...]] | None = None
    fused_qkv: bool = True
    rotary: float = 1.0
    """Share of the head dimension that is rotated if no field says so (0: no rotary embedding)."""
    attention_gate: Choice = False
    """The query projection also produces an output gate of the same width."""
    latent: bool = False
    """Multi-head latent attention instead of plain queries, keys and values."""
    ffn_vectors: Callable[[Fields, Sizes, int], tuple[Vectors, ...]] | None = None
    """Vectors of the dense feed-forward part, given its width."""


def read_decoder(f: Fields, family: Family) -> TransformerShape:
    """The shape of a decoder-only language model."""
    if family.latent and f.given("use_mla") is False:  # DeepSeek-VL2 and -OCR: DeepSeek's experts, plain attention
        family = replace(family, latent=False)
        for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"):
            f.optional_size(name, least=0)
    sizes = read_sizes(f, family)
    spans = (family.spans or everywhere)(f, sizes.layers)
    sparse = sparse_layers(f, sizes.layers, family)
    vectors = family.layer_vectors(f, sizes) if family.layer_vectors else ()

    @cache
    def mixer(span: Reach) -> Mixer:
        return latent_attention(f, sizes, family, span) if family.latent else attention(f, sizes, family, span)

    mixers = (mixer(span) for span in spans)
    layers = layers_of(f, family, sizes, mixers, sparse, parallel=choose(f, family.parallel), vectors=vectors)
    return assemble(f, family, sizes.hidden, layers)


def layers_of(
    f: Fields,
    family: Family,
    sizes: Sizes,
    mixers: Iterable[Mixer],
    sparse: list[bool] | None = None,
    *,
    parallel: bool = False,
    linears: tuple[Linear, ...] = (),
    vectors: tuple[Vectors, ...] = (),
) -> list[Layer]:
    """One layer per mixer with the family's norms and its dense or expert part; equal layers share one object."""
    sparse = sparse_layers(f, sizes.layers, family) if sparse is None else sparse
    dense = None if all(sparse) else dense_ffn(f, sizes, family)
    moe = moe_ffn(f, sizes, family) if any(sparse) else None
    norms = (family.norm,) * family.norms

    built: dict[tuple[int, bool], Layer] = {}
    mixer_list = list(mixers)
    for mixer, is_sparse in zip(mixer_list, sparse, strict=True):
        part: Ffn | None = moe if is_sparse else dense
        layer = Layer(mixers=(mixer,), ffn=part, norms=norms, parallel=parallel, linears=linears, vectors=vectors)
        built.setdefault((id(mixer), is_sparse), layer)
    return [built[id(mixer), is_sparse] for mixer, is_sparse in zip(mixer_list, sparse, strict=True)]


def read_sizes(f: Fields, family: Family) -> Sizes:
    """Hidden size, layers and heads."""
    hidden = f.essential(*family.hidden_name)
    layers = f.layers(*parts.LAYERS)
    num_heads, num_kv_heads, head_dim = (_latent_heads if family.latent else family.heads)(f, hidden)
    return Sizes(hidden=hidden, layers=layers, heads=num_heads, kv_heads=num_kv_heads, head_dim=head_dim)


def assemble(
    f: Fields,
    family: Family,
    hidden: int,
    layers: list[Layer],
    *,
    linears: tuple[Linear, ...] = (),
    vectors: tuple[Vectors, ...] = (),
    embedding_size: int | None = None,
) -> TransformerShape:
    """The model around a decoder's layers: embeddings, outer norms, head."""
    outer = (*((family.norm,) if family.embedding_norm else ()), *((family.norm,) if family.final_norm else ()))
    head = head_of(f)
    top, has_lm_head = _classifier(f, head, hidden), head is Head.LM
    return TransformerShape(
        name=f.model_type,
        stacks=(Stack(name="decoder", hidden_size=hidden, runs=group_layers(layers), norms=outer),),
        vocab_size=f.essential(*parts.VOCAB),
        embedding_size=embedding_size,
        max_positions=_max_positions(f),
        learned_positions=family.positions(f) if family.positions else 0,
        mtp_layers=_mtp_layers(f),
        tied_embeddings=choose(f, family.tied) if has_lm_head else True,
        lm_head=has_lm_head,
        lm_head_bias=choose(f, family.lm_head_bias) if has_lm_head else False,
        linears=(*linears, *top),
        vectors=vectors,
        model_type=f.model_type,
    )


def _mtp_layers(f: Fields) -> int:
    """Multi-token-prediction modules in the file; no main-model count includes them."""
    modules, used = f.given("num_mtp_modules"), f.given("use_mtp", True)  # as MiniMax-M2 says it
    value = f.given("num_nextn_predict_layers", f.given("num_mtp_layers", modules if used else 0))
    return value if isinstance(value, int) and 0 < value < 1000 else 0


def _classifier(f: Fields, head: Head, hidden: int) -> tuple[Linear, ...]:
    """Heads of decoder classes that are not language models (transformers' generic heads)."""
    if f.architecture.endswith("DoubleHeadsModel"):  # Beside the language-model head, a score for multiple choice.
        return (parts.plain("summary", hidden, 1, bias=True, rows=1),)
    match head:
        case Head.SEQUENCE_CLASSIFICATION:
            return (parts.plain("score", hidden, num_labels(f)),)
        case Head.TOKEN_CLASSIFICATION:
            return (parts.plain("score", hidden, num_labels(f), bias=True),)
        case Head.QUESTION_ANSWERING:
            return (parts.plain("qa_outputs", hidden, 2, bias=True),)
        case _:
            return ()


def _max_positions(f: Fields) -> int:
    """Longest sequence; 0 if neither file nor class says."""
    number = next((f.raw[n] for n in parts.POSITIONS if isinstance(f.given(n), int)), None)
    value = number if number is not None else f.defaults.values.get("max_position_embeddings", 0)
    return value if isinstance(value, int) and 0 < value < 2**31 else 0


def attention(f: Fields, sizes: Sizes, family: Family, span: Reach) -> AttentionMixer:
    """The attention of one layer."""
    q_bias = choose(f, family.q_bias)
    return AttentionMixer(
        num_heads=sizes.heads,
        num_kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        window=span.window,
        chunked=span.chunked,
        q_bias=q_bias,
        kv_bias=q_bias if family.kv_bias is None else choose(f, family.kv_bias),
        out_bias=choose(f, family.out_bias),
        fused_qkv=family.fused_qkv,
        gated=choose(f, family.attention_gate),
        rotary_dim=_rotary_dim(f, family, sizes.head_dim),
        vectors=(
            *_qk_norms(f, sizes, family),
            *(family.attention_vectors(f, sizes) if family.attention_vectors else ()),
        ),
        projections=family.attention_linears(f, sizes) if family.attention_linears else (),
        selection=None if span.window else _selected_blocks(f, sizes),
    )


SPARSE_SECTIONS = ("sparse_config", "sparse_attention_config", "nsa_config", "moba_config")
BLOCK_LENGTH = ("moba_chunk_size", "nsa_block_size", "block_size", "chunk_size")
BLOCKS_PER_QUERY = ("moba_topk", "nsa_topk", "topk", "block_counts", "top_k", "topk_blocks")
OF_NO_COUNT = ("kernel_size", "dense_len", "use_nope")
"""How InfLLM-V2 makes a block's key, and the context up to which it attends to all keys."""
BLOCKS_ALWAYS, KEYS_ALWAYS = ("init_blocks", "local_blocks"), ("window_size", "sliding_window")


def _selected_blocks(f: Fields, sizes: Sizes) -> Selection | None:
    """Sparse attention over blocks of keys, chosen by attention's own queries against one key per block: MoBA (arXiv
    2502.13189), NSA (arXiv 2502.11089), InfLLM-V2 (MiniCPM 4). Names as in the configs of those models."""
    sections = (name for name in SPARSE_SECTIONS if isinstance(f.given(name), dict))
    section = next(sections, "")
    inner = replace(f, raw=f.given(section), path=f"{f.path}{section}.") if section else f
    names = BLOCKS_PER_QUERY if section else BLOCKS_PER_QUERY[:2]
    length, blocks = inner.optional_size(*BLOCK_LENGTH[: None if section else 2]), inner.optional_size(*names)
    if length is None or blocks is None:
        return None
    always = sum(inner.optional_size(name, least=0) or 0 for name in BLOCKS_ALWAYS) if section else 0
    near = (inner.optional_size(*KEYS_ALWAYS, least=0) or 0) if section else 0
    stride = (inner.optional_size("kernel_stride") or length) if section else length
    _ = [inner.given(name) for name in OF_NO_COUNT]
    keys = (blocks + always) * length + near
    f.ledger.note(f"sparse attention: {blocks + always} blocks of {length} keys and {near} near ones per query")
    return Selection(keys=keys, heads=sizes.heads, head_dim=sizes.head_dim, pool=stride, narrow=False)


def _rotary_dim(f: Fields, family: Family, head_dim: int) -> int:
    """Rotated part of a head; no count depends on it."""
    if not family.rotary:
        return 0
    nested = f.given("rope_parameters") or f.given("rope_scaling")
    inner = nested if isinstance(nested, dict) else {}
    fraction = inner.get("partial_rotary_factor", f.given("partial_rotary_factor", f.given("rotary_pct")))
    fixed = f.given("rotary_dim")
    if isinstance(fixed, int) and fraction is None:
        return min(max(fixed, 0), head_dim)
    valid = isinstance(fraction, (int, float)) and 0 <= fraction <= 1
    share = float(fraction) if valid and fraction is not None else family.rotary
    return int(head_dim * share)


def _latent_heads(f: Fields, hidden: int) -> tuple[int, int, int]:
    """Heads of multi-head latent attention: keys of nope and rope parts, as many as queries."""
    num_heads = f.size(*parts.HEADS)
    return num_heads, num_heads, f.size("qk_nope_head_dim") + f.size("qk_rope_head_dim", least=0)


def latent_attention(f: Fields, sizes: Sizes, family: Family, span: Reach) -> LatentAttentionMixer:
    """Multi-head latent attention of one layer (DeepSeek-V2); with ``q_lora_rank`` null queries have no latent."""
    q_rank, kv_rank = f.optional_size("q_lora_rank", least=0) or 0, f.size("kv_lora_rank")
    return LatentAttentionMixer(
        num_heads=sizes.heads,
        q_lora_rank=q_rank,
        kv_lora_rank=kv_rank,
        qk_nope_head_dim=f.size("qk_nope_head_dim"),
        qk_rope_head_dim=f.size("qk_rope_head_dim", least=0),
        v_head_dim=f.size("v_head_dim"),
        bias=choose(f, family.q_bias),
        window=span.window,
        vectors=(
            *((Vectors(name="q_norm", role=VectorRole.QUERY_NORM, fixed=q_rank),) if q_rank else ()),
            Vectors(name="kv_norm", role=VectorRole.LATENT_NORM, fixed=kv_rank),
            *(family.attention_vectors(f, sizes) if family.attention_vectors else ()),
        ),
        projections=family.attention_linears(f, sizes) if family.attention_linears else (),
    )


def _qk_norms(f: Fields, sizes: Sizes, family: Family) -> tuple[Vectors, ...]:
    """Weights (and biases) of the query and key norms."""
    if family.qk_norm is QkNorm.NONE or not choose(f, family.qk_norm_if):
        return ()
    d, per_dim = sizes.head_dim, 2 if family.qk_norm_bias else 1
    q, k = (d, d) if family.qk_norm is QkNorm.HEAD else (sizes.heads * d, sizes.kv_heads * d)
    return (
        Vectors(name="q_norm", role=VectorRole.QUERY_NORM, fixed=per_dim * q),
        Vectors(name="k_norm", role=VectorRole.KEY_NORM, fixed=per_dim * k),
    )


def dense_ffn(f: Fields, sizes: Sizes, family: Family) -> DenseFfn:
    """The dense feed-forward part."""
    width = f.optional_size(*family.ffn) if family.ffn else None
    if width is None and family.ffn_factor:
        width = family.ffn_factor * sizes.hidden
    if width is None:
        raise f.missing(family.ffn[0])
    bias = choose(f, family.mlp_bias)
    return DenseFfn(
        ffn_hidden_size=width,
        gated=family.gated,
        up_bias=bias,
        down_bias=bias,
        activation=_activation(f, family),
        vectors=family.ffn_vectors(f, sizes, width) if family.ffn_vectors else (),
    )


def _activation(f: Fields, family: Family) -> str:
    """The activation's name; no count depends on it, so its default is not reported."""
    word = next((f.raw[n] for n in family.activation if isinstance(f.given(n), str)), None)
    return word if word and len(word) < 40 and word.isprintable() else "silu" if family.gated else "gelu"


EXPERT_INPUT = ("routed_expert_hidden_size", "moe_latent_size")
"""Fields of the width of the experts' input, if it is not the residual's."""


def moe_ffn(f: Fields, sizes: Sizes, family: Family) -> MoeFfn:
    """The expert part of a sparse layer."""
    e = family.experts
    assert e is not None
    num, top_k = f.size(*e.num), f.size(*e.top_k)
    width_name = next((name for name in e.width if f.has(name)), "")
    width = f.size(width_name) if width_name else f.size(*e.width)
    check_experts(f, num, top_k, next((n for n in e.top_k if f.has(n)), e.top_k[0]))
    groups, chosen = _routing_groups(f, num)
    named = e.latent or tuple(name for name in EXPERT_INPUT if f.has(name))
    latent = (f.optional_size(*named) if named else None) or 0
    if latent and not e.latent:
        between = "experts of that width between a projection each way, which the published class does not have"
        f.ledger.guess(f"{f.path}{named[0]}={latent}: {between}")
    bias = choose(f, e.bias)
    expert = DenseFfn(
        ffn_hidden_size=width, gated=e.gated, up_bias=bias, down_bias=bias, activation=_activation(f, family)
    )
    return MoeFfn(
        num_experts=num,
        experts_per_token=top_k,
        expert=expert,
        shared=_shared_expert(f, family, width),
        shared_width=_shared_width(e),
        shared_gate=e.shared_gate,
        expert_hidden_size=latent or None,
        projections=latent_projections(sizes.hidden, latent),
        router_bias=e.router_bias,
        routing_groups=groups,
        groups_per_token=chosen,
        vectors=(
            *((Vectors(name="score_bias", role=VectorRole.SCORE_BIAS, fixed=num),) if e.score_bias else ()),
            *(e.vectors(f, sizes) if e.vectors else ()),
        ),
    )


def latent_projections(hidden: int, latent: int, *, bias: bool = False) -> tuple[Linear, ...]:
    """The projections of every token around experts that are ``latent`` wide; none if it is 0."""
    sides = (("latent_down", hidden, latent), ("latent_up", latent, hidden))
    return tuple(parts.plain(name, d_in, d_out, bias=bias) for name, d_in, d_out in sides) if latent else ()


def _routing_groups(f: Fields, num: int) -> tuple[int, int]:
    """Number of routing groups, and of those a token chooses from; (1, 1) if not given."""
    if not f.has("n_group") or not f.has("topk_group"):
        return 1, 1
    groups, chosen = f.optional_size("n_group") or 1, f.optional_size("topk_group") or 1
    if num % groups:
        raise f.refuse("n_group", groups, f"must divide the {num} experts into equal groups", str(gcd(groups, num)))
    return (groups, min(chosen, groups)) if groups <= MOST_ROUTING_GROUPS else (1, 1)


def _shared_width(e: Experts) -> SharedWidth:
    """How the shared width is given, by the family's fields; the same field as the experts' ties both."""
    if e.shared_width:
        return SharedWidth.TIED if e.shared_width == e.width else SharedWidth.OWN
    return SharedWidth.COUNTED if e.shared_count else SharedWidth.OWN


def _shared_expert(f: Fields, family: Family, width: int) -> DenseFfn | None:
    """The shared expert, by its own width or as a multiple of one expert's; None if there is none."""
    e = family.experts
    assert e is not None
    shared = None
    if e.shared_width:
        shared = f.optional_size(*e.shared_width, least=0)
    elif e.shared_count:
        shared = (f.optional_size(*e.shared_count, least=0) or 0) * width
    bias = choose(f, family.mlp_bias)
    return DenseFfn(ffn_hidden_size=shared, gated=e.gated, up_bias=bias, down_bias=bias) if shared else None


def choose(f: Fields, choice: Choice) -> bool:
    """The class's fixed choice, or the value of the file's field."""
    if isinstance(choice, bool):
        return choice
    if choice.startswith("!"):
        return not f.flag(choice[1:])
    return f.flag(choice)


# -- which layers have experts --------------------------------------------------------------------------------


def sparse_layers(f: Fields, layers: int, family: Family) -> list[bool]:
    """Which layers have experts: by an explicit ``mlp_layer_types`` list, else by the family's rule."""
    if family.experts is None:
        return [False] * layers
    types = f.words("mlp_layer_types", length=layers)
    if types is None:
        return family.experts.sparse(f, layers)
    unknown = next((t for t in types if t not in ("dense", "sparse", "moe")), None)
    if unknown is not None:
        raise f.refuse("mlp_layer_types", unknown, "must be dense or sparse")
    return [t != "dense" for t in types]


def vectors(
    name: str,
    role: VectorRole = VectorRole.COUNTED,
    *,
    fixed: int = 0,
    per_hidden: int = 0,
    per_head: int = 0,
    per_kv_head: int = 0,
    per_head_dim: int = 0,
    per_width: int = 0,
) -> Callable[..., tuple[Vectors, ...]]:
    """Parameters beside the linear layers: a fixed number, and so many per hidden size, per (key/value) head, per
    element of a head and per feed-forward width."""

    def made(f: Fields, sizes: Sizes, width: int = 0) -> tuple[Vectors, ...]:
        of_heads = per_head * sizes.heads + per_kv_head * sizes.kv_heads + per_head_dim * sizes.head_dim
        count = fixed + of_heads + per_width * width
        return (Vectors(name=name, role=role, fixed=count, per_hidden=per_hidden),)

    return made


sinks = vectors("sinks", VectorRole.SINKS, per_head=1)
"""One attention sink per head."""


def head_gate(f: Fields, sizes: Sizes) -> tuple[Linear, ...]:
    """A gate on the attention's output, as wide as all heads together."""
    return (Linear(name="gate", d_in=sizes.hidden, d_out=sizes.heads * sizes.head_dim, gates=True),)
