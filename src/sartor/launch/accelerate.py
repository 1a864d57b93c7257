"""Write a plan as a Hugging Face accelerate configuration (YAML, FSDP2), and read one as a plan.

Written against accelerate's examples/torch_native_parallelism/configs/nd.yaml and src/accelerate/commands/launch.py
(read 2026-11-21); names in tests/golden/launch_arguments.csv. Batch and sequence length belong to the training program,
and are written as Hugging Face Trainer's arguments.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from sartor.bounded import parse_json, printable
from sartor.errors import InputError
from sartor.json_types import JsonDict, JsonMap
from sartor.launch.deepspeed import read_attention, read_deepspeed, sorted_out, trainer_arguments
from sartor.launch.fields import release_of
from sartor.launch.plan import (
    JobParts,
    LaunchFile,
    LaunchFiles,
    LaunchKind,
    LaunchReading,
    canonical,
    check_numbers,
    device_only,
    launchable,
    no_devices,
    nodes_of,
    refuser,
)
from sartor.launch.script import Command, script_text
from sartor.launch.shell import Beside, nothing_beside
from sartor.launch.stated import Document, Flags, bearing, parse_flags
from sartor.launch.yaml_text import write_yaml
from sartor.model.parallel import ParallelDims
from sartor.model.training import (
    ContextParallel,
    Optimizer,
    Recipe,
    Recompute,
    TrainingJob,
    TrainingPlan,
)
from sartor.step.trainers import FSDP

KIND = LaunchKind.ACCELERATE
_refuse = refuser(KIND)
OPTIMIZERS = {Optimizer.ADAM: "adamw_torch_fused", Optimizer.SGD: "sgd"}
ACCELERATE_KEYS = re.compile(
    r"distributed_type|mixed_precision|num_processes|num_machines|(fsdp|deepspeed|parallelism|dynamo|megatron_lm)_config"
)
"""Keys by which a YAML is accelerate's."""
PRECISION = {Recipe.BF16: "bf16", Recipe.FP16: "fp16", Recipe.FP32: "no", Recipe.FP8_DELAYED: "fp8"}


# -- writing ------------------------------------------------------------------------------------------------------


def accelerate_files(job: TrainingJob, plan: TrainingPlan, devices_per_node: int, version: str = "") -> LaunchFiles:
    """``accelerate.yaml`` and ``launch.sh``. Raises `InputError` for what accelerate's FSDP cannot do."""
    release_of(KIND, version)
    plan = launchable(job, plan)
    _check(job, plan)
    nodes, _ = nodes_of(int(plan.num_devices), devices_per_node)
    about = f"accelerate: {job.shape.name or 'a model'} on {plan.num_devices} devices"
    notes = ("name the layer class to wrap (fsdp_transformer_layer_cls_to_wrap) where the model does not",)
    lines = script_text(
        about=about,
        launcher="accelerate launch",
        nodes=nodes,
        local=0,
        script='"${TRAIN_SCRIPT:-train.py}"',
        groups={"TRAINER_ARGS": [*_arguments(job, plan), ("--optim", OPTIMIZERS[job.optimizer])]},
        notes=notes if plan.zero_stage else (),
    )
    config = f"# {about}\n# Written by sartor plan --write.\n{write_yaml(_config(job, plan, nodes))}"
    files = (
        LaunchFile(name="accelerate.yaml", text=config),
        LaunchFile(name="launch.sh", text=lines, executable=True),
    )
    return LaunchFiles(kind=KIND, files=files, notes=notes if plan.zero_stage else ())


def _arguments(job: TrainingJob, plan: TrainingPlan) -> list[tuple[str, ...]]:
    """FSDP recomputes by ``fsdp_activation_checkpointing``; Hugging Face's Trainer raises an error on both."""
    return trainer_arguments(job, plan, recomputes=plan.recompute is Recompute.FULL and not _by_mesh(plan))


def _by_mesh(plan: TrainingPlan) -> bool:
    """Whether FSDP2 runs it: accelerate has tensor parallelism only there."""
    return bool(plan.zero_stage > 0 or plan.dims.tp > 1)


def _check(job: TrainingJob, plan: TrainingPlan) -> None:
    d, sharded = plan.dims, plan.dims.dp * plan.dims.cp > 1
    device_only(KIND, job)
    if d.pp > 1:
        raise _refuse(
            "pp", d.pp, "does not support pipeline parallelism with FSDP", "pp=1, or --write megatron or torchtitan"
        )
    if d.ep > 1:
        raise _refuse("ep", d.ep, "does not support expert parallelism", "ep=1, or --write megatron or torchtitan")
    if plan.zero_stage == 1:
        raise _refuse("zero_stage", 1, "shards by FSDP (stages 2 and 3); DeepSpeed has 1", "zero_stage=2")
    if plan.zero_stage == 0 and sharded and (d.tp > 1 or d.cp > 1):
        raise _refuse("zero_stage", 0, "replicates only without tp and cp", "zero_stage=2")
    if d.tp > 1 and d.sequence_parallel:
        raise _refuse("sequence_parallel", "true", "has tensor parallelism only without it", "sequence_parallel=false")
    if d.cp > 1 and job.context_parallel not in (ContextParallel.ALL_GATHER, ContextParallel.RING):
        raise _refuse(
            "context_parallel", job.context_parallel.value, "supports ring and all_gather", "context_parallel=ring"
        )
    shards = plan.shard_group or d.dp * d.cp
    if plan.zero_stage and (shards % d.cp or (d.dp * d.cp) % shards):
        must = f"shards over a multiple of cp={d.cp} that divides dp x cp = {d.dp * d.cp}"
        raise _refuse("shard_group", plan.shard_group, must, str(d.dp * d.cp))
    if plan.recompute is Recompute.SELECTIVE or plan.recompute_layers >= 0:
        raise _refuse("recompute", "of parts", "recomputes either all layers or none", "recompute=full")
    if job.recipe not in PRECISION:
        raise _refuse(
            "recipe", job.recipe.value, "does not support this precision", ", ".join(r.value for r in PRECISION)
        )
    if job.optimizer not in OPTIMIZERS:
        raise _refuse(
            "optimizer", "muon", "takes the training program's optimizer: Adam or SGD in torch", "optimizer=adam"
        )
    if plan.optimizer_offload and not plan.zero_stage:
        raise _refuse("optimizer_offload", "true", "offloads only under FSDP", "zero_stage=3")


def _config(job: TrainingJob, plan: TrainingPlan, nodes: int) -> JsonDict:
    d = plan.dims
    by_mesh = _by_mesh(plan)
    out: JsonDict = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP" if by_mesh else "MULTI_GPU",
        "mixed_precision": PRECISION[job.recipe],
        "num_machines": nodes,
        "num_processes": int(plan.num_devices),
        "machine_rank": 0,
        "main_training_function": "main",
        "rdzv_backend": "static",
        "use_cpu": False,
    }
    if by_mesh:
        out["fsdp_config"] = {
            "fsdp_version": 2,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_reshard_after_forward": plan.zero_stage == 3,
            "fsdp_activation_checkpointing": plan.recompute is Recompute.FULL,
            "fsdp_offload_params": plan.optimizer_offload,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }
        shards = (plan.shard_group or d.dp * d.cp) // d.cp
        out["parallelism_config"] = {
            "parallelism_config_dp_replicate_size": d.dp // shards,
            "parallelism_config_dp_shard_size": shards,
            "parallelism_config_tp_size": d.tp,
            "parallelism_config_cp_size": d.cp,
            "parallelism_config_cp_comm_strategy": (
                "allgather" if job.context_parallel is ContextParallel.ALL_GATHER else "alltoall"
            ),
        }
    return out


# -- reading ------------------------------------------------------------------------------------------------------


def read_accelerate(
    config: JsonMap, command: Command | None, num_devices: int = 0, beside: Beside = nothing_beside
) -> LaunchReading:
    """The plan of a configuration and the training program's arguments. ``num_devices`` wins over the file; ``beside``
    returns the text of the DeepSpeed file if one is named. Raises `InputError`."""
    fields = Document(raw=dict(config), assumptions=list(command.notes) if command else [])
    flags = parse_flags(command.arguments if command else ())
    kind = fields.find("distributed_type") or "NO"
    if str(kind).upper() == "DEEPSPEED":
        return _read_deepspeed(fields, command, num_devices, beside)
    if str(kind).upper() not in ("FSDP", "MULTI_GPU", "NO"):
        must = "must be FSDP, DEEPSPEED, MULTI_GPU or NO"
        raise InputError("distributed_type", printable(str(kind)), must, "FSDP")
    said = fields.size("num_processes")
    devices = num_devices or said or (command.num_devices if command else 0)
    if not devices:
        raise no_devices(1)
    dims, zero, shard_group = _read_dims(fields, devices, sharded=str(kind).upper() == "FSDP")
    micro = flags.size("--per_device_train_batch_size")
    if micro is None:
        micro = 1
        fields.assumptions.append("microbatch_size=1 (the training program's --per_device_train_batch_size)")
    steps = flags.size("--gradient_accumulation_steps") or fields.size("gradient_accumulation_steps") or 1
    checkpoints = fields.find("fsdp_config.fsdp_activation_checkpointing") is True
    if fields.find("fsdp_config.fsdp_offload_params") is True:
        fields.assumptions.append("fsdp_offload_params: only the offloading of optimizer states is priced")
    plan = TrainingPlan(
        dims=dims,
        microbatch_size=micro,
        num_microbatches=steps,
        zero_stage=zero,
        shard_group=shard_group,
        recompute=Recompute.FULL if flags.flag("--gradient_checkpointing") or checkpoints else Recompute.NONE,
        optimizer_offload=fields.find("fsdp_config.fsdp_offload_params") is True,
    )
    check_numbers(plan)
    parts = _parts(fields, flags, int(dims.dp) * micro * steps)
    unknown, _, ignored = sorted_out(fields, _SILENT)
    return LaunchReading(
        kind=KIND,
        plan=canonical(plan),
        parts=parts,
        unknown=tuple(unknown),
        ignored=(*ignored, *flags.left()),
        assumptions=(*fields.assumptions, *flags.assumptions),
        open_fields={**fields.open, **flags.open, **bearing(unknown)},
    )


def launcher_config(launcher: Sequence[str]) -> JsonDict:
    """The options of ``accelerate launch`` as fields of its configuration file; an option wins over the file."""
    out: JsonDict = {}
    for name, values in parse_flags(launcher).given.items():
        key, value = name[2:].replace("-", "_"), _value(values)
        if key in TYPES:
            out["distributed_type"] = TYPES[key]
        elif key.startswith("fsdp_"):
            out.setdefault("fsdp_config", {})[key] = value
        elif key.startswith("parallelism_config_"):
            out.setdefault("parallelism_config", {})[key] = value
        elif key in OF_DEEPSPEED:
            out.setdefault("deepspeed_config", {})[key] = value
        elif key in ("num_processes", "num_machines", "mixed_precision", "dynamo_backend"):
            out[key] = value
    return out


TYPES = {"use_fsdp": "FSDP", "use_deepspeed": "DEEPSPEED", "multi_gpu": "MULTI_GPU"}
OF_DEEPSPEED = (
    "deepspeed_config_file", "zero_stage", "offload_optimizer_device", "offload_param_device",
    "gradient_accumulation_steps", "gradient_clipping", "zero3_init_flag", "zero3_save_16bit_model",
)  # fmt: skip


def _value(values: Sequence[str]) -> object:
    word = values[0] if values else "true"
    words = {"true": True, "false": False}
    return int(word) if word.isdigit() and len(word) < 10 else words.get(word.lower(), word)


def _read_deepspeed(fields: Document, command: Command | None, num_devices: int, beside: Beside) -> LaunchReading:
    """DeepSpeed under accelerate: its own file, or accelerate's few fields for it."""
    devices = num_devices or fields.size("num_processes") or (command.num_devices if command else 0)
    if name := fields.find("deepspeed_config.deepspeed_config_file"):
        text = beside(str(name))
        if text is None:
            raise InputError(
                "deepspeed_config_file", printable(str(name)), "must be in the folder of the file that names it"
            )
        return read_deepspeed(parse_json(text.encode(), name=printable(str(name))), command, devices)
    precision = str(fields.find("mixed_precision") or "no")
    offload = fields.find("deepspeed_config.offload_optimizer_device") or "none"
    config: JsonDict = {
        "zero_optimization": {
            "stage": fields.size("deepspeed_config.zero_stage", least=0) or 0,
            **({"offload_optimizer": {"device": offload}} if offload != "none" else {}),
        },
        **({precision: {"enabled": True}} if precision in ("bf16", "fp16") else {}),
        **({"gradient_accumulation_steps": steps} if (steps := _steps(fields)) else {}),
    }
    return read_deepspeed(config, command, devices)


def _steps(fields: Document) -> int:
    """Accumulation steps; 0 if the program sets them (``auto``)."""
    said = fields.find("deepspeed_config.gradient_accumulation_steps")
    return said if isinstance(said, int) else 0


def _read_dims(fields: Document, devices: int, *, sharded: bool) -> tuple[ParallelDims, int, int]:
    """(dims, ZeRO stage, devices the shards are spread over or 0)."""
    path = "parallelism_config.parallelism_config_"
    tp, cp = fields.size(f"{path}tp_size") or 1, fields.size(f"{path}cp_size") or 1
    if (sp := fields.size(f"{path}sp_size") or 1) > 1:
        fields.assumptions.append(f"parallelism_config_sp_size={sp} (Ulysses) is priced as context parallelism")
        cp *= sp
    if devices % (tp * cp):
        below = devices // (tp * cp) * tp * cp
        raise InputError("num_processes", devices, f"must be a multiple of tp x cp = {tp * cp}", str(below or tp * cp))
    dp = devices // (tp * cp)
    replicas = fields.size(f"{path}dp_replicate_size") or 1
    shards = fields.size(f"{path}dp_shard_size") or dp // max(replicas, 1)
    if replicas * shards != dp and sharded:
        must = f"times dp_replicate_size {replicas} must be num_processes over tp x cp = {dp}"
        raise InputError(f"{path}dp_shard_size", shards, must, str(dp // replicas))
    strategy = str(fields.find("fsdp_config.fsdp_sharding_strategy") or "FULL_SHARD").upper()
    reshard = fields.find("fsdp_config.fsdp_reshard_after_forward")
    keeps = reshard is False or reshard == "SHARD_GRAD_OP" or strategy in ("SHARD_GRAD_OP", "2")
    zero = 0 if not sharded or strategy in ("NO_SHARD", "3") else 2 if keeps else 3
    if strategy.startswith("HYBRID"):
        fields.assumptions.append(f"{strategy}: shards over one node, which the file does not size; all devices taken")
    dims = ParallelDims(tp=tp, dp=dp, cp=cp, sequence_parallel=False)
    return dims, zero, shards * cp if zero and replicas > 1 else 0


def _parts(fields: Document, flags: Flags, batch: int) -> JobParts:
    word = fields.find("mixed_precision")
    names = {"bf16": Recipe.BF16, "fp16": Recipe.FP16, "fp8": Recipe.FP8_DELAYED}
    recipe = names.get(str(word), Recipe.FP32)
    if recipe is Recipe.FP32 and (flags.flag("--bf16") or flags.flag("--fp16")):
        recipe = Recipe.BF16 if flags.flag("--bf16") else Recipe.FP16
    flags.on("--bf16", "--fp16")
    strategy = fields.find("parallelism_config.parallelism_config_cp_comm_strategy") or "allgather"
    compiled = flags.flag("--torch_compile") or str(
        fields.find("dynamo_config.dynamo_backend") or "no"
    ).lower() not in ("no", "false")
    return JobParts(
        seq_len=flags.size("--max_length") or flags.size("--max_seq_length") or flags.size("--block_size"),
        global_batch_size=batch,
        recipe=recipe,
        optimizer=Optimizer.SGD if flags.word("--optim") == "sgd" else Optimizer.ADAM,
        attention_kernel=read_attention(flags, fields.assumptions),
        context_parallel=ContextParallel.RING if strategy == "alltoall" else ContextParallel.ALL_GATHER,
        trainer=replace(FSDP, fused_kernels=compiled),
    )


_SILENT = (
    "compute_environment", "machine_rank", "main_training_function", "main_process_", "rdzv_backend", "same_network",
    "use_cpu", "debug", "downcast_bf16", "enable_cpu_affinity", "tpu_", "num_machines", "gpu_ids",
    "dynamo_config.", "fp8_config.", "mpirun_config.", "fsdp_config.fsdp_version", "fsdp_config.fsdp_state_dict_type",
    "fsdp_config.fsdp_auto_wrap_policy", "fsdp_config.fsdp_transformer_layer_cls_to_wrap",
    "fsdp_config.fsdp_min_num_params", "fsdp_config.fsdp_backward_prefetch", "fsdp_config.fsdp_forward_prefetch",
    "fsdp_config.fsdp_use_orig_params", "fsdp_config.fsdp_sync_module_states", "fsdp_config.fsdp_ignored_modules",
    "fsdp_config.fsdp_cpu_ram_efficient_loading",
)  # fmt: skip
"""Fields without a modelled effect on step time or memory."""
