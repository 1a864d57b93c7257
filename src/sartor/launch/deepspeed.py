"""Write a plan as a DeepSpeed configuration (JSON), and read one as a plan.

Written against docs/_pages/config-json.md of DeepSpeed (read 2026-11-21); names in tests/golden/launch_arguments.csv.
Sequence length and recomputation belong to the training program, and are written as Hugging Face Trainer's arguments.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace

from sartor.bounded import printable
from sartor.errors import InputError
from sartor.json_types import JsonDict, JsonMap
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
from sartor.launch.script import Command, beside_script, script_text
from sartor.launch.stated import Document, Flags, bearing, parse_flags
from sartor.model.parallel import ParallelDims
from sartor.model.training import (
    Optimizer,
    Recipe,
    Recompute,
    TrainingJob,
    TrainingPlan,
)
from sartor.model.workload import AttentionKernel
from sartor.operators import DType
from sartor.step.trainers import DEEPSPEED

KIND = LaunchKind.DEEPSPEED
_refuse = refuser(KIND)

REDUCED = ("fp32", "fp16", "bf16")
"""Values of ``communication_data_type``."""
OPTIMIZERS = {Optimizer.ADAM: "AdamW", Optimizer.SGD: "SGD", Optimizer.MUON: "Muon"}

DEEPSPEED_KEYS = re.compile(
    r"train_(micro_)?batch_size\w*|gradient_accumulation_steps|zero_\w+|(bf|fp)16|optimizer|communication_data_type|"
    r"activation_checkpointing|tensor_parallel|amp"
)
"""Keys by which a JSON is DeepSpeed's."""
AUTO = {
    Optimizer.ADAM: ("lr", "betas", "eps", "weight_decay"),
    Optimizer.SGD: ("lr", "weight_decay"),
    Optimizer.MUON: ("lr", "weight_decay"),
}
"""What Hugging Face's integration fills in from the training program's own arguments (transformers
integrations/deepspeed.py, 5.23.0): a value here, or DeepSpeed's default, would win over the user's."""


# -- writing ------------------------------------------------------------------------------------------------------


def deepspeed_files(job: TrainingJob, plan: TrainingPlan, devices_per_node: int, version: str = "") -> LaunchFiles:
    """``ds_config.json`` and ``launch.sh``. Raises `InputError` for what a DeepSpeed configuration cannot express."""
    release_of(KIND, version)
    plan = launchable(job, plan)
    _check(job, plan)
    nodes, local = nodes_of(int(plan.num_devices), devices_per_node)
    notes = _notes(job, plan)
    script = script_text(
        about=f"DeepSpeed: {job.shape.name or 'a model'} on {plan.num_devices} devices",
        launcher="deepspeed",
        nodes=nodes,
        local=local,
        script='"${TRAIN_SCRIPT:-train.py}"',
        groups={
            "TRAINER_ARGS": [
                ("--deepspeed", beside_script("ds_config.json")),
                *trainer_arguments(job, plan, recomputes=plan.recompute is Recompute.FULL),
            ]
        },
        notes=notes,
    )
    config = json.dumps(_config(job, plan), indent=2) + "\n"
    files = (LaunchFile(name="ds_config.json", text=config), LaunchFile(name="launch.sh", text=script, executable=True))
    return LaunchFiles(kind=KIND, files=files, notes=notes)


def _notes(job: TrainingJob, plan: TrainingPlan) -> tuple[str, ...]:
    filled = 'the training program must use Hugging Face\'s Trainer, which replaces each "auto" by its own arguments'
    leaves = (
        "if each expert is a module of its own, mark the block of experts by deepspeed.utils.set_z3_leaf_modules: "
        "else ZeRO 3 waits forever where a device has no token for an expert"
    )
    return (filled, leaves) if plan.zero_stage == 3 and job.shape.moe_ffn is not None else (filled,)


def trainer_arguments(job: TrainingJob, plan: TrainingPlan, *, recomputes: bool) -> list[tuple[str, ...]]:
    """Arguments of Hugging Face's Trainer and TRL that complement the configuration file. Recomputation is always said:
    it is off by default in the Trainer, on in TRL. Attention is TRL's alone (ModelConfig, trainer/model_config.py)."""
    out: list[tuple[str, ...]] = [
        ("--per_device_train_batch_size", str(plan.microbatch_size)),
        ("--gradient_accumulation_steps", str(plan.num_microbatches)),
        ("--max_length", str(job.seq_len)),
    ]
    if job.recipe in (Recipe.BF16, Recipe.FP16):
        out.append((f"--{job.recipe.value}", "true"))
    out.append(("--gradient_checkpointing", "true" if recomputes else "false"))
    if job.attention_kernel is AttentionKernel.UNFUSED:
        out.append(("--attn_implementation", "eager"))
    if job.trainer.fused_kernels:
        out.append(("--torch_compile", "true"))
    return out


def _check(job: TrainingJob, plan: TrainingPlan) -> None:
    d = plan.dims
    device_only(KIND, job)
    for name, value in (("pp", d.pp), ("cp", d.cp), ("ep", d.ep)):
        if value > 1:
            why = "sets it in the model's code, not in its configuration"
            raise _refuse(name, value, why, f"{name}=1, or --write megatron")
    if d.tp > 1 and plan.zero_stage > 2:
        raise _refuse("zero_stage", 3, "combines tensor parallelism with stages 0 to 2", "zero_stage=2")
    if d.tp > 1 and d.sequence_parallel:
        raise _refuse("sequence_parallel", "true", "has tensor parallelism only without it", "sequence_parallel=false")
    if plan.shard_group:
        raise _refuse("shard_group", plan.shard_group, "shards over all data ranks", "shard_group=0")
    if plan.recompute is Recompute.SELECTIVE or plan.recompute_layers >= 0:
        raise _refuse("recompute", "of parts", "leaves it to the program: whole layers or none", "recompute=full")
    if job.recipe not in (Recipe.FP32, Recipe.BF16, Recipe.FP16):
        raise _refuse("recipe", job.recipe.value, "does not support this precision", "bf16, fp16, fp32")
    if plan.optimizer_offload and not plan.zero_stage:
        raise _refuse("optimizer_offload", "true", "offloads sharded states", "zero_stage=1")


def _config(job: TrainingJob, plan: TrainingPlan) -> JsonDict:
    out: JsonDict = {
        "train_batch_size": job.global_batch_size,
        "train_micro_batch_size_per_gpu": plan.microbatch_size,
        "gradient_accumulation_steps": plan.num_microbatches,
        "zero_optimization": {"stage": plan.zero_stage, "overlap_comm": job.trainer.dp_overlap},
        "optimizer": {"type": OPTIMIZERS[job.optimizer], "params": dict.fromkeys(AUTO[job.optimizer], "auto")},
        "gradient_clipping": "auto",
    }
    if plan.zero_stage:
        out["zero_optimization"] |= {"contiguous_gradients": True}
    if plan.optimizer_offload:
        out["zero_optimization"] |= {"offload_optimizer": {"device": "cpu"}}
    if job.recipe is not Recipe.FP32:
        out[job.recipe.value] = {"enabled": True}
    if job.trainer.grad_dtype.bytes != _trained_in(job.recipe).bytes:
        out["communication_data_type"] = job.trainer.grad_dtype.value
    if plan.dims.tp > 1:
        out["tensor_parallel"] = {"autotp_size": plan.dims.tp}
    if plan.recompute is Recompute.FULL:
        out["activation_checkpointing"] = {"partition_activations": False}
    return out


def _trained_in(recipe: Recipe) -> DType:
    """The type that gradients are reduced in unless ``communication_data_type`` says otherwise (runtime/engine.py)."""
    return {Recipe.BF16: DType.BF16, Recipe.FP16: DType.FP16}.get(recipe, DType.FP32)


# -- reading ------------------------------------------------------------------------------------------------------


def read_deepspeed(config: JsonMap, command: Command | None, num_devices: int = 0) -> LaunchReading:
    """The plan of a configuration and the training program's arguments. ``num_devices`` wins over the script's. Raises
    `InputError`."""
    fields = Document(raw=dict(config), assumptions=list(command.notes) if command else [])
    flags = parse_flags(command.arguments if command else ())
    devices = num_devices or (command.num_devices if command else 0)
    tp = fields.size("tensor_parallel.autotp_size") or 1
    dp, microbatch, count = _read_batch(fields, flags, devices, tp)
    zero = fields.size("zero_optimization.stage", least=0) or 0
    if zero > 3:
        raise InputError("zero_optimization.stage", zero, "must be 0, 1, 2 or 3", "3")
    recomputes = flags.flag("--gradient_checkpointing") or fields.find("activation_checkpointing") is not None
    if fields.find("activation_checkpointing") is not None and not flags.flag("--gradient_checkpointing"):
        fields.assumptions.append("activation_checkpointing is configured: all layers taken as recomputed")
    plan = TrainingPlan(
        dims=ParallelDims(tp=tp, dp=dp, sequence_parallel=False),
        microbatch_size=microbatch,
        num_microbatches=count,
        zero_stage=zero,
        recompute=Recompute.FULL if recomputes else Recompute.NONE,
        optimizer_offload=fields.find("zero_optimization.offload_optimizer.device") in ("cpu", "nvme"),
    )
    check_numbers(plan)
    recipe = _read_recipe(fields, flags)
    reduced = fields.choice("communication_data_type", _trained_in(recipe).value, REDUCED)
    flags.on("--bf16", "--fp16", "--deepspeed", "--deepspeed_config")
    seq = flags.size("--max_length") or flags.size("--max_seq_length") or flags.size("--block_size")
    parts = JobParts(
        seq_len=seq,
        global_batch_size=dp * microbatch * count,
        recipe=recipe,
        optimizer=_read_optimizer(fields),
        attention_kernel=read_attention(flags, fields.assumptions),
        trainer=replace(
            DEEPSPEED,
            grad_dtype=DType(reduced),
            dp_overlap=fields.flag("zero_optimization.overlap_comm", default=zero == 3),  # overlap_comm_valid
            fused_kernels=flags.flag("--torch_compile"),
        ),
    )
    unknown, unpriced, ignored = sorted_out(fields, _SILENT, _KNOWN)
    return LaunchReading(
        kind=KIND,
        plan=canonical(plan),
        parts=parts,
        unknown=tuple(unknown),
        unpriced=tuple(unpriced),
        ignored=(*ignored, *flags.left()),
        assumptions=(*fields.assumptions, *flags.assumptions),
        open_fields={**fields.open, **flags.open, **bearing(unknown)},
    )


def sorted_out(
    fields: Document, silent: tuple[str, ...], known: tuple[str, ...] = ()
) -> tuple[list[str], list[str], list[str]]:
    """Unread fields as (unknown, ``known`` without a price, without effect on time and memory)."""
    unknown, unpriced, ignored = list[str](), list[str](), list[str]()
    for path in fields.left():
        if path.startswith(known) and (value := fields.find(path)) not in OFF:
            unpriced.append(printable(f"{path}={value}"))
        else:
            (ignored if path.startswith((*silent, *known)) else unknown).append(printable(path))
    return unknown, unpriced, ignored


def _read_batch(fields: Document, flags: Flags, devices: int, tp: int) -> tuple[int, int, int]:
    """(dp, microbatch size, accumulation steps); a missing one follows from the others and the whole batch."""
    total = fields.size("train_batch_size")
    given, stepped = flags.size("--per_device_train_batch_size"), flags.size("--gradient_accumulation_steps")
    micro = fields.size("train_micro_batch_size_per_gpu") or given
    steps = fields.size("gradient_accumulation_steps") or stepped
    if devices % tp:
        raise InputError("num_devices", devices, f"must be a multiple of autotp_size {tp}", str(devices // tp * tp))
    dp = devices // tp
    if not dp and total and micro and steps:
        if total % (micro * steps):
            must = f"must be a multiple of micro-batch size x accumulation steps = {micro} x {steps}"
            raise InputError("train_batch_size", total, must, str(total // (micro * steps) * micro * steps or micro))
        return total // (micro * steps), micro, steps
    if not dp:
        raise no_devices(tp)
    if micro is None:
        micro = 1 if not total else max(total // (dp * (steps or 1)), 1)
        fields.assumptions.append(f"train_micro_batch_size_per_gpu={micro} (default)")
    if steps is None:
        steps = 1 if not total else max(total // (dp * micro), 1)
    if total and total != dp * micro * steps:
        must = f"must be micro-batch size x accumulation steps x data ranks = {micro} x {steps} x {dp}"
        raise InputError("train_batch_size", total, must, str(dp * micro * steps))
    return dp, micro, steps


def read_attention(flags: Flags, assumptions: list[str]) -> AttentionKernel:
    """The attention kernel that the program is told to use; dropout is in the model's configuration."""
    assumptions.append("no dropout (the model's own configuration sets it)")
    word = flags.word("--attn_implementation")
    if word is None:
        assumptions.append("flash attention (the program's --attn_implementation)")
    return AttentionKernel.UNFUSED if word == "eager" else AttentionKernel.FLASH


def _read_recipe(fields: Document, flags: Flags) -> Recipe:
    """The precision; ``"auto"``, or nothing, leaves it to the program's own flag, as in Hugging Face's Trainer."""

    def on(name: str) -> bool:
        said = fields.find(f"{name}.enabled")
        return bool(said) or (said is None and flags.flag(f"--{name}"))

    return Recipe.BF16 if on("bf16") else Recipe.FP16 if on("fp16") else Recipe.FP32


def _read_optimizer(fields: Document) -> Optimizer:
    word = str(fields.find("optimizer.type") or "AdamW").lower()
    if word in ("sgd", "muon"):
        return Optimizer(word)
    if "adam" not in word:
        fields.assumptions.append(f"optimizer {printable(word)} is priced as AdamW")
    return Optimizer.ADAM


_KNOWN = (
    "zero_optimization.offload_param.", "zero_optimization.zero_", "zero_optimization.zeropp_loco_param.",
    "zero_optimization.mics_", "zero_optimization.zenflow.", "zero_optimization.cpu_offload", "data_types.",
    "zero_optimization.memory_efficient_linear", "zero_optimization.leaf_module.", "zero_optimization.legacy_stage1",
    "zero_optimization.use_multi_rank_bucket_allreduce", "zero_optimization.offload_optimizer.ratio",
    "zero_optimization.offload_optimizer.super_offload", "amp.", "torch_autocast.", "aio.", "compile.", "pipeline.",
    "compression_training.", "data_efficiency.", "curriculum_learning.", "sparse_attention.", "sparse_gradients",
    "progressive_layer_drop.", "graph_harvesting", "expert_parallel.", "tensor_parallel.", "disable_allgather",
    "eigenvalue.", "quantize_training.", "hybrid_engine.", "elasticity.", "sequence_parallel_size",
    "seq_parallel_comm_data_type", "gradient_allreduce_op", "zero_optimization.stage3_use_all_reduce_for_fetch_params",
    "zero_optimization.stage3_allgather_sequential", "managed_gradient_accumulation",
)  # fmt: skip
"""DeepSpeed's own fields that may change time or memory and have no price here: runtime/config.py, constants.py and
zero/config.py at 1b88ac36, read 2026-11-27."""
OFF: tuple[object, ...] = (False, None, "none", 0, {})
"""Values that switch such a field off."""
_SILENT = (
    "optimizer.params", "scheduler", "gradient_clipping", "steps_per_print", "wall_clock_breakdown", "fp16.", "bf16.",
    "zero_optimization.contiguous_gradients", "zero_optimization.reduce_bucket_size", "tensorboard", "wandb",
    "zero_optimization.allgather_bucket_size", "zero_optimization.allgather_partitions", "dump_state", "csv_monitor",
    "zero_optimization.reduce_scatter", "zero_optimization.stage3_", "zero_optimization.sub_group_size", "comms_logger",
    "zero_optimization.round_robin", "zero_allow_untested", "flops_profiler", "memory_breakdown", "prescale_gradients",
    "zero_optimization.offload_optimizer.", "checkpoint", "zero_force_ds_cpu_optimizer",
)  # fmt: skip
"""Fields without a modelled effect on step time or memory."""
