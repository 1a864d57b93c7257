"""What the trainers print: patterns of numbers with their units, and facts about the plan.

Sources (2026-11-23): megatron/training/training.py ``training_log`` and ``report_memory``; torchtitan
components/metrics.py; deepspeed/utils/timer.py ``ThroughputTimer`` and runtime/pipe/engine.py; litgpt/pretrain.py;
nanotron trainer.py ``train_step_logs``; NeMo lightning/pytorch/callbacks/progress_printer.py; MLPerf's mlperf_logging;
published logs in issues (huggingface/nanotron 23, 390; NVIDIA-NeMo/Speech 14850; deepspeedai/DeepSpeed 2629). Added
2026-11-27: MaxText metric_logger.py; transformers trainer_utils.py ``speed_metrics``; LLaMA-Factory train/callbacks.py;
nanoGPT train.py. The trainers' sources are from memory; the published logs were read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from sartor.frozen import dataclass, field, replace
from sartor.hardware.catalog import gpu_names
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


DUMPED = re.compile(r"\b([a-zA-Z]\w{1,60}) \.{3,60} (.{1,400})$")
"""A line of Megatron's dump of arguments: ``  hidden_size .......... 4096``, behind any prefix."""

FACTS: Mapping[str, tuple[str, ...]] = {
    "num_devices": (
        r"using world size:\s{0,3}(\d{1,7})",
        r"^NGPU=(\d{1,7})",
        r"world_size\s{0,3}[=:]\s{0,3}(\d{1,7})",
        r"starting with (\d{1,7}) processes",
        r"Num_devices: (\d{1,7}), shape",
    ),
    "tp": (r"tensor-model-parallel size:\s{0,3}(\d{1,6})", r"Config param ici_tensor_parallelism: (\d{1,6})"),
    "pp": (r"pipeline-model-parallel size:\s{0,3}(\d{1,6})",),
    "cp": (r"context-parallel size:\s{0,3}(\d{1,6})",),
    "seq_len": (
        r"sequence length\s{0,3}:?\s{0,3}(\d{1,9})",
        r'"key": "(?:max_sequence_length|seq_length)", "value": (\d{1,9})',
        r"--training\.seq_len[= ](\d{1,9})",
        r"Config param max_target_length: (\d{1,9})",
    ),
    "global_batch_size": (
        r"global batch size (\d{1,9})",
        r'"key": "global_batch_size", "value": (\d{1,9})',
        r"train_batch_size\s{0,3}[.:=]{1,60}\s{0,3}(\d{1,9})",
        r"Config param global_batch_size_to_train_on: (\d{1,9})",
    ),
    "tokens_per_step": (r"tokens per iteration will be: ([\d,]{1,15})",),
    "microbatch_size": (
        r"local batch size (\d{1,6})",
        r"train_micro_batch_size_per_gpu\s{0,3}[.:=]{1,60}\s{0,3}(\d{1,6})",
        r"--training\.(?:local_)?batch_size[= ](\d{1,6})",
    ),
    "zero_stage": (r"zero_optimization_stage\s{0,3}[.:=]{1,60}\s{0,3}([0-3])",),
}
WORDS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "dtype": (
        (r'recipe_name="?rowwise|[Ff]loat8 training active with rowwise', "fp8_rowwise"),
        (r'converters="?float8"?|[Ff]loat8 (?:tensorwise )?(?:scaled )?training active', "fp8_current"),
        (r"\bbf16_|precision: bf16|\bbfloat16 enabled", "bf16"),
    ),
    "recompute": (
        (r"Applied [Ff]ull(?:AC)? activation checkpointing", "full"),
        (r"Applied [Ss]elective(?:AC)? activation checkpointing", "selective"),
    ),
}
"""Patterns that stand for a choice; the first match counts."""
GPUS: Mapping[str, str] = {
    r"Tesla V100|\bV100-SXM2": "v100",
    r"\bA100-SXM4-80GB|\bA100-SXM-80GB": "a100_sxm",
    r"\bA100\b": "a100_sxm",
    r"\bH100\b": "h100_sxm",
    r"\bH200\b": "h200_sxm",
    r"\bH800\b": "h800_sxm",
    r"\bGB200\b": "gb200",
    r"\bB200\b": "b200_sxm",
    r"\bMI300X\b": "mi300x",
}
NAMED = {"pp": "pp", "tp": "tp", "cp": "cp", "ep": "ep", "mbs": "microbatch_size", "gbs": "global_batch_size"}
_NAMED = re.compile(r"(?<![a-zA-Z0-9])(pp|tp|cp|ep|mbs|gbs|seq)(\d{1,9})(?![0-9])")
_NODES = re.compile(r"(?<![a-zA-Z0-9])(\d{1,5})n(\d{1,3})g(?![a-zA-Z0-9])")
LEAST_NAMED = 3
"""Least number of parts in the name of a configuration, such as ``pp4-cp1-ep8-mbs1``."""
_MESH = re.compile(r"device mesh with \[([^\]]{1,200})\], \[([^\]]{1,200})\]")
_PARALLELISM = re.compile(r"device mesh with parallelism: ((?:\w{1,20}=\d{1,7}(?:, )?){1,12})")


def arguments_in(text: str) -> dict[str, str]:
    """The dump of Megatron's arguments."""
    matches = (DUMPED.search(line) for line in text.splitlines() if " ..." in line)
    return {match[1]: match[2].strip() for match in matches if match}


def facts_in(text: str) -> dict[str, int | str]:
    """Facts about plan and job in the lines before the first step."""
    facts: dict[str, int | str] = {}
    for line in text.splitlines():
        facts |= _configuration_name(line)
    facts |= _mesh(text)
    for name, patterns in FACTS.items():
        for pattern in patterns:
            if match := re.search(pattern, text, re.MULTILINE):
                facts[name] = int(match[1].replace(",", ""))
                break
    for choices in (WORDS, {"gpu": tuple(GPUS.items())}):
        for name, words in choices.items():
            stated_word = next((word for pattern, word in words if re.search(pattern, text)), None)
            if stated_word:
                facts[name] = stated_word
    return facts


def gpu_named(text: str) -> str | None:
    """The catalogue's name of the device that a driver calls ``text``; None if it is none with a single version."""
    single = {name.replace("_", "[ _]"): name for name in gpu_names() if "_" not in name or name.startswith("rtx")}
    names = {**GPUS, **{rf"(?i)\b{words}\b": name for words, name in single.items()}}
    return next((name for pattern, name in names.items() if re.search(pattern, text)), None)


def _configuration_name(line: str) -> dict[str, int | str]:
    """``8n8g-h100/pp4-cp1-ep8-mbs1-gbs1024-seq4096``."""
    parts = dict(_NAMED.findall(line))
    if len(parts) < LEAST_NAMED:
        return {}
    facts: dict[str, int | str] = {NAMED.get(name, "seq_len"): int(value) for name, value in parts.items()}
    if nodes := _NODES.search(line):
        facts["num_devices"] = int(nodes[1]) * int(nodes[2])
    return facts


def _mesh(text: str) -> dict[str, int | str]:
    """torchtitan's device mesh: ``Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]``, and since 2025
    ``Building device mesh with parallelism: pp=1, dp_replicate=1, dp_shard=4, cp=1, tp=2, ep=1``, whose experts' axes
    lie inside the others. The former kind leaves out degrees of 1."""
    if match := _PARALLELISM.search(text):
        mesh = {name: int(size) for name, size in re.findall(r"(\w{1,20})=(\d{1,7})", match[1])}
        return {**_degrees(mesh), "num_devices": math.prod(mesh.get(name, 1) for name in AXES)}
    match = _MESH.search(text)
    if not match:
        return {}
    names = re.findall(r"\w{1,20}", match[1])
    mesh = dict(zip(names, map(int, re.findall(r"\d{1,7}", match[2])), strict=False))
    whole = all(name in AXES for name in names)
    if not whole:
        return _degrees(mesh)
    return {"tp": 1, "pp": 1, "cp": 1, **_degrees(mesh), "num_devices": math.prod(mesh.values())}


AXES = ("dp_shard", "dp_replicate", "dp", "tp", "pp", "cp")
"""Axes of a mesh whose product is the number of devices."""


def _degrees(mesh: Mapping[str, int]) -> dict[str, int | str]:
    return {name: mesh[name] for name in ("tp", "pp", "cp", "ep") if name in mesh}
