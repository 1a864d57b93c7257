"""Write a plan as a DeepSpeed configuration (JSON), and read one as a plan.

Written against docs/_pages/config-json.md of DeepSpeed (read 2026-11-21); names in tests/golden/launch_arguments.csv.
Sequence length and recomputation belong to the training program, and are written as Hugging Face Trainer's arguments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Iterator
from dataclasses import replace

from sartor.bounded import printable
from sartor.errors import InputError
from sartor.json_types import JsonDict, JsonMap
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
from sartor.launch.script import ScriptCommand, beside_script, check_known, devices_in, launch_script
from sartor.launch.stated import (
    LEFT_TO_PROGRAM,
    NO_OPTIONS,
    NOT_IN_FILE,
    Flags,
    Options,
    StatedDocument,
    bearing,
    launch_words,
    of_program,
    parse_flags,
)
from sartor.model.shape import Value
from sartor.model.training import MemoryHabits, Optimizer, Recipe, Recompute, Trainer, TrainingJob, TrainingPlan
from sartor.model.workload import AttentionKernel, LoraTargets, Loss, ParallelDims
from sartor.operators import DType
from sartor.step.trainers.deepspeed import DEEPSPEED

KIND = LaunchKind.DEEPSPEED
ON_NVME = "states on NVMe are priced as in host memory, which is faster"
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
    values, traits = quantities(job, plan), traits_of(job, plan)
    check_rows(KIND, "config", values, traits)
    check_runs(KIND, job, plan)
    notes = _notes(job, plan)
    script = launch_script(
        about=f"DeepSpeed: {job.shape.name or 'a model'} on {plan.num_devices} devices",
        launcher="deepspeed",
        nodes=nodes_of(int(plan.num_devices), devices_per_node),
        script='"${TRAIN_SCRIPT:-train.py}"',
        groups={
            "TRAINER_ARGS": [
                ("--deepspeed", beside_script("ds_config.json")),
                *written("huggingface", "trainer", values, traits, {}),
            ]
        },
        notes=notes,
    )
    if job.trainer.grad_dtype.bytes != _trained_in(job.recipe).bytes:
        values["reduced_dtype"] = job.trainer.grad_dtype.value
    auto = dict.fromkeys(AUTO[job.optimizer], "auto")
    optimizer = {"optimizer.type": OPTIMIZERS[job.optimizer], "optimizer.params": auto}
    config = json.dumps(written_fields(KIND, "config", values, traits, optimizer), indent=2) + "\n"
    return LaunchFiles(kind=KIND, files=(LaunchFile(name="ds_config.json", text=config), script), notes=notes)


def _notes(job: TrainingJob, plan: TrainingPlan) -> tuple[str, ...]:
    filled = 'the training program must use Hugging Face\'s Trainer, which replaces each "auto" by its own arguments'
    leaves = (
        "if each expert is a module of its own, mark the block of experts by deepspeed.utils.set_z3_leaf_modules: "
        "else ZeRO 3 waits forever where a device has no token for an expert"
    )
    return (filled, leaves) if plan.zero_stage == 3 and job.shape.moe_ffn is not None else (filled,)


TRAINED_IN = {Recipe.BF16: DType.BF16, Recipe.FP16: DType.FP16, Recipe.FP32: DType.FP32}


def _trained_in(recipe: Recipe) -> DType:
    """The type that gradients are reduced in unless ``communication_data_type`` says otherwise (runtime/engine.py)."""
    return TRAINED_IN.get(recipe, DType.FP32)


# -- reading ------------------------------------------------------------------------------------------------------


def read_deepspeed(config: JsonMap, command: ScriptCommand | None, options: Options = NO_OPTIONS) -> LaunchReading:
    """The plan of a configuration and the training program's arguments with the ``options`` beside them. Raises
    `InputError`."""
    fields = StatedDocument(raw=dict(config), options=options, assumptions=list(command.notes) if command else [])
    flags = parse_flags(command.arguments if command else (), options)
    devices = options.devices(command.num_devices if command else 0)
    values, program = read_rows(KIND, fields, "config"), read_rows("huggingface", flags, "trainer")
    tp, zero = int(values["tp"] or 1), int(values["zero_stage"] or 0)
    dp, microbatch, count = _read_batch(fields, flags, values, program, devices, tp)
    configured = fields.find("activation_checkpointing") is not None
    if '"nvme"' in json.dumps(config.get("zero_optimization")):  # not by `find`: a value that was read has a price
        fields.assumptions.append(ON_NVME)
    if configured and not program["recomputed"]:
        fields.assumptions.append("activation_checkpointing is configured: all layers taken as recomputed")
    plan = TrainingPlan(
        dims=ParallelDims(tp=tp, dp=dp, sequence_parallel=False),
        microbatch_size=microbatch,
        num_microbatches=count,
        zero_stage=zero,
        recompute=Recompute.FULL if program["recomputed"] or configured else Recompute.NONE,
        optimizer_offload=bool(values["optimizer_offload"]),
    )
    check_numbers(plan)
    recipe, left = _read_recipe(fields, flags)
    flags.on("--deepspeed", "--deepspeed_config")
    tuning = read_tuning(flags)
    read_main_dtype(flags)  # BF16_Optimizer keeps fp32 main weights whatever is loaded
    parts = JobParts(
        seq_len=int(program["seq_len"]) if program["seq_len"] else None,
        global_batch_size=dp * microbatch * count,
        recipe=recipe,
        **{**tuning, "optimizer": _read_optimizer(fields, tuning["optimizer"])},
        attention_kernel=read_attention(flags, program, fields.assumptions),
        packed=flags.flag("--packing"),
        trainer=replace(
            deepspeed_trainer(fields, recipe, zero),
            fused_kernels=bool(program["fused_kernels"]),
            fused_loss=Loss.LINEAR if program["linear_loss"] else Loss.UNFUSED,
        ),
    )
    fields.assumptions.extend(parts.pack_words())
    unknown, unpriced, ignored = sorted_out(fields, "deepspeed")
    of_price, strange, without_effect = of_program(flags)
    check_known(strange, len(flags.given), command)
    unknown += [*of_price, *strange]
    stated = _fields_in(fields, flags) | devices_in(command)
    return LaunchReading(
        kind=KIND,
        plan=canonical(plan),
        parts=parts,
        unknown=(*flags.unset_arguments(), *unknown),
        unpriced=tuple(unpriced),
        ignored=(*ignored, *without_effect),
        assumptions=(*fields.assumptions, *flags.assumptions),
        open_fields={**fields.open, **flags.open, **bearing(unknown), **left, **_left_batch(fields, flags)},
        assumed=_assumed(fields, flags, dp * microbatch * count),
        replaced={**flags.replaced, **fields.replaced},
        fields_in_file=stated | said_by(flags),
        implied=dict(_implied(stated, devices)),
    )


def _implied(stated: Container[str], devices: int) -> Iterator[tuple[str, str]]:
    """What follows from a batch of all devices."""
    if "global_batch_size" not in stated:
        return
    if not devices:
        yield "dp", "train_batch_size / (train_micro_batch_size_per_gpu x gradient_accumulation_steps)"
    if "microbatch_size" not in stated:
        yield "microbatch_size", "train_batch_size / (dp x gradient_accumulation_steps)"


def _fields_in(fields: StatedDocument, flags: Flags) -> frozenset[str]:
    """Fields of the launch table that configuration and program say; DeepSpeed's optimizer wins over the program's."""
    return fields_in(KIND, fields, "config") | (fields_in("huggingface", flags, "trainer") - {"optimizer"})


def _with_sums(recipe: Recipe, sums: Value | None, zero: int) -> MemoryHabits:
    """What DeepSpeed holds if gradients are summed in this type."""
    if sums != "fp32" or recipe not in (Recipe.BF16, Recipe.FP16):
        return DEEPSPEED.memory
    beside = 2.0 if recipe is Recipe.BF16 and zero == 1 else 0.0
    return replace(DEEPSPEED.memory, grad_bytes=4.0 + beside)


def sorted_out(fields: StatedDocument, trainer: str) -> tuple[list[str], list[str], list[str]]:
    """Unread fields as (unknown, of the trainer without a price, without effect on time and memory)."""
    silent, unpriced_prefixes = (tuple(launch_words()[kind].get(trainer, ())) for kind in ("no_bearing", "unpriced"))
    unknown, unpriced, ignored = list[str](), list[str](), list[str]()
    for path in fields.left():
        if path.startswith(unpriced_prefixes) and not fields.off(path):
            unpriced.append(printable(f"{path}={fields.find(path)}"))
        else:
            (ignored if path.startswith((*silent, *unpriced_prefixes)) else unknown).append(printable(path))
    return unknown, unpriced, ignored


def _read_batch(
    fields: StatedDocument, flags: Flags, values: Quantities, program: Quantities, devices: int, tp: int
) -> tuple[int, int, int]:
    """(dp, microbatch size, accumulation steps); a missing one follows from the others and the whole batch."""
    total, micro, steps = (
        None if stated is None else int(stated)
        for stated in (
            values["global_batch_size"],
            values["microbatch_size"] or program["microbatch_size"],
            values["num_microbatches"] or program["num_microbatches"],
        )
    )
    stated = fields.options.sizes.keys() & {"global_batch_size", "microbatch_size"}
    if total and stated:  # the steps follow
        steps = None
    fields.options.check_degrees(devices, tp)
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
        micro = 1 if not total or _left_batch(fields, flags) else max(total // (dp * (steps or 1)), 1)
    if steps is None:
        steps = 1 if not total else max(total // (dp * micro), 1)
    if total and total != dp * micro * steps and not stated:
        must = f"must be micro-batch size x accumulation steps x data ranks = {micro} x {steps} x {dp}"
        raise InputError("train_batch_size", total, must, str(dp * micro * steps))
    return dp, micro, steps


def read_attention(flags: Flags, program: Quantities, assumptions: list[str]) -> AttentionKernel:
    """The attention kernel that the program is told to use; dropout is in the model's configuration."""
    assumptions.append("no dropout (the model's own configuration sets it)")
    if not flags.has("--attn_implementation") and "attention_kernel" not in flags.options.words:
        assumptions.append("flash attention (the program's --attn_implementation)")
    return AttentionKernel.UNFUSED if program["attention_kernel"] == "unfused" else AttentionKernel.FLASH


def _left_batch(fields: StatedDocument, flags: Flags) -> dict[str, str]:
    """The microbatch size, if the program sets it and none of its arguments is known."""
    name, whole = "train_micro_batch_size_per_gpu", "train_batch_size"
    if fields.shown(name) or flags.shown("--per_device_train_batch_size"):
        return {}
    if name in fields.left_to_program:
        return {name: LEFT_TO_PROGRAM}
    return {} if fields.shown(whole) else {name: NOT_IN_FILE}


def _assumed(fields: StatedDocument, flags: Flags, batch: int) -> dict[str, str]:
    """That there is no accumulation, if the program decides on it and none of its arguments is known."""
    name = "gradient_accumulation_steps"
    if fields.shown(name) or flags.shown(f"--{name}") or fields.shown("train_batch_size") or flags.given:
        return {}
    return {"global_batch_size": f"global_batch_size={batch}: {name} is {LEFT_TO_PROGRAM}, 1 is assumed"}


def _read_recipe(fields: StatedDocument, flags: Flags) -> tuple[Recipe, dict[str, str]]:
    """The precision, and the field that leaves it to the program if no argument of the program says it, as with
    ``"auto"`` in Hugging Face's Trainer."""
    stated = next((recipe for recipe in TRAINED_IN if recipe.value == fields.options.words.get("recipe")), None)
    recipe, left = _recipe_of_file(fields, flags)
    if stated is None:
        return recipe, left
    fields.replaced |= {"recipe": recipe.value} if recipe is not stated and not left else {}
    return stated, {}


def _recipe_of_file(fields: StatedDocument, flags: Flags) -> tuple[Recipe, dict[str, str]]:
    enabled = {name: fields.find(f"{name}.enabled") for name in ("bf16", "fp16")}
    for name, value in enabled.items():
        if value or (value is None and flags.flag(f"--{name}")):
            return Recipe(name), {}
    left = [name for name in enabled if f"{name}.enabled" in fields.left_to_program and not flags.has(f"--{name}")]
    if not left and None in enabled.values() and not (flags.has("--bf16") or flags.has("--fp16")):
        fields.assumptions.append("neither bf16 nor fp16 is enabled: trained in fp32, DeepSpeed's default")
    return Recipe.FP32, {f"{name}.enabled": LEFT_TO_PROGRAM for name in left[:1]}


OF_PROGRAMS = {
    "sgd": Optimizer.SGD,
    **dict.fromkeys(("muon", "dist_muon"), Optimizer.MUON),
    "adafactor": Optimizer.ADAFACTOR,
    **dict.fromkeys(("adamw_bnb_8bit", "adamw_8bit", "adamw_torch_8bit"), Optimizer.ADAM_8BIT),
    "adamw_torch_4bit": Optimizer.ADAM_4BIT,
    **dict.fromkeys(("paged_adamw", "paged_adamw_32bit"), Optimizer.PAGED_ADAM),
    "paged_adamw_8bit": Optimizer.PAGED_ADAM_8BIT,
    "lion_32bit": Optimizer.LION,
}
"""Optimizers by the words of ``--optim`` (transformers/training_args.py, ``OptimizerNames``; recalled, 2026-11-30); the
others are priced as Adam."""
USUAL_RANK = 16
"""TRL's ``lora_r`` where a program is told to use adapters (trl/trainer/model_config.py; recalled, 2026-11-30)."""


def read_tuning(flags: Flags) -> JsonDict:
    """Fields of `JobParts` that a Hugging Face program's arguments say: optimizer, adapters, frozen bits."""
    word = flags.word("--optim") or "adamw"
    known = optimizer_of(word)
    if known is None:
        flags.assumptions.append(f"optimizer {printable(word)} is priced as AdamW")
    optimizer: JsonDict = {"optimizer": known or Optimizer.ADAM}
    if not flags.flag("--use_peft"):  # other programs mean other things by the rest
        return optimizer
    rank = flags.size("--lora_r") or USUAL_RANK
    targets = targets_of(flags.words("--lora_target_modules") or ("q_proj", "v_proj"))
    bits = 4 if flags.flag("--load_in_4bit") else 8 if flags.flag("--load_in_8bit") else 16
    return {**optimizer, "lora_rank": rank, "lora_targets": targets, "frozen_bits": bits}


def optimizer_of(word: str) -> Optimizer | None:
    """The optimizer of a program's word or of a class (``torch.optim.AdamW``); None for one that has no price."""
    name = word.rpartition(".")[2].lower()
    classes = {"pagedadamw8bit": "paged_adamw_8bit", "adamw8bit": "adamw_8bit", "pagedadamw": "paged_adamw"}
    name = classes.get(name, name)
    plain = Optimizer.ADAM if name in ADAMS else None
    return OF_PROGRAMS.get(name, plain)


ADAMS = (
    "adamw", "adam", "adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_apex_fused", "adamw_torch_xla", "fusedadam",
    "adamw_torch_npu_fused", "deepspeedcpuadam", "stable_adamw",
)  # fmt: skip
"""Words for Adam with two moments of 32 bits, or as the weights have them."""


def targets_of(modules: Iterable[str]) -> LoraTargets:
    """The layers with an adapter, by the names of their modules."""
    names = {name.removesuffix("_proj").replace("output", "o") for name in modules}
    few, attention = names <= {"q", "v"}, names <= {"q", "k", "v", "o", "qkv", "linear_qkv", "linear"}
    return LoraTargets.QUERY_VALUE if few else LoraTargets.ATTENTION if attention else LoraTargets.ALL


def deepspeed_trainer(fields: StatedDocument, recipe: Recipe, zero: int) -> Trainer:
    """DeepSpeed with the switches of a configuration."""
    values = read_rows(KIND, fields, "config")
    return replace(
        DEEPSPEED,
        grad_dtype=DType(values["reduced_dtype"] or _trained_in(recipe)),
        dp_overlap=bool(values["dp_overlap"]) if fields.has("zero_optimization.overlap_comm") else zero == 3,
        memory=_with_sums(recipe, values["main_grads_dtype"], zero),
    )


LOADED_IN = {"float32": DType.FP32, "float16": DType.FP16, "bfloat16": DType.BF16, "auto": DType.BF16}


def read_main_dtype(flags: Flags) -> DType:
    """The type in which a Hugging Face program loads the weights; a checkpoint's own is taken as bf16."""
    word = flags.word("--torch_dtype") or flags.word("--dtype") or "float32"
    return LOADED_IN.get(word, DType.FP32)


def said_by(flags: Flags) -> frozenset[str]:
    """Fields that a Hugging Face program is told by arguments of which the launch table has no row."""
    liger = ("--use_liger_kernel", "--use_liger")
    said = {"optimizer": ("--optim",), "main_dtype": ("--torch_dtype", "--dtype"), "fused_loss": liger}
    return frozenset(name for name, arguments in said.items() if any(map(flags.has, arguments)))


def _read_optimizer(fields: StatedDocument, of_program: Optimizer) -> Optimizer:
    if not fields.has("optimizer.type"):
        return of_program
    word = str(fields.find("optimizer.type") or "AdamW").lower()
    if word in ("sgd", "muon"):
        return Optimizer(word)
    if "adam" not in word:
        fields.assumptions.append(f"optimizer {printable(word)} is priced as AdamW")
    return Optimizer.ADAM
