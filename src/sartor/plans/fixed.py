"""Fixed values of a search (``--fix tp=8,recompute=none``): plan fields, and switches of trainer and job."""

from __future__ import annotations

import difflib
import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import combinations, product
from typing import TypeVar

import numpy as np

from sartor.errors import InputError
from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonDict, JsonMap
from sartor.model.lower.setting import check
from sartor.model.plan import AXES, DIMS, STRUCTURE
from sartor.model.shape import layer_order
from sartor.model.training import ContextParallel, OffloadModule, Recipe, Recompute, RecomputeModule, TrainingJob
from sartor.model.workload import AttentionKernel, LoraTargets, Loss, ParallelDims
from sartor.operators import DType
from sartor.plans.space import check_job, job_limits, plan_space, size_of, structures
from sartor.run.fields import FIELDS, Run
from sartor.step.mechanisms.mechanism import Rows
from sartor.step.question import as_trained, check_recipe, supports
from sartor.units import Array, BoolArray, nearest_divisors

ANY = "any"
MOST_CHOICES = 32
"""Most jobs that one command may compare: each is a separate search."""

Module = TypeVar("Module", RecomputeModule, OffloadModule)
Setting = bool | int | Enum | frozenset[RecomputeModule] | frozenset[OffloadModule]
ON_OFF: Mapping[str, Setting] = {
    word: word in ("on", "true", "yes", "1") for word in ["on", "off", "true", "false", "yes", "no", "1", "0"]
}
MOMENTS = (DType.FP32, DType.BF16, DType.FP16, DType.FP8)
LOSSES: Mapping[str, Setting] = {
    **{word: Loss.FUSED if value else Loss.UNFUSED for word, value in ON_OFF.items()},
    **{kind.value: kind for kind in Loss},
}


def _sets(modules: type[Module]) -> dict[str, Setting]:
    sizes = range(1, len(modules) + 1)
    return {
        "+".join(m.value for m in members): frozenset(members) for n in sizes for members in combinations(modules, n)
    }


MODULES: Mapping[str, Setting] = _sets(RecomputeModule)
"""Sets of modules, by their names joined in the order of the enum, from the cheapest to the most expensive."""


NOTHING = "none"
OFFLOADS: Mapping[str, Setting] = {NOTHING: frozenset[OffloadModule](), **_sets(OffloadModule)}


class _Numbers(Mapping[str, Setting]):
    """A word for 0, or any whole number from 1 to ``most``."""

    def __init__(self, most: int, zero: str = "all") -> None:
        self.most, self.zero = most, zero

    def __getitem__(self, word: str) -> Setting:
        if word == self.zero:
            return 0
        if word.isascii() and word.isdigit() and len(word) < 10 and 1 <= int(word) <= self.most:
            return int(word)
        raise KeyError(word)

    def __iter__(self) -> Iterator[str]:
        return iter((self.zero,))

    def __len__(self) -> int:
        return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _JobSwitch:
    """A field of the trainer or the job, with the words for its values."""

    field: str
    words: Mapping[str, Setting]
    of_trainer: bool = True
    of_memory: bool = False
    """Of the trainer's ``memory``."""
    experts: bool = False
    """Affects only mixtures of experts."""
    narrow: bool = False
    """Affects only recipes below 16 bits."""
    axes: tuple[str, ...] = ()
    """Affects only plans in which one of these is above its least value."""

    def setting(self, job: TrainingJob) -> Setting:
        """Its current value."""
        place = job if not self.of_trainer else job.trainer.memory if self.of_memory else job.trainer
        value: Setting = getattr(place, self.field)
        return value

    def word(self, value: Setting) -> str:
        """A value as users write it."""
        is_zero = isinstance(self.words, _Numbers) and not value
        return self.words.zero if is_zero and isinstance(self.words, _Numbers) else _word(value)

    def options(self, job: TrainingJob) -> list[str]:
        """The words of its values, without synonyms, that the job's trainer has."""
        values = dict.fromkeys(self.words.values())
        if self.field == "main_dtype":  # the recipe's other 16-bit type is no alternative
            values.pop(DType.BF16 if job.recipe is Recipe.FP16 else DType.FP16)
        return [self.word(v) for v in values if not isinstance(v, Loss) or v in job.trainer.losses]

    def affects(self, job: TrainingJob, rows: Rows) -> BoolArray:
        """Whether it can change the price of plans with these axes [rows]."""
        kind = (not self.experts or job.shape.moe_ffn is not None) and (not self.narrow or job.recipe.dtype.bytes < 2)
        above = np.any([rows[name] > AXES[name].bounds[0] for name in self.axes], axis=0)
        return np.asarray(np.full(size_of(rows), kind) & (above | np.bool_(not self.axes)))


def _overlap(name: str, *axes: str, **more: bool) -> _JobSwitch:
    return _JobSwitch(field=name, words=ON_OFF, axes=axes, **more)


SWITCHED: Mapping[str, _JobSwitch] = {
    "tp_overlap": _overlap("tp_overlap", "tp"),
    "dp_overlap": _overlap("dp_overlap", "dp", "cp"),
    "p2p_overlap": _overlap("p2p_overlap", "virtual_stages"),
    "ep_overlap": _overlap("ep_overlap", "ep", experts=True),
    "deepep": _overlap("dispatch_once", "ep", experts=True),
    "split_experts": _overlap("splits_experts", "tp", experts=True),
    **{name: _JobSwitch(field=name, words=ON_OFF) for name in ("cuda_graphs", "grad_fusion")},
    "fused_loss": _JobSwitch(field="fused_loss", words=LOSSES),
    "grad_dtype": _JobSwitch(field="grad_dtype", words={each.value: each for each in (DType.FP32, DType.BF16)}),
    "main_dtype": _JobSwitch(field="main_dtype", words={each.value: each for each in MOMENTS[:3]}),
    "fp8_param_gather": _overlap("narrow_primary", "zero_stage", of_memory=True, narrow=True),
    "fp8_act_store": _overlap("narrow_act", of_memory=True),
    "fp8_transpose_cache": _overlap("keeps_transposes", of_memory=True, narrow=True),
    "moments_dtype": _JobSwitch(field="moments_dtype", words={each.value: each for each in MOMENTS}, of_trainer=False),
    "context_parallel": _JobSwitch(
        field="context_parallel", words={each.value: each for each in ContextParallel}, of_trainer=False
    ),
    "recompute_modules": _JobSwitch(field="recompute_modules", words=MODULES, of_trainer=False),
    "offload_modules": _JobSwitch(field="offload_modules", words=OFFLOADS, of_trainer=False),
    "offload_layers": _JobSwitch(field="offload_layers", words=_Numbers(1023), of_trainer=False),
    "dropout": _JobSwitch(field="dropout", words=ON_OFF, of_trainer=False),
    "document_len": _JobSwitch(field="document_len", words=_Numbers(2**24), of_trainer=False),
    "train_weights": _JobSwitch(field="trains_weights", words=ON_OFF, of_trainer=False),
    "lora_rank": _JobSwitch(field="lora_rank", words=_Numbers(2**14, "off"), of_trainer=False),
    "lora_targets": _JobSwitch(
        field="lora_targets", words={each.value: each for each in LoraTargets}, of_trainer=False
    ),
    "frozen_bits": _JobSwitch(field="frozen_bits", words={"16": 16, "8": 8, "4": 4}, of_trainer=False),
    "recipe": _JobSwitch(field="recipe", words={each.value: each for each in Recipe}, of_trainer=False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChoice:
    """A job with some switches set, and what was set: ``{"tp_overlap": "on"}``."""

    job: TrainingJob
    said: Mapping[str, str]

    @property
    def words(self) -> str:
        return ", ".join(f"{name}={word}" for name, word in self.said.items())


def fixed_fields(fix: JsonMap, options: JsonMap) -> dict[str, int | str | bool]:
    """What ``fix`` states, by the names of a run's fields: an axis of the plan as its option has it, a switch as its
    word in `SWITCHED`. Raises ``InputError`` for a key that is neither, and where one of ``options`` says otherwise."""
    stated: dict[str, int | str | bool] = {}
    for key, value in fix.items():
        name, word = _name(key), str(value).strip().lower()
        if value is None or isinstance(value, (dict, list)):
            raise InputError("fix", key, "must be a number or a word", "tp=8,tp_overlap=on")
        if name not in SWITCHED:
            name = _axis(key, "fix")
            stated[name] = AXES[name].shown(_value(name, word, "fix"))
        else:
            word = _in_order(word, NAMED[name]) if name in NAMED else word
            stated[name] = SWITCHED[name].word(SWITCHED[name].words[word]) if word in SWITCHED[name].words else word
        option = options.get(name)
        if option is not None and str(option).lower() != str(stated[name]).lower():
            must = f"fix says {name}={value}: must be stated once"
            raise InputError(name, option, must, f"{name}={value} or {name}={str(option).lower()}")
    return stated


def with_switches(job: TrainingJob, run: Run, gpus: Sequence[Gpu]) -> tuple[TrainingJob, tuple[str, ...]]:
    """The job with the switches that a run states, and the note that says them: ``tp_overlap=on, deepep=off (--fix)``.
    Raises ``InputError`` for one that job or trainer cannot have."""
    words = {name: run.get(name) for name in SWITCHED if name not in OF_THE_JOB and run.states(name)}
    for name, word in words.items():
        if word == ANY:
            raise InputError(_field(name), word, "is tried value by value by `sartor plan`; must be one value here")
    if not words:
        return job, ()
    (choice,), _ = job_choices(job, gpus, words)
    options, fixes = ([name for name in words if (name in FIELDS) is is_option] for is_option in (True, False))
    said = [", ".join(f"{name}={choice.said[name]}" for name in names) for names in (options, fixes)]
    return choice.job, tuple(note for note in (said[0], said[1] and f"{said[1]} (--fix)") if note)


OF_THE_JOB = frozenset({"context_parallel"})
"""Switches that `training_job` takes."""


def _field(name: str) -> str:
    """What an error calls a switch: an option of its own, or a key of ``--fix``."""
    return name if name in FIELDS and name not in OF_THE_JOB else f"fix {name}"


def job_choices(
    job: TrainingJob, gpus: Sequence[Gpu], fixed: Mapping[str, int | str]
) -> tuple[tuple[JobChoice, ...], dict[str, int | str]]:
    """The jobs for the switches in ``fixed`` (several if one is ``any``), and the rest of ``fixed``, which are axes of
    a plan. Raises ``InputError``."""
    words_by_name = {
        _name(name): str(value).strip().lower() for name, value in fixed.items() if _name(name) in SWITCHED
    }
    ordered = {name: _in_order(word, NAMED[name]) if name in NAMED else word for name, word in words_by_name.items()}
    rest = {name: value for name, value in fixed.items() if _name(name) not in SWITCHED}
    lists = [_values(job, gpus, name, word) for name, word in ordered.items()]
    if math.prod(map(len, lists)) > MOST_CHOICES:
        must = f"compare at most {MOST_CHOICES} jobs at once"
        raise InputError("fix", f"{math.prod(map(len, lists))} combinations", must, "any for fewer switches")
    choices = tuple(_choice(job, dict(zip(ordered, words, strict=True))) for words in product(*lists))
    for choice in choices:
        _check_frozen(choice.job)
        if "lora_targets" in choice.said and not choice.job.lora_rank:
            must = "says which layers have an adapter, and none is trained"
            raise InputError("lora_targets", choice.said["lora_targets"], must, "--lora-rank 16")
    runnable = tuple(choice for choice in choices if not any(job_limits(choice.job)))
    if not runnable:
        check_job(choices[0].job)
    return runnable, rest


def _check_frozen(job: TrainingJob) -> None:
    if job.frozen_bits == 16:
        return
    if job.trains_weights:
        raise InputError("frozen_bits", job.frozen_bits, "trained weights must have 16 bits", "--lora-rank 16")
    if job.recipe.dtype.bytes != 2:
        raise InputError(
            "frozen_bits",
            job.frozen_bits,
            "narrow weights are dequantized to 16 bits for every GEMM",
            "--dtype bf16",
        )


def searched_settings(job: TrainingJob, run: Run, axes: Container[str]) -> dict[str, tuple[str, ...]]:
    """Switches that a search tries both ways beside a plan of which ``axes`` are stated, with their words, the
    trainer's own first: experts split over tp or whole, as neither is best for every plan."""
    name = "split_experts"
    either = job.shape.moe_ffn is not None and name in job.trainer.varies and not run.states(name)
    if not either or ("tp" in axes and "ep" in axes) or run.get("tp") == 1:
        return {}
    return {name: (settings(job)[name], *other_settings(job, name))}


def settings(job: TrainingJob) -> dict[str, str]:
    """The current value of every switch of a job, in words."""
    return {name: switch.word(switch.setting(job)) for name, switch in SWITCHED.items()}


def other_settings(job: TrainingJob, name: str) -> dict[str, TrainingJob]:
    """The job with each other value of a switch, by the value's word."""
    switch = SWITCHED[name]
    words = switch.options(job)
    return {word: _choice(job, {name: word}).job for word in words if word != switch.word(switch.setting(job))}


NAMED: Mapping[str, type[Enum]] = {"recompute_modules": RecomputeModule, "offload_modules": OffloadModule}
"""Switches whose value is a set of modules."""


def _in_order(word: str, modules: type[Enum]) -> str:
    """``mlp+layernorm`` -> ``layernorm+mlp``."""
    names = [module.value for module in modules]
    return "+".join(sorted(word.split("+"), key=lambda name: names.index(name) if name in names else -1))


def module_sets(job: TrainingJob) -> list[str]:
    """The attention core alone; then the cheapest module, the two cheapest ... of the model."""
    modules = [m.value for m in job.recomputable if m is not RecomputeModule.CORE_ATTN]
    return ["core_attn", *("+".join(modules[: n + 1]) for n in range(len(modules)))]


def offload_sets(job: TrainingJob) -> list[str]:
    """Nothing; the module with the largest input, the two largest ... of the model; whole layers."""
    whole = (OffloadModule.LAYER, OffloadModule.LAYER_INPUT)
    modules = [module.value for module in job.offloadable]
    parts = [module_name for module_name in modules if OffloadModule(module_name) not in whole]
    sets = ["+".join(parts[: n + 1]) for n in range(len(parts))]
    return [NOTHING, *sets, *(module_name for module_name in modules if OffloadModule(module_name) in whole)]


def modules_named(words: str) -> frozenset[RecomputeModule]:
    """``layernorm+moe_act`` as modules."""
    return frozenset(RecomputeModule(word) for word in words.split("+"))


def _name(name: str) -> str:
    return name.strip().lower().replace("-", "_")


def _choice(job: TrainingJob, words_by_name: Mapping[str, str]) -> JobChoice:
    values = [(SWITCHED[name], SWITCHED[name].words[word]) for name, word in words_by_name.items()]
    memory: JsonDict = {switch.field: value for switch, value in values if switch.of_memory}
    trainer: JsonDict = {switch.field: value for switch, value in values if switch.of_trainer and not switch.of_memory}
    job_fields: JsonDict = {switch.field: value for switch, value in values if not switch.of_trainer}
    trainer |= {"memory": replace(job.trainer.memory, **memory)} if memory else {}
    return JobChoice(job=replace(job, trainer=replace(job.trainer, **trainer), **job_fields), said=words_by_name)


def _values(job: TrainingJob, gpus: Sequence[Gpu], name: str, word: str) -> list[str]:
    """Words of the values to try: the given one, or for ``any`` all that the devices support."""
    switch = SWITCHED[name]
    if job.trainer.lockstep:
        raise InputError(_field(name), word, f"{job.trainer.called} has no such switch", "leave it out")
    if switch.experts and job.shape.moe_ffn is None:
        raise InputError(f"fix {name}", word, "the model has no experts", "leave it out")
    if name.startswith("offload") and not job.trainer.offloads:
        raise InputError(f"fix {name}", word, f"{job.trainer.called} has no such switch", "--framework megatron")
    if name == "document_len" and word in switch.words:
        _check_documents(job, word)
    if word == ANY and name in NAMED:
        return module_sets(job) if name == "recompute_modules" else offload_sets(job)
    if word == ANY and isinstance(switch.words, _Numbers):
        raise InputError(_field(name), word, "takes one number", switch.words.zero)
    if word == ANY:
        return [option for option in switch.options(job) if name != "recipe" or _as_narrow(job, gpus, Recipe(option))]
    modules = [m.value for m in (job.offloadable if name == "offload_modules" else job.recomputable)]
    if word not in switch.words:
        options = [*switch.options(job), ANY]
        if name in NAMED:
            options = [*([NOTHING] if NOTHING in switch.words else []), *modules, ANY]
        if isinstance(switch.words, _Numbers):
            options = [switch.words.zero, f"1 to {switch.words.most}"]
        near = difflib.get_close_matches(word, options[:1] if word.isdigit() else options, n=1, cutoff=0.0)
        raise InputError(_field(name), word, f"must be one of {', '.join(options)}", near[0])
    if name in NAMED and word != NOTHING:
        _check_modules(name, word, modules)
    if isinstance(value := switch.words[word], Recipe):
        for gpu in gpus:
            check_recipe(value, gpu)
    return [switch.word(switch.words[word])]


def _check_modules(name: str, word: str, modules: Sequence[str]) -> None:
    if absent := [module_name for module_name in word.split("+") if module_name not in modules]:
        must = f"must be a part that the model has and the trainer can move; there are {', '.join(modules)}"
        must = must if name == "offload_modules" else f"the model has no such part; it has {', '.join(modules)}"
        raise InputError(f"fix {name}", "+".join(absent), must, modules[0])


def _check_documents(job: TrainingJob, word: str) -> None:
    document_len = 0 if word == "all" else int(word)
    if document_len and job.seq_len % document_len:
        must = f"must divide seq_len={job.seq_len}"
        raise InputError("fix document_len", word, must, nearest_divisors(job.seq_len, document_len))
    if document_len and job.attention_kernel is not AttentionKernel.FLASH:
        raise InputError("fix document_len", word, "unfused attention is computed over whole sequences", "all")


def _as_narrow(job: TrainingJob, gpus: Sequence[Gpu], recipe: Recipe) -> bool:
    """Whether the devices support a recipe of the same width as the job's."""
    return recipe.dtype.bytes == job.recipe.dtype.bytes and all(supports(recipe, gpu) for gpu in gpus)


def _word(value: Setting) -> str:
    if isinstance(value, frozenset):
        return "+".join(module.value for kind in NAMED.values() for module in kind if module in value) or NOTHING
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value or "all")


NEAR_DEVICES = 64
"""Range in which a usable number of devices is searched, above and below the given one."""


def check_fixed(job: TrainingJob, num_devices: int, fixed: JsonMap) -> dict[str, int]:
    """``fixed`` as integers by axis, each a value that some plan of the job on ``num_devices`` has.

    Raises ``InputError`` for an unknown axis or word, a value no plan can have, and a number of devices that no plan of
    the job can use; it names the nearest that would work.
    """
    values = with_recompute(job, named_values(fixed))
    _check_together(job, num_devices, values)
    possible = structures(job, plan_space(job, num_devices, {}))
    if not size_of(possible.rows):
        raise _no_plan(job, num_devices, possible.rejected)
    if error := _impossible_alone(job, num_devices, values, possible.rows, "fix "):
        raise error
    return values


def impossible_axis(job: TrainingJob, num_devices: int, axes: Mapping[str, int]) -> InputError | None:
    """The error for the first value that no plan of the job has; None if values conflict only in combination."""
    possible = structures(job, plan_space(job, num_devices, {})).rows
    return _impossible_alone(job, num_devices, axes, possible) if size_of(possible) else None


def _impossible_alone(
    job: TrainingJob, num_devices: int, values: Mapping[str, int], possible: Rows, option: str = ""
) -> InputError | None:
    for name, value in values.items():
        if name in STRUCTURE and not (possible[name] == value).any():
            return _impossible(job, num_devices, name, value, np.unique(possible[name]), option)
    return None


def named_values(fixed: JsonMap, option: str = "fix") -> dict[str, int]:
    """Values by axis as integers. Raises ``InputError`` for an unknown axis or word."""
    return {_axis(name, option): _value(_axis(name, option), value, option) for name, value in fixed.items()}


OF_A_CLUSTER = ("rails", "oversubscription")


def _axis(name: str, option: str) -> str:
    axis = name.strip().lower().replace("-", "_")
    if axis in AXES:
        return axis
    if axis in FIELDS and axis not in SWITCHED:
        raise InputError(option, name, "is a setting of the job, not of the plan", f"--{axis.replace('_', '-')}")
    if axis in OF_A_CLUSTER:
        raise InputError(
            option, name, "is a property of the network, not of the plan", f"a tier of a cluster's file: {axis} = ..."
        )
    names = (*AXES, *SWITCHED)
    near = difflib.get_close_matches(axis, names, n=2, cutoff=0.5)
    raise InputError(option, name, f"is not an axis of a plan; the axes are {', '.join(names)}", " or ".join(near))


def _value(axis: str, value: object, option: str) -> int:
    words = AXES[axis].numbers
    word = str(value).strip().lower()
    if word in words:
        return words[word]
    try:
        number = int(word)
    except ValueError:
        near = difflib.get_close_matches(word, words, n=1, cutoff=0.0)
        must = f"must be one of {', '.join(words)}" if words else "must be a whole number"
        raise InputError(f"{option} {axis}", value, must, near[0] if near else "") from None
    low, high = AXES[axis].bounds
    if not low <= number <= high:
        must = f"must be at least {low}" if number < low and high == 2**31 else f"must be from {low} to {high}"
        raise InputError(f"{option} {axis}", number, must, str(min(max(number, low), high)))
    return number


def with_recompute(job: TrainingJob, values: dict[str, int]) -> dict[str, int]:
    """A number of recomputed layers implies full recomputation."""
    some = values.get("recompute_layers")
    if some is None:
        return values
    layers = len(layer_order(job.shape))
    if not job.trainer.recomputes_some_layers:
        raise InputError(
            "fix recompute_layers", some, f"{job.trainer.called} recomputes all layers or none", "recompute=full"
        )
    if some > layers:
        raise InputError("fix recompute_layers", some, f"must be at most the model's {layers} layers", str(layers))
    if values.get("recompute", Recompute.FULL) != Recompute.FULL:
        word = Recompute(values["recompute"]).word
        must = f"needs recompute=full; recompute={word} recomputes no whole layer"
        raise InputError("fix recompute_layers", some, must, "recompute=full")
    return {**values, "recompute": int(Recompute.FULL)}


def _check_together(job: TrainingJob, num_devices: int, values: Mapping[str, int]) -> None:
    """The product of fixed degrees must divide the devices, and the batch must be divisible by dp x microbatch size."""
    names = [name for name in DIMS if name in values]
    product = math.prod(values[name] for name in names)
    if len(names) > 1 and num_devices % product:
        *others, last = names
        beside = " and ".join(f"{name}={values[name]}" for name in others)
        below, above = num_devices // product * product, (num_devices // product + 1) * product
        must = f"takes {product} devices with {beside}; num_devices={num_devices} is not a multiple of {product}"
        multiples = f"num_devices={' or '.join(str(n) for n in (below, above) if n)}"
        raise InputError(f"fix {last}", values[last], must, multiples)
    batch, at_once = job.global_batch_size, values.get("dp", 1) * values.get("microbatch_size", 1)
    if batch % at_once and num_devices % values.get("dp", 1) == 0:
        names = [name for name in ("dp", "microbatch_size") if name in values]
        words = " x ".join(f"{name}={values[name]}" for name in names)
        near = [n for n in (batch // at_once * at_once, (batch // at_once + 1) * at_once) if n]
        raise InputError("global_batch_size", batch, f"must be a multiple of {words}", " or ".join(map(str, near)))


def _impossible(job: TrainingJob, num_devices: int, axis: str, value: int, legal: Array, option: str) -> InputError:
    """The error for a value that no plan has: what rules it out, and the nearest values that some plan has."""
    if axis in DIMS and num_devices % value:
        why = f"must divide num_devices={num_devices}"
    elif unsplit := _unsplit(job, axis, value):
        why = unsplit
    elif axis == "ep":
        within = "dp x cp" if job.trainer.splits_experts else "tp x dp x cp"
        why = f"must divide the model's experts and {within}" if job.shape.moe_ffn else "the model has no experts"
    else:
        rejected = structures(job, plan_space(job, num_devices, {axis: value})).rejected
        why = list(rejected)[-1] if rejected else "no plan has it"  # what struck those that all else had left
    nearest = sorted(sorted(legal.tolist(), key=lambda v: (abs(v - value), v))[:2])
    return InputError(f"{option}{axis}", value, why, " or ".join(map(str, nearest)))


def _unsplit(job: TrainingJob, axis: str, degree: int) -> str:
    """``does not split num_heads=28 (24 and 32 do)``: the size of the model that a degree does not divide."""
    split = ParallelDims(tp=degree if axis == "tp" else 1, ep=degree if axis == "ep" else 1)
    try:
        check(as_trained(job, split), split)
    except InputError as error:
        return error.must
    return ""


def _no_plan(job: TrainingJob, num_devices: int, rejected: Mapping[str, int]) -> InputError:
    """The error if no structure is possible: the most common reason, and nearby usable numbers of devices."""
    reason = max(rejected, key=lambda cause: rejected[cause])
    near = [n for n in (_towards(job, num_devices, -1), _towards(job, num_devices, 1)) if n]
    must = f"no tp x pp x dp x cp split works with the model and global_batch_size={job.global_batch_size} ({reason})"
    return InputError("num_devices", num_devices, must, " or ".join(map(str, near)))


def _towards(job: TrainingJob, num_devices: int, step: int) -> int | None:
    candidates = (num_devices + step * k for k in range(1, NEAR_DEVICES + 1))
    return next((n for n in candidates if n > 0 and size_of(structures(job, plan_space(job, n, {})).rows)), None)
