"""Options beside a launch: they say what the file leaves open and win over what it says, and the answer names both.

The origin of every fact of a launch: stated in its files, implied by others, or its trainer's default.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from sartor.errors import InputError, Stated
from sartor.json_types import JsonDict
from sartor.launch.fields import quantities, row_of, text_of
from sartor.launch.plan import LaunchKind
from sartor.launch.stated import LEFT_TO_PROGRAM, NOT_IN_FILE, Options
from sartor.model.plan import AXES
from sartor.model.shape import Value
from sartor.model.training import TrainingJob, TrainingPlan
from sartor.model.workload import AttentionKernel
from sartor.plans.fixed import named_values, settings, with_switches
from sartor.plans.space import axes_of, plan_at
from sartor.run.fields import Origin, Run, check_batch
from sartor.step.question import training_job, usual_attention
from sartor.step.trainers import record_named, trainer_named

if TYPE_CHECKING:
    from sartor.hardware.gpu import Gpu
    from sartor.launch.plan import LaunchReading
    from sartor.model.shape import TransformerShape

OF_JOB = {
    "dtype": "recipe",
    "optimizer": "optimizer",
    "attention": "attention_kernel",
    "context_parallel": "context_parallel",
    "routing_skew": "routing_skew",
}
"""Options of the job, and the field of `TrainingJob` (and of the launch table) that each states."""
OPTIONS = {field: option for option, field in OF_JOB.items()}
SAID_BY = {
    "dtype": ("bf16", "fp16", "param_dtype"),
    "recompute": ("recomputed",),
    "recompute_layers": ("recompute",),
    "virtual_stages": ("stages",),
    "zero_stage": ("sharded", "fsdp", "reshards"),
    "microbatch_size": ("local_batch_size",),
    "global_batch_size": ("num_microbatches",),
}
"""Further fields of the launch table that say what an option states."""
BY_FORMAT = {LaunchKind.MEGATRON: ("nemo", "megatron-deepspeed")}
"""Trainers without a format of their own, by the one whose files they read."""
FAMILIES = {
    LaunchKind.MEGATRON: (LaunchKind.MEGATRON, LaunchKind.MEGATRON_BRIDGE, LaunchKind.DEEPSPEED),
    LaunchKind.MEGATRON_BRIDGE: (LaunchKind.MEGATRON_BRIDGE, LaunchKind.MEGATRON),
    LaunchKind.DEEPSPEED: (LaunchKind.DEEPSPEED, LaunchKind.ACCELERATE),
    LaunchKind.ACCELERATE: (LaunchKind.ACCELERATE, LaunchKind.DEEPSPEED),
    LaunchKind.TORCHTITAN: (LaunchKind.TORCHTITAN,),
    LaunchKind.MAXTEXT: (LaunchKind.MAXTEXT,),
    LaunchKind.AUTOMODEL: (LaunchKind.AUTOMODEL,),
    LaunchKind.TORCHTUNE: (LaunchKind.TORCHTUNE,),
}
"""Formats of trainers that a launch of a format may start: Megatron's arguments run under its forks and DeepSpeed too,
and Hugging Face's programs under both of its launchers."""
SIZES = ("tp", "pp", "cp", "ep", "sequence_parallel", "zero_stage", "optimizer_offload", "microbatch_size")
"""Axes that a launch says in one argument each; with them a file is read in place of its own values."""
NO_FLASH = "attention=unfused: flash attention has no kernels for GPUs of the generation {}"
MEANT = re.compile(r"did you mean (\S+)\?")
OF_SEQUENCE = re.compile(r"seq|max_length|block_size|target_length")
OF_MODEL = re.compile(
    r"hidden|heads|layers$|vocab|kv-|[qv][-_]lora|head-dim|^base_|^--num-experts|query-groups|router-topk"
)
"""Names of arguments that say the length of a sequence, and a model's sizes."""


def options_of(run: Run | None, num_devices: int, shape: TransformerShape | None) -> Options:
    """What a run states, by the fields of the launch table. Raises ``InputError``."""
    run = run or Run(facts={})
    names = [name for name in (*AXES, *OF_JOB, "global_batch_size", "seq_len") if name in run]
    axes = named_values({name: str(run.get(name)).lower() for name in names if name in AXES}, "launch")
    numbers = {**axes, **{name: run.get(name) for name in ("global_batch_size", "seq_len") if name in run}}
    fields = {field for name in names for field in (OF_JOB.get(name, name), *SAID_BY.get(name, ()))}
    sizes = {name: int(number) for name, number in numbers.items() if name not in AXES or name in SIZES}
    words = {field: str(run.get(name)) for name, field in OF_JOB.items() if name in run}
    return Options(num_devices=num_devices, shape=shape, sizes=sizes, words=words, fields=frozenset(fields))


def with_options(
    reading: LaunchReading, run: Run, *, shape: TransformerShape | None, gpus: Sequence[Gpu]
) -> tuple[TrainingJob, TrainingPlan, tuple[str, ...]]:
    """A launch's job and plan on ``gpus`` with the options (and the model's ``shape``) that are stated beside it, and
    the assumptions: what each option replaces, then what the file leaves open.

    Raises ``InputError`` for what neither says, and for what the launch's devices do not allow.
    """
    _check_trainer(reading.kind, run, gpus)
    because: tuple[str, ...] = ()
    replaced = {OPTIONS.get(name, name): words for name, words in reading.replaced.items()}
    unsaid = {**replaced, **_settled(reading, run, has_model=shape is not None)}
    file_job = reading.job(shape, run.get("seq_len"))
    job, _ = with_switches(_with_job_options(file_job, run, gpus), run, gpus)
    bare = usual_attention(job.trainer, gpus) is AttentionKernel.UNFUSED
    if bare and "attention" not in run and "attention_kernel" not in reading.fields_in_file:
        job, because = replace(job, attention_kernel=AttentionKernel.UNFUSED), (NO_FLASH.format(gpus[0].generation),)
    plan, batch = _with_axes(reading, file_job, run)
    if plan != reading.plan or batch != job.global_batch_size:
        job = replace(job, global_batch_size=batch)
    before_job = reading.job(shape, reading.parts.seq_len or run.get("seq_len"))
    before = settings(before_job) | _words(before_job, reading.plan)
    after = settings(job) | _words(job, plan)
    notes = [
        f"{name}={text_of(after[name])} as stated; the file says {unsaid.get(name) or text_of(before[name])}"
        for name in after
        if name in run and (name in unsaid or (name not in reading.assumed and after[name] != before[name]))
    ]
    if shape is not None and (reading.shape is not None or "model" in reading.replaced):
        wrong = f" ({reading.replaced['model']})" if "model" in reading.replaced else ""
        wrong = wrong or _other_sizes(shape, reading.shape)
        notes.append(f"the model is {shape.name or 'the one given'}, not the file's sizes{wrong}")
    notes += _following_batch(reading, run, batch)
    open_names = tuple(f"{name} is " for name in reading.open_fields)
    assumed = [text for name, text in reading.assumed.items() if name not in run]
    return (
        job,
        plan,
        (*notes, *because, *assumed, *(text for text in reading.assumptions if not text.startswith(open_names))),
    )


def _following_batch(reading: LaunchReading, run: Run, batch: int) -> list[str]:
    """``global_batch_size=8: the file states none, microbatch_size x dp (32 before)``, if a stated axis changes it."""
    if reading.parts.global_batch_size is not None or "global_batch_size" in run:
        return []
    before = Fraction(batch)
    for name in ("microbatch_size", "tp", "pp", "cp"):
        in_file = re.search(r"\d+", reading.replaced.get(name, ""))
        if name in run and in_file:
            ratio = Fraction(int(in_file[0]), run.get(name))
            before = before * ratio if name == "microbatch_size" else before / ratio
    if before == batch:
        return []
    return [f"global_batch_size={batch}: the file states none, microbatch_size x dp ({int(before)} before)"]


def _check_trainer(kind: LaunchKind, run: Run, gpus: Sequence[Gpu]) -> None:
    """Raise ``InputError`` for a stated trainer that such a file does not start."""
    name = run.get("framework")
    if name is None:
        return
    trainer_named(name, gpus[0])  # which must be known
    word = name.strip().lower().partition("@")[0].replace("_", "-")
    kinds = FAMILIES[kind]
    formats = [other for other in LaunchKind if word in (*record_named(other.value).names, *BY_FORMAT.get(other, ()))]
    if formats and not set(formats) & set(kinds):
        must = f"a file for {kind.title} does not start it; {record_named(word).called} has files of its own"
        raise InputError("framework", name, must, " or ".join(kind.value for kind in kinds))


def _other_sizes(shape: TransformerShape, file_shape: TransformerShape | None) -> str:
    """`` (hidden_size=3584, the file says 4096)``: of two shapes, the first sizes that differ."""
    fields, others = shape.fields(), file_shape.fields() if file_shape else {}
    differ = [name for name in fields if name in others and int(fields[name]) != int(others[name])][:3]
    words = ", ".join(f"{name}={int(fields[name])}, the file says {int(others[name])}" for name in differ)
    return f" ({words})" if words else ""


def _settled(reading: LaunchReading, run: Run, *, has_model: bool) -> dict[str, str]:
    """Fields whose argument has no value in the file and that an option states, with the words that stand there.

    Raises ``InputError`` for an argument without a value that no option states either.
    """
    settled, left = dict[str, str](), dict[str, str]()
    for name, words in reading.open_fields.items():
        row = row_of(reading.section or reading.kind, name)
        field = "" if row is None else _option_of(row.field, run)
        field = "seq_len" if OF_SEQUENCE.search(name) else field
        if field in run:
            if words not in (LEFT_TO_PROGRAM, NOT_IN_FILE):
                settled[field] = words
        elif words in (LEFT_TO_PROGRAM, NOT_IN_FILE):
            left[name] = field
        elif not (has_model and OF_MODEL.search(name)):
            raise _unsaid(reading, name, words, field)
    if left:
        raise _left_open(reading, run, left)
    return settled


def _left_open(reading: LaunchReading, run: Run, left: Mapping[str, str]) -> InputError:
    """The error for arguments that a program fills in, with every option that has to be stated."""
    first, *others = left
    also = f", as is {' and '.join(others)}" if others else ""
    lacks = ["seq_len"] if reading.parts.seq_len is None and "seq_len" not in run else []
    options = " and ".join(dict.fromkeys([*left.values(), *lacks]))
    value, near = Stated(f"is {reading.open_fields[first]}{also}"), "the program's arguments in a script in its folder"
    return InputError(first, value, "step and memory depend on it", f"{options} stated beside the file, or {near}")


def _option_of(field: str, run: Run) -> str:
    """The option that states a field of the launch table: of several, the one that is stated."""
    options = [name for name, fields in SAID_BY.items() if field in fields]
    first = OPTIONS.get(field, field)
    names = [first, *options] if first in (*AXES, *OF_JOB, "seq_len", "global_batch_size") else options
    return next((name for name in names if name in run), next(iter(names), field))


def _unsaid(reading: LaunchReading, name: str, words: str, field: str) -> InputError:
    """The error for an argument that is not understood, or whose value the file does not say."""
    if any(text.partition(" ")[0] == name for text in reading.unknown):
        must = "not a field that sartor knows, and by its name step and memory may depend on it"
        near = next((n for text in reading.unknown if text.startswith(name) for n in MEANT.findall(text)), "")
        return InputError(name, words, must, near or "the file without it")
    option = f", or {field} stated beside it" if field in (*AXES, *OF_JOB, "seq_len", "global_batch_size") else ""
    unsaid, near = "it has no price", "the file without it"
    if re.search(r"[${]", words):
        unsaid, near = "the file does not say its value", "its value in the file"
    return InputError(name, words, f"{unsaid}, and step and memory depend on it", f"{near}{option}")


def _with_job_options(job: TrainingJob, run: Run, gpus: Sequence[Gpu]) -> TrainingJob:
    """The job with the options that are not about its plan; of another trainer, the overlaps stay the file's."""
    words: JsonDict = {name: run.get(name) for name in OF_JOB if name in run}
    if not words and "framework" not in run:
        return job
    words |= {"global_batch_size": job.global_batch_size, "seq_len": job.seq_len}
    stated, _ = training_job(job.shape, gpus, framework=run.get("framework", job.trainer), **words)
    trainer = replace(stated.trainer, dp_overlap=job.trainer.dp_overlap, tp_overlap=job.trainer.tp_overlap)
    return replace(job, trainer=trainer, **{f: getattr(stated, f) for name, f in OF_JOB.items() if name in run})


def _with_axes(reading: LaunchReading, job: TrainingJob, run: Run) -> tuple[TrainingPlan, int]:
    """The plan with the axes that are stated, and its batch in sequences; replicas make up the launch's devices.

    A file without a global batch says one per replica, which stays. Raises ``InputError``.
    """
    plan, before = reading.plan, axes_of(reading.plan)
    stated = named_values({name: str(run.get(name)).lower() for name in AXES if name in run}, "launch")
    axes = {**before, **stated}
    if axes["tp"] > 1 == before["tp"] and "sequence_parallel" not in stated:
        axes["sequence_parallel"] = int(reading.sequence_parallel)
    replica = axes["tp"] * axes["pp"] * axes["cp"]
    axes["dp"], rest = divmod(int(plan.num_devices), replica)
    if rest or stated.get("dp", axes["dp"]) != axes["dp"]:
        name = next(axis for axis in ("dp", "tp", "pp", "cp") if axis in stated)
        must = f"the launch has {int(plan.num_devices)} devices, and tp x pp x cp is {replica}"
        raise InputError(name, stated[name], must, "--num-devices, to state another number")
    per_replica = job.global_batch_size // before["dp"]
    batch = axes["dp"] * per_replica if reading.parts.global_batch_size is None else job.global_batch_size
    batch = run.get("global_batch_size", batch)
    check_batch(batch, job.seq_len)
    unit = axes["dp"] * axes["microbatch_size"]
    if batch % unit:
        must = f"must be a multiple of dp x microbatch_size = {axes['dp']} x {axes['microbatch_size']}"
        raise InputError("global_batch_size", batch, must, str(max(batch // unit, 1) * unit))
    if axes == before and batch == job.global_batch_size:
        return plan, batch
    rows = {name: np.array([value]) for name, value in axes.items()}
    changed = plan_at(replace(job, global_batch_size=batch), rows, 0)
    same_chunks = all(axes[name] == before[name] for name in ("pp", "virtual_stages"))
    return replace(changed, stage_layers=plan.stage_layers if same_chunks else None), batch


def _words(job: TrainingJob, plan: TrainingPlan) -> dict[str, Value]:
    """Every field that an option may state, by the option's name, as a launch would write it."""
    facts = quantities(job, plan) | {"framework": job.trainer.name, "routing_skew": float(job.routing_skew)}
    return {
        name: facts[OF_JOB.get(name, name)] for name in (*AXES, *OF_JOB, "framework", "global_batch_size", "seq_len")
    }


# -- origins ---------------------------------------------------------------------------------------------------------

STATED_BY = {**SAID_BY, "global_batch_size": (), "recompute_layers": ()}
"""Further fields of the launch table that state an option; accumulation steps imply a batch, and state none."""
DEGREES = "num_devices / (tp x pp x cp)"
BATCH = "microbatch_size x dp x num_microbatches"
SETS = "the sets of shards in the file"
DEVICES = "the product of the degrees"
EVEN = "even routing"
DEFAULT = "'s default"
LEFT = "left to the program that the file starts"


def with_origins(run: Run, reading: LaunchReading, job: TrainingJob, plan: TrainingPlan, source: str) -> Run:
    """The run with every fact of a launch's job and plan that options do not state, each with its origin; ``source``
    names the file or log."""
    for name, value in facts_of(job, plan).items():
        if name not in run and value is not None:
            origin, words = _origin(name, reading, plan)
            run = run.with_(origin, words or source, **{name: value})
    return run


def facts_of(job: TrainingJob, plan: TrainingPlan) -> JsonDict:
    """Every fact of a job and its plan by the name of its option, as options write it."""
    facts = {name: AXES[name].shown(value) for name, value in axes_of(plan).items()} | {
        "num_devices": int(plan.num_devices),
        "global_batch_size": job.global_batch_size,
        "seq_len": job.seq_len,
        "framework": job.trainer.name,
        **{name: getattr(job, field) for name, field in OF_JOB.items()},
    }
    return {name: getattr(value, "value", value) for name, value in facts.items()}


def _origin(name: str, reading: LaunchReading, plan: TrainingPlan) -> tuple[Origin, str]:
    """The origin of a fact that no option states, and its rule or record; no words for what the file states."""
    if name in reading.assumed:
        return Origin.USUAL, LEFT
    if rule := dict(_rules(reading, plan)).get(name):
        return Origin.IMPLIED, rule
    fields = {OF_JOB.get(name, name), *STATED_BY.get(name, ())}
    if name == "framework" or (fields & reading.fields_in_file and name not in reading.implied):
        return Origin.STATED, ""
    last = {"global_batch_size": BATCH, "num_devices": DEVICES} | dict(reading.implied)
    if name in last:
        return Origin.IMPLIED, last[name]
    return Origin.USUAL, EVEN if name == "routing_skew" else f"{reading.parts.trainer.called}{DEFAULT}"


def _rules(reading: LaunchReading, plan: TrainingPlan) -> Iterator[tuple[str, str]]:
    """Axes that follow from others in every trainer, whatever the file says of them."""
    dims = plan.dims
    yield "dp", reading.implied.get("dp", DEGREES)
    if dims.tp == 1:
        yield "sequence_parallel", "no effect with tp=1"
    if dims.pp == 1:
        yield from dict.fromkeys(("virtual_stages", "schedule"), "no effect with pp=1").items()
    if dims.dp * dims.cp == 1:
        yield from dict.fromkeys(("zero_stage", "shard_group"), "one replica").items()
    elif plan.zero_stage == 0:
        yield "shard_group", "no effect with zero_stage=0"
        if "shards" in reading.fields_in_file:  # of one device each
            yield "zero_stage", SETS
    elif {"instances", "replicas"} & reading.fields_in_file:
        yield "shard_group", SETS


RULES_SHOWN = ("num_devices", "global_batch_size", "microbatch_size", "virtual_stages")
"""Facts whose rule is said in words; the others are in the first line of an answer, or have no effect."""


def origin_words(run: Run, job: TrainingJob, notes: Sequence[str]) -> tuple[str, ...]:
    """What follows from a launch and what its trainer's defaults fill in, in two sentences; without what ``notes`` say
    already, and without axes that have no effect."""
    facts = {name: fact for name, fact in run.facts.items() if not any(note.startswith(f"{name}=") for note in notes)}
    rules = [
        f"{name}={text_of(fact.value)} ({fact.source})"
        for name, fact in facts.items()
        if fact.origin is Origin.IMPLIED and name in RULES_SHOWN and not fact.source.startswith("no effect")
    ]
    idle = {"context_parallel"} if run.get("cp") == 1 else set()
    idle |= set() if job.shape.moe_ffn else {"ep"}
    idle |= set() if run.get("shard_group") else {"shard_group"}
    defaults: dict[str, list[str]] = {}
    for name, fact in facts.items():
        if fact.origin is Origin.USUAL and fact.source.endswith(DEFAULT) and name not in idle:
            defaults.setdefault(fact.source, []).append(f"{name}={text_of(fact.value)}")
    return (
        *(f"{words} (usual: {source})" for source, stated in defaults.items() for words in (", ".join(stated),)),
        *((f"from the rest of the launch: {', '.join(rules)}",) if rules else ()),
    )
