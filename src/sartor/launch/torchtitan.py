"""A plan as a torchtitan TOML; `torchtitan_read` reads one.

Written against torchtitan/config/job_config.py of pytorch/torchtitan (its last form before configs moved to Python;
read 2026-11-21), older names of the same fields included; names are in tests/golden/launch_arguments.csv.
"""

from __future__ import annotations

from collections.abc import Mapping

from sartor.json_types import JsonDict, JsonMap
from sartor.launch.plan import (
    LaunchFile,
    LaunchFiles,
    LaunchKind,
    canonical,
    check_batch,
    check_numbers,
    device_layers,
    nodes_of,
    refuser,
    stages_of,
)
from sartor.launch.script import script_text
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
from sartor.model.zoo import load_model
from sartor.units import ceil_div

KIND = LaunchKind.TORCHTITAN
_refuse = refuser(KIND)

FLAVORS = {
    ("llama3", "8B"): "llama-3.1-8b",
    ("llama3", "70B"): "llama-3.1-70b",
    ("llama3", "405B"): "llama-3.1-405b",
    ("deepseek_v3", "16B"): "deepseek-v2-lite",
    ("deepseek_v3", "236B"): "deepseek-v2",
    ("deepseek_v3", "671B"): "deepseek-v3",
}
"""Models of torchtitan (torchtitan/models/*/__init__.py, 2026-11-21) that the zoo has with the same sizes."""
ROTATE = {ContextParallel.RING: "alltoall", ContextParallel.ALL_GATHER: "allgather"}
"""torchtitan's alltoall passes keys and values round, which is `RING` here; Ulysses it has not."""
QUANTIZED = {
    Recipe.FP8_CURRENT: ("float8", "tensorwise"),
    Recipe.FP8_ROWWISE: ("float8", "rowwise"),
    Recipe.MXFP8: ("mx", "mxfp8_cublas"),
}
Table = JsonDict


def torchtitan_files(job: TrainingJob, plan: TrainingPlan, devices_per_node: int) -> LaunchFiles:
    """``train.toml`` and ``launch.sh``. Raises `InputError` for what torchtitan cannot do, naming what it could."""
    layers = int(job.shape.num_layers)
    plan = canonical(plan, layers)
    check_numbers(plan, splits_experts=job.trainer.splits_experts)
    check_batch(job, plan)
    _check(job, plan)
    name, flavor = _flavor(job.shape)
    notes = () if name else ("torchtitan has no flavor of this model: register one, and name it under [model]",)
    tables = {
        "model": {"name": name or "custom", "flavor": flavor or job.shape.name or "custom", **_converters(job)},
        "optimizer": {"name": "AdamW"},
        "training": _training(job, plan),
        "parallelism": _parallelism(job, plan, layers),
        "activation_checkpoint": _checkpointing(plan, layers),
        "compile": {"enable": job.trainer.fused_kernels},
        **_quantize(job),
    }
    nodes, local = nodes_of(int(plan.num_devices), devices_per_node)
    about = f"torchtitan: {job.shape.name or 'a model'} on {plan.num_devices} devices"
    script = script_text(
        about=about,
        launcher="torchrun",
        nodes=nodes,
        local=local,
        script="-m torchtitan.train",
        groups={"CONFIG_ARGS": [("--job.config_file", "train.toml")]},
        notes=(*notes, "give data, tokenizer and learning rate behind this script's name"),
    )
    text = f"# {about}\n# Written by sartor plan --write.\n" + toml_text(tables)
    files = (LaunchFile(name="train.toml", text=text), LaunchFile(name="launch.sh", text=script, executable=True))
    return LaunchFiles(kind=KIND, files=files, notes=notes)


def _flavor(shape: TransformerShape) -> tuple[str, str]:
    """torchtitan's name and flavor of the model with the same sizes, or empty words."""
    sizes = shape.fields()
    return next((key for key, zoo in FLAVORS.items() if load_model(zoo).fields() == sizes), ("", ""))


def _check(job: TrainingJob, plan: TrainingPlan) -> None:
    d, sharded = plan.dims, (plan.dims.dp * plan.dims.cp) > 1
    if plan.zero_stage == 1:
        raise _refuse("zero_stage", 1, "shards by FSDP (stages 2 and 3) or not at all", "zero_stage=2")
    if plan.zero_stage == 0 and sharded and (d.cp > 1 or d.tp > 1 or d.pp > 1):
        raise _refuse("zero_stage", 0, "replicates (DDP) only without other parallelism", "zero_stage=2")
    if d.tp > 1 and not d.sequence_parallel:
        raise _refuse(
            "sequence_parallel", "false", "always uses sequence parallelism with tp", "sequence_parallel=true"
        )
    if plan.schedule is PipelineSchedule.ZERO_BUBBLE and plan.virtual_stages < 2:
        raise _refuse(
            "schedule", "zero_bubble", "supports it only with two or more chunks per device", "virtual_stages=2"
        )
    if plan.schedule is PipelineSchedule.GPIPE and plan.virtual_stages > 1:
        raise _refuse("virtual_stages", plan.virtual_stages, "runs GPipe with one chunk per device", "virtual_stages=1")
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
    if job.optimizer is not Optimizer.ADAM:
        raise _refuse("optimizer", job.optimizer.value, "supports Adam and AdamW", "optimizer=adam")
    if plan.recompute is Recompute.SELECTIVE:
        why = "recomputes whole layers, every n-th layer or by operator, not the attention core alone"
        raise _refuse("recompute", "selective", why, "recompute=none or full")
    if not job.trains_weights:
        raise _refuse("trains_weights", "false", "trains all weights (no frozen ones)", "trains_weights=true")
    _check_experts(job, plan)
    shards = plan.shard_group or d.dp * d.cp
    if plan.zero_stage and (shards % d.cp or (d.dp * d.cp) % shards):
        must = f"shards over a multiple of cp={d.cp} that divides dp x cp = {d.dp * d.cp}"
        raise _refuse("shard_group", plan.shard_group, must, str(d.dp * d.cp))


def _check_experts(job: TrainingJob, plan: TrainingPlan) -> None:
    """torchtitan takes expert ranks from cp first (and tp, where experts stay whole), then from the data ranks."""
    d = plan.dims
    if job.shape.moe_ffn is not None and d.ep == 1 and d.tp > 1 and not job.trainer.splits_experts:
        raise _refuse("ep", 1, "splits experts over tp where ep=1; whole ones need ep", f"{d.tp * d.cp}")
    inner = d.cp * (1 if job.trainer.splits_experts else d.tp)
    if d.ep > 1 and d.ep % inner:
        words = "cp" if job.trainer.splits_experts else "tp x cp"
        raise _refuse("ep", d.ep, f"spreads experts over whole groups of {words} = {inner}", str(inner))


def _training(job: TrainingJob, plan: TrainingPlan) -> Table:
    """Without a pipeline, microbatches are gradient accumulation; with one, they are all of the local batch."""
    pipeline = plan.num_microbatches if plan.dims.pp > 1 else 1
    return {
        "seq_len": job.seq_len,
        "local_batch_size": plan.microbatch_size * pipeline,
        "global_batch_size": job.global_batch_size,
        "mixed_precision_param": "float32" if job.recipe is Recipe.FP32 else "bfloat16",
        "enable_cpu_offload": plan.optimizer_offload,
    }


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
    if plan.schedule is PipelineSchedule.GPIPE:
        return "GPipe"
    if plan.schedule is PipelineSchedule.ZERO_BUBBLE:
        return "InterleavedZeroBubble"
    return "Interleaved1F1B" if plan.virtual_stages > 1 else "1F1B"


def _stages(plan: TrainingPlan, layers: int) -> Table:
    """Even stages by their size, embedding and head not counted; others module by module."""
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
    """All layers, none, or every n-th."""
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
