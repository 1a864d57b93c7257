"""Write a plan as a torchtitan configuration: Python since 0.3, TOML before; `torchtitan_read` reads both.

Written against torchtitan 0.3.0 (its wheel on PyPI, read 2026-11-23): torchtitan/trainer.py, config/configs.py,
distributed/activation_checkpoint.py and models/*/__init__.py; the TOML against config/job_config.py in its last form
(read 2026-11-21). Names are in tests/golden/launch_arguments.csv.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sartor.json_types import JsonDict, JsonMap
from sartor.launch.fields import (
    OWN_CONFIG,
    Argument,
    check_rows,
    numeric_arguments,
    quantities,
    release_of,
    traits_of,
    value_of,
    written_fields,
)
from sartor.launch.plan import (
    LaunchFile,
    LaunchFiles,
    LaunchKind,
    check_runs,
    device_layers,
    launchable,
    nodes_of,
    refuser,
    stages_of,
)
from sartor.launch.script import launch_script
from sartor.launch.torchtitan_source import Flavor, flavor_of, own_flavor
from sartor.model.shape import Numerics, TransformerShape
from sartor.model.training import PipelineSchedule, Recipe, Recompute, TrainingJob, TrainingPlan
from sartor.units import ceil_div

KIND = LaunchKind.TORCHTITAN
_refuse = refuser(KIND)

QUANTIZED = {
    Recipe.FP8_CURRENT: ("float8", "tensorwise"),
    Recipe.FP8_ROWWISE: ("float8", "rowwise"),
    Recipe.MXFP8: ("mx", "mxfp8_cublas"),
}
PYTHON_CONFIGS = (0, 3)
"""The first release with Python configurations; earlier ones use TOML."""
BEFORE = (0, 2, 2)
"""The last release with TOML."""


def torchtitan_files(job: TrainingJob, plan: TrainingPlan, devices_per_node: int, version: str = "") -> LaunchFiles:
    """``sartor_config.py`` (``train.toml`` before 0.3) and ``launch.sh``. Raises `InputError` for what torchtitan
    cannot do, naming what it can."""
    plan = launchable(job, plan, splits_experts=job.trainer.splits_experts)
    release = release_of(KIND, version)
    by_python = release >= PYTHON_CONFIGS
    check_rows(KIND, "config", quantities(job, plan), traits_of(job, plan), release)
    _check(job, plan, by_python=by_python)
    check_runs(KIND, job, plan)
    about = f"torchtitan: {job.shape.name or 'a model'} on {plan.num_devices} devices"
    config, arguments, notes = (_python if by_python else _toml_file)(about, job, plan)
    script = launch_script(
        about=about,
        launcher="torchrun",
        nodes=nodes_of(int(plan.num_devices), devices_per_node),
        script="-m torchtitan.train",
        groups={"CONFIG_ARGS": arguments},
        env={"PYTHONPATH": '"$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd):${PYTHONPATH:-}"'} if by_python else None,
        notes=(*notes, "give data, tokenizer and learning rate behind this script's name"),
    )
    return LaunchFiles(kind=KIND, files=(config, script), notes=tuple(notes))


Made = tuple[LaunchFile, list[Argument], list[str]]


def _python(about: str, job: TrainingJob, plan: TrainingPlan) -> Made:
    """The configuration of torchtitan 0.3 and newer."""
    flavor = flavor_of(job.shape) or own_flavor(job.shape)
    beside, notes = numeric_arguments(KIND, job.shape, flavor.computes if flavor else None)
    if flavor is None:
        notes += ["torchtitan has no family with these parts: put model_registry of one into custom_model.py"]
    name = (flavor.module, flavor.flavor) if flavor else ("", job.shape.name or "custom")
    values, traits = quantities(job, plan), traits_of(job, plan)
    values["sequence_parallel"] = bool(plan.dims.tp == 1 or plan.dims.sequence_parallel)
    values["tp_overlap"] = job.trainer.tp_overlap and bool(plan.dims.tp > 1)
    code = {**_shared(job, plan, "lm_head"), "training.disable_cuda_graphs": not job.trainer.cuda_graphs}
    tables = written_fields(KIND, "config", values, traits, code, PYTHON_CONFIGS)
    text = _python_text(about, job, plan, name, beside, tables, flavor if flavor and flavor.family else None)
    arguments: list[Argument] = [("--module", "sartor_config"), ("--config", "train")]
    return LaunchFile(name="sartor_config.py", text=text), arguments, notes


def _toml_file(about: str, job: TrainingJob, plan: TrainingPlan) -> Made:
    """The configuration of torchtitan 0.2 and older, whose flavors cannot be changed by fields."""
    flavor, notes = flavor_of(job.shape), list[str]()
    if flavor is None:
        notes += ["torchtitan has no flavor of this model: register one, and name it under [model]"]
    elif job.shape.numerics is not None:
        _same_as_flavor(job.shape, flavor, notes)
    code = {
        **_shared(job, plan, "output"),
        "model.name": flavor.module if flavor else "custom",
        "model.flavor": flavor.flavor if flavor else job.shape.name or "custom",
        "optimizer.name": "AdamW",
        **_checkpointing(plan, int(job.shape.num_layers)),
        **_quantized(job),
    }
    tables = written_fields(KIND, "config", quantities(job, plan), traits_of(job, plan), code, BEFORE)
    text = f"# {about}\n# Written by sartor.\n" + _toml_text(tables)
    return LaunchFile(name="train.toml", text=text), [("--job.config_file", "train.toml")], notes


def _same_as_flavor(shape: TransformerShape, flavor: Flavor, notes: list[str]) -> None:
    """Add a note (or raise, for RoPE) if a flavor computes something else than the model; a TOML cannot change it."""
    numerics, flavor_numerics = shape.numerics or Numerics(), flavor.computes
    names = sorted({*numerics.unusual, *flavor_numerics.unusual} - {"activation"})
    differences = [
        f"{name}={flavor_numerics.get(name)}, not {numerics.get(name)}"
        for name in names
        if numerics.get(name) != flavor_numerics.get(name)
    ]
    if any(name.startswith("rope_") for name in "".join(differences).split()):
        raise _refuse(
            "MODEL", shape.name, f"before 0.3 has a fixed model: {'; '.join(differences)}", "--trainer-version 0.3.0"
        )
    notes += [f"torchtitan's {flavor.module} {flavor.flavor} has {'; '.join(differences)}"] if differences else []


def _check(job: TrainingJob, plan: TrainingPlan, *, by_python: bool) -> None:
    """What neither a row of the table nor a condition of the search knows."""
    d = plan.dims
    if job.shape.encoder_only or not job.shape.lm_head or sum(stack.is_text for stack in job.shape.stacks) != 1:
        raise _refuse("MODEL", job.shape.name, "trains one decoder on text", OWN_CONFIG)
    if not by_python:
        return
    if job.shape.moe_ffn is not None and d.tp > 1 and d.ep > 1 and job.trainer.splits_experts:
        raise _refuse("ep", d.ep, "keeps experts whole where ep > 1", "ep=1, or --trainer-version 0.2.2")
    if job.trainer.tp_overlap and d.tp > 1 and not job.trainer.fused_kernels:
        raise _refuse("tp_overlap", "true", "overlaps tensor parallelism in compiled models", "fused_kernels=true")


def _shared(job: TrainingJob, plan: TrainingPlan, head: str) -> JsonDict:
    """Keys of both forms that say more than one quantity; ``head`` is the name of the output head's module."""
    both = job.trainer.fused_loss and job.trainer.fused_kernels
    out: JsonDict = {"compile.components": ["model", "loss"]} if both else {}
    if plan.dims.pp > 1:
        out |= {"parallelism.pipeline_parallel_schedule": _schedule(plan)}
        out |= {f"parallelism.{key}": value for key, value in _stages(plan, int(job.shape.num_layers), head).items()}
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


def _stages(plan: TrainingPlan, layers: int, head: str) -> JsonDict:
    """Even stages by layers per stage, not counting embedding and head; others as lists of modules."""
    stages, chunks = stages_of(plan, layers), plan.dims.pp * plan.virtual_stages
    stage_size = ceil_div(layers, chunks)
    if plan.stage_layers is None and ceil_div(layers, stage_size) == chunks:
        return {
            "pipeline_parallel_layers_per_stage": stage_size,
            "pipeline_parallel_first_stage_less_layers": 0,
            "pipeline_parallel_last_stage_less_layers": 0,
        }
    parts, first_layer = [], 0
    for k, count in enumerate(stages):
        names = [f"layers.{i}" for i in range(first_layer, first_layer + count)]
        first, last = ["tok_embeddings"] * (k == 0), ["norm", head] * (k == len(stages) - 1)
        parts.append([*first, *names, *last])
        first_layer += count
    return {"module_fqns_per_model_part": parts}


def _checkpointing(plan: TrainingPlan, layers: int) -> JsonDict:
    """Activation checkpointing of all layers, none, or every n-th."""
    if plan.recompute is Recompute.NONE:
        return {f"{AC}.mode": "none"}
    if plan.recompute_layers < 0:
        return {f"{AC}.mode": "full"}
    stage_size = max(device_layers(plan, layers))
    period = next((n for n in range(1, stage_size + 1) if stage_size // n == plan.recompute_layers), None)
    if period is None:
        near = sorted(
            {stage_size // n for n in range(1, stage_size + 1)}, key=lambda x: abs(x - int(plan.recompute_layers))
        )[:2]
        shown = " and ".join(str(n) for n in sorted(near))
        raise _refuse("recompute_layers", plan.recompute_layers, f"recomputes every n-th of {stage_size} layers", shown)
    return {f"{AC}.mode": "selective", f"{AC}.selective_ac_option": str(period)}


AC = "activation_checkpoint"


def _quantized(job: TrainingJob) -> JsonDict:
    """The converter of linear layers for a precision, and its recipe."""
    if job.recipe not in QUANTIZED:
        return {}
    kind, recipe = QUANTIZED[job.recipe]
    section = f"quantize.linear.{kind}"
    return {"model.converters": [section], f"{section}.recipe_name": recipe}


def _toml_text(tables: JsonMap) -> str:
    """Nested tables of scalars and lists as TOML."""
    blocks = []
    for name, table in _flat(tables):
        lines = [f"{key} = {_toml(value)}" for key, value in table.items()]
        blocks.append("\n".join([f"\n[{name}]", *lines]))
    return "\n".join(blocks) + "\n"


def _flat(tables: JsonMap, prefix: str = "") -> Iterator[tuple[str, JsonDict]]:
    """Tables of scalars, by their dotted names."""
    for name, table in tables.items():
        plain = {key: value for key, value in table.items() if not isinstance(value, dict)}
        if plain:
            yield prefix + name, plain
        yield from _flat({key: value for key, value in table.items() if isinstance(value, dict)}, f"{prefix}{name}.")


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


CONVERTERS: dict[Recipe, tuple[str, JsonDict]] = {
    Recipe.FP8_ROWWISE: ("Float8LinearConverter", {"recipe_name": "rowwise"}),
    Recipe.MXFP8: ("MXFP8LinearConverter", {}),
    Recipe.NVFP4: ("NVFP4LinearConverter", {"fqns": ["layers"]}),
}
"""NVFP4 only in the layers, because the output head's width is not a multiple of 128."""
CLASSES = {
    "LayerNorm": "torchtitan.models.common",
    "RMSNorm": "torchtitan.models.common",
    "RoPE": "torchtitan.models.common",
}
"""Modules of the classes whose configurations are set in addition to a flavor."""


def _python_text(
    about: str,
    job: TrainingJob,
    plan: TrainingPlan,
    model: tuple[str, str],
    beside: list[Argument],
    tables: Mapping[str, JsonDict],
    own: Flavor | None,
) -> str:
    """A module with a function, ``train``, that torchtitan calls by ``--module sartor_config --config train``, and with
    ``own`` another that builds a model of these sizes."""
    module, flavor = model
    package = f"torchtitan.models.{module}" if module else "custom_model"
    sets, mtp = _settings(beside), bool(job.shape.mtp_layers)
    policy = "FullAC" if plan.recompute is Recompute.FULL else ""
    converter = CONVERTERS.get(job.recipe)
    imports = [
        ("torchtitan.components.loss", [] if mtp else ["ChunkedLossWrapper", "CrossEntropyLoss"]),
        ("torchtitan.components.optimizer", ["default_adamw"]),
        ("torchtitan.components.quantization", [converter[0]] if converter else []),
        ("torchtitan.config", ["CompileConfig", "ParallelismConfig", "TrainingConfig"]),
        ("torchtitan.distributed.activation_checkpoint", [policy] if policy else []),
        ("torchtitan.hf_datasets.text_datasets", ["HuggingFaceTextDataLoader"]),
        ("torchtitan.models", [module] if own else []),
        ("torchtitan.models.common", sorted({*(name for name in sets if name in CLASSES), *_parts_of(own)})),
        ("torchtitan.models.common.config_utils", ["decoder_vocab_size"]),
        ("torchtitan.models.deepseek_v3.model", ["Attention"] if "Attention" in sets else []),
        (package, [*(["MTPLoss"] if mtp else []), "model_registry"]),
        ("torchtitan.trainer", ["Trainer"]),
    ]
    lines = [f'"""{about}\n\nWritten by sartor.\n"""\n']
    lines += [f"from {where} import {', '.join(names)}" for where, names in imports if names]
    lines += ["", *(f"{_constant(name)} = {values!r}" for name, values in sets.items())]
    lines += [*(_model_lines(own, job) if own else []), "", ""]
    lines += ["def train() -> Trainer.Config:", f"    spec = model_registry({_registry(job, flavor, converter)})"]
    for name in sets:
        lines += [f"    for _, part, _, _ in spec.model.traverse({name}.Config, recurse=True):"]
        lines += [f"        for field, value in {_constant(name)}.items():", "            setattr(part, field, value)"]
    lines += ["    return Trainer.Config(", *(f"        {line}" for line in _trainer(tables, policy, mtp)), "    )", ""]
    return "\n".join(lines)


def _parts_of(own: Flavor | None) -> tuple[str, ...]:
    """Classes that a model of one's own sizes is put together from."""
    return ("Embedding", "Linear", "RMSNorm", own.family.rope) if own and own.family else ()


def _model_lines(own: Flavor, job: TrainingJob) -> list[str]:
    """The function ``model``, and its registration as a flavor of the family."""
    family, sizes, shape = own.family, own.sizes, job.shape
    assert family is not None
    module = family.module
    model = {"dim": sizes["hidden_size"], "vocab_size": sizes["vocab_size"]}
    model |= {"enable_weight_tying": True} if shape.tied_embeddings else {}
    layers = {key: sizes[name] for key, name in family.sizes.items()}
    layers |= {key: sizes[key] for key in family.router if key in sizes} | dict(family.fixed)
    embedding = "_EMBEDDING_SKIP_INIT" if shape.tied_embeddings and module in ("llama3", "qwen3") else "_EMBEDDING_INIT"
    mixture, mtp = shape.moe_ffn is not None, module == "deepseek_v3"
    backends = [*(['moe_comm_backend="standard"'] if mixture else []), *(["num_mtp_layers=0"] if mtp else [])]
    passed = (
        "**LAYERS, dim=dim, rope=rope, " + ("moe_comm_backend=moe_comm_backend, " if mixture else "") + "**backends"
    )
    rotary = sizes.get("qk_rope_head_dim", sizes["head_dim"])
    head = family.head_init
    lines = [f"MODEL = {model!r}", f"LAYERS = {layers!r}"]
    lines += [f"HEADS = { {key: sizes[name] for key, name in family.heads.items()}!r}"] if family.attention else []
    lines += ["", "", f"def model({', '.join([*backends, '**backends'])}) -> {module}.{family.model}.Config:"]
    lines += [f'    """{shape.name or "A model"}, built by the configuration classes of torchtitan\'s {module}."""']
    lines += ['    dim, vocab_size = MODEL["dim"], MODEL["vocab_size"]']
    lines += [
        f"    rope = {family.rope}.Config(dim={rotary}, max_seq_len={max(shape.max_positions, int(job.seq_len))})"
    ]
    lines += [f"    layers = {module}.{family.layers}({passed})"]
    if family.attention:
        lines += ["    for i, layer in enumerate(layers):"]
        lines += [f"        layer.attention = {module}.{family.attention}("]
        lines += ["            **HEADS, dim=dim, layer_id=i, rope=rope, **backends,"]
        lines += ["            sliding_window_size=128 if i % 2 == 0 else None,", "        )"]
    lines += [f"    return {module}.{family.model}.Config(", "        **MODEL,"]
    lines += ["        tok_embeddings=Embedding.Config("]
    lines += [
        f"            num_embeddings=vocab_size, embedding_dim=dim, param_init={module}.{embedding}",
        "        ),",
    ]
    lines += [f"        norm=RMSNorm.Config(normalized_shape=dim, param_init={module}._NORM_INIT),"]
    lines += [f"        lm_head=Linear.Config(in_features=dim, out_features=vocab_size, param_init={module}.{head}),"]
    lines += ["        layers=layers,"]
    mtp_layers = f"{module}._build_mtp_layers(layers[-1], dim=dim, num_mtp_layers=num_mtp_layers)"
    lines += [f"        mtp_layers={mtp_layers},"] if mtp else []
    return [*lines, "    )", "", "", f'{module}.{family.configs}["{own.flavor}"] = model']


def _constant(name: str) -> str:
    return name.upper()


def _settings(beside: list[Argument]) -> dict[str, JsonDict]:
    """Settings such as ``("RoPE.theta", "500000")`` by class and field, as Python values."""
    out: dict[str, JsonDict] = {}
    for path, text in beside:
        name, _, field = path.partition(".")
        out.setdefault(name, {})[field] = value_of(text)
    return out


def _registry(job: TrainingJob, flavor: str, converter: tuple[str, JsonDict] | None) -> str:
    arguments = [repr(flavor)]
    if job.shape.mtp_layers:
        arguments.append(f"num_mtp_layers={job.shape.mtp_layers}")
    if converter:
        name, values = converter
        words = {**values, "model_compile_enabled": job.trainer.fused_kernels}
        arguments.append(f"converters=[{name}.Config({_call(words)})]")
    return ", ".join(arguments)


def _trainer(tables: Mapping[str, JsonDict], policy: str, mtp: bool) -> Iterator[str]:
    vocab = "global_vocab_size=decoder_vocab_size(spec)"
    plain = f"ChunkedLossWrapper.Config(loss_fn=CrossEntropyLoss.Config({vocab}))"
    yield f"loss={f'MTPLoss.Config({vocab})' if mtp else plain},"
    yield "model_spec=spec,"
    yield "optimizer=default_adamw(),"
    yield "dataloader=HuggingFaceTextDataLoader.Config(),"
    for name, kind in (
        ("training", "TrainingConfig"),
        ("parallelism", "ParallelismConfig"),
        ("compile", "CompileConfig"),
    ):
        yield f"{name}={kind}("
        yield from (f"    {field}={value!r}," for field, value in tables[name].items())
        yield "),"
    yield f"activation_checkpoint={policy}.Config()," if policy else "activation_checkpoint=None,"


def _call(values: JsonDict) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in values.items())
