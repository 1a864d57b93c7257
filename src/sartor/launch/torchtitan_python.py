"""Write a plan as a Python torchtitan configuration, the only form since 0.3.0; `torchtitan_source` reads one.

Written against torchtitan 0.3.0 (its wheel on PyPI, read 2026-11-23): torchtitan/trainer.py, config/configs.py,
distributed/activation_checkpoint.py and models/*/__init__.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sartor.json_types import JsonDict
from sartor.launch.fields import Argument
from sartor.model.training import Recipe, Recompute, TrainingJob, TrainingPlan

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


def python_text(
    about: str,
    job: TrainingJob,
    plan: TrainingPlan,
    model: tuple[str, str],
    beside: list[Argument],
    tables: Mapping[str, JsonDict],
) -> str:
    """A module with one function, ``train``, that torchtitan calls by ``--module sartor_config --config train``."""
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
        ("torchtitan.models.common", sorted(name for name in sets if name in CLASSES)),
        ("torchtitan.models.common.config_utils", ["decoder_vocab_size"]),
        ("torchtitan.models.deepseek_v3.model", ["Attention"] if "Attention" in sets else []),
        (package, [*(["MTPLoss"] if mtp else []), "model_registry"]),
        ("torchtitan.trainer", ["Trainer"]),
    ]
    lines = [f'"""{about}\n\nWritten by sartor plan --write.\n"""\n']
    lines += [f"from {where} import {', '.join(names)}" for where, names in imports if names]
    lines += ["", *(f"{_constant(name)} = {values!r}" for name, values in sets.items()), "", ""]
    lines += ["def train() -> Trainer.Config:", f"    spec = model_registry({_registry(job, flavor, converter)})"]
    for name in sets:
        lines += [f"    for _, part, _, _ in spec.model.traverse({name}.Config, recurse=True):"]
        lines += [f"        for field, value in {_constant(name)}.items():", "            setattr(part, field, value)"]
    lines += ["    return Trainer.Config(", *(f"        {line}" for line in _trainer(tables, policy, mtp)), "    )", ""]
    return "\n".join(lines)


def _constant(name: str) -> str:
    return name.upper()


def _settings(beside: list[Argument]) -> dict[str, JsonDict]:
    """Settings such as ``("RoPE.theta", "500000")`` by class and field, as Python values."""
    out: dict[str, JsonDict] = {}
    for path, text in beside:
        name, _, field = path.partition(".")
        out.setdefault(name, {})[field] = _value(text)
    return out


def _value(text: str) -> object:
    if text in ("true", "false"):
        return text == "true"
    try:
        return int(text) if text.lstrip("-").isdigit() else float(text)
    except ValueError:
        return text


def _registry(job: TrainingJob, flavor: str, converter: tuple[str, JsonDict] | None) -> str:
    said = [repr(flavor)]
    if job.shape.mtp_layers:
        said.append(f"num_mtp_layers={job.shape.mtp_layers}")
    if converter:
        name, values = converter
        words = {**values, "model_compile_enabled": job.trainer.fused_kernels}
        said.append(f"converters=[{name}.Config({_call(words)})]")
    return ", ".join(said)


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
