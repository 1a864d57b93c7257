"""What the trainers print: one table of patterns each, with the unit of every number.

Sources (2026-11-23): megatron/training/training.py ``training_log`` and ``report_memory``; torchtitan
components/metrics.py; deepspeed/utils/timer.py ``ThroughputTimer`` and runtime/pipe/engine.py; litgpt/pretrain.py;
nanotron trainer.py ``train_step_logs``; NeMo lightning/pytorch/callbacks/progress_printer.py; MLPerf's mlperf_logging;
published logs in issues (huggingface/nanotron 23, 390; NVIDIA-NeMo/Speech 14850; deepspeedai/DeepSpeed 2629). Added
2026-11-27: MaxText metric_logger.py; transformers trainer_utils.py ``speed_metrics``; LLaMA-Factory train/callbacks.py;
nanoGPT train.py. The trainers' sources are from memory; the published logs were read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from sartor.units import GIB

NUMBER = r"([0-9][0-9,]{0,20}(?:\.[0-9]{1,20})?(?:[eE][+-]?[0-9]{1,3})?)"
HUMAN = NUMBER + r"([KMGTB]?)"
"""A number with a suffix such as K or M, as nanotron prints."""
MEGABYTES = 2.0**20
TERA = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One number in a line: its quantity, pattern and unit in SI."""

    of: str
    """``step_s``, ``steps_per_s``, ``tokens_per_s``, ``device_tokens_per_s``, ``samples_per_s``, ``flops_per_s``,
    ``allocated_bytes``, ``reserved_bytes``, or a whole-number fact (``global_batch_size``)."""
    where: re.Pattern[str]
    unit: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFormat:
    """How one trainer prints its steps."""

    trainer: str
    title: str
    marks: tuple[str, ...]
    """Words that every step line contains."""
    iteration: re.Pattern[str] | None
    """None: every line stands for a whole run."""
    readings: tuple[Reading, ...]
    beside: tuple[Reading, ...] = ()
    """Numbers on lines of their own that belong to the step before."""
    counts_samples: bool = False
    """Whether the iteration counts samples."""
    clock: re.Pattern[str] | None = None
    """Time stamp of a line, for logs in which only this tells how long steps take."""
    begins: str = ""
    """Words on a line that every launch prints once, before its first step."""
    units: tuple[str, ...] = field(default_factory=tuple)


def _reading(quantity: str, before: str, unit: float = 1.0, after: str = "", number: str = NUMBER) -> Reading:
    return Reading(of=quantity, where=re.compile(before + r"\s{0,12}" + number + after), unit=unit)


_CLOCK = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[.,]\d{3,6})")

MEGATRON = LogFormat(
    trainer="megatron",
    title="Megatron-LM",
    marks=("elapsed time per iteration (",),
    iteration=re.compile(r"iteration\s{1,12}(\d{1,12})\s{0,3}/"),
    readings=(
        _reading("step_s", r"elapsed time per iteration \(ms\):", 1e-3),
        _reading("step_s", r"elapsed time per iteration \(s\):"),
        _reading("flops_per_s", r"(?:throughput per GPU \(TFLOP/s/GPU\)|TFLOPs|TFLOPS per GPU):", TERA),
        _reading("samples_per_s", r"samples per second:"),
        _reading("device_tokens_per_s", r"tokens per gpu per second \(tgs\):"),
        _reading("global_batch_size", r"global batch size:"),
        _reading("reserved_bytes", r"mem usages:", GIB),
    ),
    beside=(
        _reading("allocated_bytes", r"memory \(MB\).{0,80}max allocated:", MEGABYTES),
        _reading("reserved_bytes", r"memory \(MB\).{0,140}max reserved:", MEGABYTES),
        _reading("flops_per_s", r"GPU utilization:", TERA, after=r"\s{0,2}MODEL_TFLOP/s/GPU"),
    ),
    begins="- arguments -",
    units=("step time: mean of the steps since the line before", "memory: MB of 2^20 bytes, highest rank that prints"),
)
TORCHTITAN = LogFormat(
    trainer="torchtitan",
    title="torchtitan",
    marks=("step:", "tps:"),
    iteration=re.compile(r"step:\s{1,8}(\d{1,12})"),
    readings=(
        _reading("device_tokens_per_s", r"tps:"),
        _reading("flops_per_s", r"tflops:", TERA),
        _reading("reserved_bytes", r"memory:", GIB, after=r"GiB"),
    ),
    clock=_CLOCK,
    begins="Starting job:",
    units=("tps: tokens per second and GPU, mean since the line before", "memory: peak reserved by the allocator"),
)
DEEPSPEED = LogFormat(
    trainer="deepspeed",
    title="DeepSpeed",
    marks=("SamplesPerSec=", "MemAllocated="),
    iteration=re.compile(r"(?:global_step=|\] \d{1,9}/)(\d{1,12})"),
    readings=(
        _reading("samples_per_s", r"(?:CurrSamplesPerSec|[^g]SamplesPerSec)="),
        _reading("allocated_bytes", r"MaxMemAllocated=", GIB),
    ),
    units=("samples/s: of the whole job, of the last step", "memory: peak allocated, GB of 2^30 bytes"),
)
DEEPSPEED_PIPELINE = LogFormat(
    trainer="deepspeed",
    title="DeepSpeed (pipeline engine)",
    marks=("iter time (s):", "samples/sec:"),
    iteration=re.compile(r"steps?:\s{0,8}(\d{1,12})"),
    readings=(_reading("step_s", r"iter time \(s\):"), _reading("samples_per_s", r"samples/sec:")),
    units=("step time: mean of the steps since the line before",),
)
LITGPT = LogFormat(
    trainer="fsdp",
    title="litgpt",
    marks=("iter time:", " ms"),
    iteration=re.compile(r"\bstep\s{1,8}(\d{1,12})"),
    readings=(_reading("step_s", r"iter time:", 1e-3, after=r"\s?ms"),),
    beside=(_reading("allocated_bytes", r"Memory used:", 1e9, after=r" GB"),),
    units=(
        "iter time: of the iteration that is printed, which ends with the host waiting for the GPU; taken for the "
        "step's time, as earlier microbatches are queued without waiting",
    ),
)
NANOTRON = LogFormat(
    trainer="megatron",
    title="nanotron",
    marks=("elapsed_time_per_iteration_ms:",),
    iteration=re.compile(r"iteration:\s{0,8}(\d{1,12})\s{0,3}/"),
    readings=(
        _reading("step_s", r"elapsed_time_per_iteration_ms:", 1e-3, number=HUMAN),
        _reading("tokens_per_s", r"tokens_per_sec:", number=HUMAN),
        _reading("device_tokens_per_s", r"tokens_per_sec_per_gpu:", number=HUMAN),
        _reading("flops_per_s", r"hardware_tflops_per_gpu:", TERA, number=HUMAN),
        _reading("global_batch_size", r"global_batch_size:", number=HUMAN),
        _reading("reserved_bytes", r"cuda_max_memory_reserved:", number=HUMAN),
    ),
    units=("three digits are printed, so no step is known to better than 0.5%", "TFLOP/s: hardware_tflops_per_gpu"),
)
NEMO = LogFormat(
    trainer="nemo",
    title="NeMo",
    marks=("train_step_timing in s",),
    iteration=re.compile(r"(?:iteration (?!.{0,4000}global_step[=:])|global_step[=:]\s?)(\d{1,12})"),
    readings=(
        _reading("step_s", r"train_step_timing in s[=:]"),
        _reading("flops_per_s", r"TFLOPS_per_GPU[=:]", TERA),
        _reading("global_batch_size", r"global_batch_size[=:]"),
        _reading("reserved_bytes", r"(?:max_memory_reserved|peak_memory_usage)[=:]"),
        _reading("allocated_bytes", r"max_memory_allocated[=:]"),
    ),
    units=("step time: of the last step",),
)
MLPERF = LogFormat(
    trainer="nemo",
    title="MLPerf (:::MLLOG)",
    marks=(":::MLLOG", "samples_count"),
    iteration=re.compile(
        r'"key": "(?:tracked_stats|train_loss|reduced_train_loss)".{0,400}?"samples_count": (\d{1,12})'
    ),
    readings=(
        _reading("step_s", r'"(?:train_step_time|train_step_timing)":'),
        _reading("samples_per_s", r'"throughput":'),
    ),
    counts_samples=True,
    clock=re.compile(r'"time_ms": (\d{10,16})'),
    units=("step time: train_step_time, or samples over throughput",),
)
MLPERF_RATES = replace(
    MLPERF, marks=(":::MLLOG", '"throughput"'), iteration=re.compile(r'"tracked_stats".{0,400}?"step": (\d{1,12})')
)
"""Submissions that count samples as steps."""
PITH = LogFormat(
    trainer="torchtitan",
    title="pith-train",
    marks=("step-time", "tokens-per-second"),
    iteration=re.compile(r"step (\d{1,12})/"),
    readings=(
        _reading("step_s", r"step-time", after=r" sec"),
        _reading("tokens_per_s", r"tokens-per-second"),
        _reading("allocated_bytes", r"peak-gpu-memory", 1e9, after=r" GB"),
    ),
    units=("tokens/s: of the whole job", "memory: GB of 1e9 bytes; whether allocated or reserved is not said"),
)
MAXTEXT = LogFormat(
    trainer="maxtext",
    title="MaxText",
    marks=("completed step:", "seconds:"),
    iteration=re.compile(r"completed step: (\d{1,12})"),
    readings=(
        _reading("step_s", r"seconds:"),
        _reading("flops_per_s", r"TFLOP/s/device:", TERA),
        _reading("device_tokens_per_s", r"Tokens/s/device:"),
    ),
    units=("step time: of each step",),
)
NANOGPT = LogFormat(
    trainer="pytorch",
    title="nanoGPT",
    marks=("iter ", ": loss ", ", time "),
    iteration=re.compile(r"\biter (\d{1,12}): loss"),
    readings=(
        _reading("step_s", r", time", 1e-3, after=r"ms"),
        _reading("flops_per_s", r", mfu", 3.12 * TERA, after=r"%"),  # of an A100, whatever the GPU
    ),
    units=("step time: of the iteration that is printed", "mfu: of an A100's 312 TFLOP/s, mean of about 10 lines"),
)
LLAMA_FACTORY = LogFormat(
    trainer="pytorch",
    title="LLaMA-Factory",
    marks=('"current_steps":', '"elapsed_time":'),
    iteration=re.compile(r'"current_steps": (\d{1,12})'),
    readings=(),
    clock=re.compile(r'"elapsed_time": "([0-9a-z,: ]{1,40})"'),
    units=("step time: from the elapsed time, in whole seconds, mean of the steps since the line before",),
)
TRANSFORMERS = LogFormat(
    trainer="pytorch",
    title="transformers",
    marks=("'train_runtime':", "'train_steps_per_second':"),
    iteration=None,
    readings=(_reading("steps_per_s", r"'train_steps_per_second':\s?'?"),),
    units=("step time: mean of the whole run, its start and checkpoints included",),
)
FORMATS = (
    *(MEGATRON, TORCHTITAN, DEEPSPEED, DEEPSPEED_PIPELINE, LITGPT, NANOTRON, NEMO, MLPERF, MLPERF_RATES, PITH),
    *(MAXTEXT, NANOGPT, LLAMA_FACTORY, TRANSFORMERS),
)

RANK = re.compile(r"^\s{0,4}(?:\[(\d{1,6})\]:|(\d{1,6}): )|^.{0,120}?\[(?:default|rank)(\d{1,6})\]:")
"""The rank that a launcher puts before each line; of times and rates only the lowest one's lines count."""
NO_NUMBER = re.compile(r"loss['\"]?\s{0,3}[:=]\s{0,12}'?nan\b|nan iterations:\s{0,8}[1-9]", re.IGNORECASE)
"""A step line whose loss is not a number."""
