"""A model on its serving devices: the operators an engine runs for one pass, and how many sequences fit."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from sartor.hardware.gpu import Gpu
from sartor.model.lower import lower
from sartor.model.lower.split import feasible
from sartor.model.shape import TransformerShape
from sartor.model.workload import ParallelDims, Phase, Workload
from sartor.operators import (
    Attention,
    Collective,
    CollectiveKind,
    CollectiveLibrary,
    DType,
    Gemm,
    GroupedGemm,
    MemoryBound,
    MemoryBoundKind,
    Operator,
    OperatorGraph,
    Part,
    Role,
)
from sartor.step.serving.inference import WIDTHS, kv_cache_bytes, weight_bytes
from sartor.step.serving.load import Load
from sartor.units import IntArray, Ints, ceil_div

MEMORY_SHARE = 0.9
"""Share of a device's memory that a server fills (TensorRT-LLM's and vLLM's default)."""


ATTENTION = (Role.QKV, Role.Q_DOWN, Role.Q_UP, Role.KV_DOWN, Role.KV_UP, Role.ATTENTION_OUTPUT)
"""Linear layers of attention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Properties of a serving framework besides its kernels."""

    name: str
    all_reduce: CollectiveLibrary = CollectiveLibrary.CUSTOM
    narrow_cache: bool = False
    """The key/value cache is 8-bit on every GPU if weights are narrower than 16 bits, not only on GPUs with FP4
    units."""
    hidden_launches: float = 0.0
    """Share of the launch time of small kernels, attention and experts that a replayed step hides behind the previous
    kernel (programmatic dependent launch)."""
    looks_late: bool = False
    """May skip some steps between checks for new requests."""
    first_token_log_sigma: float = 0.4
    """Standard deviation of ln(measured / predicted) of the time to first token."""
    vendors: tuple[str, ...] = ()
    """Vendors of the GPUs it is built for; empty: any."""


ENGINES: Mapping[str, Engine] = MappingProxyType(
    {
        each.name: each
        for each in (
            Engine(name="vllm"),
            Engine(name="sglang", looks_late=True, first_token_log_sigma=1.5),
            Engine(
                name="trtllm",
                all_reduce=CollectiveLibrary.TRTLLM,
                narrow_cache=True,
                hidden_launches=0.46,
                first_token_log_sigma=0.5,
                vendors=("NVIDIA",),
            ),
        )
    }
)
"""8-bit caches as in the published recipes of SemiAnalysis InferenceX (recalled); hidden launches and sigmas fitted on
data/end_to_end/serving.csv (1,028 aggregated rows of confidence B, 2026-11-23): lab/fit_serving.py."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A model served by one group of devices."""

    shape: TransformerShape
    gpu: Gpu
    dtype: DType
    tp: int = 1
    """Devices that split the heads of one sequence."""
    copies: int = 1
    """Attention's data parallelism: groups of ``tp`` devices with their own sequences, which share the experts."""
    ep: int = 1
    """Devices, of ``tp * copies``, over which whole experts are divided; the rest splits each expert."""
    engine: Engine = ENGINES["vllm"]

    @property
    def num_devices(self) -> int:
        return self.tp * self.copies

    @property
    def wide_attention(self) -> bool:
        """Whether attention projections stay in 16 bits, as in 4-bit mixtures of experts (OpenAI's gpt-oss in MXFP4;
        NVIDIA's NVFP4 checkpoints of DeepSeek-R1; Moonshot's Kimi K2 Thinking in INT4)."""
        return self.dtype.bytes < 1 and self.shape.moe_ffn is not None

    @property
    def encodes(self) -> bool:
        """Whether prompts pass an encoder, which the decoder attends to."""
        return sum(stack.is_text for stack in self.shape.stacks) > 1

    @property
    def cache(self) -> DType:
        """Type of the key/value cache."""
        if self.dtype.bytes >= 2:
            return self.dtype
        narrow = self.engine.narrow_cache or DType.NVFP4 in self.gpu.peak_flops_per_s
        return DType.FP8 if narrow else DType.BF16


def served_graph(server: Server, workload: Workload) -> OperatorGraph:
    """The operators of one device's pass as a serving engine runs it.

    Residual sums and casts are fused into neighbouring kernels (vLLM's ``fused_add_rms_norm`` and its passes for norm,
    activation and quantization; TensorRT-LLM's ``AllReduceFusionOp``), latent attention's two down projections are one
    GEMM, and shared and routed experts are summed before one all-reduce.
    """
    graph = lower(workload, ParallelDims(tp=server.tp, ep=server.copies))
    experts = iter(_experts(server, workload))
    operators: list[Operator] = []
    for op in graph.operators:
        if _is_fused(op) or (_is_reduce(op) and operators and operators[-1].role is Role.SHARED_DOWN):
            continue
        if isinstance(op, Gemm) and op.role is Role.KV_DOWN and _joined(operators, op):
            continue
        if isinstance(op, GroupedGemm):
            op = next(experts)
        if isinstance(op, Gemm) and op.role in ATTENTION and server.wide_attention:
            op = replace(op, dtype=DType.BF16)
        operators.append(_of_engine(server, op, workload))
    return replace(graph, operators=tuple(operators))


def _joined(operators: list[Operator], down: Gemm) -> bool:
    """Merge latent attention's key/value down projection into the query one just before it; False if there is none."""
    last_gemm = max((i for i, op in enumerate(operators) if isinstance(op, Gemm)), default=-1)
    before = operators[last_gemm] if last_gemm >= 0 else None
    if not isinstance(before, Gemm) or before.role not in (Role.Q_DOWN, Role.QKV):
        return False
    operators[last_gemm] = replace(before, n=before.n + down.n)
    return True


def _is_fused(op: Operator) -> bool:
    kinds = (MemoryBoundKind.RESIDUAL, MemoryBoundKind.CAST)
    return isinstance(op, MemoryBound) and op.part is Part.LAYER and op.kind in kinds


def _is_reduce(op: Operator) -> bool:
    return isinstance(op, Collective) and op.role is Role.OUTPUT_REDUCE


def _experts(server: Server, workload: Workload) -> list[GroupedGemm]:
    """Expert GEMMs of one device: all copies' tokens, on its share of the experts and of each expert."""
    if workload.shape.moe_ffn is None:
        return []
    split = server.num_devices // server.ep
    tokens = ceil_div(workload.microbatch_size * server.copies, server.ep)
    graph = lower(replace(workload, microbatch_size=tokens), ParallelDims(tp=split, ep=server.ep))
    return [op for op in graph.operators if isinstance(op, GroupedGemm)]


def _of_engine(server: Server, op: Operator, workload: Workload) -> Operator:
    """The operator with the engine's cache type, its all-reduce library, and, if that moves fewer bytes, all-gather and
    reduce-scatter of the tokens instead of sending them to every chosen expert."""
    if isinstance(op, Attention) and workload.phase is Phase.DECODE:
        return replace(op, kv_dtype=server.cache)
    if not isinstance(op, Collective):
        return op
    if op.kind is CollectiveKind.ALL_TO_ALL:
        moe = workload.shape.moe_ffn
        once = op.message_bytes * op.group_size / int(moe.experts_per_token) if moe else op.message_bytes
        kind = CollectiveKind.ALL_GATHER if op.role is Role.DISPATCH else CollectiveKind.REDUCE_SCATTER
        return replace(op, kind=kind, message_bytes=once) if np.all(once < op.message_bytes) else op
    return replace(op, library=server.engine.all_reduce)


def capacity(server: Server, prompt: Ints, answer: Ints = 0) -> IntArray:
    """Sequences with so many tokens that one copy holds besides its weights; 0 if the weights leave no room."""
    free = max(free_bytes(server), 0.0)
    both = np.stack([column.ravel() for column in np.broadcast_arrays(prompt, answer)])
    pairs, where = np.unique(both, axis=1, return_inverse=True)
    column = [cache_bytes(server, int(first), int(then)) for first, then in pairs.T]
    sequences = np.asarray([free // max(sequence_bytes, 1.0) for sequence_bytes in column], dtype=np.int64)[
        where.ravel()
    ]
    return sequences.reshape(np.broadcast_shapes(np.shape(prompt), np.shape(answer)))


def free_bytes(server: Server) -> float:
    """Memory of one device besides its weights; negative if they don't fit."""
    return MEMORY_SHARE * server.gpu.hbm_bytes - server_weight_bytes(server)


def cache_bytes(server: Server, prompt: int, answer: int) -> float:
    """One sequence's keys and values on one device. A decoder behind an encoder keeps the prompt's for cross-attention
    and its own tokens for the rest."""
    crossed = prompt if server.encodes else None
    tokens = answer if server.encodes else prompt + answer
    return float(kv_cache_bytes(server.shape, tokens, server.tp, server.cache.bytes, crossed))


def server_weight_bytes(server: Server) -> float:
    """Weights of one device: its part of the experts of all copies, and what attention keeps in 16 bits."""
    dims = ParallelDims(tp=server.tp)
    weights = weight_bytes(server.shape, dims, server.dtype)
    experts = 2 * (weights - weight_bytes(server.shape, replace(dims, ep=2), server.dtype))
    wide = (DType.BF16.bytes - server.dtype.bytes) * _attention_weights(server) if server.wide_attention else 0.0
    return float(weights + wide - experts * (1 - 1 / server.copies))


def _attention_weights(server: Server) -> float:
    """Elements of one device's linear layers of attention."""
    graph = served_graph(server, Workload(shape=server.shape, phase=Phase.DECODE))
    linears = (op for op in graph.operators if isinstance(op, Gemm) and op.role in ATTENTION)
    return sum(float(op.batch * op.n * op.k * op.count) for op in linears)


def holds(server: Server, load: Load) -> IntArray:
    """Sequences halfway through their answers that one copy holds; 0 if not one fits when its answer ends."""
    prompt, answer = load.flat(load.input_len), load.flat(load.output_len)
    whole = capacity(server, prompt, answer) >= 1
    sequences: IntArray = np.where(whole, capacity(server, prompt, answer // 2), 0)
    return sequences


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """Why a server does not hold one sequence; bytes of one device."""

    server: Server
    weight_bytes: float
    free_bytes: float
    """Memory besides the weights; negative if they don't fit."""
    sequence_bytes: float
    """Keys and values of one whole sequence."""
    tokens: int
    """Of that sequence: its prompt and its answer."""
    most_tokens: int
    """Tokens of the longest sequence that fits."""


def shortage(server: Server, prompt: int, answer: int = 0) -> Shortage | None:
    """What a server lacks to hold one sequence; None if it does."""
    if capacity(server, prompt, answer):
        return None
    free, tokens = free_bytes(server), prompt + answer
    longest = bisect_right(range(1, tokens), free, key=lambda n: cache_bytes(server, n, 0))
    return Shortage(
        server=server,
        weight_bytes=server_weight_bytes(server),
        free_bytes=free,
        sequence_bytes=cache_bytes(server, prompt, answer),
        tokens=tokens,
        most_tokens=longest,
    )


def would_fit(server: Server, prompt: int, answer: int = 0) -> dict[str, int]:
    """The next wider tensor parallelism with which one sequence fits beside the weights; empty if there is none."""
    for tp in WIDTHS:
        wider = replace(server, tp=tp, ep=1)
        if tp > server.tp and feasible(server.shape, ParallelDims(tp=tp)) and capacity(wider, prompt, answer):
            return {"tp": tp}
    return {}
