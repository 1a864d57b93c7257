"""Write a plan as a Megatron Bridge recipe (``sartor_recipe.py`` and the command that starts it), and read one.

Megatron Bridge configures Megatron-Core through the fields that Megatron-LM's arguments fill, so a recipe is the
arguments of `megatron` under other names, and what Megatron-LM cannot express is refused here too. Names: the wheels of
megatron-bridge 0.3.1 and megatron-core 0.16.1, read 2026-11-23; Megatron Bridge's own table of arguments is in its docs
(megatron-lm-to-megatron-bridge.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sartor.json_types import JsonDict
from sartor.launch.fields import NOT, Argument, plan_rows, release_of, row_of, rows, value_of
from sartor.launch.megatron import megatron_groups, read_megatron
from sartor.launch.plan import SWITCHES, LaunchFile, LaunchFiles, LaunchKind, LaunchReading, nodes_of, refuser
from sartor.launch.python_source import ARGS, CHANGED, TARGET
from sartor.launch.script import ScriptCommand, beside_script, devices_in, launch_script
from sartor.launch.stated import NO_OPTIONS, Options
from sartor.model.training import Recipe, TrainingJob, TrainingPlan
from sartor.step.trainers.nemo import MEGATRON_BRIDGE

KIND = LaunchKind.MEGATRON_BRIDGE
_refuse = refuser(KIND)

MIXED = {
    Recipe.BF16: "bf16_mixed",
    Recipe.FP16: "fp16_mixed",
    Recipe.FP8_DELAYED: "bf16_with_fp8_delayed_scaling_mixed",
    Recipe.FP8_CURRENT: "bf16_with_fp8_current_scaling_mixed",
    Recipe.FP8_BLOCK: "bf16_with_fp8_subchannel_scaling_mixed",
    Recipe.MXFP8: "bf16_with_mxfp8_mixed",
    Recipe.NVFP4: "bf16_with_nvfp4_mixed",
}
"""Recipes of megatron/bridge/training/mixed_precision.py."""
ROUNDS = "yarn_correction_range_round_to_int"
ON_WITHOUT = (
    "ddp.use_distributed_optimizer",
    "ddp.overlap_grad_reduce",
    "ddp.overlap_param_gather",
    "model.cross_entropy_loss_fusion",
)
"""Switches that are on by default in Megatron Bridge and off in Megatron-LM."""
ACTIVATIONS = {
    "--swiglu": ("F.silu", True),
    "--quick-geglu": ("quick_gelu", True),
    "--squared-relu": ("squared_relu", False),
}
"""The activation function, and whether the layer is gated."""
SILENT = ("--group-query-attention", "--max-position-embeddings", "--no-create-attention-mask-in-dataloader")
"""Arguments that follow from other fields, or hold in every recipe."""
NOT_SAID = ("--openai-gelu",)
"""Megatron-LM arguments without a field here."""
LAYERS_OFF = "model.cpu_offloading_num_layers"
NARROW_ACT = "model.activation_func_fp8_input_store"
"""A field of TransformerConfig that Megatron-LM's arguments leave out."""
MOMENTS = {"bf16": "torch.bfloat16", "fp16": "torch.float16", "fp8": "torch.uint8", "fp32": "torch.float32"}


class _Code(str):
    """A value that is a Python expression."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


Fields = dict[str, object]


def bridge_files(job: TrainingJob, plan: TrainingPlan, devices_per_node: int, version: str = "") -> LaunchFiles:
    """``sartor_recipe.py`` and ``launch.sh``. Raises `InputError` for what Megatron Bridge cannot do."""
    release_of(KIND, version)
    if job.recipe not in MIXED:
        raise _refuse("recipe", job.recipe.value, "has no such mixed precision", ", ".join(r.value for r in MIXED))
    if int(job.shape.learned_positions) not in (0, job.seq_len):
        why = f"learns as many positions as a sequence has tokens; the model has {int(job.shape.learned_positions)}"
        raise _refuse("seq_len", job.seq_len, why, str(int(job.shape.learned_positions)))
    plan, groups, notes = megatron_groups(job, plan, KIND)
    entries = _fields([words for group in groups.values() for words in group])
    entries |= {NARROW_ACT: True} if job.trainer.memory.narrow_act else {}
    reduced = any(words[0] == "--grad-reduce-in-bf16" for group in groups.values() for words in group)
    about = f"Megatron Bridge: {job.shape.name or 'a model'} on {plan.num_devices} devices"
    text = _recipe_text(about, entries, MIXED[job.recipe], reduced)
    script = launch_script(
        about=about,
        launcher="torchrun",
        nodes=nodes_of(int(plan.num_devices), devices_per_node),
        script=beside_script("sartor_recipe.py"),
        groups={},
        env={"CUDA_DEVICE_MAX_CONNECTIONS": ""} if plan.zero_stage > 1 else None,  # as for Megatron-LM
        notes=(*notes, "set data, tokenizer, learning rate and checkpoints in the recipe"),
    )
    recipe = LaunchFile(name="sartor_recipe.py", text=text)
    return LaunchFiles(kind=KIND, files=(recipe, script), notes=tuple(notes))


def _fields(arguments: list[Argument]) -> Fields:
    """A recipe's fields by path (``section.field``), from Megatron-LM's arguments."""
    out: Fields = dict.fromkeys(ON_WITHOUT, False)
    out |= {"model.should_pad_vocab": True}
    yarn = ("--position-embedding-type", "yarn") in arguments
    out |= {f"model.{ROUNDS}": True} if yarn else {}
    for flag, *values in arguments:
        if flag in (*SILENT, "--grad-reduce-in-bf16") or _says_precision(flag):
            continue
        local = flag == "--transformer-impl" and values == ["local"]
        if local or flag in NOT_SAID:
            raise _refuse(flag, " ".join(values) or "on", "has no field for it", "--write megatron")
        out |= {yarn_path(flag): _value(values)} if yarn and yarn_path(flag) else dict(_said(flag, values))
    if out.get("ddp.use_megatron_fsdp"):
        out["dist.use_megatron_fsdp"] = True
    out["optimizer.use_distributed_optimizer"] = out["ddp.use_distributed_optimizer"]
    return out


def _said(flag: str, values: list[str]) -> Iterator[tuple[str, object]]:
    if flag in ACTIVATIONS:
        function, gated = ACTIVATIONS[flag]
        yield "model.activation_func", _Code(function)
        if gated:
            yield "model.gated_linear_unit", True
    elif path_of(flag).startswith(NOT):
        yield path_of(flag).removeprefix(NOT), False
    elif flag in ("--exp-avg-dtype", "--exp-avg-sq-dtype"):
        yield path_of(flag), _Code(MOMENTS[values[0]])
    elif flag == "--tp-comm-overlap":
        yield "comm_overlap", _Code("CommOverlapConfig(tp_comm_overlap=True)")
    elif flag == "--attention-backend":
        yield path_of(flag), _Code(f"AttnBackend.{values[0]}")
    elif flag == "--cpu-offloading-num-layers":
        yield "model.cpu_offloading", True
        yield path_of(flag), int(values[0])
    elif flag in ("--recompute-modules", "--offload-modules"):
        yield path_of(flag), values
    elif flag == "--window-size":
        yield path_of(flag), tuple(int(side) for side in values[0].split(","))
    elif flag == "--seq-length":
        yield "model.seq_length", int(values[0])
        yield "dataset.seq_length", int(values[0])
    else:
        yield path_of(flag), _value(values)


def path_of(flag: str) -> str:
    """The path in a recipe of the field that a Megatron-LM argument sets: ``model.layernorm_epsilon``."""
    row = row_of(LaunchKind.MEGATRON, flag)
    return (row.bridge if row else "") or f"model.{flag[2:].replace('-', '_')}"


def yarn_path(flag: str) -> str:
    """The path of what Megatron-Core reads for YaRN without latent attention, else nothing. It is no field of the
    provider, but set on it as Megatron Bridge's own gpt_oss_bridge.py does."""
    scaled = [row for row in rows(LaunchKind.MEGATRON, "numerics") if "yarn" in row.when and row.flag is None]
    if flag not in {row.argument for row in scaled if row.argument and not row.by_code}:
        return ""
    return "model.yarn_" + flag[2:].replace("-", "_").removeprefix("yarn_")


def _says_precision(flag: str) -> bool:
    return flag in {row.argument for row in rows(LaunchKind.MEGATRON, "training") if row.field == "recipe"}


def _value(values: list[str]) -> object:
    """A value as Python; an expression like ``[0]*3+[1]*58`` stays as it is."""
    if not values:
        return True
    text = values[0]
    if text.startswith("(["):
        return _Code(text)
    return value_of(text)


def _recipe_text(about: str, entries: Fields, mixed: str, reduced: bool) -> str:
    latent = "model.multi_latent_attention" in entries
    provider, module = ("MLAModelProvider", "mla_provider") if latent else ("GPTModelProvider", "gpt_provider")
    passed = {path for path in entries if path.startswith("model.") and not path.startswith("model.yarn_")}
    model = {path.partition(".")[2]: value for path, value in entries.items() if path in passed}
    rest = {path: value for path, value in entries.items() if path not in passed}
    activation = str(model.get("activation_func", ""))
    lines = [
        f'"""{about}. Written by sartor."""',
        "",
        *(["import torch"] if any(isinstance(v, _Code) and "torch." in v for v in rest.values()) else []),
        *(["import torch.nn.functional as F"] if activation.startswith("F.") else []),
        "from megatron.core.transformer.enums import AttnBackend",
        *([f"from megatron.core.activations import {activation}"] if activation and "." not in activation else []),
        "",
        f"from megatron.bridge.models.{module} import {provider}",
        "from megatron.bridge.recipes.common import _pretrain_common",
        "from megatron.bridge.training.comm_overlap import CommOverlapConfig",
        "from megatron.bridge.training.gpt_step import forward_step",
        "from megatron.bridge.training.mixed_precision import get_mixed_precision_config",
        "from megatron.bridge.training.pretrain import pretrain",
        "",
        "",
        "def sartor_pretrain_config():",
        "    config = _pretrain_common()",
        f"    config.model = {provider}(",
        *(f"        {name}={value!r}," for name, value in model.items()),
        "    )",
        f"    config.mixed_precision = get_mixed_precision_config({mixed!r})",
        f"    config.mixed_precision.grad_reduce_in_fp32 = {not reduced}",
        f"    config.ddp.grad_reduce_in_fp32 = {not reduced}",
        *(f"    config.{path} = {value!r}" for path, value in rest.items()),
        "    return config",
        "",
        "",
        'if __name__ == "__main__":',
        "    pretrain(config=sartor_pretrain_config(), forward_step_func=forward_step)",
        "",
    ]
    return "\n".join(lines)


# -- reading ------------------------------------------------------------------------------------------------------


def read_bridge(table: JsonDict, command: ScriptCommand | None, options: Options = NO_OPTIONS) -> LaunchReading:
    """The model, job and plan of a recipe that has the model's sizes. Raises `InputError`."""
    entries = dict(_flat(table))
    longest = options.sizes.get("seq_len", entries.get("model.seq_length", 4096))
    arguments, unknown = _arguments(entries, longest)
    devices = command.num_devices if command else 0
    reading = read_megatron(ScriptCommand(launcher=(), program="", arguments=arguments, num_devices=devices), options)
    trainer = reading.parts.trainer
    switches_read = {name: getattr(trainer, name) for name in SWITCHES if name != "fused_kernels"}
    narrow = bool(entries.get("mixed_precision.fp8_param_gather", MEGATRON_BRIDGE.memory.narrow_primary))
    memory = replace(trainer.memory, narrow_primary=narrow, narrow_act=bool(entries.get(NARROW_ACT)))
    return replace(
        reading,
        kind=KIND,
        parts=replace(reading.parts, trainer=replace(MEGATRON_BRIDGE, memory=memory, **switches_read)),
        unknown=(*unknown, *reading.unknown),
        fields_in_file=_fields_in(entries) | devices_in(command),
        implied={name: rule for name, rule in reading.implied.items() if name != "seq_len"},
    )


def _fields_in(entries: Fields) -> frozenset[str]:
    """Fields of the launch table that a recipe sets."""
    mixed = {"recipe"} if "mixed_precision" in entries else set()
    return frozenset(mixed) | frozenset(
        row.field for row in plan_rows() if path_of(row.argument).removeprefix(NOT) in entries and not row.follows
    )


def _flat(table: JsonDict, path: str = "") -> Iterator[tuple[str, object]]:
    """A recipe's fields by path; of what a call makes, the field is what it is made of."""
    for name, value in table.items():
        if isinstance(value, dict):
            if ARGS in value or value.keys() == {TARGET}:
                yield path + name, next(iter(value.get(ARGS, ())), value[TARGET])
            yield from _flat(value, f"{path}{name}.")
        elif name not in (TARGET, ARGS, CHANGED):
            yield path + name, value


def _arguments(entries: Fields, longest: object) -> tuple[tuple[str, ...], list[str]]:
    """A recipe as Megatron-LM arguments for sequences as long as ``longest``, and the fields without one."""
    words: list[str] = ["--max-position-embeddings", str(longest)]
    words += _precision(entries)
    if entries.get("model.num_query_groups"):
        words.append("--group-query-attention")
    gated, function = bool(entries.get("model.gated_linear_unit")), str(entries.get("model.activation_func", "F.gelu"))
    shorter = {name.rpartition(".")[2]: flag for flag, (name, is_gated) in ACTIVATIONS.items() if is_gated == gated}
    if flag := shorter.get(function.rpartition(".")[2]):
        words.append(flag)
    paths = {row.argument: path_of(row.argument) for row in rows(LaunchKind.MEGATRON) if row.argument}
    flags = {path: flag for flag, path in paths.items() if not path.startswith(NOT)}
    flags |= {yarn_path(flag): flag for flag in paths if yarn_path(flag)}
    off = {path.removeprefix(NOT): flag for flag, path in paths.items() if path.startswith(NOT)}
    done = {"model.gated_linear_unit", "model.activation_func", "model.should_pad_vocab", "dataset.seq_length"}
    done |= {"model.cpu_offloading", NARROW_ACT} | (set() if entries.get("model.cpu_offloading") else {LAYERS_OFF})
    unknown = []
    for path, value in {**dict.fromkeys(ON_WITHOUT, True), **entries}.items():
        if path in done or path.startswith(("mixed_precision", "dist.", "optimizer.use_dist", "ddp.grad_reduce")):
            continue
        if path in off:
            words += [] if value else [off[path]]
        elif path == "comm_overlap.tp_comm_overlap":
            words += ["--tp-comm-overlap"] if value else []
        elif path in flags:
            words += _words(flags[path], value)
        elif path.startswith(("model.", "train.", "ddp.", "optimizer.")):
            words += _words("--" + path.partition(".")[2].replace("_", "-"), value)
        else:
            unknown.append(path)
    return tuple(words), unknown


def _precision(entries: Fields) -> list[str]:
    name_of_mixed = str(entries.get("mixed_precision", "bf16_mixed")).replace("-", "_")
    recipe = next((recipe for recipe, name in reversed(MIXED.items()) if name in name_of_mixed), Recipe.BF16)
    said_by = [row for row in rows(LaunchKind.MEGATRON, "training") if row.field == "recipe"]
    words = [word for row in said_by for argument in row.arguments(recipe.value) for word in argument]
    wide = entries.get("mixed_precision.grad_reduce_in_fp32", entries.get("ddp.grad_reduce_in_fp32", True))
    return [*words, *([] if wide else ["--grad-reduce-in-bf16"])]


def _words(flag: str, value: object) -> list[str]:
    if value is None or value is False:
        return []
    if value is True:
        return [flag]
    if isinstance(value, str) and value.startswith("torch."):
        return [flag, next((word for word, name in MOMENTS.items() if name == value), "fp32")]
    if isinstance(value, str) and "AttnBackend." in value:
        return [flag, value.rpartition(".")[2]]
    if isinstance(value, tuple):
        return [flag, ",".join(map(str, value))]
    if isinstance(value, list) and flag.endswith("-freq"):
        return [flag, f"({'+'.join(f'[{item}]' for item in value)})"]
    if isinstance(value, list):
        return [flag, *map(str, value)]
    return [flag, str(value)]
