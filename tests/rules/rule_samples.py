"""For every rule a context it speaks in (bad) and one it is silent in (good)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from sartor.hardware.catalog import load_gpu
from sartor.model.editing import edit
from sartor.model.workload import AttentionKernel, ParallelDims, Phase, Workload
from sartor.model.zoo import load_model
from sartor.operators import DType
from sartor.rules.rule import Context


@dataclass(frozen=True)
class Sample:
    model: str
    gpu: str = "a100_sxm"
    changes: dict[str, int] = field(default_factory=dict)
    dims: dict[str, int] = field(default_factory=dict)
    workload: dict[str, Any] = field(default_factory=dict)
    wave_efficiency: float | None = None
    """What every product of the baseline is said to reach, whatever the calibration in force says."""

    def context(self) -> Context:
        shape = load_model(self.model)
        shape = edit(shape, **self.changes) if self.changes else shape
        asked = {"microbatch_size": 4, "seq_len": 2048} | self.workload
        gpu = load_gpu(self.gpu)
        workload = Workload(shape=shape, **{"dtype": gpu.default_dtype, **asked})
        found = Context.of(workload, gpu, ParallelDims(**self.dims))
        if self.wave_efficiency is None:
            return found
        told = {"wave_efficiency": self.wave_efficiency}
        costs = tuple(replace(cost, details=cost.details | told) for cost in found.baseline.costs)
        return replace(found, baseline=replace(found.baseline, costs=costs))


UNFUSED = {"attention_kernel": AttentionKernel.UNFUSED}
DECODE = {"phase": Phase.DECODE, "context_len": 512, "microbatch_size": 1}
LLAMA = Sample("llama-3.1-8b", "h100_sxm")

SAMPLES: dict[str, tuple[Sample, Sample]] = {
    "ragged_vocab": (Sample("gpt2-small"), Sample("pythia-410m")),
    "small_microbatch": (Sample("llama-3.1-8b", workload={"microbatch_size": 1, "seq_len": 128}), LLAMA),
    "ragged_tokens": (Sample("pythia-1b", workload={"microbatch_size": 1, "seq_len": 4097}), LLAMA),
    "ragged_head_dim": (Sample("gpt3-2.7b", workload=UNFUSED), Sample("gpt-neo-2.7b", workload=UNFUSED)),
    "ragged_hidden": (Sample("gpt3-13b"), LLAMA),
    "ragged_ffn": (Sample("llama-2-7b", dims={"tp": 8}), Sample("llama-3.1-8b", dims={"tp": 8})),
    "unsplit_heads": (Sample("falcon-7b", dims={"tp": 8}), Sample("llama-3.1-8b", dims={"tp": 8})),
    "wide_tensor_parallel": (Sample("pythia-2.8b", "h100_sxm", dims={"tp": 8}), Sample("pythia-2.8b", "h100_sxm")),
    "narrow_heads": (Sample("opt-1.3b", workload=UNFUSED), Sample("gpt-neo-2.7b", workload=UNFUSED)),
    "head_dim_64": (Sample("opt-1.3b", "h100_sxm"), Sample("gpt-neo-2.7b", "h100_sxm")),
    "uneven_pipeline": (Sample("deepseek-v3", "h100_sxm", dims={"pp": 4}), Sample("llama-3.1-8b", dims={"pp": 4})),
    "untuned_swiglu": (Sample("llama-2-7b", "h100_sxm", {"ffn_hidden_size": 10922}), Sample("llama-2-7b", "h100_sxm")),
    "six_gpu_nodes": (
        Sample("llama-3.1-8b", "v100_sxm", dims={"tp": 6}),
        Sample(
            "gpt3-6.7b",
            "v100_sxm",
            {"hidden_size": 6144, "num_heads": 48, "ffn_hidden_size": 16512, "vocab_size": 50304},
            {"tp": 6},
        ),
    ),
    "flash_misfit": (Sample("phi-2"), Sample("llama-3.1-8b")),
    "tail_wave": (
        Sample("opt-13b", "mi300x"),
        Sample("gpt3-6.7b", wave_efficiency=1.0),
    ),
    "deep_narrow_decode": (
        Sample("pythia-410m", "h100_sxm", workload=DECODE),
        Sample("llama-3.1-70b", "h100_sxm", workload=DECODE),
    ),
    "sequential_layers": (Sample("gpt2-small"), Sample("pythia-410m")),
    "unfused_positions": (Sample("pythia-410m", "h100_sxm", workload=DECODE), Sample("opt-1.3b")),
    "replicated_kv_heads": (Sample("qwen3-30b-a3b", dims={"tp": 8}), Sample("llama-3.1-8b", dims={"tp": 8})),
    "ragged_experts": (Sample("gpt-oss-20b"), Sample("deepseek-v3", workload={"microbatch_size": 8})),
    "ragged_scale_blocks": (
        Sample("falcon-7b", "h100_sxm", workload={"dtype": DType.FP8_BLOCK}),
        Sample("deepseek-v3", "h100_sxm", workload={"dtype": DType.FP8_BLOCK}),
    ),
    "unsplit_experts": (Sample("mixtral-8x7b", dims={"ep": 3}), Sample("mixtral-8x7b", dims={"ep": 4})),
    "ragged_decoupled_heads": (
        Sample("llama-3.2-1b", changes={"num_heads": 25, "num_kv_heads": 25, "head_dim": 72}),
        Sample("qwen3-0.6b"),
    ),
}


@cache
def bad(rule: str) -> Context:
    return SAMPLES[rule][0].context()


@cache
def good(rule: str) -> Context:
    return SAMPLES[rule][1].context()


ContextOf = Callable[[str], Context]
