"""Serving frameworks: what each runs otherwise than a trainer, and how each release sizes its key/value cache.

How a cache is sized follows the frameworks' own code (recalled 2026-11-29, and read in public copies of it):

- vLLM (``vllm/v1/worker/gpu_worker.py``, ``determine_available_memory``): a share of the device less weights, the peak
  of a profile run of ``max_num_batched_tokens`` tokens and ``max_num_seqs`` sampled rows, and memory outside PyTorch's
  allocator. The defaults of both are those of ``vllm/engine/arg_utils.py``.
- SGLang (``sglang/srt/server_args.py``, ``_handle_gpu_memory_settings``): a share of what is free before loading, less
  the weights; the share leaves room for activations and graphs by a rule of chunk, graph batch and parallelism.
- TensorRT-LLM (``tensorrt_llm/_torch/pyexecutor/_util.py``, ``KvCacheCreator``): a share of what is free after loading
  and a dry run of ``max_num_tokens``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from types import MappingProxyType

import numpy as np

from sartor.cost.correction.calibration import TORCH
from sartor.errors import InputError
from sartor.hardware.gpu import Gpu
from sartor.model.lower.setting import EngineKernels, Kernels
from sartor.model.shape import TransformerShape
from sartor.model.workload import StoredTypes, with_wide_attention
from sartor.operators import CollectiveLibrary, DType
from sartor.units import GIB, MIB, Floats, Ints


class CacheShare(Enum):
    """Of which memory an engine's share is, and what it must hold besides keys and values."""

    DEVICE = "device"
    """Of the device: weights, the profile run and memory outside the allocator come off it (vLLM)."""
    BEFORE_LOADING = "before_loading"
    """Of what is free before the weights are loaded: only they come off it (SGLang)."""
    AFTER_LOADING = "after_loading"
    """Of what weights and a dry run leave free (TensorRT-LLM)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSizing:
    """How a release of an engine sizes its key/value cache."""

    since: str = "0"
    """First release that does so."""
    share_of: CacheShare = CacheShare.DEVICE
    utilization: float | None = 0.9
    """Share it fills by default; None: by SGLang's rule."""
    by_devices: tuple[tuple[int, float], ...] = ()
    """The share from so many tensor-parallel devices on, most first, where it goes by their number."""
    large_defaults: bool = True
    """Takes larger steps by default on large devices."""
    logit_copies: float = 0.0
    """fp32 copies of the sampled rows' logits at once when the profile run samples; 0: it does not."""
    counts_context: bool = True
    """The CUDA context is in the share."""
    communicators: int = 2
    """NCCL communicators of a tensor-parallel group in the share: PyTorch's and the engine's own."""
    counts_graphs: bool = False
    """CUDA graphs are in the share."""
    page_tokens: int = 16
    """Tokens of a page of the cache."""


SAME_WIDTH_BYTES = 0.1
"""Types whose elements differ by less hold the same checkpoint: its scales, or what a device has no type for."""

SORTED_COPIES = 9.5
"""Of the sampled rows' logits, in units of 4 bytes, when PyTorch sorts them for top-p: 16-bit logits 0.5; fp32 logits
1; sorted values 1 and 64-bit indices 2; the indices before sorting 2 and the alternate buffers of CUB's segmented radix
sort 3 (ATen/native/cuda/Sort.cu, ``segmented_sort_pairs``; vllm/v1/sample/ops/topk_topp_sampler.py)."""
MASKED_COPIES = 3.5
"""The same where a Triton or FlashInfer kernel masks the logits in place: 16-bit and fp32 logits, probabilities and the
noise they are divided by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Properties of a serving framework besides its kernels, and the settings a server runs it with."""

    name: str
    all_reduce: CollectiveLibrary = CollectiveLibrary.CUSTOM
    narrow_cache: bool = False
    """The key/value cache is 8-bit if weights are narrower than 16 bits, as NVIDIA's checkpoints state."""
    hidden_launches: float = 0.0
    """Share of the launch time of small kernels, attention and experts that a replayed step hides behind the previous
    kernel (programmatic dependent launch)."""
    looks_late: bool = False
    """May skip some steps between checks for new requests."""
    first_token_log_sigma: float = 0.4
    """Standard deviation of ln(measured / predicted) of the time to first token."""
    copies_are_devices: bool = False
    """Attention's data parallelism is over single devices only."""
    vendors: tuple[str, ...] = ()
    """Vendors of the GPUs it is built for; empty: any."""
    sizings: tuple[CacheSizing, ...] = ()
    """How its releases size the cache, oldest first."""
    usual_release: str = ""
    """The release that is priced, and whose image is written, where none is stated."""
    amd_release: str = ""
    """The same on AMD's GPUs, for which not every release has an image."""
    release: str = ""
    """The stated release; "" if none is."""
    stated_utilization: float | None = None
    max_num_seqs: int | None = None
    """Most sequences of a step, if stated."""
    max_num_batched_tokens: int | None = None
    """Most tokens of a step, if stated."""
    kv_dtype: DType | None = None
    """Stated type of keys and values."""

    def runs_on(self, gpu: Gpu) -> bool:
        return gpu.accelerator is None and (not self.vendors or gpu.vendor in self.vendors)

    def instead_of(self, dtype: DType, gpu: Gpu) -> DType:
        """The type nearest to ``dtype`` for which it has a kernel on a device; ``dtype`` itself where it has one. No
        engine multiplies 4-bit integers by each other; vLLM's 8-bit ones stop before Blackwell (its documentation,
        "INT8 W8A8", read 2026-11-30)."""
        if dtype is DType.INT4:
            return DType.INT4_WO
        if dtype is DType.INT8 and self.name == "vllm" and gpu.generation.startswith("blackwell"):
            return DType.FP8
        return dtype

    def no_kernel(self, gpu: Gpu) -> str:
        """What must hold of a type that `instead_of` changes."""
        return f"has no kernel of {self.name} on {gpu.name} that multiplies it by itself"

    @property
    def kernels(self) -> Kernels:
        """What it runs otherwise than a trainer."""
        return Kernels(engine=EngineKernels(all_reduce=self.all_reduce))

    def cache_dtype(self, dtype: DType, stored: StoredTypes | None = None) -> DType:
        """Type of the key/value cache: the stated one, else the checkpoint's, else what engines take."""
        if self.kv_dtype is not None:
            return self.kv_dtype
        if stored is not None and stored.cache is not None:
            return stored.cache
        if dtype.bytes >= 2:
            return dtype
        return DType.FP8 if self.narrow_cache else DType.BF16

    @staticmethod
    def stored_types(shape: TransformerShape, dtype: DType, stored: StoredTypes | None) -> StoredTypes | None:
        """Types of single roles' weights: those of the checkpoint if it is of this type. Else attention projections
        stay in 16 bits in 4-bit mixtures of experts (OpenAI's gpt-oss in MXFP4; NVIDIA's NVFP4 checkpoints of
        DeepSeek-R1; Moonshot's Kimi K2 Thinking in INT4)."""
        if stored is not None and abs(stored.dtype.bytes - dtype.bytes) < SAME_WIDTH_BYTES:
            return replace(stored, dtype=dtype)
        return with_wide_attention(dtype) if dtype.bytes < 1 and shape.moe_ffn is not None else None

    @staticmethod
    def encodes(shape: TransformerShape) -> bool:
        """Whether prompts pass an encoder, which the decoder attends to."""
        return sum(stack.is_text for stack in shape.stacks) > 1

    def at_release(self, release: str) -> Engine:
        """This engine at a release; at its usual one where that is no number."""
        return replace(self, release=release if _numbers(release) else "")

    def with_settings_of(self, other: Engine | None) -> Engine:
        """This engine with another's settings, but for its release."""
        names = "stated_utilization", "max_num_seqs", "max_num_batched_tokens", "kv_dtype"
        return self if other is None else replace(self, **{name: getattr(other, name) for name in names})

    @property
    def sizing(self) -> CacheSizing:
        """How its release sizes the cache."""
        at = _numbers(self.release or self.usual_release)
        older = [sizing for sizing in self.sizings if _numbers(sizing.since) <= at]
        return older[-1] if older else self.sizings[0]

    def utilization(self, gpu: Gpu, tp: Ints = 1, copies: Ints = 1) -> Floats:
        """Share of memory that it fills, of what its sizing says."""
        if self.stated_utilization is not None:
            return self.stated_utilization
        if self.sizing.by_devices:
            degrees, shares = zip(*self.sizing.by_devices, strict=True)
            share: Floats = np.select([np.greater_equal(tp, degree) for degree in degrees], shares)
            return share
        if self.sizing.utilization is not None:
            return self.sizing.utilization
        return _share_by_rule(gpu, tp, copies, self.step_tokens(gpu))

    def step_tokens(self, gpu: Gpu) -> int:
        """Most tokens of a step, for which buffers are sized."""
        if self.max_num_batched_tokens is not None:
            return self.max_num_batched_tokens
        if self.sizing.share_of is CacheShare.BEFORE_LOADING:
            return _by_memory(gpu, CHUNKS)
        if self.sizing.share_of is CacheShare.AFTER_LOADING:
            return 8192
        return 8192 if self.sizing.large_defaults and _is_large(gpu) else 2048

    def step_rows(self, gpu: Gpu) -> int:
        """Most sequences whose logits are sampled in a step."""
        usual = 1024 if self.sizing.large_defaults and _is_large(gpu) else 256
        return usual if self.max_num_seqs is None else self.max_num_seqs


def _is_large(gpu: Gpu) -> bool:
    """Whether vLLM takes its large defaults: 70 GiB or more, but no A100 (vllm/engine/arg_utils.py,
    ``get_batch_defaults``)."""
    return gpu.hbm_bytes >= 70 * GIB and gpu.generation != "ampere"


CHUNKS = ((35, 2048), (60, 4096), (160, 8192), (np.inf, 16384))
GRAPH_ROWS = ((20, 8, 8), (35, 24, 80), (60, 32, 160), (160, 256, 512), (np.inf, 512, 512))
"""SGLang's chunk of a prompt [tokens], and the largest batch of its CUDA graphs with fewer than 4 devices and with
more, up to so many GiB of memory (sglang/srt/server_args.py)."""


def _by_memory(gpu: Gpu, table: tuple[tuple[float, int], ...]) -> int:
    return next(value for limit, value in table if gpu.hbm_bytes < limit * GIB)


def _share_by_rule(gpu: Gpu, tp: Ints, copies: Ints, chunk: int) -> Floats:
    """SGLang's ``mem_fraction_static``: 0.5 GiB, 1.5 MiB per token of a chunk, 2 MiB per row of a graph and 1 GiB per 8
    devices stay free, at least 10 GiB on large devices."""
    few, many = next(row[1:] for row in GRAPH_ROWS if gpu.hbm_bytes < row[0] * GIB)
    rows = np.where(np.less(tp, 4), few, many)
    free = 512 + 1.5 * max(chunk, 2048) + 2.0 * rows + 128.0 * np.asarray(tp)
    attention = np.where(np.greater(copies, 1), rows * copies * np.where(rows > 300, 4.5, 3.0), 0.0)
    free = free + attention
    if gpu.hbm_bytes > 60 * GIB:
        free = np.maximum(free, 10 * 1024.0)
    share: Floats = np.round(1 - free * MIB / gpu.hbm_bytes, 3)
    return float(share) if np.ndim(share) == 0 else share


VLLM_SIZINGS = (
    CacheSizing(logit_copies=SORTED_COPIES, large_defaults=False),
    CacheSizing(since="0.8", logit_copies=SORTED_COPIES),
    CacheSizing(since="0.9", logit_copies=SORTED_COPIES, counts_context=False),
    CacheSizing(since="0.11.1", logit_copies=SORTED_COPIES, counts_context=False, communicators=0),
    CacheSizing(since="0.18", logit_copies=MASKED_COPIES, counts_context=False, communicators=0),
    CacheSizing(
        since="0.21",
        utilization=0.92,
        logit_copies=MASKED_COPIES,
        counts_context=False,
        communicators=0,
        counts_graphs=True,
    ),
)
"""vLLM compares memory with a snapshot taken after the context exists (0.9) and after NCCL does (0.11.1); it no longer
sorts logits (0.18), and counts graphs and fills 0.92 (0.21). Releases recalled 2026-11-29; the code was read."""

SGLANG_SIZINGS = (
    CacheSizing(
        share_of=CacheShare.BEFORE_LOADING,
        by_devices=((16, 0.79), (8, 0.81), (4, 0.85), (2, 0.87), (1, 0.88)),
        page_tokens=1,
    ),
    CacheSizing(since="0.5.3", share_of=CacheShare.BEFORE_LOADING, utilization=None, page_tokens=1),
)
"""SGLang's share went by the number of devices before it went by what a step needs (recalled 2026-11-29)."""

ENGINES: Mapping[str, Engine] = MappingProxyType(
    {
        each.name: each
        for each in (
            Engine(name="vllm", sizings=VLLM_SIZINGS, usual_release="0.11.0", amd_release="0.11.2"),
            Engine(
                name="sglang",
                looks_late=True,
                first_token_log_sigma=1.5,
                sizings=SGLANG_SIZINGS,
                usual_release="0.5.3",
                amd_release="0.5.9",
            ),
            Engine(
                name="trtllm",
                all_reduce=CollectiveLibrary.TRTLLM,
                narrow_cache=True,
                hidden_launches=0.46,
                copies_are_devices=True,
                first_token_log_sigma=0.5,
                vendors=("NVIDIA",),
                sizings=(CacheSizing(share_of=CacheShare.AFTER_LOADING, page_tokens=32),),
                usual_release="1.2.0",
            ),
        )
    }
)
"""8-bit caches as in NVIDIA's quantized checkpoints (recalled); hidden launches and sigmas fitted on
data/end_to_end/serving.csv (1,028 aggregated rows of confidence B, 2026-11-23): lab/fit_serving.py."""

USUAL_ENGINE = ENGINES["vllm"]

_RELEASE = re.compile(r"v?(\d+(?:\.\d+)*)\S*")


@cache
def _numbers(release: str) -> tuple[int, ...]:
    match = _RELEASE.fullmatch(release)
    return tuple(int(part) for part in match[1].split(".")) if match else ()


def engines_on(gpu: Gpu) -> tuple[Engine, ...]:
    """The serving frameworks built for a device."""
    return tuple(engine for engine in ENGINES.values() if engine.runs_on(gpu))


def split_release(kernels: str | None) -> tuple[str | None, str]:
    """A framework's name and its release: ``vllm@0.10.1`` -> ``("vllm", "0.10.1")``. Raises ``InputError``."""
    if not isinstance(kernels, str) or "@" not in kernels:
        return kernels, ""
    name, _, release = kernels.partition("@")
    if name not in ENGINES:
        raise InputError("kernels", kernels, "only a serving framework has a release after @", "vllm@0.10.1")
    if not _numbers(release):
        raise InputError("kernels", kernels, "the release after @ must be a number", f"{name}@0.10.1")
    return name, release


def engine_of_pass(kernels: str | None, shape: TransformerShape, gpu: Gpu) -> Engine | None:
    """The engine that runs an inference pass: the framework named, the usual one around kernels of a library; None
    where the model's own code runs it (PyTorch), or no engine serves the model or the device."""
    if shape.encoder_only or shape.traced is not None or gpu.accelerator is not None or kernels == TORCH:
        return None
    engine = ENGINES.get((kernels or "").partition("_")[0], USUAL_ENGINE)
    engine = engine if engine.runs_on(gpu) else USUAL_ENGINE
    return replace(engine, usual_release=engine.amd_release) if gpu.vendor == "AMD" else engine
