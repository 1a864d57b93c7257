"""A plan as a torchtitan TOML, and such a TOML as a plan.

Written against torchtitan/config/job_config.py of pytorch/torchtitan (its last form before configs moved to Python;
read 2026-11-21), older names of the same fields included; names are in tests/golden/launch_arguments.csv.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sartor.errors import InputError
from sartor.interop.config_text import printable
from sartor.interop.launch_flags import parse_flags
from sartor.interop.launch_plan import (
    JobParts,
    LaunchFile,
    LaunchFiles,
    LaunchKind,
    LaunchReading,
    canonical,
    check_batch,
    check_numbers,
    device_layers,
    even_stages,
    nearest_divisors,
    nodes_of,
    refuser,
    stages_of,
)
from sartor.interop.launch_script import Command, script_text
from sartor.model.parallel import ParallelDims
from sartor.model.shape import TransformerShape
from sartor.model.training import (
    ContextParallel,
    Framework,
    Optimizer,
    PipelineSchedule,
    Recipe,
    Recompute,
    TrainingJob,
    TrainingPlan,
)
from sartor.model.workload import AttentionKernel
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
Table = dict[str, Any]


# -- writing ------------------------------------------------------------------------------------------------------


def torchtitan_files(job: TrainingJob, plan: TrainingPlan, devices_per_node: int) -> LaunchFiles:
    """``train.toml`` and ``launch.sh``. Raises `InputError` for what torchtitan cannot do, naming what it could."""
    layers = int(job.shape.num_layers)
    plan = canonical(plan, layers)
    check_numbers(plan, splits_experts=job.framework.splits_experts)
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
        "compile": {"enable": job.framework.fused_kernels},
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
        raise _refuse("zero_stage", 0, "replicates (DDP) without any other parallelism alone", "zero_stage=2")
    if d.tp > 1 and not d.sequence_parallel:
        raise _refuse("sequence_parallel", "false", "always splits the sequence over tp", "sequence_parallel=true")
    if plan.schedule is PipelineSchedule.ZERO_BUBBLE and plan.virtual_stages < 2:
        raise _refuse("schedule", "zero_bubble", "has it for two chunks or more per device", "virtual_stages=2")
    if plan.schedule is PipelineSchedule.GPIPE and plan.virtual_stages > 1:
        raise _refuse("virtual_stages", plan.virtual_stages, "runs GPipe with one chunk per device", "virtual_stages=1")
    if job.context_parallel not in ROTATE and d.cp > 1:
        raise _refuse("context_parallel", job.context_parallel.value, "has no such exchange", "ring and all_gather")
    if job.recipe not in (Recipe.BF16, Recipe.FP32, *QUANTIZED):
        known = ", ".join(r.value for r in (Recipe.BF16, Recipe.FP32, *QUANTIZED))
        raise _refuse("recipe", job.recipe.value, "has no such precision", known)
    if job.optimizer is not Optimizer.ADAM:
        raise _refuse("optimizer", job.optimizer.value, "has Adam and AdamW", "optimizer=adam")
    if plan.recompute is Recompute.SELECTIVE:
        why = "recomputes whole layers, every n-th layer or by operator, not the attention core alone"
        raise _refuse("recompute", "selective", why, "recompute=none or full")
    if not job.trains_weights:
        raise _refuse("trains_weights", "false", "trains all weights", "trains_weights=true")
    _check_experts(job, plan)
    shards = plan.shard_group or d.dp * d.cp
    if plan.zero_stage and (shards % d.cp or (d.dp * d.cp) % shards):
        must = f"shards over a multiple of cp={d.cp} that divides dp x cp = {d.dp * d.cp}"
        raise _refuse("shard_group", plan.shard_group, must, str(d.dp * d.cp))


def _check_experts(job: TrainingJob, plan: TrainingPlan) -> None:
    """torchtitan takes expert ranks from cp first (and tp, where experts stay whole), then from the data ranks."""
    d = plan.dims
    if job.shape.moe_ffn is not None and d.ep == 1 and d.tp > 1 and not job.framework.splits_experts:
        raise _refuse("ep", 1, "splits experts over tp where ep=1; whole ones need ep", f"{d.tp * d.cp}")
    inner = d.cp * (1 if job.framework.splits_experts else d.tp)
    if d.ep > 1 and d.ep % inner:
        words = "cp" if job.framework.splits_experts else "tp x cp"
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
        "enable_async_tensor_parallel": job.framework.tp_overlap,
        "pipeline_parallel_degree": d.pp,
        "context_parallel_degree": d.cp,
        "context_parallel_rotate_method": ROTATE.get(job.context_parallel, "allgather"),
    }
    if d.ep > 1:
        split = d.tp if job.framework.splits_experts else 1
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


def toml_text(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Tables of scalars and lists as TOML."""
    blocks = []
    for name, table in tables.items():
        lines = [f"{key} = {_toml(value)}" for key, value in table.items()]
        blocks.append("\n".join([f"\n[{name}]", *lines]))
    return "\n".join(blocks) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


# -- reading ------------------------------------------------------------------------------------------------------


def read_torchtitan(
    text: str,
    command: Command | None,
    num_devices: int = 0,
    shape: TransformerShape | None = None,
    *,
    name: str = "train.toml",
) -> LaunchReading:
    """The plan of a TOML, with the command line's overrides. ``num_devices`` wins over what the script says; ``shape``
    over the model the file names. Raises `InputError`."""
    try:
        tables = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(printable(name), "not TOML", f"must be valid TOML; {error}") from None
    config = _Config(tables=tables)
    _override(config, command)
    model = (config.text("model", "name", "llama3"), config.text("model", "flavor", "debugmodel"))
    known = FLAVORS.get((model[0].replace("llama3_ft", "llama3"), model[1]))
    if shape is None and known:
        shape = load_model(known)
    layers = None if shape is None else int(shape.num_layers)
    devices = num_devices or (command.num_devices if command else 0)
    plan = _read_plan(config, devices, layers)
    parts = _parts(config, plan.dims)
    check_numbers(plan, splits_experts=parts.framework.splits_experts)
    return LaunchReading(
        kind=KIND,
        plan=canonical(plan, layers),
        parts=parts,
        shape=shape,
        model=" ".join(model),
        unknown=tuple(_shown(name, config) for name in config.left() if not _no_bearing(name)),
        ignored=tuple(name for name in config.left() if _no_bearing(name)),
        assumptions=(*config.assumptions, *(command.notes if command else ())),
    )


@dataclass(slots=True)
class _Config:
    """Fields by section, the older places of the parallel ones included; what was read is remembered."""

    tables: Table
    read: set[str] = field(default_factory=set)
    assumptions: list[str] = field(default_factory=list)

    def find(self, section: str, name: str) -> Any:
        older = {"parallelism": ("training", "experimental"), "compile": ("training",)}.get(section, ())
        for place in (section, *older):
            table = self.tables.get(place)
            if isinstance(table, dict) and name in table:
                self.read.add(f"{place}.{name}")
                return table[name]
        return None

    def size(self, section: str, name: str, default: int, *, least: int = 1) -> int:
        value = self.find(section, name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not (least <= value <= 2**31 or value == -1):
            raise InputError(f"{section}.{name}", value, f"must be an integer of at least {least}")
        return value

    def flag(self, section: str, name: str, default: bool = False) -> bool:
        value = self.find(section, name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise InputError(f"{section}.{name}", value, "must be true or false")
        return value

    def text(self, section: str, name: str, default: str) -> str:
        value = self.find(section, name)
        if value is None:
            return default
        if not isinstance(value, (str, int)) or isinstance(value, bool):
            raise InputError(f"{section}.{name}", value, "must be a string")
        return str(value)

    def choice(self, section: str, name: str, default: str, choices: tuple[str, ...]) -> str:
        word = self.text(section, name, default)
        if word not in choices:
            near = difflib.get_close_matches(word, choices, 1, 0.3)
            raise InputError(f"{section}.{name}", word, f"must be one of {', '.join(choices)}", "".join(near))
        return word

    def left(self) -> list[str]:
        return [name for name in _paths(self.tables) if name not in self.read]


def _paths(tables: Table, prefix: str = "") -> list[str]:
    out = []
    for key, value in tables.items():
        path = f"{prefix}{key}"
        out += _paths(value, path + ".") if isinstance(value, dict) else [path]
    return out


def _override(config: _Config, command: Command | None) -> None:
    """``--training.local_batch_size 4`` on the command line wins over the file."""
    for flag, values in parse_flags(command.arguments if command else ()).given.items():
        path = flag[2:].split(".")
        if len(path) < 2 or path == ["job", "config_file"]:
            continue
        table = config.tables
        for part in path[:-1]:
            inner = table.setdefault(part, {})
            table = inner if isinstance(inner, dict) else {}
        word = values[0] if values else "true"
        words = {"true": True, "True": True, "false": False, "False": False}
        table[path[-1]] = int(word) if word.lstrip("-").isdigit() and len(word) < 16 else words.get(word, word)


def _read_plan(config: _Config, devices: int, layers: int | None) -> TrainingPlan:
    tp, pp, cp = (config.size("parallelism", f"{n}_parallel_degree", 1) for n in ("tensor", "pipeline", "context"))
    ep = config.size("parallelism", "expert_parallel_degree", 1)
    replicas = config.size("parallelism", "data_parallel_replicate_degree", 1)
    shards = config.size("parallelism", "data_parallel_shard_degree", -1)
    if shards == -1:
        shards = _leftover(config, devices, replicas * tp * pp * cp, ep)
    dp = replicas * shards
    if devices and dp * tp * pp * cp != devices:
        must = f"must be the product of all degrees, {dp * tp * pp * cp}"
        raise InputError("num_devices", devices, must, str(dp * tp * pp * cp))
    zero = _read_zero(config, shards * cp > 1, pp)
    virtual, schedule, stages = _read_pipeline(config, pp, layers)
    microbatch, count = _read_batch(config, dp, pp)
    plan = TrainingPlan(
        dims=ParallelDims(tp=tp, pp=pp, dp=dp, cp=cp, ep=ep),
        microbatch_size=microbatch,
        num_microbatches=count,
        virtual_stages=virtual,
        schedule=schedule,
        zero_stage=zero,
        shard_group=shards * cp if zero and replicas > 1 else 0,
        optimizer_offload=config.flag("training", "enable_cpu_offload"),
        stage_layers=stages,
    )
    return _with_recompute(config, plan, layers)


def _leftover(config: _Config, devices: int, others: int, ep: int) -> int:
    if not devices:
        config.assumptions.append(
            f"parallelism.data_parallel_shard_degree=-1 takes all devices left, and the file does not count them: "
            f"{ep} taken; give --num-devices"
        )
        return ep
    if devices % others:
        below = devices // others * others
        near = f"{below} and {below + others}" if below else str(others)
        raise InputError("num_devices", devices, f"must be a multiple of the other degrees' product {others}", near)
    return devices // others


def _read_zero(config: _Config, sharded: bool, pp: int) -> int:
    """FSDP keeps parameters gathered after forward (stage 2) or gathers them again (3); "default" does the first under
    a pipeline."""
    words = ("default", "always", "never")
    word = config.choice("parallelism", "fsdp_reshard_after_forward", "default", words)
    if not sharded:
        return 0
    return 2 if word == "never" or (word == "default" and pp > 1) else 3


SCHEDULES = {
    "1f1b": (1, PipelineSchedule.ONE_F_ONE_B),
    "gpipe": (1, PipelineSchedule.GPIPE),
    "interleaved1f1b": (2, PipelineSchedule.ONE_F_ONE_B),
    "loopedbfs": (2, PipelineSchedule.GPIPE),
    "interleavedzerobubble": (2, PipelineSchedule.ZERO_BUBBLE),
    "zbvzerobubble": (2, PipelineSchedule.ZERO_BUBBLE),
    "dualpipev": (2, PipelineSchedule.ZERO_BUBBLE),
}
"""torch.distributed.pipelining's schedules: chunks per device where nobody says, and what they are here."""


def _read_pipeline(config: _Config, pp: int, layers: int | None) -> tuple[int, int, tuple[int, ...] | None]:
    """(chunks per device, schedule, layers of every chunk or None)."""
    word = config.text("parallelism", "pipeline_parallel_schedule", "1F1B")
    if word.lower() not in SCHEDULES:
        near = difflib.get_close_matches(word.lower(), SCHEDULES, 1, 0.3)
        meant = "".join(near)
        must = "must be one of 1F1B, GPipe, Interleaved1F1B, LoopedBFS, InterleavedZeroBubble, ZBVZeroBubble, DualPipeV"
        raise InputError("parallelism.pipeline_parallel_schedule", word, must, meant)
    virtual, schedule = SCHEDULES[word.lower()]
    modules = config.find("parallelism", "module_fqns_per_model_part")
    less_first = config.size("parallelism", "pipeline_parallel_first_stage_less_layers", 1, least=0)
    less_last = config.size("parallelism", "pipeline_parallel_last_stage_less_layers", 1, least=0)
    each = config.size("parallelism", "pipeline_parallel_layers_per_stage", 0, least=0)
    if pp == 1:
        return 1, PipelineSchedule.ONE_F_ONE_B, None
    if word.lower() in ("zbvzerobubble", "dualpipev"):
        config.assumptions.append(f"{word}: its V of chunks is priced as InterleavedZeroBubble")
    if modules is not None:
        stages = _module_stages(modules)
        if len(stages) % pp:
            must = f"must have a multiple of pipeline_parallel_degree {pp} parts; it has {len(stages)}"
            raise InputError("parallelism.module_fqns_per_model_part", f"{len(stages)} parts", must)
        return len(stages) // pp, schedule, stages
    if layers is None:
        if each:
            config.assumptions.append(f"{virtual} chunks per device (pipeline_parallel_layers_per_stage needs MODEL)")
        return virtual, schedule, None
    if each:
        chunks = ceil_div(layers + less_first + less_last, each)
        if chunks % pp:
            must = f"gives {chunks} stages, which must be a multiple of pipeline_parallel_degree {pp}"
            fits = str(ceil_div(layers + less_first + less_last, pp))
            raise InputError("parallelism.pipeline_parallel_layers_per_stage", each, must, fits)
        virtual = chunks // pp
    return virtual, schedule, _weighted_stages(layers, pp * virtual, less_first, less_last)


def _weighted_stages(layers: int, chunks: int, less_first: int, less_last: int) -> tuple[int, ...]:
    """As even as can be, the embedding counted as ``less_first`` layers and the head as ``less_last``."""
    stages = list(even_stages(layers + less_first + less_last, chunks))
    stages[0] -= less_first
    stages[-1] -= less_last
    if min(stages) < 0:
        raise InputError("parallelism.pipeline_parallel_degree", chunks, f"leaves stages empty with {layers} layers")
    return tuple(stages)


def _module_stages(modules: Any) -> tuple[int, ...]:
    if not isinstance(modules, list) or not all(isinstance(part, list) for part in modules) or len(modules) > 65_536:
        must = "must be lists of module names, one list per chunk"
        raise InputError("parallelism.module_fqns_per_model_part", modules, must)
    return tuple(sum(str(name).startswith("layers.") for name in part) for part in modules)


def _read_batch(config: _Config, dp: int, pp: int) -> tuple[int, int]:
    """Microbatch size, and microbatches of one pipeline in one step."""
    local = config.size("training", "local_batch_size", 0, least=0) or config.size("training", "batch_size", 8)
    total = config.size("training", "global_batch_size", -1)
    total = local * dp if total == -1 else total
    micro = config.size("parallelism", "pipeline_parallel_microbatch_size", 1) if pp > 1 else local
    if total % (local * dp):
        below = total // (local * dp) * local * dp
        must = f"must be a multiple of local_batch_size x data-parallel degree = {local} x {dp}"
        near = f"{below} and {below + local * dp}" if below else str(local * dp)
        raise InputError("training.global_batch_size", total, must, near)
    if local % micro:
        must = f"must divide training.local_batch_size {local}"
        raise InputError("parallelism.pipeline_parallel_microbatch_size", micro, must, nearest_divisors(local, micro))
    if pp > 1 and total > local * dp:
        passes = total // (local * dp)
        config.assumptions.append(f"the pipeline is emptied {passes} times a step; priced as emptied once")
    return micro, total // (dp * micro)


def _with_recompute(config: _Config, plan: TrainingPlan, layers: int | None) -> TrainingPlan:
    from dataclasses import replace

    words = ("none", "selective", "full", "memory_budget")
    mode = config.choice("activation_checkpoint", "mode", "selective", words)
    option = config.text("activation_checkpoint", "selective_ac_option", "2")
    if mode in ("none", "full"):
        return replace(plan, recompute=Recompute.FULL if mode == "full" else Recompute.NONE)
    if mode == "memory_budget" or option == "op":
        config.assumptions.append(f"activation_checkpoint {mode} {option}: priced as every second layer recomputed")
        option = "2"
    if not option.isdigit() or int(option) < 1:
        raise InputError("activation_checkpoint.selective_ac_option", option, "must be op or a positive number", "2")
    if layers is None:
        config.assumptions.append("which layers are recomputed needs MODEL: all taken")
        return replace(plan, recompute=Recompute.FULL)
    count = max(device_layers(plan, layers)) // int(option)
    if count == 0:
        return plan
    return replace(plan, recompute=Recompute.FULL, recompute_layers=count)


def _parts(config: _Config, dims: ParallelDims) -> JobParts:
    seq = config.size("training", "seq_len", 2048)
    total = config.size("training", "global_batch_size", -1)
    param = config.choice("training", "mixed_precision_param", "bfloat16", ("bfloat16", "float32"))
    name = config.text("optimizer", "name", "AdamW")
    if name not in ("Adam", "AdamW"):
        config.assumptions.append(f"optimizer {printable(name)} is priced as AdamW")
    rotate = config.choice("parallelism", "context_parallel_rotate_method", "allgather", ("allgather", "alltoall"))
    compiled = config.flag("compile", "enable") or config.flag("training", "compile")
    etp = config.size("parallelism", "expert_tensor_parallel_degree", 1)
    return JobParts(
        seq_len=seq,
        global_batch_size=None if total == -1 else total,
        recipe=_read_recipe(config, param),
        optimizer=Optimizer.ADAM,
        attention_kernel=AttentionKernel.FLASH,
        context_parallel=ContextParallel.RING if rotate == "alltoall" else ContextParallel.ALL_GATHER,
        framework=Framework(
            name="torchtitan",
            tp_overlap=config.flag("parallelism", "enable_async_tensor_parallel"),
            fused_kernels=compiled,
            splits_experts=bool(dims.tp > 1) and (etp > 1 or bool(dims.ep == 1)),
            main_params=False,
        ),
    )


def _read_recipe(config: _Config, param: str) -> Recipe:
    """Converters of linear layers, by their newer and their older sections."""
    converters = config.find("model", "converters") or []
    words = converters if isinstance(converters, list) else str(converters).split(",")
    for kind, sections in (("float8", ("quantize.linear.float8", "float8")), ("mx", ("quantize.linear.mx", "mx"))):
        if not any(str(word).strip() in sections for word in words):
            continue
        recipe = _nested(config, sections, "recipe_name")
        if kind == "mx":
            return Recipe.MXFP8
        return Recipe.FP8_ROWWISE if str(recipe).startswith("rowwise") else Recipe.FP8_CURRENT
    return Recipe.FP32 if param == "float32" else Recipe.BF16


def _nested(config: _Config, sections: tuple[str, ...], name: str) -> Any:
    for section in sections:
        table: Any = config.tables
        for part in section.split("."):
            table = table.get(part) if isinstance(table, dict) else None
        if isinstance(table, dict) and name in table:
            config.read.add(f"{section}.{name}")
            return table[name]
    return None


_SILENT = (
    "job.", "profiling.", "metrics.", "lr_scheduler.", "checkpoint.", "comm.", "memory_estimation.", "validation.",
    "debug.", "model.tokenizer_path", "model.hf_assets_path", "model.print_after_conversion", "optimizer.", "model.",
    "training.dataset", "training.steps", "training.max_norm", "training.gc_", "training.seed", "training.warmup",
    "training.dataloader", "training.deterministic", "activation_checkpoint.per_op", "activation_checkpoint.early_stop",
    "quantize.linear.float8.filter", "float8.filter", "experimental.custom", "compile.components", "compile.backend",
    "training.mixed_precision_reduce", "quantize.linear.mx.", "quantize.linear.float8.", "float8.", "mx.",
)  # fmt: skip
"""Fields that change neither a step's time nor its memory in a way that is modelled."""

KNOWN = (
    "training.local_batch_size", "training.global_batch_size", "training.seq_len", "training.enable_cpu_offload",
    "parallelism.data_parallel_shard_degree", "parallelism.data_parallel_replicate_degree", "compile.enable",
    "parallelism.tensor_parallel_degree", "parallelism.pipeline_parallel_degree", "activation_checkpoint.mode",
    "parallelism.context_parallel_degree", "parallelism.expert_parallel_degree",
    "parallelism.pipeline_parallel_schedule", "parallelism.pipeline_parallel_microbatch_size",
)  # fmt: skip


def _no_bearing(name: str) -> bool:
    return name.startswith(_SILENT)


def _shown(name: str, config: _Config) -> str:
    near = difflib.get_close_matches(name, KNOWN, 1, 0.85)
    return printable(name) + (f" (did you mean {near[0]}?)" if near else "")
