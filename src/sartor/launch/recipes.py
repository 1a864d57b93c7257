"""Read recipes that say a run in keys, in a file or on a command line: axolotl, LLaMA-Factory, ms-swift, AutoModel,
torchtune, nanotron, verl, OpenRLHF, TRL, DeepSpeed-Chat, and recipes of NeMo 2 and Megatron Bridge by name.
``dialects.toml`` has a table of keys for each; this reader knows no trainer."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from sartor.bounded import parse_json, printable
from sartor.errors import NOT_GIVEN, InputError
from sartor.json_types import JsonDict, JsonMap
from sartor.launch.accelerate import hybrid_groups, launcher_config
from sartor.launch.deepspeed import ON_NVME, deepspeed_trainer, optimizer_of, targets_of
from sartor.launch.fields import Quantities, dialect_tables, fields_in, read_rows, rows
from sartor.launch.plan import JobParts, LaunchKind, LaunchReading, canonical, check_numbers, model_named, no_devices
from sartor.launch.script import ScriptCommand, check_arguments, check_known, devices_in
from sartor.launch.shell import Beside
from sartor.launch.stated import NOT_IN_FILE, Options, StatedDocument, bearing, launch_words, resolved, unset_arguments
from sartor.model.editing import edit
from sartor.model.shape import TransformerShape
from sartor.model.training import Optimizer, Recipe, Recompute, Trainer, TrainingPlan
from sartor.model.workload import AttentionKernel, LoraTargets, Loss, ParallelDims
from sartor.operators import DType
from sartor.read.huggingface import read_fields
from sartor.run.fields import OF_RECIPE
from sartor.step.trainers import record_named

KEYS = "keys"
"""The part of a dialect's table with the rows that are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """A way of writing a run in keys; ``dialects.toml`` explains the fields."""

    name: str
    title: str
    kind: str
    programs: str
    needs: Sequence[str]
    or_needs: Sequence[str] = ()
    marks: Sequence[str]
    above: Sequence[str] = ()
    usual: JsonMap
    required: Sequence[str] = ()
    notes: Sequence[str] = ()
    trainer: str = ""
    launcher: str = ""
    only_in_files: bool = False
    allowed: Sequence[str] = ()
    names: Sequence[str] = ()
    freezes_main: bool = False
    switches: JsonMap = field(default_factory=dict)
    silent: Sequence[str]
    unpriced: Sequence[str]


@cache
def dialects() -> tuple[Dialect, ...]:
    """Every dialect of ``dialects.toml``."""
    return tuple(Dialect(**row) for row in dialect_tables()["dialect"])


def dialect_of(config: JsonMap, name: str) -> Dialect | None:
    """The dialect whose own keys a file has, or None. Raises `InputError` for a file with keys of several."""
    claims = [
        d
        for d in dialects()
        if any(needs and all(_stands(config, key) for key in needs) for needs in (d.needs, d.or_needs))
        and _any(config, d.marks)
    ]
    below = {name for dialect in claims for name in dialect.above}
    claims = [dialect for dialect in claims if dialect.name not in below]
    titles = [dialect.title for dialect in claims] + (["accelerate"] if OF_ACCELERATE & set(config) else [])
    if claims and len(titles) > 1:
        both = " and ".join(titles)
        raise InputError("launch", printable(name), f"has keys of {both}; must be one trainer's", "a file for each")
    return claims[0] if claims else None


OF_ACCELERATE = {"distributed_type", "compute_environment"}
"""Keys that accelerate's configurations have and no recipe."""


def dialect_started(words: Sequence[str]) -> Dialect | None:
    """The dialect whose program a command starts, or None."""
    plain = [word for word in words if not word.startswith("-") and "=" not in word]
    names = [word.rsplit("/", 1)[-1] if "/" in word and not word.endswith(".py") else word for word in plain]
    return next((d for word in names for d in dialects() if re.fullmatch(d.programs, word)), None)


def read_recipe(
    dialect: Dialect, config: JsonMap, command: ScriptCommand | None, options: Options, beside: Beside
) -> LaunchReading:
    """The run that keys of a dialect say, with the ``options`` that win over them; ``beside`` returns the text of a
    DeepSpeed file that is named. Raises `InputError`."""
    notes = [*dialect.notes, *(command.notes if command else ())]
    fields = StatedDocument(raw=resolved(config), options=options, assumptions=notes)
    kinds = _kinds(config, fields)
    values = read_rows(dialect.name, fields, KEYS)
    for row in rows(dialect.name, KEYS):
        if why := row.refused(values.get(row.field)):
            raise InputError(row.argument, printable(str(values[row.field])), why, str(row.only[-1]))
    setup = _Said(dialect=dialect, fields=fields, values=values, beside=beside)
    check_arguments(kinds, dialect.allowed)
    shape = None if options.shape else _model(setup)
    for row in rows(dialect.name, KEYS) if options.shape else ():  # the stated model wins over a name that is not known
        for key in (row.argument, *row.older) if row.field == "model" else ():
            fields.open.pop(key, None)
    layers = next((int(model.num_layers) for model in (options.shape, shape) if model), None)
    plan = _plan(setup, command, layers)
    parts = _parts(setup, plan)
    unknown, unpriced, ignored = _sorted_out(setup, command)
    unset = (
        [f"{OF_RECIPE}{setup.word('model') or 'that it overrides'}"] if dialect.required else []
    )  # a recipe by name may set anything else
    apart = not command or "--config_file" in command.launcher
    apart &= bool(dialect.launcher) and plan.zero_stage == 0 and int(plan.dims.dp) > 1
    unset += [f"${dialect.launcher}"] if apart and not {"sharding", "zero_stage"} & options.fields else []
    return LaunchReading(
        kind=LaunchKind(setup.kind),
        section=dialect.name,
        plan=canonical(plan, layers),
        parts=parts,
        shape=shape,
        model=printable(setup.word("model")),
        unknown=(*unset, *unset_arguments(command.arguments if command else ()), *unknown),
        unpriced=tuple(unpriced),
        ignored=tuple(ignored),
        open_fields={**_left(setup), **fields.open, **bearing(unknown)},
        replaced=fields.replaced,
        assumptions=tuple(fields.assumptions),
        fields_in_file=_fields_in(setup) | devices_in(command),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """What a recipe says, with the trainer's usual values where it is silent."""

    dialect: Dialect
    fields: StatedDocument
    values: Quantities
    beside: Beside

    def get(self, name: str, default: Any = None) -> Any:
        value = self.values.get(name)
        return self.dialect.usual.get(name, default) if value in (None, "") else value

    def word(self, name: str) -> str:
        return str(self.get(name, ""))

    def count(self, name: str, default: int = 1) -> int:
        return int(self.get(name) or default)

    def argument(self, name: str) -> str:
        """The first key of a field; empty if the dialect has none."""
        return next((row.argument for row in rows(self.dialect.name, KEYS) if row.field == name), "")

    def found(self, name: str) -> Any:
        """What stands at a field's keys that code reads."""
        keys = [key for row in rows(self.dialect.name, KEYS) if row.field == name for key in (row.argument, *row.older)]
        return next((value for value in map(self.fields.find, keys) if value is not None), None)

    @property
    def record(self) -> Trainer:
        """The trainer's record."""
        return record_named((self.kind == self.dialect.kind and self.dialect.trainer) or self.kind)

    @property
    def splits_experts(self) -> bool:
        """Whether tensor parallelism splits experts."""
        stated = self.get("expert_tp")
        return int(stated) > 1 if stated else self.record.splits_experts

    @property
    def kind(self) -> str:
        megatron = self.found("megatron") or self.found("sharding") == "megatron"
        sharded = self.dialect.kind == "deepspeed" and str(self.found("sharding")).startswith("fsdp")
        others = {"deepspeed": self.found("deepspeed"), "megatron": megatron, "accelerate": sharded}
        return next((kind for kind, stands in others.items() if stands), self.dialect.kind)


# -- plan ---------------------------------------------------------------------------------------------------------


def _plan(setup: _Said, command: ScriptCommand | None, model_layers: int | None) -> TrainingPlan:
    missing = [name for name in setup.dialect.required if setup.get(name) is None]
    if missing:
        hidden = [words for key, words in setup.fields.open.items() if re.search("parallel_size|batch_size", key)]
        must = f"are set by {setup.dialect.title}'s recipe of this name, whose values sartor does not have"
        must = f"are {' and '.join(hidden)}, which only the running program knows" if hidden else must
        near = " ".join(f"--{name.replace('_', '-')} 1" for name in missing)
        raise InputError(", ".join(missing), NOT_GIVEN, must, f"keys in the file, or options beside it: {near}")
    tp, pp, cp = (setup.count(name) for name in ("tp", "pp", "cp"))
    devices = _devices(setup, command, tp * pp * cp)
    setup.fields.options.check_degrees(devices, tp * pp * cp)
    if devices % (tp * pp * cp):
        must = f"must be a multiple of tp x pp x cp = {tp * pp * cp}"
        raise InputError("num_devices", devices, must, str(math.ceil(devices / (tp * pp * cp)) * tp * pp * cp))
    dp = devices // (tp * pp * cp)
    zero = _zero(setup)
    micro, steps = _batch(setup, dp)
    replicas = setup.count("replicas")
    shards = setup.get("shards") if isinstance(setup.get("shards"), int) else None
    if zero and replicas == 1 and any(word.startswith("hybrid") for word in _sharding(setup)):
        machines = launcher_config(command.launcher).get("num_machines") if command else None
        replicas, _ = hybrid_groups(machines if isinstance(machines, int) else None, dp, setup.argument("sharding"))
    if shards and shards > 0 and zero == 0 and not setup.found("deepspeed"):
        zero = 3
    group = 0 if not zero else shards * cp if shards and 0 < shards < dp else dp * cp // replicas
    own = setup.found("megatron") is not None and setup.argument("megatron_recompute")
    again = any(setup.get(name) for name in (("megatron_recompute",) if own else ("recomputed", "sharded_recompute")))
    layers = setup.get("recompute_layers") if setup.get("recompute_method", "block") == "block" else None
    again |= bool(layers) and bool(setup.get("layers_recomputed"))
    again |= setup.get("not_recomputed") is False or _deepspeed(setup).has("activation_checkpointing")
    offload = bool(setup.get("optimizer_offload")) or "offload" in _sharding(setup)
    if offload and not re.search("optim|adam", setup.argument("optimizer_offload")):
        setup.fields.assumptions.append("of offloaded parameters only the optimizer's states are priced")
    plan = TrainingPlan(
        dims=ParallelDims(tp=tp, pp=pp, dp=dp, cp=cp, ep=setup.count("ep"), sequence_parallel=_splits_sequence(setup)),
        microbatch_size=micro,
        num_microbatches=steps,
        virtual_stages=_chunks(setup, pp, model_layers),
        zero_stage=zero,
        shard_group=group,
        recompute=Recompute.FULL if again else Recompute.SELECTIVE if setup.get("selective") else Recompute.NONE,
        recompute_layers=int(layers or -1) if again else -1,
        optimizer_offload=(offload and setup.get("offload_share") != "0") or _offloads(setup),
    )
    check_numbers(plan, splits_experts=setup.splits_experts)
    return plan


def _chunks(setup: _Said, pp: int, layers: int | None) -> int:
    """Chunks of a device, stated or by the layers of a chunk; what is no multiple of the stages is rounded as told."""
    size = setup.get("layers_per_chunk")
    if pp == 1 or not size or not layers:
        return setup.count("virtual_stages")
    chunks = math.ceil(layers / int(size)) / pp
    return max(math.floor(chunks) if setup.get("chunks_rounded") == "down" else math.ceil(chunks), 1)


def _devices(setup: _Said, command: ScriptCommand | None, degrees: int) -> int:
    """The devices of the run: the options', the file's, the launcher's, or the product of all degrees."""
    local = setup.get("local_devices")
    named = setup.get("num_devices") or (local and setup.count("nodes") * int(local))
    dp = setup.get("dp") or setup.found("dp")
    every = [degrees * dp] if isinstance(dp, int) else []
    devices = setup.fields.options.devices(int(named or (command.num_devices if command else 0) or sum(every)))
    if not devices:
        raise no_devices(degrees)
    return devices


def _batch(setup: _Said, dp: int) -> tuple[int, int]:
    """(microbatch size, microbatches); one follows from the whole batch."""
    micro, steps = setup.get("microbatch_size"), setup.get("num_microbatches")
    micro = setup.get("stage_microbatch", micro) if setup.count("pp") > 1 else micro
    total = setup.get("global_batch_size")
    total = total and int(total) * setup.count("samples")
    if micro is None:
        micro = max(total // (dp * int(steps or 1)), 1) if total and setup.get("num_microbatches") else 1
    micro = int(micro)
    if total:
        if total % (dp * micro):
            whole = f"dp x {setup.argument('microbatch_size') or 'microbatch size'} = {dp} x {micro}"
            key = setup.argument("global_batch_size") or "global_batch_size"
            nearest = str(max(total // (dp * micro), 1) * dp * micro)
            raise InputError(key, total, f"must be a multiple of {whole}", nearest)
        return micro, total // (dp * micro)
    if not steps and (fewest := setup.dialect.usual.get("fewest")):
        steps = math.ceil(fewest / (dp * micro))
    return micro, int(steps or 1)


def _left(setup: _Said) -> dict[str, str]:
    """Keys that the price depends on and nobody says: of the batch and of the precision."""
    left = [] if setup.get("microbatch_size") else ["microbatch_size"]
    whole = setup.get("num_microbatches") or setup.get("global_batch_size") or setup.dialect.usual.get("fewest")
    left += [] if whole else ["num_microbatches" if setup.argument("num_microbatches") else "global_batch_size"]
    left += [] if _recipe(setup) else ["bf16" if setup.argument("bf16") else "recipe"]
    return {setup.argument(name): NOT_IN_FILE for name in left if setup.argument(name)}


def _splits_sequence(setup: _Said) -> bool:
    return bool(setup.get("sequence_parallel", not setup.record.optional_sequence_parallel))


FULL = re.compile(r"full_shard|hybrid_shard|fsdp2?|true|[12]")
"""Words for gradients, states and weights in shards."""


def _zero(setup: _Said) -> int:
    if setup.found("megatron"):
        return 0 if setup.get("distributed_optimizer") is False else 1
    if setup.found("deepspeed"):
        return int(_deepspeed(setup).size("zero_optimization.stage", 0, least=0, most=3) or 0)
    if (stated := setup.get("zero_stage")) is not None and not (setup.kind == "accelerate" and setup.found("sharding")):
        return int(stated)
    words = _sharding(setup)
    if "megatron" in words:
        return 1
    if set(words) & {"none", "false", "ddp", "ddpmanager", "", "no_shard"} or not words:
        return 0
    if {"shard_grad_op", "hybrid_shard_zero2"} & set(words) or setup.values.get("reshards") is False:
        return 2
    if any(FULL.fullmatch(w.removesuffix("manager").removesuffix("config")) or "fsdp" in w for w in words):
        return 3
    key = setup.argument("sharding")
    raise InputError(key, printable(" ".join(words)), "must be a way of sharding that is known", "full_shard auto_wrap")


def _sharding(setup: _Said) -> list[str]:
    """The words that say what is sharded: those of a strategy of its own win."""
    word = setup.found("sharding")
    word = setup.dialect.usual.get("sharding") if word is None else word
    if word is None and isinstance(setup.fields.raw.get("fsdp_config"), dict):
        word = "fsdp"
    words = [str(part).lower().rpartition(".")[2] for part in (word if isinstance(word, list) else str(word).split())]
    strategy = str(setup.found("strategy") or "").lower()
    return [STRATEGIES.get(strategy, strategy), *({"offload"} & set(words))] if strategy else words


STRATEGIES = {"1": "full_shard", "2": "shard_grad_op", "3": "no_shard", "4": "hybrid_shard", "5": "hybrid_shard_zero2"}
"""PyTorch's numbers of strategies."""

# -- DeepSpeed ----------------------------------------------------------------------------------------------------

STOCK = re.compile(r"(?:default-)?(?:\w*[_/-])?z(?:ero)?_?-?([0-3])(?![0-9])", re.IGNORECASE)
"""Names of the DeepSpeed configurations that trainers bring along: zero2, ds_z3_config.json, zero3_bf16.json."""


def _deepspeed(setup: _Said) -> StatedDocument:
    """The DeepSpeed configuration that a recipe has or names; empty if none."""
    value = setup.found("deepspeed")
    if isinstance(value, dict):
        return StatedDocument(raw=value)
    if not isinstance(value, str):
        return StatedDocument(raw={})
    if (text := setup.beside(value)) is not None:
        return StatedDocument(raw=parse_json(text.encode(), name=printable(value)))
    match = STOCK.match(value.rsplit("/", 1)[-1])
    if match is None:
        must = "must be in the folder of the file that names it"
        raise InputError("deepspeed", printable(value), must, "a name with its stage: zero2, zero3, ds_z3_config.json")
    offload = {"offload_optimizer": {"device": "cpu"}} if "offload" in value or "cpu" in value.lower() else {}
    beside = " with the optimizer in host memory" if offload else ""
    note = f"{printable(value)} is not beside the file: read by its name as ZeRO {match[1]}{beside}"
    if note not in setup.fields.assumptions:
        setup.fields.assumptions.append(note)
    return StatedDocument(raw={"zero_optimization": {"stage": int(match[1]), **offload}})


def _offloads(setup: _Said) -> bool:
    device = _deepspeed(setup).find("zero_optimization.offload_optimizer.device")
    if device == "nvme":
        setup.fields.assumptions.append(ON_NVME)
    return device not in (None, "none")


# -- job ----------------------------------------------------------------------------------------------------------


def _recipe(setup: _Said) -> Recipe | None:
    if (word := setup.values.get("recipe")) and (setup.get("fp8") or not setup.argument("fp8")):
        return Recipe(word)
    if setup.dialect.required:
        named = (recipe for recipe in Recipe if recipe.value in setup.word("model").lower())
        return next(named, Recipe(setup.dialect.usual["recipe"]))
    if setup.get("fp8"):
        return Recipe(setup.dialect.usual.get("fp8_recipe", "fp8_current"))
    if setup.get("fp16"):
        return Recipe.FP16
    enabled = [name for name in ("bf16", "fp16") if _deepspeed(setup).find(f"{name}.enabled") is True]
    if setup.get("bf16") or enabled:
        return Recipe(enabled[0] if enabled and not setup.get("bf16") else "bf16")
    return Recipe(setup.dialect.usual["recipe"]) if "recipe" in setup.dialect.usual else None


def _parts(setup: _Said, plan: TrainingPlan) -> JobParts:
    recipe = _recipe(setup) or Recipe.FP32
    length = setup.get("seq_len") or (int(setup.get("prompt") or 0) + int(setup.get("response") or 0)) or None
    word = setup.found("optimizer")
    optimizer = optimizer_of(str(word or "adamw"))
    if optimizer is None:
        setup.fields.open[setup.argument("optimizer")] = printable(str(word))
    unfused = setup.word("attention_kernel") == "unfused"
    parts = JobParts(
        seq_len=length,
        global_batch_size=int(plan.dims.dp) * int(plan.microbatch_size) * int(plan.num_microbatches),
        recipe=recipe,
        optimizer=optimizer or Optimizer.ADAM,
        **_adapters(setup),
        attention_kernel=AttentionKernel.UNFUSED if unfused else AttentionKernel.FLASH,
        packed=bool(setup.argument("packed") and setup.get("packed")),
        trainer=_trainer(setup, recipe, plan),
    )
    longest = f"without packing a sequence is as long as its text: priced at the longest, {length} tokens"
    unpacked = (longest,) if length and setup.argument("packed") else ()
    setup.fields.assumptions.extend(parts.pack_words() or unpacked)
    return parts


def _adapters(setup: _Said) -> JsonDict:
    """Rank, targets and frozen bits of low-rank adapters; nothing if all weights are trained."""
    tuning, rank = setup.word("tuning"), setup.get("lora_rank")
    if setup.dialect.required and not rank and re.search(r"_(peft|lora)(_|$)", setup.word("model")):
        if setup.word("tuning") != "none":
            setup.fields.open[setup.argument("lora_rank")] = f"${{{printable(setup.word('model'))}}}"
        return {}
    if setup.argument("peft"):
        tuned = bool(setup.get("peft"))
    elif setup.argument("tuning"):
        tuned = tuning in ("lora", "qlora")
    else:
        tuned = bool(setup.values.get("lora_rank"))
    if not tuned:
        return {}
    if not rank:
        raise InputError(setup.argument("lora_rank"), NOT_GIVEN, "must be the rank of the adapters", "16")
    quantized = setup.get("in_4bit") or "qlora" in (tuning, setup.word("model").rpartition(".")[2].partition("_")[0])
    loaded = 4 if quantized else 8 if setup.get("in_8bit") else 16
    bits = setup.get("frozen_bits") or loaded
    names = setup.found("lora_targets")
    names = names.replace(",", " ").split() if isinstance(names, str) else names
    if not isinstance(names, list | None):
        raise InputError(setup.argument("lora_targets"), names, "must be names of modules", "[q_proj, v_proj]")
    everywhere = bool(setup.get("all_linear")) or not names or any("all" in str(name).lower() for name in names)
    if not names and setup.argument("peft"):  # PEFT's own default
        names, everywhere = ["q_proj", "v_proj"], False
    layers = [str(name).rpartition(".")[2] for name in names or ()]
    if not everywhere and all(map(_OF_MLP.fullmatch, layers)):
        setup.fields.open[setup.argument("lora_targets")] = f"{', '.join(layers)} alone"
    targets = {} if everywhere else {"lora_targets": targets_of(layers)}
    wide = targets.get("lora_targets") == LoraTargets.ATTENTION and len(layers) < len(ATTENTION) and "q_proj" in layers
    note = f"adapters on {', '.join(layers)} are priced as on {', '.join(ATTENTION)}"
    setup.fields.assumptions.extend([note] if wide and note not in setup.fields.assumptions else [])
    return {"lora_rank": int(rank), "frozen_bits": int(bits), **targets}


ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
"""Modules of attention that have adapters together."""

_OF_MLP = re.compile(r"(gate|up|down|gate_up|experts|w[123]|linear_fc[12])(_proj)?")
"""Modules of an MLP; adapters on them alone have no price of their own."""


def _trainer(setup: _Said, recipe: Recipe, plan: TrainingPlan) -> Trainer:
    trainer = setup.record
    if setup.kind == "deepspeed":
        trainer = deepspeed_trainer(_deepspeed(setup), recipe, int(plan.zero_stage))
    switches: JsonDict = {}
    if setup.kind != "deepspeed" and (main := setup.word("main_dtype")):  # DeepSpeed keeps fp32 weights in any case
        switches["main_dtype"] = DType.BF16 if setup.get("pure") else DType(main)
    if setup.get("grads_wide") is False and recipe is Recipe.BF16:  # the optimizer then works on the weights themselves
        switches |= {"grad_dtype": DType.BF16, "main_dtype": DType.BF16}
    if setup.argument("fused_kernels"):
        switches["fused_kernels"] = bool(setup.get("fused_kernels"))
    if setup.argument("expert_tp"):
        switches["splits_experts"] = setup.splits_experts
    words = (name for name in ("cut_cross_entropy", "linear_loss", "fused_loss") if setup.get(name))
    plugins = setup.found("loss")
    for plugin in plugins if isinstance(plugins, list) else ():  # it may freeze weights, or train on something else
        if not PRICED_PLUGINS.search(str(plugin)):
            setup.fields.open[setup.argument("loss")] = printable(str(plugin).rpartition(".")[2])
    word = next(words, str(plugins or ""))
    if loss := next((loss for pattern, loss in LOSSES.items() if re.search(pattern, word)), None):
        switches["fused_loss"] = loss
    return replace(trainer, **{**setup.dialect.switches, **switches})


LOSSES = {"cut_cross": Loss.CUT, "linear": Loss.LINEAR, "chunked": Loss.CHUNKED, "fused|te_": Loss.FUSED}
"""Kinds of cross-entropy by the words of switches, plugins and classes."""

PRICED_PLUGINS = re.compile(r"(?i)liger|cut_?cross|lm_eval|swanlab|mlflow|wandb")
"""Plugins whose effect on the step is said by keys, or that have none."""


# -- model and the rest -------------------------------------------------------------------------------------------


def _model(setup: _Said) -> TransformerShape | None:
    """The model of the zoo that a recipe names, or of the sizes that it has; None if neither."""
    model = setup.fields.raw.get("model")
    sizes, inline = (model.get(key) if isinstance(model, dict) else None for key in ("model_config", "config"))
    if isinstance(sizes, dict) and "hidden_size" in sizes:
        if isinstance(sizes.get("moe_config"), dict):
            raise InputError("model_config.moe_config", "given", "is not read; name the mixture as MODEL", "null")
        window = sizes.get("sliding_window_size")
        family = {"model_type": "mistral", "sliding_window": window} if window else {"model_type": "llama"}
        return _inline(setup, {**family, **sizes})
    if isinstance(inline, dict) and {"hidden_size", "n_embd"} & set(inline) and not setup.dialect.required:
        setup.fields.read.add("model.config")
        target = str(inline.get("_target_", "")).rpartition(".")[2].removesuffix("Config")
        named_type = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", target).lower()
        return _inline(setup, {"model_type": named_type, **inline})
    keys = [key for row in rows(setup.dialect.name, KEYS) if row.field == "model" for key in (row.argument, *row.older)]
    stated = setup.word("model") or next(filter(None, map(setup.fields.shown, keys)), "")
    named = model_named(stated)
    for key in keys:  # of a folder only the end has to be known
        if named and setup.fields.open.pop(key, None):
            notes = setup.fields.assumptions
            notes[:] = [note for note in notes if not note.startswith(f"{key} is ")]
    changes = _resized(setup) if setup.dialect.required else {}
    return edit(named, **changes) if named and changes else named


def _inline(setup: _Said, config: JsonDict) -> TransformerShape:
    """The model of sizes that stand in a recipe; a size that the reader does not know is open."""
    reading = read_fields(config, name="")
    setup.fields.open |= dict(size.split("=", 1) for size in reading.unread_sizes)
    return reading.shape


MEGATRON_SIZES = {
    "num_layers": "num_layers",
    "hidden_size": "hidden_size",
    "ffn_hidden_size": "ffn_hidden_size",
    "num_attention_heads": "num_heads",
    "num_query_groups": "num_kv_heads",
    "kv_channels": "head_dim",
    "num_moe_experts": "num_experts",
    "moe_router_topk": "experts_per_token",
    "moe_ffn_hidden_size": "expert_ffn_hidden_size",
    "vocab_size": "vocab_size",
}
"""Sizes of a model by Megatron-Core's names, and sartor's."""


def _resized(setup: _Said) -> dict[str, int]:
    """Sizes that a recipe by name sets otherwise."""
    paths = {f"{place}.{name}": field for place in ("model", "model.config") for name, field in MEGATRON_SIZES.items()}
    sizes = {field: size for path, field in paths.items() if (size := setup.fields.size(path))}
    if sizes:
        words = ", ".join(f"{field}={size}" for field, size in sizes.items())
        setup.fields.assumptions.append(f"the recipe's model has {words} here")
    return sizes


def _sorted_out(setup: _Said, command: ScriptCommand | None) -> tuple[list[str], list[str], list[str]]:
    """Unread keys as (unknown or bearing on the price, of the trainer without a price, without effect)."""
    words = "|".join((*setup.dialect.names, *launch_words()["no_bearing"]["program"]))
    usual, silent = re.compile(rf"(.*\.)?({words})"), (*dialect_tables()["silent"], *setup.dialect.silent)
    unknown, unpriced, ignored, strange = list[str](), list[str](), list[str](), list[str]()
    read, left = frozenset(setup.fields.read), setup.fields.left()
    for path in left:
        if setup.fields.off(path) and "reshard" not in path:
            continue
        if path.startswith(tuple(setup.dialect.unpriced)):
            unpriced.append(printable(f"{path}={setup.fields.shown(path)}"))
        elif bearing([path]) and not _is_silent(path, silent):
            unknown.append(printable(path))
        else:
            (ignored if path.startswith(silent) or usual.match(path) else strange).append(printable(path))
    check_known(strange, len(left) + len(read), command, f"the program with keys of {setup.dialect.title}")
    setup.fields.open |= dict.fromkeys(_parts_unknown(strange, read), "as given")
    adapted = _adapters(setup) if setup.dialect.freezes_main and setup.word("main_dtype") == "fp32" else {}
    again = setup.fields.shown("gradient_checkpointing") if "gradient_checkpointing" in read else ""
    unpriced += [f"gradient_checkpointing={again}"] * (again in KEPT_BY_THE_HOST)
    unpriced += [WIDE] if adapted.get("frozen_bits") == 16 and not setup.get("pure") else []
    return [*unknown, *strange], unpriced, ignored


KEPT_BY_THE_HOST = ("offload", "offload_disk", "unsloth")
"""Words of axolotl's ``gradient_checkpointing`` with which inputs of recomputed layers wait in the host's memory."""


def _is_silent(path: str, silent: Sequence[str]) -> bool:
    """Whether a key does not bear on the price though its name may; of a whole section, if what follows does not."""
    sections = [start for start in silent if path.startswith(start)]
    return any(start[-1] != "." or not bearing([path.removeprefix(start)]) for start in sections)


def _parts_unknown(strange: Sequence[str], read: Iterable[str]) -> list[str]:
    """A key for each part of a trainer that is not known: a section of which nothing is read (``doremi.weights``), or
    three keys of one name (``gkd_beta``)."""
    names: dict[str, list[str]] = {}
    for path in strange:
        section = path.partition(".")[0] + "."
        whole = "." in path and not any(key.startswith(section) for key in read)
        names.setdefault(section if whole else path.partition("_")[0], []).append(path)
    common = ("use", "no", "max", "min", "num", "enable", "model", "data", "train")
    return [p[0] for name, p in names.items() if len(p) > (1 if name.endswith(".") else 2) and name not in common]


def _kinds(config: JsonMap, fields: StatedDocument) -> list[str]:
    """What shows which kind of run it is: its keys that are on, and the values of those that name a class or a task.
    What follows training (``do_predict``) is no kind."""
    trains = str(config.get("do_train")).lower() == "true"
    named = [fields.shown(path) for path in fields.left() if path.rpartition(".")[2] in CLASSES]
    return [*(key for key in config if config[key] and not (trains and key == "do_predict")), *named]


CLASSES = {"_target_", "model_type", "task_type", "auto_model_class"}
"""Keys whose values name the class of a model or its task."""

WIDE = "torch_dtype=float32 (not given: frozen weights are loaded in 32 bits, and priced in 16)"

MEANS = {
    "sharding": "zero_stage",
    "deepspeed": "zero_stage",
    "not_recomputed": "recomputed",
    "selective": "recomputed",
    "cut_cross_entropy": "fused_loss",
    "linear_loss": "fused_loss",
}
"""Fields of the launch table that a dialect's own field states."""


def _fields_in(setup: _Said) -> frozenset[str]:
    stated = fields_in(setup.dialect.name, setup.fields, KEYS)
    devices = {"num_devices"} if {"num_devices", "local_devices"} & stated else set()
    return frozenset({MEANS.get(name, name) for name in stated} | devices)


def _stands(config: JsonMap, path: str) -> bool:
    value: object = config
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value is not None


def _any(config: JsonMap, paths: Sequence[str]) -> bool:
    return any(_stands(config, path) for path in paths)
