"""A model on its serving devices: the load, the operators an engine runs for one pass, and how long they take."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sartor.cost.correction.calibration import Calibration, Clock
from sartor.cost.price import Estimate, price
from sartor.hardware.cluster import Cluster
from sartor.hardware.cluster_catalog import network_of
from sartor.hardware.gpu import Gpu
from sartor.model.editing import edit
from sartor.model.lower import lower
from sartor.model.lower.setting import feasible
from sartor.model.shape import TransformerShape
from sartor.model.workload import AttentionKernel, ParallelDims, Phase, StoredTypes, Workload
from sartor.operators import Attention, DType, Gemm, GroupedGemm, Operator, OperatorGraph, Role
from sartor.step.serving.engines import USUAL_ENGINE, Engine
from sartor.step.serving.inference import WIDTHS, InferenceMemory, Room, kv_cache_bytes, longest_sequence
from sartor.units import Floats, IntArray, Ints, ceil_div, remembered, round_up

Array = npt.NDArray[np.float64]


BUSY = np.linspace(0, 1, 41)[1:]
"""Shares of the time that a server of prompts is busy, for which waits of recorded requests are found."""
SHARES = np.concatenate([np.linspace(0, 0.9, 46), 1 - np.geomspace(0.1, 1e-4, 62)[1:], [1.0]])
"""Shares of requests at which the distribution of those waits is kept."""
WIDEST = 1 << 10
"""Copies over which recorded requests are divided at most."""


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """Requests as they came, divided in turn over the copies of a server.

    Their waits for the prompts before them are Lindley's recursion: the work that a request meets is that of the one
    before it, its prompt more and the time between them less, and never below nothing. So bursts, lulls and the hours
    of a day wait as they did, for which no formula of means holds.
    """

    time_s: Array
    size: Array
    """Tokens of each prompt that are not cached, over their mean."""
    tables: dict[int, tuple[Array, Array, Array]] = field(default_factory=dict, repr=False)

    @property
    def per_s(self) -> float:
        return (self.time_s.size - 1) / float(self.time_s[-1] - self.time_s[0])

    def every(self, per_s: Array, copies: Ints) -> Array:
        """A copy takes one of every so many requests, where a replica of ``copies`` takes ``per_s``. Above 8 four
        numbers from each power of two to the next, no more than there are."""
        needed = np.maximum(np.ceil(self.per_s / per_s - 1e-9), 1.0) * copies
        needed = np.minimum(needed, WIDEST)
        grain = np.maximum(2.0 ** (np.floor(np.log2(needed)) - 2), 1.0)
        return np.asarray(np.floor(needed / grain) * grain)

    def waits(self, every: Array, busy: Array, share: float | None = None) -> Array:
        """Waits in seconds of a mean prompt: the mean, or what ``share`` of the requests wait at most, where a copy's
        prompts keep it ``busy``."""
        result = np.empty(busy.shape)
        for one in np.unique(every):
            here, (means, quantiles, _) = every == one, self._table(int(one))
            known = means if share is None else [np.interp(share, SHARES, row) for row in quantiles]
            result[here] = np.interp(busy[here], BUSY, known)
        return result

    def followers(self, every: Array, mean_flight: Array) -> tuple[Array, Array]:
        """Requests that a copy takes in while one is in flight, and those in flight beside it on average, if all stay
        as long and so that ``mean_flight`` are there on average."""
        result = np.empty((2, mean_flight.size))
        for one in np.unique(every):
            here, (_, _, later) = every == one, self._table(int(one))
            for row, counts in zip(result, later[1:], strict=True):
                row[here] = np.interp(mean_flight[here], later[0], counts)
        return result[0], result[1]

    def _table(self, every: int) -> tuple[Array, Array, Array]:
        """Mean waits and their quantiles for every one of ``BUSY``; requests in flight on average, followers, and
        those beside a request."""
        if every not in self.tables:
            count, rows = self.time_s.size, ceil_div(self.time_s.size, every)
            beats = np.pad((self.time_s - self.time_s[0]) * self.per_s / every, (0, rows * every - count), mode="edge")
            size = np.pad(self.size, (0, rows * every - count)).reshape(rows, every)
            between, before = np.diff(beats.reshape(rows, every), axis=0), np.zeros((1, every))
            works = [np.concatenate([before, np.cumsum(size[:-1] - between / busy, axis=0)]) for busy in BUSY]
            waits = [np.ravel(work - np.minimum.accumulate(work, axis=0))[:count] for work in works]
            flight = np.geomspace(0.25, max(rows, 2), 48)
            apart = np.sort(np.arange(count) % every * (beats[-1] + 2.0 * rows + 2) + beats[:count])  # copy after copy
            ends = [np.searchsorted(apart, apart + length, side="right").mean() for length in flight]
            later = np.array(ends) - (count + 1) / 2
            steps = np.diff(flight, prepend=0.0) * (later + np.concatenate([later[:1], later[:-1]])) / 2
            beside = 2 * np.cumsum(steps) / flight
            means = np.array([wait.mean() for wait in waits])
            self.tables[every] = means, np.quantile(waits, SHARES, axis=1).T, np.stack([flight, later, beside])
        return self.tables[every]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load on a server; arrays describe many loads."""

    concurrency: Ints
    """Sequences in flight."""
    input_len: Ints
    """Tokens of a prompt."""
    output_len: Ints
    """Tokens generated per request."""
    cached_len: int = 0
    """Tokens of a prompt whose keys and values are in the cache already."""
    prompt_cv2: float = 0.0
    """Squared coefficient of variation of the prompts' lengths."""
    answer_cv2: float = 0.0
    """The same of the answers'."""
    arrival_cv2: float = 1.0
    """The same of the time between two arrivals: 1 if they come independently (Poisson), more in bursts."""
    open: bool = False
    """Whether requests come at a rate, so that their number in flight varies."""
    longest: int = 0
    """Tokens of the longest request, prompt and answer, which must fit; 0: of one with the lengths above."""
    recorded: Recording | None = None
    """How the requests came, if a file says it."""

    @property
    def middle(self) -> Ints:
        """Tokens of a sequence halfway through its answer."""
        return self.input_len + self._half

    @property
    def _half(self) -> Ints:
        """Tokens that a running sequence has answered, on average: long answers run longer."""
        return (np.asarray(self.output_len) * (1 + self.answer_cv2)).astype(np.int64) // 2

    @property
    def middles(self) -> Ints:
        """``middle`` in the form of all loads."""
        return np.broadcast_to(self.middle, self.form)

    @property
    def answered(self) -> Ints:
        """Of them, those of the answer, in the form of all loads."""
        return np.broadcast_to(self._half, self.form)

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
    pp: int = 1
    """Stages of a pipeline, each on such devices with its share of the layers; as many batches run at once."""
    engine: Engine = USUAL_ENGINE
    attention_kernel: AttentionKernel = AttentionKernel.FLASH
    routing_skew: float = 1.0
    stored: StoredTypes | None = None
    """Types of single roles' weights, of a checkpoint that is quantized in part."""
    draft_tokens: int = 0
    """Tokens that one more layer drafts per step, as MTP and EAGLE do (speculative decoding); 0: none."""
    acceptance: float = 0.0
    """Probability that a drafted token is right if those before it are."""

    @property
    def tokens_per_step(self) -> float:
        """Tokens of a sequence's answer per decoding step, on average (Leviathan et al. 2023, eq. 1)."""
        return float(sum(self.acceptance**i for i in range(self.draft_tokens + 1)))

    @property
    def stage_devices(self) -> int:
        return self.tp * self.copies

    @property
    def num_devices(self) -> int:
        return self.stage_devices * self.pp

    @property
    def even_stages(self) -> float:
        """Stages, if all were as long as the longest."""
        layers = int(self.shape.num_layers)
        return layers / ceil_div(layers, self.pp)

    def workload(self, phase: Phase, microbatch_size: Ints = 1, seq_len: Ints = 1, context_len: Ints = 0) -> Workload:
        """A pass of its engine."""
        return Workload(
            shape=self.shape,
            phase=phase,
            dtype=self.dtype,
            cache_dtype=self.cache,
            encodes=self.encodes and phase is Phase.PREFILL,
            stored=self.engine.stored_types(self.shape, self.dtype, self.stored),
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
        return self.engine.cache_dtype(self.dtype, self.stored)


VOCABULARY_MULTIPLE = 64
"""Engines pad an embedding to a multiple of this, and of the devices (vLLM's default, recalled)."""


def padded(shape: TransformerShape, tp: int) -> TransformerShape:
    """The shape with a vocabulary that ``tp`` devices split."""
    if shape.vocab_size % tp == 0:
        return shape
    return replace(shape, vocab_size=round_up(int(shape.vocab_size), math.lcm(VOCABULARY_MULTIPLE, tp)))


def served_graph(server: Server, workload: Workload) -> OperatorGraph:
    """The operators of one device's pass as the server's engine runs it (``as_served``), with its share of experts."""
    checked = server.draft_tokens + 1 if workload.phase is Phase.DECODE else 1
    workload = replace(workload, microbatch_size=workload.microbatch_size * checked)
    graph = lower(workload, ParallelDims(tp=server.tp, ep=server.copies), server.engine.kernels)
    if checked > 1:
        graph = replace(graph, operators=tuple(_of_drafts(op, checked) for op in graph.operators))
    if server.ep == server.copies:
        return graph
    experts = iter(_experts(server, workload))
    return replace(
        graph, operators=tuple(next(experts) if isinstance(op, GroupedGemm) else op for op in graph.operators)
    )


def _of_drafts(op: Operator, checked: int) -> Operator:
    """An operator of a decoding step that checks so many tokens of every sequence: attention reads its cache once."""
    if not isinstance(op, Attention):
        return op
    return replace(op, batch=op.batch // checked, seq_q=op.seq_q * checked, seq_kv=op.seq_kv + checked - 1)


def served_pass(server: Server, workload: Workload, fit: Calibration, cluster: Cluster | None = None) -> Estimate:
    """One device's pass with its price: that of ``sartor estimate`` for the same workload."""
    cluster = cluster or network_of(server.gpu, server.stage_devices)
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
    dims = ParallelDims(tp=server.stage_devices // server.ep, ep=server.ep)
    shape, tokens = workload.shape, ceil_div(workload.microbatch_size * server.copies, server.ep)
    if not feasible(
        shape, dims
    ):  # attention is split over fewer devices than the experts: other heads change no expert
        heads = {
            name: dims.tp * int(n) for name, n in shape.fields().items() if name.endswith(("num_heads", "kv_heads"))
        }
        shape = padded(edit(shape, **heads), int(dims.tp))
    graph = lower(replace(workload, shape=shape, microbatch_size=tokens), dims)
    return [op for op in graph.operators if isinstance(op, GroupedGemm)]


@remembered
def capacity(server: Server, prompt: Ints, answer: Ints = 0) -> IntArray:
    """Sequences with so many tokens that one copy holds besides its weights; 0 if the weights leave no room."""
    free = max(float(server_memory(server).kv_room_bytes), 0.0)
    both = np.stack([column.ravel() for column in np.broadcast_arrays(prompt, answer)])
    pairs, where = np.unique(both, axis=1, return_inverse=True)
    column = [cache_bytes(server, int(first), int(then)) for first, then in pairs.T]
    sequences = np.asarray([free // max(sequence_bytes, 1.0) for sequence_bytes in column], dtype=np.int64)[
        where.ravel()
    ]
    return sequences.reshape(np.broadcast_shapes(np.shape(prompt), np.shape(answer)))


@remembered
def server_memory(server: Server) -> InferenceMemory:
    """Memory of one device, with its part of the experts of all copies; the cache is that of one token."""
    dims = ParallelDims(tp=server.tp, ep=server.copies, pp=np.asarray(server.even_stages))
    return Room(gpu=server.gpu, engine=server.engine).memory(server.workload(Phase.DECODE), dims)


def longest_tokens(server: Server) -> int:
    """Tokens of the longest sequence that one copy holds."""
    dims = ParallelDims(tp=server.tp, ep=server.copies)
    room, pages = float(server_memory(server).kv_room_bytes) * server.even_stages, server.engine.sizing.page_tokens
    return longest_sequence(server.workload(Phase.DECODE), dims, room, pages)


def cache_bytes(server: Server, prompt: int, answer: int) -> float:
    """One sequence's keys and values on one device, in whole pages. A decoder behind an encoder keeps the prompt's for
    cross-attention and its own tokens for the rest."""
    tokens = round_up(answer if server.encodes else prompt + answer, server.engine.sizing.page_tokens)
    return float(kv_cache_bytes(server.shape, tokens, server.tp, server.cache.bytes, prompt)) / server.even_stages


def holds(server: Server, load: Load) -> IntArray:
    """Sequences halfway through their answers that one copy holds and, where that is stated, runs at once; 0 if not one
    fits when its answer ends."""
    prompt, answer = load.flat(load.input_len), load.flat(load.output_len)
    whole = capacity(server, prompt, np.maximum(answer, load.longest - prompt)) >= 1
    sequences: IntArray = np.where(whole, capacity(server, prompt, load.flat(load.answered)), 0)
    most = server.engine.max_num_seqs
    return sequences if most is None else np.minimum(sequences, most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """Why a server does not hold one sequence; bytes of one device."""

    server: Server
    weight_bytes: float
    free_bytes: float
    """Memory for keys and values; negative if weights and reserve take more than there is."""
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
    memory, tokens = server_memory(server), prompt + answer
    free = float(memory.kv_room_bytes)
    longest = bisect_right(range(1, tokens), free, key=lambda n: cache_bytes(server, n, 0))
    return Shortage(
        server=server,
        weight_bytes=float(memory.param_bytes),
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
            return {} if cut_block(wider) else {"tp": tp}
    return {}


# -- blocks of weights with one scale ----------------------------------------------------------------------------------

_SPLIT = {
    Role.ATTENTION_OUTPUT: "attention's width",
    Role.FFN_DOWN: "ffn_hidden_size",
    Role.SHARED_DOWN: "the shared experts' width",
    Role.EXPERT_DOWN: "expert_ffn_hidden_size",
}
"""Roles whose weights tensor parallelism splits along the contracted dimension, with its name."""
_BLOCKS = {DType.FP8_BLOCK: 128, DType.INT4_WO: 128}
_EXPERT_BLOCKS = {DType.FP8_BLOCK: 128, DType.INT4_WO: 32}
"""Weights along that dimension with one scale, which devices cannot share: vLLM raises an error for fp8_block
(``validate_fp8_block_shape``, ``Fp8MoEMethod.create_weights``; SGLang's are copies) and for groups of GPTQ and AWQ
(``verify_marlin_supports_shape``), whose groups in experts it halves down to 32 (``MoeWNA16Method``). Recalled
2026-11-30; TensorRT-LLM is taken to be alike."""


def cut_block(server: Server) -> str:
    """Which shard of the weights cuts a block that has one scale, in words; empty if none does. Engines refuse that."""
    if server.dtype not in _BLOCKS:
        return ""
    for op in served_graph(server, server.workload(Phase.DECODE)).operators:
        blocks = _EXPERT_BLOCKS if isinstance(op, GroupedGemm) else _BLOCKS
        if not isinstance(op, Gemm | GroupedGemm) or op.role not in _SPLIT or op.dtype not in blocks:
            continue
        group = server.stored.scale_group if server.stored and op.dtype.weight_only else None
        if (shard := int(op.k)) % (block := group or blocks[op.dtype]):
            parts = server.stage_devices // server.ep if isinstance(op, GroupedGemm) else server.tp
            width = f"{_SPLIT[op.role]} {shard * parts:,}" + (f" / {parts} = {shard:,}" if parts > 1 else "")
            kind = op.dtype.value
            return f"{width} must be a multiple of the {block} weights that share a scale in {kind} (engines refuse it)"
    return ""


def near_uncut(server: Server) -> str:
    """The nearest sizes that cut no block: whole experts per device, or narrower tensor parallelism."""
    devices = server.stage_devices
    whole = replace(server, ep=devices)
    moe = server.shape.moe_ffn
    near = [f"ep={devices}"] if moe and int(moe.num_experts) % devices == 0 and not cut_block(whole) else []
    narrower = (tp for tp in reversed(WIDTHS) if tp < server.tp and feasible(server.shape, ParallelDims(tp=tp)))
    near += [f"tp={tp}" for tp in narrower if not cut_block(replace(server, tp=tp, ep=1))][:1]
    return " or ".join(near) or "dtype=bf16"
