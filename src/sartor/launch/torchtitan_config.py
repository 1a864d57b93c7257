"""Fields of a torchtitan TOML: former sections, fields without effect, and command line overrides."""

from __future__ import annotations

import difflib

from sartor.bounded import printable
from sartor.launch.script import Command
from sartor.launch.stated import Document, parse_flags

OLDER = {"parallelism": ("training", "experimental"), "compile": ("training",)}
"""Sections that held a section's fields in earlier versions."""


def override(config: Document, command: Command | None) -> None:
    """Apply overrides like ``--training.local_batch_size 4`` from the command line."""
    for flag, values in parse_flags(command.arguments if command else ()).given.items():
        path = flag[2:].replace("-", "_").split(".")
        if len(path) < 2 or path == ["job", "config_file"]:
            continue
        table = config.raw
        for part in path[:-1]:
            inner = table.setdefault(part, {})
            table = inner if isinstance(inner, dict) else {}
        word = values[0] if values else "true"
        words = {"true": True, "True": True, "false": False, "False": False}
        table[path[-1]] = int(word) if word.lstrip("-").isdigit() and len(word) < 16 else words.get(word, word)


_SILENT_SECTIONS = (
    "job.", "profiling.", "metrics.", "lr_scheduler.", "checkpoint.", "comm.", "memory_estimation.", "validation.",
    "debug.", "experimental.custom", "dataloader.", "validator.", "profiler.",
    "training.dataset", "training.gc_", "training.dataloader",
)  # fmt: skip
_SILENT = frozenset((
    "model.tokenizer_path", "model.hf_assets_path", "model.print_after_conversion", "optimizer.lr", "optimizer.beta1",
    "optimizer.beta2", "optimizer.eps", "optimizer.weight_decay", "optimizer.implementation", "optimizer.fused",
    "training.steps", "training.max_norm", "training.seed", "training.deterministic", "training.warmup_steps",
    "training.mixed_precision_reduce", "activation_checkpoint.early_stop", "compile.components", "compile.backend",
    "activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns",
    *(f"{section}.{name}" for section in ("float8", "quantize.linear.float8") for name in (
        "filter_fqns", "emulate", "force_recompute_fp8_weight_in_bwd", "precompute_float8_dynamic_scale_for_fsdp",
        "enable_fsdp_float8_all_gather", "moe_fqns_prototype",
    )),
    *(f"{section}.{name}" for section in ("mx", "quantize.linear.mx") for name in (
        "filter_fqns", "mxfp8_dim1_cast_kernel_choice", "use_fp8_dim1_cast_triton_kernel", "moe_fqns_prototype",
    )),
))  # fmt: skip
"""Fields without a modelled effect on step time or memory."""

KNOWN = (
    "training.local_batch_size", "training.global_batch_size", "training.seq_len", "training.enable_cpu_offload",
    "parallelism.data_parallel_shard_degree", "parallelism.data_parallel_replicate_degree", "compile.enable",
    "parallelism.tensor_parallel_degree", "parallelism.pipeline_parallel_degree", "activation_checkpoint.mode",
    "parallelism.context_parallel_degree", "parallelism.expert_parallel_degree",
    "parallelism.pipeline_parallel_schedule", "parallelism.pipeline_parallel_microbatch_size",
)  # fmt: skip


def no_bearing(name: str) -> bool:
    return name in _SILENT or name.startswith(_SILENT_SECTIONS)


def shown(name: str) -> str:
    near = difflib.get_close_matches(name, KNOWN, 1, 0.85)
    return printable(name) + (f" (did you mean {near[0]}?)" if near else "")
