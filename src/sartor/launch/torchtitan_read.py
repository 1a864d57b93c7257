"""Read a torchtitan configuration as a plan, with the command line's overrides; unknown fields are listed."""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import replace

from sartor.bounded import parse_toml, printable
from sartor.errors import InputError
from sartor.json_types import JsonDict
from sartor.launch.fields import Quantities, fields_in, read_rows, rows
from sartor.launch.plan import JobParts, LaunchReading, canonical, check_numbers, device_layers, even_stages, no_devices
from sartor.launch.script import ScriptCommand, devices_in
from sartor.launch.stated import (
    NO_OPTIONS,
    Options,
    StatedDocument,
    bearing,
    keys_said,
    launch_words,
    merged,
    unset_arguments,
)
from sartor.launch.torchtitan import KIND
from sartor.launch.torchtitan_source import Flavor, RecipeSource, named_flavor, own_flavor_of
from sartor.model.shape import Numerics, TransformerShape
from sartor.model.training import ContextParallel, Optimizer, PipelineSchedule, Recipe, Recompute, TrainingPlan
from sartor.model.workload import AttentionKernel, Loss, ParallelDims
from sartor.operators import DType
from sartor.step.trainers.torchtitan import TORCHTITAN
from sartor.units import ceil_div, nearest_divisors

TORCHTITAN_TABLES = re.compile(r"training|parallelism|activation_checkpoint|optimizer")
"""Tables by which a TOML is torchtitan's."""


def read_torchtitan(
    text: str,
    command: ScriptCommand | None,
    options: Options = NO_OPTIONS,
    *,
    name: str = "train.toml",
) -> LaunchReading:
    """The plan of a TOML, with the command line's overrides and the ``options`` beside it. Raises `InputError`."""
    tables = parse_toml(text, "--launch", name)
    config = StatedDocument(raw=tables, options=options, older=OLDER)
    _override(config, command)
    model = (config.choice("model.name", "llama3"), config.choice("model.flavor", "debugmodel"))
    flavor, shape = named_flavor(*model), options.shape
    if shape is None and flavor:
        shape = replace(flavor.shape, numerics=flavor.computes)
    return _reading(config, command, shape, " ".join(model))


def read_torchtitan_python(
    source: RecipeSource, command: ScriptCommand | None, options: Options = NO_OPTIONS
) -> LaunchReading:
    """The plan of a Python configuration with the ``options`` beside it. Raises `InputError`."""
    config = StatedDocument(raw={}, options=options)
    for path, value in source.values.items():
        section, _, field = path.rpartition(".")
        _table(config.raw, section)[field] = value
    _override(config, command)
    if config.flag("compile.enable_async_tensor_parallel"):
        _table(config.raw, "parallelism")["enable_async_tensor_parallel"] = True
    if config.count("parallelism.expert_parallel_degree", 1) > 1:  # it reuses the ranks of tp: experts stay whole
        _table(config.raw, "parallelism")["expert_tensor_parallel_degree"] = 1
    flavor, shape = own_flavor_of(source) or named_flavor(source.module, source.flavor), options.shape
    if shape is None and flavor:
        shape = _with_settings(flavor, source)
    reading = _reading(config, command, shape, f"{source.module} {source.flavor}".strip())
    return replace(reading, unknown=(*reading.unknown, *source.unknown))


def _table(raw: JsonDict, section: str) -> JsonDict:
    for part in section.split(".") if section else ():
        raw = raw.setdefault(part, {})
    return raw


def _with_settings(flavor: Flavor, source: RecipeSource) -> TransformerShape:
    """A flavor's model with the module's own settings applied."""
    values = dict(flavor.computes.values)
    for row in rows(KIND, "numerics"):
        name, _, field = row.argument.partition(".")
        setting = source.settings.get(name.upper(), {}).get(field)
        if setting is not None:
            words = {text: value for value, text in (row.words or {}).items()}
            values[row.field] = words.get(setting, setting) if isinstance(setting, str) else setting
    if "rope_mscale_all_dim" in values:
        values["rope_mscale"] = values["rope_mscale_all_dim"]
    return replace(flavor.shape, numerics=Numerics(values=values), mtp_layers=source.mtp_layers)


def _reading(
    config: StatedDocument, command: ScriptCommand | None, shape: TransformerShape | None, model: str
) -> LaunchReading:
    layers = None if shape is None else int(shape.num_layers)
    devices = config.options.devices(command.num_devices if command else 0)
    values = read_rows(KIND, config, "config")
    plan = _read_plan(config, values, devices, layers)
    parts = _parts(config, values, plan.dims, by_operator=_by_operator(config))
    check_numbers(plan, splits_experts=parts.trainer.splits_experts)
    without_price = {row.argument: row.default for row in rows(KIND, "unpriced")}
    unknown = [name for name in config.left() if name not in without_price and not _no_bearing(name)]
    set_otherwise = {name: config.find(name) for name in config.left() if name in without_price}
    return LaunchReading(
        kind=KIND,
        plan=canonical(plan, layers),
        parts=parts,
        shape=shape,
        model=model,
        sequence_parallel=bool(plan.dims.sequence_parallel),
        unknown=(*unset_arguments(command.arguments if command else ()), *(_shown(name) for name in unknown)),
        unpriced=tuple(f"{name}={word}" for name, word in set_otherwise.items() if word != without_price[name]),
        ignored=tuple(name for name in config.left() if _no_bearing(name)),
        open_fields={**config.open, **bearing(unknown)},
        replaced=config.replaced,
        fields_in_file=(fields_in(KIND, config, "config") | devices_in(command)) - _without_word(values, plan),
        implied=_implied(config, devices),
        assumptions=(*config.assumptions, *(command.notes if command else ())),
    )


def _without_word(values: Quantities, plan: TrainingPlan) -> set[str]:
    """Fields whose keys say nothing of a plan's axis: a batch of -1, and the one of the two batch sizes of a device
    that has no effect."""
    without = {"global_batch_size"} if values["global_batch_size"] == -1 else set()
    return without | {"local_batch_size" if plan.dims.pp > 1 else "microbatch_size"}


def _implied(config: StatedDocument, devices: int) -> dict[str, str]:
    """Options that follow from keys in torchtitan's own way."""
    implied = {"recompute_layers": "layers / selective_ac_option"}
    if not devices:
        implied["dp"] = "data_parallel_replicate_degree x data_parallel_shard_degree"
    if "stages" not in fields_in(KIND, config, "config") and config.gives("parallelism.pipeline_parallel_schedule"):
        implied["virtual_stages"] = "pipeline_parallel_schedule's own chunks"
    return implied


def _read_plan(config: StatedDocument, values: Quantities, devices: int, layers: int | None) -> TrainingPlan:
    tp, pp, cp, ep, replicas, shards = (int(values[n] or 0) for n in ("tp", "pp", "cp", "ep", "replicas", "shards"))
    if config.options.sizes.keys() & {"tp", "pp", "cp"}:  # the launch's devices stay: other degrees, other shards
        devices, shards = devices or _devices_of_file(config), 0
        config.options.check_degrees(devices, replicas * tp * pp * cp)
    if shards < 1:
        shards = _leftover(config, devices, replicas * tp * pp * cp, ep)
    dp = replicas * shards
    if devices and dp * tp * pp * cp != devices:
        must = f"must be the product of all degrees, {dp * tp * pp * cp}"
        raise InputError("num_devices", devices, must, str(dp * tp * pp * cp))
    reshards = values["reshards"] if values["reshards"] != "default" else pp == 1
    zero = 0 if shards * cp == 1 else 3 if reshards else 2  # FSDP gathers parameters again, or keeps them after forward
    virtual, schedule, stages = _read_pipeline(config, pp, layers)
    if values["optimizer_offload"]:
        config.assumptions.append("enable_cpu_offload: only the offloading of optimizer states is priced")
    microbatch, count = _read_batch(config, values, dp, pp)
    plan = TrainingPlan(
        dims=ParallelDims(tp=tp, pp=pp, dp=dp, cp=cp, ep=ep, sequence_parallel=bool(values["sequence_parallel"])),
        microbatch_size=microbatch,
        num_microbatches=count,
        virtual_stages=virtual,
        schedule=schedule,
        zero_stage=zero,
        shard_group=shards * cp if zero and replicas > 1 else 0,
        optimizer_offload=bool(values["optimizer_offload"]),
        stage_layers=stages,
    )
    return _with_recompute(config, plan, layers)


def _devices_of_file(config: StatedDocument) -> int:
    """The product of the degrees in the file, without what is stated beside it; 0 if one takes the rest."""
    values = read_rows(KIND, StatedDocument(raw=config.raw, older=config.older), "config")
    return max(math.prod(int(values[name] or 0) for name in ("tp", "pp", "cp", "replicas", "shards")), 0)


def _leftover(config: StatedDocument, devices: int, others: int, ep: int) -> int:
    if not devices:
        raise no_devices(others * ep)
    if devices % others:
        below = devices // others * others
        near = f"{below} and {below + others}" if below else str(others)
        raise InputError("num_devices", devices, f"must be a multiple of the other degrees' product {others}", near)
    return devices // others


SCHEDULES = {
    "1f1b": (1, PipelineSchedule.ONE_F_ONE_B),
    "gpipe": (1, PipelineSchedule.GPIPE),
    "interleaved1f1b": (2, PipelineSchedule.ONE_F_ONE_B),
    "loopedbfs": (2, PipelineSchedule.GPIPE),
    "interleavedzerobubble": (2, PipelineSchedule.ZERO_BUBBLE),
    "zbvzerobubble": (2, PipelineSchedule.ZERO_BUBBLE_V),
    "dualpipev": (2, PipelineSchedule.DUAL_PIPE_V),
}
"""torch.distributed.pipelining's schedules: default chunks per device, and the schedule used here."""


def _read_pipeline(config: StatedDocument, pp: int, layers: int | None) -> tuple[int, int, tuple[int, ...] | None]:
    """(chunks per device, schedule, layers of every chunk or None)."""
    word = config.choice("parallelism.pipeline_parallel_schedule", "1F1B")
    if word.lower() not in SCHEDULES:
        near = difflib.get_close_matches(word.lower(), SCHEDULES, 1, 0.3)
        meant = "".join(near)
        must = "must be one of 1F1B, GPipe, Interleaved1F1B, LoopedBFS, InterleavedZeroBubble, ZBVZeroBubble, DualPipeV"
        raise InputError("parallelism.pipeline_parallel_schedule", word, must, meant)
    virtual, schedule = SCHEDULES[word.lower()]
    modules = config.find("parallelism.module_fqns_per_model_part")
    less_first = config.count("parallelism.pipeline_parallel_first_stage_less_layers", 1, least=0)
    less_last = config.count("parallelism.pipeline_parallel_last_stage_less_layers", 1, least=0)
    stage_size = config.count("parallelism.pipeline_parallel_layers_per_stage", 0, least=0)
    if pp == 1:
        return 1, PipelineSchedule.ONE_F_ONE_B, None
    if modules is not None:
        stages = _module_stages(modules)
        if len(stages) % pp:
            must = f"must have a multiple of pipeline_parallel_degree {pp} parts; it has {len(stages)}"
            raise InputError("parallelism.module_fqns_per_model_part", f"{len(stages)} parts", must)
        return len(stages) // pp, schedule, stages
    if layers is None:
        if stage_size:
            config.assumptions.append(f"{virtual} chunks per device (pipeline_parallel_layers_per_stage needs MODEL)")
        return virtual, schedule, None
    if stage_size:
        chunks = ceil_div(layers + less_first + less_last, stage_size)
        if chunks % pp:
            must = f"gives {chunks} stages, which must be a multiple of pipeline_parallel_degree {pp}"
            fits = str(ceil_div(layers + less_first + less_last, pp))
            raise InputError("parallelism.pipeline_parallel_layers_per_stage", stage_size, must, fits)
        virtual = chunks // pp
    return virtual, schedule, _weighted_stages(layers, pp * virtual, less_first, less_last)


def _weighted_stages(layers: int, chunks: int, less_first: int, less_last: int) -> tuple[int, ...]:
    """Even layers per chunk, with the embedding counted as ``less_first`` layers, the head as ``less_last``."""
    stages = list(even_stages(layers + less_first + less_last, chunks))
    stages[0] -= less_first
    stages[-1] -= less_last
    if min(stages) < 0:
        raise InputError("parallelism.pipeline_parallel_degree", chunks, f"leaves stages empty with {layers} layers")
    return tuple(stages)


def _module_stages(modules: object) -> tuple[int, ...]:
    if not isinstance(modules, list) or not all(isinstance(part, list) for part in modules) or len(modules) > 65_536:
        must = "must be lists of module names, one list per chunk"
        raise InputError("parallelism.module_fqns_per_model_part", modules, must)
    return tuple(sum(str(name).startswith("layers.") for name in part) for part in modules)


def _read_batch(config: StatedDocument, values: Quantities, dp: int, pp: int) -> tuple[int, int]:
    """Microbatch size, and number of microbatches of one pipeline per step."""
    local, total = int(values["local_batch_size"] or 8), int(values["global_batch_size"] or -1)
    if pp == 1 and "microbatch_size" in config.options.sizes:  # a pass over all layers is a local batch
        stated = config.options.sizes["microbatch_size"]
        config.replaced |= {"microbatch_size": str(local)} if local != stated else {}
        local = stated
    total = local * dp if total == -1 else total
    micro = int(values["microbatch_size"] or 1) if pp > 1 else local
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
        config.assumptions.append(f"the pipeline drains {passes} times per step; priced as draining once")
    return micro, total // (dp * micro)


def _with_recompute(config: StatedDocument, plan: TrainingPlan, layers: int | None) -> TrainingPlan:
    words = ("none", "selective", "full", "memory_budget")
    mode = config.choice("activation_checkpoint.mode", "selective", words)
    option = config.choice("activation_checkpoint.selective_ac_option", "2")
    if mode in ("none", "full"):
        return replace(plan, recompute=Recompute.FULL if mode == "full" else Recompute.NONE)
    usual = {"mode": "selective", "selective_ac_option": "2"}
    silent = [f"{name}={word}" for name, word in usual.items() if not config.shown(f"activation_checkpoint.{name}")]
    if silent and mode == "selective" and "recompute" not in config.options.fields:
        config.assumptions.append(f"activation_checkpoint {' '.join(silent)} (torchtitan's default)")
    if mode == "memory_budget" or option == "op":
        way = "the time of every second layer recomputed" if option == "op" else "every second layer recomputed"
        config.assumptions.append(f"activation_checkpoint {mode} {option}: priced as {way}")
        option = "2"
    if not option.isdigit() or int(option) < 1:
        raise InputError("activation_checkpoint.selective_ac_option", option, "must be op or a positive number", "2")
    if layers is None:
        config.assumptions.append("give MODEL to tell which layers are recomputed: all assumed")
        return replace(plan, recompute=Recompute.FULL)
    count = max(device_layers(plan, layers)) // int(option)
    if count == 0:
        return plan
    return replace(plan, recompute=Recompute.FULL, recompute_layers=count)


def _by_operator(config: StatedDocument) -> bool:
    """Whether outputs of single operators are kept, in every layer."""
    mode = config.choice("activation_checkpoint.mode", "selective")
    return mode == "selective" and config.choice("activation_checkpoint.selective_ac_option", "2") == "op"


def _parts(config: StatedDocument, values: Quantities, dims: ParallelDims, *, by_operator: bool) -> JobParts:
    total = int(values["global_batch_size"] or -1)
    name = config.choice("optimizer.name", "AdamW")
    if name not in ("Adam", "AdamW"):
        config.assumptions.append(f"optimizer {printable(name)} is priced as AdamW")
    compiled, listed = bool(values["fused_kernels"]), config.find("compile.components")
    components = listed if isinstance(listed, list) else ["model"]
    config.assumptions.append("flash attention and no dropout (the model's code)")
    expert_tp = int(values["expert_tp"] or 1)
    return JobParts(
        seq_len=int(values["seq_len"] or 2048),
        global_batch_size=None if total == -1 else total,
        recipe=_read_recipe(config, Recipe(values["param_dtype"])),
        optimizer=Optimizer.ADAM,
        attention_kernel=AttentionKernel.FLASH,
        context_parallel=ContextParallel(values["context_parallel"]),
        trainer=replace(
            TORCHTITAN,
            tp_overlap=bool(values["tp_overlap"]),
            fused_kernels=compiled and "model" in components,
            fused_loss=Loss.FUSED if compiled and "loss" in components else Loss.UNFUSED,
            checkpoints_operators=by_operator,
            main_dtype=DType(values["main_dtype"]),
            cuda_graphs=not config.flag("training.disable_cuda_graphs", True),
            splits_experts=bool(dims.tp > 1) and expert_tp > 1,
        ),
    )


def _read_recipe(config: StatedDocument, plain: Recipe) -> Recipe:
    """The precision set by converters of linear layers, under their newer and older section names."""
    converters = config.find("model.converters") or []
    words = converters if isinstance(converters, list) else str(converters).split(",")
    for kind, sections in (
        ("float8", ("quantize.linear.float8", "float8")),
        ("mx", ("quantize.linear.mx", "mx")),
        ("nvfp4", ("nvfp4",)),
    ):
        if not any(str(word).strip() in sections for word in words):
            continue
        names = [config.find(f"{section}.recipe_name") for section in sections]
        recipe = next((name for name in names if name is not None), None)
        if kind != "float8":
            return Recipe.MXFP8 if kind == "mx" else Recipe.NVFP4
        return Recipe.FP8_ROWWISE if str(recipe).startswith("rowwise") else Recipe.FP8_CURRENT
    if config.flag("float8.enable_float8_linear"):  # in the first versions
        return Recipe.FP8_CURRENT
    return plain


OLDER = {"parallelism": ("training", "experimental"), "compile": ("training",)}
"""Sections that held a section's fields in earlier versions."""


def _override(config: StatedDocument, command: ScriptCommand | None) -> None:
    """Apply overrides like ``--training.local_batch_size 4`` from the command line."""
    said = keys_said(command.arguments) if command else {}
    config.raw = merged(config.raw, {name: table for name, table in said.items() if isinstance(table, dict)})


def _no_bearing(name: str) -> bool:
    words = launch_words()
    return name in words["no_bearing_fields"]["torchtitan"] or name.startswith(tuple(words["no_bearing"]["torchtitan"]))


def _shown(name: str) -> str:
    near = difflib.get_close_matches(name, [row.argument for row in rows(KIND, "config")], 1, 0.85)
    return printable(name) + (f" (did you mean {near[0]}?)" if near else "")
