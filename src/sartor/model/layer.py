"""The parts of a layer: mixers (attention, latent attention, state space), feed-forward parts and norms.

Parts have their inner sizes; the residual width (``hidden_size``) is passed to them. Every size may be an integer or an
array of candidates (``Ints``). Every part lists its ``Linear`` layers and its other parameters; counting and lowering
need nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

from sartor.operators import Role
from sartor.units import Ints


class Split(Enum):
    """How tensor parallelism divides a linear layer (Megatron: Shoeybi et al. 2019)."""

    COLUMN = "column"
    ROW = "row"
    REPLICATED = "replicated"
    KV_HEADS = "kv_heads"
    """Column-parallel in whole key/value heads: replicated if there are fewer heads than devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """``count`` weight matrices [d_in, d_out], with bias. Linears with the same ``fused`` name run as one GEMM."""

    name: str
    role: Role = Role.PROJECTION
    d_in: Ints
    d_out: Ints
    bias: bool = False
    count: Ints = 1
    split: Split = Split.COLUMN
    fused: str = ""
    """Linears of one part with equal non-empty ``fused`` share their input and run as one GEMM (Q, K and V)."""
    rows: int | None = None
    """Rows per sequence, if not the stack's tokens: 1 for a pooler, 0 for a layer that text does not pass."""
    reused: bool = False
    """Reuses the weights of another linear layer (DeBERTa's shared position projections)."""
    gates: bool = False
    """A gate on attention's output: as wide as all heads, or one value per head."""

    @property
    def params(self) -> Ints:
        return 0 if self.reused else self.count * (self.d_in * self.d_out + (self.d_out if self.bias else 0))


class VectorRole(Enum):
    """What code asks of parameters outside matrix multiplications; most are only counted."""

    COUNTED = "counted"
    QUERY_NORM = "query_norm"
    KEY_NORM = "key_norm"
    HEAD_NORM = "head_norm"
    """Norms of queries and keys in one vector, or of what heads put out."""
    LATENT_NORM = "latent_norm"
    """The norm of the latent that keys and values are made of."""
    SINKS = "sinks"
    """Of attention, one per query head."""
    RELATIVE_BIAS = "relative_bias"
    """A table of one value per head and distance."""
    SCORE_BIAS = "score_bias"
    """Of a router, one per expert."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vectors:
    """Parameters outside matrix multiplications: norm weights and biases, scales, sinks, position tables.

    ``per_hidden`` times the stack's hidden size plus ``fixed``.
    """

    name: str
    role: VectorRole = VectorRole.COUNTED
    per_hidden: Ints = 0
    fixed: Ints = 0
    embedding: bool = False
    """A lookup table (positions, token types, relative biases), counted among the embeddings."""
    idle: bool = False
    """Unused experts outside a `MoeFfn`: in the total, not among the active parameters."""

    def params(self, hidden_size: Ints) -> Ints:
        return self.per_hidden * hidden_size + self.fixed


class NormKind(Enum):
    LAYER_NORM = "layernorm"
    RMS_NORM = "rmsnorm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """A normalisation over the residual width. ``weight`` and ``bias`` say which vectors it holds."""

    name: str = "norm"
    kind: NormKind = NormKind.RMS_NORM
    weight: bool = True
    bias: bool = False

    def params(self, hidden_size: Ints) -> Ints:
        return (int(self.weight) + int(self.bias)) * hidden_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Sparse attention: each query attends to ``keys`` of the keys it may see, those that an indexer scores highest."""

    keys: int
    heads: int = 0
    """The indexer's query heads, on every tensor-parallel device; 0: an earlier layer's choice is reused."""
    head_dim: int = 0
    """Of the indexer, which has one key for all of its heads."""
    pool: int = 1
    """Tokens per indexed key; with an attention that pools its keys, of those as well."""
    narrow: bool = True
    """Indexed keys are cached and multiplied in 8 bits, with an fp32 scale each (DeepSeek-V3.2)."""


def lightning_indexer(
    hidden: int, rank: int, *, heads: int, head_dim: int
) -> tuple[tuple[Linear, ...], tuple[Vectors, ...]]:
    """Weights of an indexer (DeepSeek-V3.2): narrow queries from the latent of ``rank``, one key, a weight per head."""
    sizes = {"index_q": (rank, heads * head_dim), "index_k": (hidden, head_dim), "index_weights": (hidden, heads)}
    linears = (Linear(name=name, d_in=a, d_out=b, split=Split.REPLICATED) for name, (a, b) in sizes.items())
    return tuple(linears), (Vectors(name="index_norm", fixed=2 * head_dim),)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionMixer:
    """Multi-head, multi-query or grouped-query attention with its own head dimension.

    ``window`` is the longest span a query sees (0: all). ``cross`` takes keys and values from the other stack.
    """

    num_heads: Ints
    num_kv_heads: Ints
    head_dim: Ints
    v_head_dim: Ints | None = None
    causal: bool = True
    window: int = 0
    chunked: bool = False
    """Local attention in blocks of ``window`` tokens (Llama 4) instead of a sliding window."""
    q_bias: bool = False
    kv_bias: bool = False
    out_bias: bool = False
    fused_qkv: bool = True
    gated: bool = False
    """An output gate as wide as the query projection (Qwen3-Next)."""
    rotary_dim: Ints = 0
    vectors: tuple[Vectors, ...] = ()
    """Query/key norms, sinks, relative biases."""
    cross: bool = False
    kv_hidden_size: Ints | None = None
    """Width of the source of keys and values, if not the stack's own (cross-attention)."""
    shares_kv: bool = False
    """Reuses another layer's keys and values: no K and V projections of its own."""
    shares_k_as_v: bool = False
    """Values are the keys before their norm: no V projection (Gemma 4's global layers)."""
    projections: tuple[Linear, ...] = ()
    """Further linear layers: output gates, indexers, low-rank adapters."""
    pooled: int = 0
    """Additional keys, one per this many tokens, next to the sequence's own (DeepSeek-V4's compressors)."""
    selection: Selection | None = None
    own_linears: tuple[Linear, ...] | None = None
    """All linear layers, if they are not the usual four (bottlenecks, grouped projections)."""
    name: str = "attention"

    @property
    def value_dim(self) -> Ints:
        return self.head_dim if self.v_head_dim is None else self.v_head_dim

    @property
    def norms_heads(self) -> bool:
        """Whether queries and keys are normalised; a norm of what heads put out is priced like theirs."""
        return any(vector.role in (VectorRole.QUERY_NORM, VectorRole.HEAD_NORM) for vector in self.vectors)

    def linears(self, hidden_size: Ints) -> tuple[Linear, ...]:
        if self.own_linears is not None:
            return self.own_linears
        kv_in = hidden_size if self.kv_hidden_size is None else self.kv_hidden_size
        q = Linear(
            name="q",
            role=Role.QKV,
            d_in=hidden_size,
            d_out=self.num_heads * self.head_dim * (2 if self.gated else 1),
            bias=self.q_bias,
            fused="qkv" if self.fused_qkv and not self.cross else "",
        )
        out = Linear(
            name="out",
            role=Role.ATTENTION_OUTPUT,
            d_in=self.num_heads * self.value_dim,
            d_out=hidden_size,
            bias=self.out_bias,
            split=Split.ROW,
        )
        if self.shares_kv:
            return (q, out, *self.projections)
        fused = ("kv" if self.cross else "qkv") if self.fused_qkv else ""
        k = Linear(
            name="k",
            role=Role.QKV,
            d_in=kv_in,
            d_out=self.num_kv_heads * self.head_dim,
            bias=self.kv_bias,
            split=Split.KV_HEADS,
            fused=fused,
        )
        v = Linear(
            name="v",
            role=Role.QKV,
            d_in=kv_in,
            d_out=self.num_kv_heads * self.value_dim,
            bias=self.kv_bias,
            split=Split.KV_HEADS,
            fused=fused,
        )
        return (q, k, *(() if self.shares_k_as_v else (v,)), out, *self.projections)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttentionMixer:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, sec. 2.1). ``q_lora_rank`` 0: queries undivided."""

    num_heads: Ints
    q_lora_rank: Ints
    kv_lora_rank: Ints
    qk_nope_head_dim: Ints
    qk_rope_head_dim: Ints
    v_head_dim: Ints
    bias: bool = False
    """Biases on the down-projections and the output (HF ``attention_bias``)."""
    window: int = 0
    causal: bool = True
    vectors: tuple[Vectors, ...] = ()
    projections: tuple[Linear, ...] = ()
    """Further linear layers (a sparse-attention indexer, an output gate)."""
    selection: Selection | None = None
    name: str = "attention"
    cross = False
    shares_kv = False

    @property
    def head_dim(self) -> Ints:
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def value_dim(self) -> Ints:
        return self.v_head_dim

    @property
    def num_kv_heads(self) -> Ints:
        return self.num_heads

    @property
    def has_q_rank(self) -> bool:
        return bool(self.q_lora_rank) if isinstance(self.q_lora_rank, int) else True

    @property
    def ranks(self) -> dict[str, Ints]:
        """The widths of the latents by field: keys and values share one, queries may have one."""
        queries = {"q_lora_rank": self.q_lora_rank} if self.has_q_rank else {}
        return {**queries, "kv_lora_rank": self.kv_lora_rank}

    def linears(self, hidden_size: Ints) -> tuple[Linear, ...]:
        a, latent = self.num_heads, self.kv_lora_rank
        queries: tuple[Linear, ...] = (
            (
                Linear(
                    name="q_down",
                    role=Role.Q_DOWN,
                    d_in=hidden_size,
                    d_out=self.q_lora_rank,
                    bias=self.bias,
                    split=Split.REPLICATED,
                ),
                Linear(name="q_up", role=Role.Q_UP, d_in=self.q_lora_rank, d_out=a * self.head_dim),
            )
            if self.has_q_rank
            else (Linear(name="q", role=Role.QKV, d_in=hidden_size, d_out=a * self.head_dim),)
        )
        return (
            *queries,
            Linear(
                name="kv_down",
                role=Role.KV_DOWN,
                d_in=hidden_size,
                d_out=latent + self.qk_rope_head_dim,
                bias=self.bias,
                split=Split.REPLICATED,
            ),
            Linear(name="kv_up", role=Role.KV_UP, d_in=latent, d_out=a * (self.qk_nope_head_dim + self.v_head_dim)),
            Linear(
                name="out",
                role=Role.ATTENTION_OUTPUT,
                d_in=a * self.v_head_dim,
                d_out=hidden_size,
                bias=self.bias,
                split=Split.ROW,
            ),
            *self.projections,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpaceMixer:
    """A recurrent mixer (Mamba, Mamba-2, gated delta net, RWKV ...): its linears, and a scan.

    The config reader supplies the linears, since every family projects differently. ``inner_size`` channels are scanned
    with ``state_size`` states each; a short causal convolution of ``conv_size`` taps over ``conv_channels`` channels
    comes first.
    """

    inner_size: Ints
    state_size: Ints
    num_heads: Ints = 1
    conv_channels: Ints = 0
    conv_size: int = 0
    projections: tuple[Linear, ...] = ()
    vectors: tuple[Vectors, ...] = ()
    """A, D, dt bias, convolution taps, inner norms."""
    variant: str = "mamba"
    chunk_size: int = 0
    """Tokens whose scan is one matrix multiplication (Mamba-2's state-space duality); 0: token by token."""
    num_groups: Ints = 1
    """Groups of heads that share keys and queries in such a scan."""
    gated_norm: bool = False
    """A norm over the gated output of such a scan."""
    name: str = "ssm"

    def linears(self, hidden_size: Ints) -> tuple[Linear, ...]:
        return self.projections


def mamba2_mixer(
    hidden_size: Ints,
    *,
    num_heads: Ints,
    head_dim: Ints,
    state_size: Ints,
    num_groups: Ints,
    conv_size: int,
    chunk_size: int,
    conv_bias: bool = True,
    in_bias: bool = False,
    out_bias: bool = False,
    normed: bool = True,
) -> StateSpaceMixer:
    """Mamba-2 (arXiv 2405.21060): one projection for gate, values, keys, queries and step sizes."""
    inner, shared = num_heads * head_dim, 2 * num_groups * state_size
    channels = inner + shared
    return StateSpaceMixer(
        inner_size=inner,
        state_size=state_size,
        num_heads=num_heads,
        conv_channels=channels,
        conv_size=conv_size,
        projections=(
            Linear(name="in", d_in=hidden_size, d_out=inner + channels + num_heads, bias=in_bias),
            Linear(name="out", d_in=inner, d_out=hidden_size, bias=out_bias, split=Split.ROW),
        ),
        vectors=(
            Vectors(name="dt_bias_A_and_D", fixed=3 * num_heads),
            Vectors(name="conv", fixed=channels * (conv_size + conv_bias)),
            *((Vectors(name="norm", fixed=inner),) if normed else ()),
        ),
        variant="mamba2",
        chunk_size=chunk_size,
        num_groups=num_groups,
        gated_norm=normed,
    )


Mixer: TypeAlias = AttentionMixer | LatentAttentionMixer | StateSpaceMixer


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseFfn:
    """A feed-forward part: up (and gate) to ``ffn_hidden_size``, activation, down."""

    ffn_hidden_size: Ints
    gated: bool = True
    up_bias: bool = False
    down_bias: bool = False
    fused_gate: bool = True
    activation: str = "silu"
    vectors: tuple[Vectors, ...] = ()
    name: str = "mlp"

    def linears(self, hidden_size: Ints) -> tuple[Linear, ...]:
        f = self.ffn_hidden_size
        fused = "gate_up" if self.gated and self.fused_gate else ""
        up = Linear(name="up", role=Role.FFN_UP, d_in=hidden_size, d_out=f, bias=self.up_bias, fused=fused)
        down = Linear(name="down", role=Role.FFN_DOWN, d_in=f, d_out=hidden_size, bias=self.down_bias, split=Split.ROW)
        return (replace(up, name="gate"), up, down) if self.gated else (up, down)


class SharedWidth(Enum):
    """How the width of the shared expert is given: by its own size, as a number of routed experts (DeepSeek), or always
    equal to one routed expert (Llama 4)."""

    OWN = "own"
    COUNTED = "counted"
    TIED = "tied"


MOST_ROUTING_GROUPS = 1024
"""Far above any model's; with more groups, routing is assumed to reach all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeFfn:
    """``num_experts`` routed feed-forward parts, ``experts_per_token`` per token, and shared ones."""

    num_experts: Ints
    experts_per_token: Ints
    expert: DenseFfn
    shared: DenseFfn | None = None
    shared_width: SharedWidth = SharedWidth.OWN
    shared_gate: bool = False
    """A scalar gate h -> 1 on the shared expert (Qwen2-MoE)."""
    router_bias: bool = False
    routing_groups: int = 1
    groups_per_token: int = 1
    """Number of the ``routing_groups`` that a token's experts may come from (DeepSeek-V3: 4 of 8, arXiv 2412.19437,
    sec. 2.1.2); equal: all."""
    vectors: tuple[Vectors, ...] = ()
    router: bool = True
    """False: the router is more than one linear layer, and is among ``projections``."""
    expert_hidden_size: Ints | None = None
    """Width of the experts' input, if not the residual's (latent experts between two projections)."""
    projections: tuple[Linear, ...] = ()
    """Further linear layers every token passes (a latent projection, a dense branch of the router)."""
    name: str = "moe"

    @property
    def ffn_hidden_size(self) -> Ints:
        return self.expert.ffn_hidden_size

    @property
    def num_shared(self) -> Ints:
        """Number of shared experts, if they are counted in routed ones, else 0."""
        if self.shared is None or self.shared_width is not SharedWidth.COUNTED:
            return 0
        return self.shared.ffn_hidden_size // self.expert.ffn_hidden_size

    def linears(self, hidden_size: Ints) -> tuple[Linear, ...]:
        """Everything but the routed experts: router, shared expert and its gate."""
        router = Linear(
            name="router",
            role=Role.ROUTER,
            d_in=hidden_size,
            d_out=self.num_experts,
            bias=self.router_bias,
            split=Split.REPLICATED,
        )
        gate = (
            (Linear(name="shared_gate", d_in=hidden_size, d_out=1, split=Split.REPLICATED),) if self.shared_gate else ()
        )
        shared = tuple(
            replace(x, name=f"shared_{x.name}", fused=x.fused and f"shared_{x.fused}")
            for x in (self.shared.linears(hidden_size) if self.shared else ())
        )
        return (*((router,) if self.router else ()), *gate, *shared, *self.projections)

    def expert_linears(self, hidden_size: Ints) -> tuple[Linear, ...]:
        """The linear layers of one routed expert."""
        width = hidden_size if self.expert_hidden_size is None else self.expert_hidden_size
        return self.expert.linears(width)


Ffn: TypeAlias = DenseFfn | MoeFfn


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One residual layer. ``parallel``: mixer and feed-forward read the same input and share one residual sum."""

    mixers: tuple[Mixer, ...] = ()
    ffn: Ffn | None = None
    norms: tuple[Norm, ...] = ()
    parallel: bool = False
    linears: tuple[Linear, ...] = ()
    """Linear layers of the layer itself, outside mixers and feed-forward."""
    vectors: tuple[Vectors, ...] = ()
    fuses_parallel: bool = False
    """For parallel layers: one GEMM for all inputs (Q, K, V and up) and one for all outputs (PaLM, ViT-22B)."""
    ffns: tuple[Ffn, ...] = ()
    """Additional feed-forward parts next to ``ffn`` (a dense residual next to the experts: Arctic)."""
    name: str = ""
    """For a traced layer: prefix of its operators' names, if the model has several kinds."""
    kept_bytes: float = 0.0
    """For a traced layer: bytes that autograd keeps of one sequence until backward."""
    again_bytes: float = 0.0
    """For a traced layer: bytes that checkpointing inside the model computes again for backward, of one sequence."""

    @property
    def all_ffns(self) -> tuple[Ffn, ...]:
        return (*((self.ffn,) if self.ffn else ()), *self.ffns)
