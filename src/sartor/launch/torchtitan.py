"""Write a plan as a torchtitan configuration: Python since 0.3, TOML before; `torchtitan_read` reads both.

The TOML is written against torchtitan/config/job_config.py of pytorch/torchtitan (its last form; read 2026-11-21),
including older names of the same fields; names are in tests/golden/launch_arguments.csv.
"""

from __future__ import annotations

from collections.abc import Mapping

from sartor.json_types import JsonDict, JsonMap
from sartor.launch.fields import OWN_CONFIG, Argument, numeric_arguments, release_of
from sartor.launch.plan import (
    LaunchFile,
    LaunchFiles,
    LaunchKind,
    device_layers,
    device_only,
    launchable,
    nodes_of,
    refuser,
    stages_of,
)
from sartor.launch.script import script_text
from sartor.launch.torchtitan_flavors import Flavor, flavor_of
from sartor.launch.torchtitan_python import CONVERTERS, python_text
from sartor.model.numerics import Numerics
from sartor.model.shape import TransformerShape
from sartor.model.training import (
    ContextParallel,
    Optimizer,
    PipelineSchedule,
    Recipe,
    Recompute,
    TrainingJob,
    TrainingPlan,
)
from sartor.units import ceil_div

KIND = LaunchKind.TORCHTITAN
_refuse = refuser(KIND)

ROTATE = {ContextParallel.RING: "alltoall", ContextParallel.ALL_GATHER: "allgather"}
"""torchtitan's "alltoall" rotates keys and values, which is called `RING` here; it has no Ulysses."""
QUANTIZED = {
    Recipe.FP8_CURRENT: ("float8", "tensorwise"),
    Recipe.FP8_ROWWISE: ("float8", "rowwise"),
    Recipe.MXFP8: ("mx", "mxfp8_cublas"),
}
Table = JsonDict
PYTHON_CONFIGS = (0, 3)
"""The first release with Python configurations; earlier ones use TOML."""


def torchtitan_files(job: TrainingJob, plan: TrainingPlan, devices_per_node: int, version: str = "") -> LaunchFiles:
    """``sartor_config.py`` (``train.toml`` before 0.3) and ``launch.sh``. Raises `InputError` for what torchtitan
    cannot do, naming what it can."""
    plan = launchable(job, plan, splits_experts=job.trainer.splits_experts)
    by_python = release_of(KIND, version) >= PYTHON_CONFIGS
    _check(job, plan)
    (_check_new if by_python else _check_old)(job, plan)
    about = f"torchtitan: {job.shape.name or 'a model'} on {plan.num_devices} devices"
    made, arguments, notes = (_python if by_python else _toml_file)(about, job, plan)
    nodes, local = nodes_of(int(plan.num_devices), devices_per_node)
    script = script_text(
        about=about,
        launcher="torchrun",
        nodes=nodes,
        local=local,
        script="-m torchtitan.train",
        groups={"CONFIG_ARGS": arguments},
        env={"PYTHONPATH": '"$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd):${PYTHONPATH:-}"'} if by_python else None,
        notes=(*notes, "give data, tokenizer and learning rate behind this script's name"),
    )
    files = (made, LaunchFile(name="launch.sh", text=script, executable=True))
    return LaunchFiles(kind=KIND, files=files, notes=tuple(notes))


Made = tuple[LaunchFile, list[Argument], list[str]]


def _python(about: str, job: TrainingJob, plan: TrainingPlan) -> Made:
    """The configuration of torchtitan 0.3 and newer."""
    flavor = flavor_of(job.shape)
    beside, notes = numeric_arguments(KIND, job.shape, flavor.computes if flavor else None)
    if flavor is None:
        notes += ["torchtitan has no flavor of this model: put model_registry of one into custom_model.py"]
    name = (flavor.module, flavor.flavor) if flavor else ("", job.shape.name or "custom")
    d, layers = plan.dims, int(job.shape.num_layers)
    parallelism = _parallelism(job, plan, layers)
    gone = ("enable_async_tensor_parallel", "context_parallel_rotate_method", "expert_tensor_parallel_degree")
    parts = parallelism.get("module_fqns_per_model_part")
    if parts:
        parts[-1] = ["lm_head" if part == "output" else part for part in parts[-1]]
    tables = {
        "training": {**_training(job, plan), "disable_cuda_graphs": not job.trainer.cuda_graphs},
        "parallelism": {
            **{field: value for field, value in parallelism.items() if field not in gone},
            "enable_sequence_parallel": bool(d.tp == 1 or d.sequence_parallel),
        },
        "compile": {
            **_compiled(job),
            "enable_async_tensor_parallel": bool(job.trainer.tp_overlap and d.tp > 1),
        },
    }
    text = python_text(about, job, plan, name, beside, tables)
    arguments: list[Argument] = [("--module", "sartor_config"), ("--config", "train")]
    return LaunchFile(name="sartor_config.py", text=text), arguments, notes


def _toml_file(about: str, job: TrainingJob, plan: TrainingPlan) -> Made:
    """The configuration of torchtitan 0.2 and older, whose flavors cannot be changed by fields."""
    flavor, layers, notes = flavor_of(job.shape), int(job.shape.num_layers), list[str]()
    if flavor is None:
        notes += ["torchtitan has no flavor of this model: register one, and name it under [model]"]
    elif job.shape.numerics is not None:
        _same_as_flavor(job.shape, flavor, notes)
    tables = {
        "model": {
            "name": flavor.module if flavor else "custom",
            "flavor": flavor.flavor if flavor else job.shape.name or "custom",
            **_converters(job),
        },
        "optimizer": {"name": "AdamW"},
        "training": _training(job, plan),
        "parallelism": _parallelism(job, plan, layers),
        "activation_checkpoint": _checkpointing(plan, layers),
        "compile": _compiled(job),
        **_quantize(job),
    }
    text = f"# {about}\n# Written by sartor plan --write.\n" + toml_text(tables)
    return LaunchFile(name="train.toml", text=text), [("--job.config_file", "train.toml")], notes


def _same_as_flavor(shape: TransformerShape, flavor: Flavor, notes: list[str]) -> None:
    """Add a note (or raise, for RoPE) if a flavor computes something else than the model; a TOML cannot change it."""
    asked, there = shape.numerics or Numerics(), flavor.computes
    names = sorted({*asked.unusual, *there.unusual} - {"activation"})
    other = [f"{name}={there.get(name)}, not {asked.get(name)}" for name in names if asked.get(name) != there.get(name)]
    if any(name.startswith("rope_") for name in "".join(other).split()):
        raise _refuse(
            "MODEL", shape.name, f"before 0.3 has a fixed model: {'; '.join(other)}", "--trainer-version 0.3.0"
        )
    notes += [f"torchtitan's {flavor.module} {flavor.flavor} has {'; '.join(other)}"] if other else []


def _check(job: TrainingJob, plan: TrainingPlan) -> None:
    d, sharded = plan.dims, (plan.dims.dp * plan.dims.cp) > 1
    device_only(KIND, job)
    if job.shape.encoder_only or not job.shape.lm_head or sum(stack.is_text for stack in job.shape.stacks) != 1:
        raise _refuse("MODEL", job.shape.name, "trains one decoder on text", OWN_CONFIG)
    if plan.zero_stage == 1:
        raise _refuse("zero_stage", 1, "shards by FSDP (stages 2 and 3) or not at all", "zero_stage=2")
    if plan.zero_stage == 0 and sharded and (d.cp > 1 or d.tp > 1 or d.pp > 1):
        raise _refuse("zero_stage", 0, "replicates (DDP) only without other parallelism", "zero_stage=2")
    if plan.schedule is PipelineSchedule.ZERO_BUBBLE and plan.virtual_stages < 2:
        raise _refuse(
            "schedule", "zero_bubble", "supports it only with two or more chunks per device", "virtual_stages=2"
        )
    schedule = PipelineSchedule(int(plan.schedule))
    if schedule.is_v and plan.virtual_stages != 2:
        raise _refuse("virtual_stages", plan.virtual_stages, f"runs {_schedule(plan)} with two chunks per device", "2")
    if plan.schedule is PipelineSchedule.GPIPE and plan.virtual_stages > 1:
        raise _refuse("virtual_stages", plan.virtual_stages, "runs GPipe with one chunk per device", "virtual_stages=1")
    if job.optimizer is not Optimizer.ADAM:
        raise _refuse("optimizer", job.optimizer.value, "supports Adam and AdamW", "optimizer=adam")
    if plan.recompute is Recompute.SELECTIVE:
        why = "recomputes whole layers, every n-th layer or by operator, not the attention core alone"
        raise _refuse("recompute", "selective", why, "recompute=none or full")
    _check_experts(job, plan)
    shards = plan.shard_group or d.dp * d.cp
    if plan.zero_stage and (shards % d.cp or (d.dp * d.cp) % shards):
        must = f"shards over a multiple of cp={d.cp} that divides dp x cp = {d.dp * d.cp}"
        raise _refuse("shard_group", plan.shard_group, must, str(d.dp * d.cp))


def _check_old(job: TrainingJob, plan: TrainingPlan) -> None:
    d = plan.dims
    if d.tp > 1 and not d.sequence_parallel:
        raise _refuse(
            "sequence_parallel", "false", "always uses sequence parallelism with tp", "sequence_parallel=true"
        )
    if job.context_parallel not in ROTATE and d.cp > 1:
        raise _refuse(
            "context_parallel",
            job.context_parallel.value,
            "does not support this context-parallel exchange",
            "ring and all_gather",
        )
    if job.recipe not in (Recipe.BF16, Recipe.FP32, *QUANTIZED):
        known = ", ".join(r.value for r in (Recipe.BF16, Recipe.FP32, *QUANTIZED))
        raise _refuse("recipe", job.recipe.value, "does not support this precision", known)


def _check_new(job: TrainingJob, plan: TrainingPlan) -> None:
    """Reject what torchtitan 0.3 no longer has."""
    d = plan.dims
    if d.cp > 1 and job.context_parallel is not ContextParallel.ALL_GATHER:
        why = "gathers keys and values in context parallelism"
        raise _refuse("context_parallel", job.context_parallel.value, why, "all_gather, or --trainer-version 0.2.2")
    if job.recipe not in (Recipe.BF16, Recipe.FP32, *CONVERTERS):
        known = ", ".join(r.value for r in (Recipe.BF16, Recipe.FP32, *CONVERTERS))
        raise _refuse("recipe", job.recipe.value, "does not support this precision", known)
    if plan.recompute is Recompute.FULL and plan.recompute_layers >= 0:
        why = "recomputes all layers, none, or by operator"
        raise _refuse("recompute_layers", plan.recompute_layers, why, "recompute=full, or --trainer-version 0.2.2")
    if job.shape.moe_ffn is not None and d.tp > 1 and d.ep > 1 and job.trainer.splits_experts:
        raise _refuse("ep", d.ep, "keeps experts whole where ep > 1", "ep=1, or --trainer-version 0.2.2")
    if job.shape.mtp_layers and d.pp * d.cp > 1:
        name = "pp" if d.pp > 1 else "cp"
        why = "trains multi-token prediction without pipeline and context parallelism"
        raise _refuse(name, getattr(d, name), why, "pp=1 and cp=1, or the model with --set mtp_layers=0")
    if job.trainer.tp_overlap and d.tp > 1 and not job.trainer.fused_kernels:
        raise _refuse("tp_overlap", "true", "overlaps tensor parallelism in compiled models", "fused_kernels=true")


def _check_experts(job: TrainingJob, plan: TrainingPlan) -> None:
    """torchtitan takes expert ranks first from cp (and tp, if experts stay whole), then from the data ranks."""
    d = plan.dims
    if job.shape.moe_ffn is not None and d.ep == 1 and d.tp > 1 and not job.trainer.splits_experts:
        raise _refuse("ep", 1, "splits experts over tp where ep=1; whole ones need ep", f"{d.tp * d.cp}")
    inner = d.cp * (1 if job.trainer.splits_experts else d.tp)
    if d.ep > 1 and d.ep % inner:
        words = "cp" if job.trainer.splits_experts else "tp x cp"
        raise _refuse("ep", d.ep, f"spreads experts over whole groups of {words} = {inner}", str(inner))


def _training(job: TrainingJob, plan: TrainingPlan) -> Table:
    """Without a pipeline, microbatches are gradient accumulation; with one, they make up the local batch."""
    pipeline = plan.num_microbatches if plan.dims.pp > 1 else 1
    return {
        "seq_len": job.seq_len,
        "local_batch_size": plan.microbatch_size * pipeline,
        "global_batch_size": job.global_batch_size,
        "mixed_precision_param": "float32" if job.recipe is Recipe.FP32 else "bfloat16",
        "enable_cpu_offload": plan.optimizer_offload,
    }


def _compiled(job: TrainingJob) -> Table:
    """Whether the model is compiled, and with it the loss if that is asked for."""
    both = {"components": ["model", "loss"]} if job.trainer.fused_loss and job.trainer.fused_kernels else {}
    return {"enable": job.trainer.fused_kernels, **both}


def _parallelism(job: TrainingJob, plan: TrainingPlan, layers: int) -> Table:
    d = plan.dims
    shards = (plan.shard_group or d.dp * d.cp) // d.cp if plan.zero_stage else 1
    out: Table = {
        "data_parallel_replicate_degree": d.dp // shards,
        "data_parallel_shard_degree": shards,
        "fsdp_reshard_after_forward": "always" if plan.zero_stage == 3 else "never",
        "tensor_parallel_degree": d.tp,
        "enable_async_tensor_parallel": job.trainer.tp_overlap,
        "pipeline_parallel_degree": d.pp,
        "context_parallel_degree": d.cp,
        "context_parallel_rotate_method": ROTATE.get(job.context_parallel, "allgather"),
    }
    if d.ep > 1:
        split = d.tp if job.trainer.splits_experts else 1
        out |= {"expert_parallel_degree": d.ep, "expert_tensor_parallel_degree": split}
    if d.pp > 1:
        out |= {
            "pipeline_parallel_microbatch_size": plan.microbatch_size,
            "pipeline_parallel_schedule": _schedule(plan),
            **_stages(plan, layers),
        }
    return out


def _schedule(plan: TrainingPlan) -> str:
    names = {
        PipelineSchedule.GPIPE: "GPipe",
        PipelineSchedule.ZERO_BUBBLE: "InterleavedZeroBubble",
        PipelineSchedule.ZERO_BUBBLE_V: "ZBVZeroBubble",
        PipelineSchedule.DUAL_PIPE_V: "DualPipeV",
    }
    if (schedule := PipelineSchedule(int(plan.schedule))) in names:
        return names[schedule]
    return "Interleaved1F1B" if plan.virtual_stages > 1 else "1F1B"


def _stages(plan: TrainingPlan, layers: int) -> Table:
    """Even stages by layers per stage, not counting embedding and head; others as lists of modules."""
    stages, chunks = stages_of(plan, layers), plan.dims.pp * plan.virtual_stages
    each = ceil_div(layers, chunks)
    if plan.stage_layers is None and ceil_div(layers, each) == chunks:
        return {
            "pipeline_parallel_layers_per_stage": each,
            "pipeline_parallel_first_stage_less_layers": 0,
            "pipeline_parallel_last_stage_less_layers": 0,
        }
    parts, at = [], 0
    for k, count in enumerate(stages):
        names = [f"layers.{i}" for i in range(at, at + count)]
        first, last = ["tok_embeddings"] * (k == 0), ["norm", "output"] * (k == len(stages) - 1)
        parts.append([*first, *names, *last])
        at += count
    return {"module_fqns_per_model_part": parts}


def _checkpointing(plan: TrainingPlan, layers: int) -> Table:
    """Activation checkpointing of all layers, none, or every n-th."""
    if plan.recompute is Recompute.NONE:
        return {"mode": "none"}
    if plan.recompute_layers < 0:
        return {"mode": "full"}
    held = max(device_layers(plan, layers))
    every = next((n for n in range(1, held + 1) if held // n == plan.recompute_layers), None)
    if every is None:
        near = sorted({held // n for n in range(1, held + 1)}, key=lambda x: abs(x - int(plan.recompute_layers)))[:2]
        shown = " and ".join(str(n) for n in sorted(near))
        raise _refuse("recompute_layers", plan.recompute_layers, f"recomputes every n-th of {held} layers", shown)
    return {"mode": "selective", "selective_ac_option": str(every)}


def _converters(job: TrainingJob) -> Table:
    if job.recipe not in QUANTIZED:
        return {}
    return {"converters": [f"quantize.linear.{QUANTIZED[job.recipe][0]}"]}


def _quantize(job: TrainingJob) -> dict[str, Table]:
    if job.recipe not in QUANTIZED:
        return {}
    kind, recipe = QUANTIZED[job.recipe]
    return {f"quantize.linear.{kind}": {"recipe_name": recipe}}


def toml_text(tables: Mapping[str, JsonMap]) -> str:
    """Tables of scalars and lists as TOML."""
    blocks = []
    for name, table in tables.items():
        lines = [f"{key} = {_toml(value)}" for key, value in table.items()]
        blocks.append("\n".join([f"\n[{name}]", *lines]))
    return "\n".join(blocks) + "\n"


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
