"""Launch files: write a plan in a trainer's own format, and read it back.

>>> reading = read_launch("examples/launch/megatron.sh")             # doctest: +SKIP
>>> reading.plan.dims.tp, reading.unknown                            # doctest: +SKIP
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from sartor.bounded import decoded, parse_json, parse_toml, printable, read_bytes
from sartor.errors import InputError, Stated
from sartor.files import write_together
from sartor.hardware.cluster import Cluster
from sartor.json_types import JsonDict, JsonMap
from sartor.launch.accelerate import ACCELERATE_KEYS, accelerate_files, launcher_config, read_accelerate
from sartor.launch.bridge import MODULE, bridge_files, read_bridge
from sartor.launch.deepspeed import DEEPSPEED_KEYS, deepspeed_files, read_deepspeed
from sartor.launch.fields import argument_names
from sartor.launch.maxtext import PROGRAM, is_maxtext, keys_of, read_maxtext
from sartor.launch.megatron import megatron_files, read_megatron
from sartor.launch.megatron_dialects import is_nemo, overrides, read_nemo
from sartor.launch.options import options_of
from sartor.launch.plan import (
    JobParts,
    LaunchFile,
    LaunchFiles,
    LaunchKind,
    LaunchReading,
    canonical,
    check_positions,
    launch_kind,
)
from sartor.launch.script import NEAREST, ScriptCommand, check_pretraining, find_command
from sartor.launch.stated import Options, launch_words, read_yaml, unset_arguments
from sartor.launch.torchtitan import torchtitan_files
from sartor.launch.torchtitan_read import TORCHTITAN_TABLES, read_torchtitan, read_torchtitan_python
from sartor.launch.torchtitan_source import read_named, read_source
from sartor.model.shape import TransformerShape
from sartor.model.training import TrainingJob, TrainingPlan
from sartor.run.run import Run

MAX_BYTES = 1_000_000
"""Largest launch file accepted."""
MOST_BESIDE = 20
"""Most scripts in a config file's folder that are searched."""

WRITERS = {
    LaunchKind.MEGATRON: megatron_files,
    LaunchKind.MEGATRON_BRIDGE: bridge_files,
    LaunchKind.TORCHTITAN: torchtitan_files,
    LaunchKind.DEEPSPEED: deepspeed_files,
    LaunchKind.ACCELERATE: accelerate_files,
}


def launch_files(
    kind: LaunchKind | str, job: TrainingJob, plan: TrainingPlan, cluster: Cluster, version: str = ""
) -> LaunchFiles:
    """A plan as a trainer's launch files, with notes on what they could not express; ``version`` is the trainer's
    (default: its newest).

    Raises `InputError` for a plan the framework cannot run, naming the field and the nearest value that it can.
    """
    kind = launch_kind(kind)
    if job.document_len:
        must = "document packing is set in the data loader; launch files do not set it"
        raise InputError("document_len", job.document_len, must, "all")
    if not job.trains_weights:
        raise InputError("train_weights", "off", f"{kind.value} files train all weights", "train_weights=on")
    check_positions(job.shape, job.seq_len)
    return WRITERS[kind](job, plan, cluster.devices_per_node, version)


def save_files(written: LaunchFiles, directory: str | os.PathLike[str], *, overwrite: bool = False) -> tuple[Path, ...]:
    """Save launch files in a folder: all are written to temporary files before the first is renamed."""
    folder = Path(directory)
    targets = [(folder / file.name, file) for file in written.files]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, file in targets:
            if path.is_file() and not overwrite and path.read_bytes() != file.text.encode():
                must = "is there with other content; give another folder or say --overwrite"
                raise InputError("folder", printable(str(path)), must)
    except OSError as error:
        must = f"must be a folder that can be written ({error.strerror or error})"
        raise InputError("folder", printable(str(folder)), must) from None
    write_together(
        [(path, file.text.encode(), 0o777 if file.executable else 0o666) for path, file in targets], field="folder"
    )
    return tuple(path for path, _ in targets)


# -- reading ------------------------------------------------------------------------------------------------------


def read_launch(
    path: str | os.PathLike[str],
    *,
    num_devices: int = 0,
    shape: TransformerShape | None = None,
    run: Run | None = None,
) -> LaunchReading:
    """Read an existing launch as model, job and plan: a shell script, a file of arguments, torchtitan TOML, DeepSpeed
    JSON, accelerate YAML, or a folder with a ``launch.sh``. Nothing in it is run.

    ``num_devices`` is used if the file lacks the number of devices, and wins over it; ``shape`` is the model if the
    file only names it; what ``run`` states wins over the file, which may then say something impossible. Raises
    `InputError`.
    """
    target = Path(path)
    try:
        if target.is_dir():
            target = target / "launch.sh"
        return _dispatch(target, _text(target), options_of(run, num_devices, shape))
    except RecursionError:
        raise InputError("launch", printable(str(path)), "must nest less deeply") from None


def _dispatch(path: Path, text: str, options: Options) -> LaunchReading:
    suffix, name = path.suffix.lower(), path.name
    if suffix == ".py" and MODULE in text:
        return read_bridge(text, name, None, options)
    if suffix == ".py" and "nemo" in text and "torchtitan" not in text:
        must = "must hold the model's sizes; a recipe of NeMo is a function whose values are not in the file"
        raise InputError("launch", printable(name), must, "NeMo's YAML, or a recipe written out for Megatron Bridge")
    if suffix == ".py":
        return read_torchtitan_python(read_source(text, "train", name), None, options)
    if suffix == ".toml":
        _check_claimed(name, parse_toml(text, "--launch", name), TORCHTITAN_TABLES, "torchtitan's ([parallelism] ...)")
        return read_torchtitan(text, None, options, name=name)
    if suffix in (".json", ".yaml", ".yml") and (script := _starter(path)):
        reading = _dispatch(script, _text(script), options)
        return replace(reading, assumptions=(f"read with {script.name}, which starts it", *reading.assumptions))
    if suffix == ".json":
        config = parse_json(text.encode(), name=name)
        _check_claimed(name, config, DEEPSPEED_KEYS, "DeepSpeed's (zero_optimization, train_batch_size ...)")
        return read_deepspeed(config, None, options)
    if suffix in (".yaml", ".yml"):
        return _yaml(path, text, options)
    command = find_command(text, lambda name: _beside(path, name))
    reading = _script(path, command, options)
    if not options.num_devices or command.num_devices in (0, options.num_devices):
        return reading
    note = f"num_devices={options.num_devices} as stated; the script starts {command.num_devices}"
    return replace(reading, assumptions=(note, *reading.assumptions))


def _script(path: Path, command: ScriptCommand, options: Options) -> LaunchReading:
    """Read a script: as the config file that it names, with its batch and devices, or else as Megatron's arguments."""
    check_pretraining(command, path.name)
    words = (*command.launcher, *command.arguments)
    if PROGRAM.fullmatch(command.program):
        return read_maxtext(_maxtext_keys(path, command), command, options)
    if recipe := _recipe_of(path, command):
        return _with_unset(read_bridge(recipe, command.program.rpartition("/")[2], command, options), command)
    if (module := _after(words, "--module")) and (config := _after(words, "--config")):
        beside = path.parent / f"{module.rpartition('.')[2]}.py"
        source = read_source(_text(beside), config, beside.name) if beside.exists() else read_named(module, config)
        return read_torchtitan_python(source, command, options)
    if "--num-layers" in words:  # Megatron's own flags are the launch, even if DeepSpeed runs them.
        return read_megatron(command, options)
    if is_nemo(settings := overrides(command.arguments, _config_named(path, words))):
        return _with_unset(read_nemo(settings, options), command)
    for option, reader in (
        ("--job.config_file", "torchtitan"),
        ("--deepspeed_config", "deepspeed"),
        ("--deepspeed", "deepspeed"),
        ("--config_file", "accelerate"),
    ):
        named = _value_of(words, option)
        if named is None:
            continue
        inner = path.parent / Path(named).name if not (path.parent / named).exists() else path.parent / named
        text = _text(inner)
        if reader == "torchtitan":
            return read_torchtitan(text, command, options, name=inner.name)
        if reader == "deepspeed":
            return read_deepspeed(parse_json(text.encode(), name=inner.name), command, options)
        settings = {**read_yaml(text, name=inner.name), **launcher_config(command.launcher)}
        return read_accelerate(settings, command, options, partial(_beside, path))
    if "--per_device_train_batch_size" in words or "accelerate" in [word.rpartition("/")[2] for word in words]:
        return read_accelerate(_told_alone(command), command, options, partial(_beside, path))
    if not any(word.startswith("--") for word in command.arguments):
        must = "must hold a training command with its arguments (torchrun pretrain_gpt.py --num-layers ...)"
        raise InputError("launch", printable(path.name), must)
    if not any(word.partition("=")[0] in argument_names() for word in command.arguments):
        must = "must hold arguments of a trainer that is known; a recipe by name does not say what it sets"
        raise InputError("launch", printable(command.program or path.name), must, NEAREST)
    return read_megatron(command, options)


def _with_unset(reading: LaunchReading, command: ScriptCommand) -> LaunchReading:
    """A reading of a configuration, and the variables of the command that starts it which may change any of it."""
    return replace(reading, unknown=(*unset_arguments(command.arguments), *reading.unknown))


def _told_alone(command: ScriptCommand) -> JsonDict:
    """The configuration given by options without a file: accelerate's, or Hugging Face Trainer's own."""
    sharded = any(word.startswith("--fsdp") for word in command.arguments)
    return {"distributed_type": "FSDP" if sharded else "MULTI_GPU", **launcher_config(command.launcher)}


def _config_named(script: Path, words: Sequence[str]) -> JsonDict:
    """The NeMo configuration next to the script that its command names."""
    name = _after(words, "--config-name").removesuffix(".yaml") + ".yaml"
    text = _beside(script, name) if name != ".yaml" else None
    return read_yaml(text, name=name) if text else {}


def _maxtext_keys(script: Path, command: ScriptCommand) -> JsonDict:
    """Keys of a MaxText command: from the file it names, if that is next to the script, then from the command line."""
    config = next((word for word in command.arguments if word.endswith((".yml", ".yaml"))), "")
    text = _beside(script, config) if config else None
    return {**(read_yaml(text, name=config) if text else {}), **keys_of(command.arguments)}


def _recipe_of(script: Path, command: ScriptCommand) -> str | None:
    """The text of the Megatron Bridge recipe next to a script that starts it."""
    text = _beside(script, command.program) if command.program.endswith(".py") else None
    return text if text and MODULE in text else None


def _beside(script: Path, name: str) -> str | None:
    """The text of a file that a script sources, looked up only in the script's own folder."""
    file = script.parent / name.rsplit("/", 1)[-1]
    try:
        return _text(file) if file.is_file() and file != script else None
    except (InputError, OSError, ValueError):
        return None


def _starter(config: Path) -> Path | None:
    """The script in a config file's folder that mentions it; None if there is none, or several."""
    beside = sorted(config.parent.glob("*.sh"))[:MOST_BESIDE]
    starters = [script for script in beside if config.name in (_beside(config, script.name) or "")]
    return starters[0] if len(starters) == 1 else None


def _after(words: Sequence[str], option: str) -> str:
    """The value of an option; empty if absent."""
    for index, word in enumerate(words):
        if word == option and index + 1 < len(words):
            return words[index + 1]
        if word.startswith(option + "="):
            return word.partition("=")[2]
    return ""


def _value_of(words: tuple[str, ...], option: str) -> str | None:
    for index, word in enumerate(words):
        if (
            word == option
            and index + 1 < len(words)
            and words[index + 1].lower().endswith((".toml", ".json", ".yaml", ".yml"))
        ):
            return words[index + 1]
        if word.startswith(option + "="):
            return word.partition("=")[2]
    return None


def _yaml(path: Path, text: str, options: Options) -> LaunchReading:
    """Read a YAML file: accelerate's, NeMo's for a GPT, MaxText's, or Megatron's test recipes (``MODEL_ARGS:`` with
    flags as keys)."""
    value = read_yaml(text, name=path.name)
    if is_maxtext(value):
        return read_maxtext(value, None, options)
    if is_nemo(value):
        return read_nemo(value, options)
    arguments = value.get("MODEL_ARGS")
    if not isinstance(arguments, dict):
        _check_claimed(path.name, value, ACCELERATE_KEYS, "accelerate's (distributed_type, mixed_precision ...)")
        return read_accelerate(value, None, options, partial(_beside, path))
    words: list[str] = []
    for flag, values in arguments.items():
        if values is False:
            continue
        items = values if isinstance(values, list) else [values]
        words += [flag, *(str(item) for item in items if item is not True and item is not None)]
    return read_megatron(ScriptCommand(launcher=(), program="", arguments=tuple(words)), options)


def _check_claimed(name: str, config: JsonMap, keys: re.Pattern[str], dialect: str) -> None:
    """Raise `InputError` unless a file has a key of the dialect's own, with the formats that it resembles."""
    if any(keys.fullmatch(key) for key in config):
        return
    alike = [title for title, needed in launch_words()["other_formats"].items() if set(needed) <= set(config)]
    looks = f"; its keys are those of {' or '.join(alike)}, which sartor does not read as a launch" if alike else ""
    raise InputError("launch", printable(name), f"has no key of a launch: neither {dialect} nor another's{looks}", READ)


READ = "a Megatron-LM script, NeMo or MaxText YAML, torchtitan TOML, DeepSpeed JSON, accelerate YAML"


def _text(path: Path) -> str:
    must = "must be a launch script or config file"
    text = decoded(read_bytes(path, "launch", must, limit=MAX_BYTES), "launch", str(path))
    if not text.strip():
        raise InputError(printable(path.name), Stated("is empty"), "must hold a launch")
    return text


__all__ = [
    "JobParts",
    "LaunchFile",
    "LaunchFiles",
    "LaunchKind",
    "LaunchReading",
    "canonical",
    "launch_files",
    "launch_kind",
    "read_launch",
    "save_files",
]
