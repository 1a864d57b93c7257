"""A model on its serving devices: the load, the operators an engine runs for one pass, and how long they take."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from sartor.cost.correction.calibration import TORCH, Calibration, Clock
from sartor.cost.price import Estimate, price
from sartor.hardware.cluster import Cluster
from sartor.hardware.gpu import Gpu
from sartor.model.lower import lower
from sartor.model.lower.setting import EngineKernels, Kernels, feasible
from sartor.model.shape import TransformerShape
from sartor.model.workload import AttentionKernel, ParallelDims, Phase, Workload
from sartor.operators import CollectiveLibrary, DType, GroupedGemm, OperatorGraph
from sartor.step.serving.inference import WIDTHS, kv_cache_bytes, weight_bytes
from sartor.units import Floats, IntArray, Ints, ceil_div, round_up

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load on a server; arrays describe many loads."""

    concurrency: Ints
    """Sequences in flight."""
    input_len: Ints
    """Tokens of a prompt."""
    output_len: Ints
    """Tokens generated per request."""

    @property
    def middle(self) -> Ints:
        """Tokens of a sequence halfway through its answer."""
        return self.input_len + self.output_len // 2

    @property
    def middles(self) -> Ints:
        """``middle`` in the form of all loads."""
        return np.broadcast_to(self.middle, self.form)

    @property
    def answered(self) -> Ints:
        """Of them, those of the answer, in the form of all loads."""
        return np.broadcast_to(np.asarray(self.output_len) // 2, self.form)

    @property
    def prompts(self) -> Ints:
        """``input_len`` in the form of all loads."""
        return np.broadcast_to(self.input_len, self.form)

    def columns(self) -> tuple[Array, Array]:
        """``concurrency`` and ``output_len`` of every load, as flat arrays of one length."""
        flight, answer = (self.flat(field) for field in (self.concurrency, self.output_len))
        return flight.astype(np.float64), answer.astype(np.float64)

    @property
    def form(self) -> tuple[int, ...]:
        return np.broadcast_shapes(*(np.shape(n) for n in (self.concurrency, self.input_len, self.output_len)))

    def flat(self, values: Floats) -> npt.NDArray[Any]:
        """One value per load."""
        return np.broadcast_to(values, self.form).reshape(-1)


MEMORY_SHARE = 0.9
"""Share of a device's memory that a server fills (TensorRT-LLM's and vLLM's default)."""


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

    def runs_on(self, gpu: Gpu) -> bool:
        return gpu.accelerator is None and (not self.vendors or gpu.vendor in self.vendors)

    @property
    def kernels(self) -> Kernels:
        """What it runs otherwise than a trainer."""
        return Kernels(engine=EngineKernels(all_reduce=self.all_reduce))

    def cache_dtype(self, dtype: DType, gpu: Gpu) -> DType:
        """Type of the key/value cache."""
        if dtype.bytes >= 2:
            return dtype
        narrow = self.narrow_cache or DType.NVFP4 in gpu.peak_flops_per_s
        return DType.FP8 if narrow else DType.BF16

    @staticmethod
    def wide_attention(shape: TransformerShape, dtype: DType) -> bool:
        """Whether attention projections stay in 16 bits, as in 4-bit mixtures of experts (OpenAI's gpt-oss in MXFP4;
        NVIDIA's NVFP4 checkpoints of DeepSeek-R1; Moonshot's Kimi K2 Thinking in INT4)."""
        return dtype.bytes < 1 and shape.moe_ffn is not None

    @staticmethod
    def encodes(shape: TransformerShape) -> bool:
        """Whether prompts pass an encoder, which the decoder attends to."""
        return sum(stack.is_text for stack in shape.stacks) > 1


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

USUAL_ENGINE = ENGINES["vllm"]


def engines_on(gpu: Gpu) -> tuple[Engine, ...]:
    """The serving frameworks built for a device."""
    return tuple(engine for engine in ENGINES.values() if engine.runs_on(gpu))


def engine_of_pass(kernels: str | None, shape: TransformerShape, gpu: Gpu) -> Engine | None:
    """The engine that runs an inference pass: the framework named, the usual one around kernels of a library; None
    where the model's own code runs it (PyTorch), or no engine serves the model or the device."""
    if shape.encoder_only or shape.traced is not None or gpu.accelerator is not None or kernels == TORCH:
        return None
    engine = ENGINES.get((kernels or "").partition("_")[0], USUAL_ENGINE)
    return engine if engine.runs_on(gpu) else USUAL_ENGINE


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
    engine: Engine = USUAL_ENGINE
    attention_kernel: AttentionKernel = AttentionKernel.FLASH
    routing_skew: float = 1.0
    memory_share: float = MEMORY_SHARE
    """Share of a device's memory that weights, keys and values fill."""

    @property
    def num_devices(self) -> int:
        return self.tp * self.copies

    def workload(self, phase: Phase, microbatch_size: Ints = 1, seq_len: Ints = 1, context_len: Ints = 0) -> Workload:
        """A pass of its engine."""
        return Workload(
            shape=self.shape,
            phase=phase,
            dtype=self.dtype,
            cache_dtype=self.cache,
            encodes=self.encodes and phase is Phase.PREFILL,
            wide_attention=self.engine.wide_attention(self.shape, self.dtype),
            attention_kernel=self.attention_kernel,
            routing_skew=self.routing_skew,
            microbatch_size=microbatch_size,
            seq_len=seq_len,
            context_len=context_len,
        )

    @property
    def encodes(self) -> bool:
        return self.engine.encodes(self.shape)

    @property
    def cache(self) -> DType:
        return self.engine.cache_dtype(self.dtype, self.gpu)


VOCABULARY_MULTIPLE = 64
"""Engines pad an embedding to a multiple of this, and of the devices (vLLM's default, recalled)."""


def padded(shape: TransformerShape, tp: int) -> TransformerShape:
    """The shape with a vocabulary that ``tp`` devices split."""
    if shape.vocab_size % tp == 0:
        return shape
    return replace(shape, vocab_size=round_up(int(shape.vocab_size), math.lcm(VOCABULARY_MULTIPLE, tp)))


def served_graph(server: Server, workload: Workload) -> OperatorGraph:
    """The operators of one device's pass as the server's engine runs it (``as_served``), with its share of experts."""
    graph = lower(workload, ParallelDims(tp=server.tp, ep=server.copies), server.engine.kernels)
    if server.ep == server.copies:
        return graph
    experts = iter(_experts(server, workload))
    return replace(
        graph, operators=tuple(next(experts) if isinstance(op, GroupedGemm) else op for op in graph.operators)
    )


def served_pass(server: Server, workload: Workload, fit: Calibration, cluster: Cluster | None = None) -> Estimate:
    """One device's pass with its price: that of ``sartor estimate`` for the same workload."""
    fit = in_an_engine(fit, server.engine, workload.phase)
    return price(served_graph(server, workload), server.gpu, fit, details=False, cluster=cluster)


def in_an_engine(calibration: Calibration, engine: Engine, phase: Phase) -> Calibration:
    """The calibration with kernels as an engine runs them: in short passes, and decoding steps replayed from a graph,
    where launches hide."""
    hidden = engine.hidden_launches if phase is Phase.DECODE else 0.0
    return replace(calibration, clock=Clock.BOOST, hidden_launches=hidden)


def _experts(server: Server, workload: Workload) -> list[GroupedGemm]:
    """Expert GEMMs of one device: all copies' tokens, on its share of the experts and of each expert."""
    if workload.shape.moe_ffn is None:
        return []
    split = server.num_devices // server.ep
    tokens = ceil_div(workload.microbatch_size * server.copies, server.ep)
    graph = lower(replace(workload, microbatch_size=tokens), ParallelDims(tp=split, ep=server.ep))
    return [op for op in graph.operators if isinstance(op, GroupedGemm)]


def capacity(server: Server, prompt: Ints, answer: Ints = 0) -> IntArray:
    """Sequences with so many tokens that one copy holds besides its weights; 0 if the weights leave no room."""
    free = max(_free_bytes(server), 0.0)
    both = np.stack([column.ravel() for column in np.broadcast_arrays(prompt, answer)])
    pairs, where = np.unique(both, axis=1, return_inverse=True)
    column = [cache_bytes(server, int(first), int(then)) for first, then in pairs.T]
    sequences = np.asarray([free // max(sequence_bytes, 1.0) for sequence_bytes in column], dtype=np.int64)[
        where.ravel()
    ]
    return sequences.reshape(np.broadcast_shapes(np.shape(prompt), np.shape(answer)))


def _free_bytes(server: Server) -> float:
    """Memory of one device besides its weights; negative if they don't fit."""
    return server.memory_share * server.gpu.hbm_bytes - server_weight_bytes(server)


def cache_bytes(server: Server, prompt: int, answer: int) -> float:
    """One sequence's keys and values on one device. A decoder behind an encoder keeps the prompt's for cross-attention
    and its own tokens for the rest."""
    tokens = answer if server.encodes else prompt + answer
    return float(kv_cache_bytes(server.shape, tokens, server.tp, server.cache.bytes, prompt))


def server_weight_bytes(server: Server) -> float:
    """Weights of one device, with its part of the experts of all copies."""
    return float(weight_bytes(server.workload(Phase.DECODE), ParallelDims(tp=server.tp, ep=server.copies)))


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
    free, tokens = _free_bytes(server), prompt + answer
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
