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
from sartor.launch.deepspeed import (
    read_attention,
    read_deepspeed,
    read_main_dtype,
    read_tuning,
    said_by,
    sorted_out,
)
from sartor.launch.fields import (
    Quantities,
    check_rows,
    fields_in,
    quantities,
    read_rows,
    release_of,
    traits_of,
    written,
    written_fields,
)
from sartor.launch.plan import (
    JobParts,
    LaunchFile,
    LaunchFiles,
    LaunchKind,
    LaunchReading,
    canonical,
    check_numbers,
    check_runs,
    launchable,
    no_devices,
    nodes_of,
)
from sartor.launch.script import ScriptCommand, check_known, devices_in, launch_script
from sartor.launch.shell import Beside, nothing_beside
from sartor.launch.stated import (
    NO_OPTIONS,
    NOT_IN_FILE,
    Flags,
    Options,
    StatedDocument,
    bearing,
    keys_said,
    of_program,
    parse_flags,
    write_yaml,
)
from sartor.model.training import ContextParallel, Optimizer, Recipe, Recompute, TrainingJob, TrainingPlan
from sartor.model.workload import Loss, ParallelDims
from sartor.step.trainers.fsdp import FSDP

KIND = LaunchKind.ACCELERATE
OPTIMIZERS = {Optimizer.ADAM: "adamw_torch_fused", Optimizer.SGD: "sgd"}
ACCELERATE_KEYS = re.compile(r"distributed_type|mixed_precision|num_processes|num_machines")
"""Keys by which a YAML is accelerate's."""
BATCH_OF_PROGRAM = "--per_device_train_batch_size"
RESHARDS = "fsdp_config.fsdp_reshard_after_forward"


# -- writing ------------------------------------------------------------------------------------------------------


def accelerate_files(job: TrainingJob, plan: TrainingPlan, devices_per_node: int, version: str = "") -> LaunchFiles:
    """``accelerate.yaml`` and ``launch.sh``. Raises `InputError` for what accelerate's FSDP cannot do."""
    release_of(KIND, version)
    plan = launchable(job, plan)
    values, traits = quantities(job, plan), traits_of(job, plan)
    check_rows(KIND, "config", values, traits)
    check_runs(KIND, job, plan)
    nodes = nodes_of(int(plan.num_devices), devices_per_node)
    by_mesh = "mesh" in traits  # FSDP2 runs it: accelerate has tensor parallelism only there
    # FSDP recomputes by its own field; Hugging Face's Trainer raises an error on both.
    program = {**values, "recomputed": values["recomputed"] and not by_mesh}
    arguments = [*written("huggingface", "trainer", program, traits, {}), ("--optim", OPTIMIZERS[job.optimizer])]
    about = f"accelerate: {job.shape.name or 'a model'} on {plan.num_devices} devices"
    notes = ("name the layer class to wrap (fsdp_transformer_layer_cls_to_wrap) where the model does not",)
    script = launch_script(
        about=about,
        launcher="accelerate launch",
        nodes=nodes,
        script='"${TRAIN_SCRIPT:-train.py}"',
        groups={"TRAINER_ARGS": arguments},
        notes=notes if plan.zero_stage else (),
    )
    values |= {"nodes": nodes[0], "distributed": "FSDP" if by_mesh else "MULTI_GPU"}
    fields = written_fields(KIND, "config", values, traits, {RESHARDS: plan.zero_stage == 3})
    config = f"# {about}\n# Written by sartor.\n{write_yaml(fields)}"
    files = (LaunchFile(name="accelerate.yaml", text=config), script)
    return LaunchFiles(kind=KIND, files=files, notes=notes if plan.zero_stage else ())


# -- reading ------------------------------------------------------------------------------------------------------


def read_accelerate(
    config: JsonMap, command: ScriptCommand | None, options: Options = NO_OPTIONS, beside: Beside = nothing_beside
) -> LaunchReading:
    """The plan of a configuration and the training program's arguments with the ``options`` that win over both;
    ``beside`` returns the text of the DeepSpeed file if one is named. Raises `InputError`."""
    fields = StatedDocument(raw=dict(config), options=options, assumptions=list(command.notes) if command else [])
    flags = parse_flags(command.arguments if command else (), options)
    kind = fields.find("distributed_type") or "NO"
    if str(kind).upper() == "DEEPSPEED":
        return _read_deepspeed(fields, command, beside)
    if str(kind).upper() not in ("FSDP", "MULTI_GPU", "NO"):
        must = "must be FSDP, DEEPSPEED, MULTI_GPU or NO"
        raise InputError("distributed_type", printable(str(kind)), must, "FSDP")
    processes = fields.size("num_processes")
    devices = options.devices(processes or (command.num_devices if command else 0))
    if not devices:
        raise no_devices(1)
    values, program = read_rows(KIND, fields, "config"), read_rows("huggingface", flags, "trainer")
    dims, zero, shard_group = _read_dims(fields, values, devices, sharded=str(kind).upper() == "FSDP")
    micro = int(program["microbatch_size"] or 1)
    steps = int(program["num_microbatches"] or fields.size("gradient_accumulation_steps") or 1)
    for name in ("--fsdp", "--fsdp_config"):  # read into the fields
        flags.words(name)
    if values["optimizer_offload"]:
        fields.assumptions.append("fsdp_offload_params: only the offloading of optimizer states is priced")
    plan = TrainingPlan(
        dims=dims,
        microbatch_size=micro,
        num_microbatches=steps,
        zero_stage=zero,
        shard_group=shard_group,
        recompute=Recompute.FULL if program["recomputed"] or values["recomputed"] else Recompute.NONE,
        optimizer_offload=bool(values["optimizer_offload"]),
    )
    check_numbers(plan)
    batch = int(dims.dp) * micro * steps
    parts = _parts(fields, flags, values, program, batch)
    said = fields.shown("mixed_precision") or flags.has("--bf16") or flags.has("--fp16")
    no_precision = {} if said else {"mixed_precision": NOT_IN_FILE}  # only the program decides on it
    unknown, _, ignored = sorted_out(fields, "accelerate")
    of_price, strange, without_effect = of_program(flags)
    check_known(strange, len(flags.given), command)
    unknown += [*of_price, *strange]
    return LaunchReading(
        kind=KIND,
        plan=canonical(plan),
        parts=parts,
        unknown=(*flags.unset_arguments(), *unknown),
        ignored=(*ignored, *without_effect),
        assumptions=(*fields.assumptions, *flags.assumptions),
        open_fields={**fields.open, **flags.open, **bearing(unknown), **no_precision},
        assumed={} if flags.shown(BATCH_OF_PROGRAM) else _assumed(micro, batch),
        replaced={**flags.replaced, **fields.replaced},
        fields_in_file=fields_in(KIND, fields, "config")
        | fields_in("huggingface", flags, "trainer")
        | devices_in(command)
        | said_by(flags),
    )


def _assumed(micro: int, batch: int) -> dict[str, str]:
    """What is taken where neither the file nor an argument of the program says the batch."""
    which = f"the program's {BATCH_OF_PROGRAM} says it, which the file does not have"
    return {
        "microbatch_size": f"microbatch_size={micro} is assumed: {which} (set --microbatch-size)",
        "global_batch_size": f"global_batch_size={batch} is assumed: no accumulation (set --global-batch-size)",
    }


def launcher_config(launcher: Sequence[str]) -> JsonDict:
    """The options of ``accelerate launch`` as fields of its configuration file; an option wins over the file."""
    out: JsonDict = {}
    for key, words in keys_said(launcher).items():
        value = words[0] if isinstance(words, list) and words else words
        sections = (name for name, prefixes in SECTIONS.items() if key.startswith(prefixes))
        if key in TYPES:
            out["distributed_type"] = TYPES[key]
        elif section := next(sections, None):
            out.setdefault(section, {})[key] = value
        elif key in ("num_processes", "num_machines", "mixed_precision", "dynamo_backend", "nnodes"):
            out["num_machines" if key == "nnodes" else key] = value
    return out


TYPES = {"use_fsdp": "FSDP", "use_deepspeed": "DEEPSPEED", "multi_gpu": "MULTI_GPU"}
SECTIONS: dict[str, str | tuple[str, ...]] = {
    "fsdp_config": "fsdp_",
    "parallelism_config": "parallelism_config_",
    "deepspeed_config": (
        "deepspeed_config_file",
        "zero",
        "offload_",
        "gradient_accumulation_steps",
        "gradient_clipping",
    ),
}
"""Sections of the file by the start of the options that it holds."""


def _read_deepspeed(fields: StatedDocument, command: ScriptCommand | None, beside: Beside) -> LaunchReading:
    """DeepSpeed under accelerate: its own file, or accelerate's few fields for it."""
    devices = fields.size("num_processes") or (command.num_devices if command else 0)
    options = replace(fields.options, num_devices=fields.options.devices(devices))
    stated = frozenset({"num_devices"} if devices else ())
    precision = str(fields.find("mixed_precision") or ("no" if fields.shown("mixed_precision") else "auto"))
    if name := fields.find("deepspeed_config.deepspeed_config_file"):
        text = beside(str(name))
        if text is None:
            must = "must be in the folder of the file that names it"
            raise InputError("deepspeed_config_file", printable(str(name)), must)
        config = parse_json(text.encode(), name=printable(str(name)))
    else:
        stage, steps = (fields.find(f"deepspeed_config.{key}") for key in ("zero_stage", "gradient_accumulation_steps"))
        zero: JsonDict = {} if stage is None else {"stage": stage}
        for part in ("offload_optimizer", "offload_param"):
            device = fields.find(f"deepspeed_config.{part}_device")
            zero |= {part: {"device": device}} if device not in (None, "none") else {}
        config = {"zero_optimization": zero}
        config |= {"gradient_accumulation_steps": steps} if isinstance(steps, int) else {}  # else the program sets them
        config |= {"bf16": {"enabled": "auto"}} if precision == "auto" else {}
    for word in {"bf16", "fp16"} & {precision}:  # in place of "auto"
        if isinstance(table := config.setdefault(word, {}), dict) and table.get("enabled", "auto") == "auto":
            table["enabled"] = True
    reading = read_deepspeed(config, command, options)
    stated |= {"recipe"} if fields.shown("mixed_precision") else set()
    unknown, _, ignored = sorted_out(fields, "accelerate")
    return replace(
        reading,
        unknown=(*reading.unknown, *unknown),
        ignored=(*reading.ignored, *ignored),
        open_fields={**reading.open_fields, **bearing(unknown)},
        fields_in_file=reading.fields_in_file | stated,
    )


def _read_dims(
    fields: StatedDocument, values: Quantities, devices: int, *, sharded: bool
) -> tuple[ParallelDims, int, int]:
    """(dims, ZeRO stage, devices the shards are spread over or 0)."""
    path = "parallelism_config.parallelism_config_"
    tp, cp = int(values["tp"] or 1), int(values["cp"] or 1)
    if (sp := fields.size(f"{path}sp_size") or 1) > 1:
        fields.assumptions.append(f"parallelism_config_sp_size={sp} (Ulysses) is priced as context parallelism")
        cp *= sp
    fields.options.check_degrees(devices, tp * cp)
    if devices % (tp * cp):
        below = devices // (tp * cp) * tp * cp
        raise InputError("num_processes", devices, f"must be a multiple of tp x cp = {tp * cp}", str(below or tp * cp))
    dp = devices // (tp * cp)
    replicas = fields.size(f"{path}dp_replicate_size") or 1
    shards = fields.size(f"{path}dp_shard_size") or dp // max(replicas, 1)
    if fields.options.sizes.keys() & {"tp", "cp"}:  # other degrees, other shards
        shards = dp // max(replicas, 1)
    if replicas * shards != dp and sharded:
        must = f"times dp_replicate_size {replicas} must be num_processes over tp x cp = {dp}"
        raise InputError(f"{path}dp_shard_size", shards, must, str(dp // replicas))
    strategy = str(fields.find("fsdp_config.fsdp_sharding_strategy") or "FULL_SHARD").upper()
    reshard = fields.find(RESHARDS)
    keeps = reshard is False or reshard == "SHARD_GRAD_OP" or strategy in KEEPING
    zero = 0 if not sharded or strategy in ("NO_SHARD", "3") else 2 if keeps else 3
    if (strategy.startswith("HYBRID") or strategy in ("4", "5")) and replicas == 1:  # shards over one machine
        replicas, shards = hybrid_groups(fields.size("num_machines"), dp, "fsdp_sharding_strategy")
    dims = ParallelDims(tp=tp, dp=dp, cp=cp, sequence_parallel=False)
    return dims, zero, shards * cp if zero and replicas > 1 else 0


KEEPING = ("SHARD_GRAD_OP", "2", "HYBRID_SHARD_ZERO2", "5")
"""Strategies that keep the gathered weights until the backward pass."""


def hybrid_groups(machines: int | None, dp: int, key: str) -> tuple[int, int]:
    """(replicas, devices of each set of shards) of HYBRID_SHARD, which shards over one machine. Raises `InputError` for
    more devices than a machine usually has where nothing says how many machines there are."""
    if not machines and dp > MACHINE:
        must = "shards over one machine, and nothing says how many machines there are"
        raise InputError(key, "HYBRID_SHARD", must, "num_machines in accelerate's file, or --nnodes in the script")
    machines = machines or 1
    return (machines, dp // machines) if dp % machines == 0 else (1, dp)


MACHINE = 8
"""Devices of one machine at most, unless a file says otherwise."""


def _parts(fields: StatedDocument, flags: Flags, values: Quantities, program: Quantities, batch: int) -> JobParts:
    recipe = Recipe(values["recipe"])
    if recipe is Recipe.FP32 and fields.shown("mixed_precision") and not (program["bf16"] or program["fp16"]):
        fields.assumptions.append("trained in fp32: mixed_precision is no, and no --bf16 or --fp16 is given")
    if recipe is Recipe.FP32 and (program["bf16"] or program["fp16"]):
        recipe = Recipe.BF16 if program["bf16"] else Recipe.FP16
    backend = fields.find("dynamo_config.dynamo_backend")
    compiled = program["fused_kernels"] or str(backend or "no").lower() not in ("no", "false")
    parts = JobParts(
        seq_len=int(program["seq_len"]) if program["seq_len"] else None,
        global_batch_size=batch,
        recipe=recipe,
        **read_tuning(flags),
        attention_kernel=read_attention(flags, program, fields.assumptions),
        packed=flags.flag("--packing"),
        context_parallel=ContextParallel(values["context_parallel"]),
        trainer=replace(
            FSDP,
            fused_kernels=bool(compiled),
            fused_loss=Loss.LINEAR if program["linear_loss"] else Loss.UNFUSED,
            main_dtype=read_main_dtype(flags),
        ),
    )
    fields.assumptions.extend(parts.pack_words())
    return parts
