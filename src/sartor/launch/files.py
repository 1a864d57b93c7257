"""Launch files: write a plan in a trainer's own format, read it back, and say what the files lose or leave open.

A switch that was asked for and changes the price is refused if the files cannot say it; any other difference is a note
with the price that the files have. A switch without a price takes away, or adds, at most a share of the parts of memory
that it may change (``bytes_of`` and ``share`` in ``fields.toml``).

>>> reading = read_launch("examples/launch/megatron.sh")             # doctest: +SKIP
>>> reading.plan.dims.tp, reading.unknown                            # doctest: +SKIP
"""

from __future__ import annotations

import math
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

from sartor.bounded import decoded, parse_json, parse_toml, printable, read_bytes
from sartor.errors import InputError, Stated
from sartor.files import write_together
from sartor.hardware.cluster import Cluster
from sartor.json_types import JsonDict, JsonMap
from sartor.launch.accelerate import ACCELERATE_KEYS, accelerate_files, launcher_config, read_accelerate
from sartor.launch.bridge import bridge_files, read_bridge
from sartor.launch.deepspeed import DEEPSPEED_KEYS, deepspeed_files, read_deepspeed
from sartor.launch.fields import Row, argument_names, rows, text_of
from sartor.launch.maxtext import PROGRAM, is_maxtext, read_maxtext
from sartor.launch.megatron import megatron_files, read_megatron
from sartor.launch.megatron_dialects import is_nemo, read_nemo
from sartor.launch.options import options_of
from sartor.launch.plan import (
    SWITCHES,
    JobParts,
    LaunchFile,
    LaunchFiles,
    LaunchKind,
    LaunchReading,
    canonical,
    check_positions,
    launch_kind,
    model_named,
)
from sartor.launch.python_source import changed_by, recipe_in, recipe_keys
from sartor.launch.recipes import Dialect, dialect_of, dialect_started, dialects, read_recipe
from sartor.launch.scheduled import script_in
from sartor.launch.script import NEAREST, ScriptCommand, check_pretraining, find_command
from sartor.launch.stated import (
    OFF,
    Options,
    hole_text,
    keys_said,
    launch_words,
    merged,
    parse_flags,
    read_yaml,
    unset_arguments,
)
from sartor.launch.torchtitan import torchtitan_files
from sartor.launch.torchtitan_read import TORCHTITAN_TABLES, read_torchtitan, read_torchtitan_python
from sartor.launch.torchtitan_source import read_named, read_source
from sartor.launch.trainer_source import MAKES_ARGUMENTS, trainer_keys
from sartor.model.shape import TransformerShape, Value
from sartor.model.training import Trainer, TrainingJob, TrainingPlan
from sartor.plans.fixed import SWITCHED
from sartor.read.huggingface import read_fields
from sartor.run.fields import Run, Turn
from sartor.step.stage_table import StageMemory
from sartor.step.trainers import TRAINERS, as_launched, record_named
from sartor.units import format_bytes, format_seconds

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
        field, value = ("lora_rank", job.lora_rank) if job.lora_rank else ("train_weights", "off")
        raise InputError(field, value, f"{kind.value} files train all weights", "training of all weights")
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
        text = _text(target)
        _refuse_servers(target, text)
        reading = _dispatch(target, text, options_of(run, num_devices, shape))
    except RecursionError:
        raise InputError("launch", printable(str(path)), "must nest less deeply") from None
    model = shape or reading.shape
    if model is not None and (model.encoder_only or sum(stack.is_text for stack in model.stacks) > 1):
        must = "must be a decoder; an encoder has no causal loss, and its training is not priced"
        raise InputError("MODEL", printable(model.name or "an encoder"), must, NEAREST)
    sizes = None if model or reading.model else _beside(target, "config.json")
    if sizes is None or "model_type" not in (config := parse_json(sizes.encode(), name="config.json")):
        return reading
    beside = read_fields(config, name="")
    opened = {**reading.open_fields, **dict(size.split("=", 1) for size in beside.unread_sizes)}
    notes = ("MODEL is the config.json beside the launch", *reading.assumptions)
    return replace(reading, shape=beside.shape, open_fields=opened, assumptions=notes)


def _refuse_servers(path: Path, text: str) -> None:
    from sartor.launch.serving import starts_servers

    if starts_servers(path, text):
        must = f"serving a model is not training: `sartor serving --launch {printable(str(path))}` reads it"
        raise InputError("launch", printable(path.name), must)


def _dispatch(path: Path, text: str, options: Options) -> LaunchReading:
    suffix, name = path.suffix.lower(), path.name
    if suffix == ".py" and OF_RECIPES.search(text):
        return _recipe_in_python(path, text, None, options)
    if suffix == ".py" and MAKES_ARGUMENTS.search(text):
        return _trainer_in_python(path, text, None, options)
    if suffix == ".py" and "torchtitan" not in text:
        must = (
            "must make a run of NeMo 2, Megatron Bridge, torchtitan or Hugging Face's Trainer; own loops are not read"
        )
        raise InputError("launch", printable(name), must, READ)
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
        if dialect := dialect_of(config, name):
            return read_recipe(dialect, config, None, options, partial(_beside, path))
        _check_claimed(name, config, DEEPSPEED_KEYS, "DeepSpeed's (zero_optimization, train_batch_size ...)")
        return read_deepspeed(config, None, options)
    if suffix in (".yaml", ".yml"):
        return _yaml(path, text, options)
    return _of_script(path, text, options)


def _of_script(path: Path, text: str, options: Options) -> LaunchReading:
    command = find_command(text, lambda name: _beside(path, name))
    reading = _script(path, command, options)
    if not options.num_devices or command.num_devices in (0, options.num_devices):
        return reading
    note = f"num_devices={options.num_devices} as stated; the script starts {command.num_devices}"
    return replace(reading, assumptions=(note, *reading.assumptions))


OF_RECIPES = re.compile(r"^[ \t]*(from|import) (megatron\.bridge|nemo\b|nemo_run)", re.MULTILINE)
"""Imports of files that make a recipe of NeMo or Megatron Bridge."""


def _recipe_in_python(path: Path, text: str, command: ScriptCommand | None, options: Options) -> LaunchReading:
    """Read the recipe that a Python file makes, by the sizes that it gives or as one by name."""
    table = recipe_in(text, command.program if command else path.name, keys_said(command.arguments) if command else {})
    model = table.get("model")
    if isinstance(model, dict) and {"num_layers", "hidden_size"} <= model.keys() and "trainer" not in table:
        return read_bridge(table, command, options)
    keys = recipe_keys(table)
    (dialect,) = (d for d in dialects() if d.name == ("nemo_run" if "factory" in keys else "bridge_flags"))
    reading = read_recipe(dialect, keys, command, options, partial(_beside, path))
    return replace(reading, unknown=(*changed_by(table), *reading.unknown))


def _trainer_in_python(path: Path, text: str, command: ScriptCommand | None, options: Options) -> LaunchReading:
    """Read a file that sets the arguments of Hugging Face's Trainer itself."""
    said = keys_said(command.arguments) if command else {}
    keys = trainer_keys(text, command.program if command else path.name, said)
    if command:
        keys, command = _under_launcher(path, keys, command)
    (dialect,) = (d for d in dialects() if d.name == "trl")
    return read_recipe(dialect, keys, command, options, partial(_beside, path, command=command))


def _script(path: Path, command: ScriptCommand, options: Options) -> LaunchReading:
    """Read a script: as the config file that it names, with its batch and devices, or else as Megatron's arguments."""
    program = _beside(path, command.program) if command.program.endswith(".py") else None
    if program and MAKES_ARGUMENTS.search(program) and not _per_device(command):
        return _with_unset(_trainer_in_python(path, program, command, options), command)
    if (reading := _recipe_started(path, command, options)) is not None:
        return reading
    command = _with_keys(path, command)
    reading = _read_command(path, command, options)
    if reading.shape is None and options.shape is None and (name := _after(command.arguments, "--model_name_or_path")):
        return replace(reading, shape=model_named(name), model=hole_text(name))
    return reading


def _with_keys(path: Path, command: ScriptCommand) -> ScriptCommand:
    """The command of a Hugging Face program with the arguments of the file of keys that it names."""
    config = _config_of(path, command.arguments, command)
    claimed = dialect_of(config, path.name) if config else None
    if claimed is None or claimed.name != "trl":
        return command
    words = [word for key, value in config.items() if not isinstance(value, dict) for word in _argument(key, value)]
    return replace(command, arguments=(*words, *command.arguments))


def _argument(key: str, value: Value | list[Value]) -> list[str]:
    """A key of a file as words of a command line."""
    items = value if isinstance(value, list) else [value]
    return [f"--{key}", *(text_of(item) for item in items if item is not None and item is not True)]


def _read_command(path: Path, command: ScriptCommand, options: Options) -> LaunchReading:
    """Read a command of a trainer's own: as the config file that it names, or else as Megatron's arguments."""
    words = (*command.launcher, *command.arguments)
    if PROGRAM.fullmatch(command.program):
        return read_maxtext(_maxtext_keys(path, command), command, options)
    program = _beside(path, command.program) if command.program.endswith(".py") else None
    if program and OF_RECIPES.search(program):
        return _with_unset(_recipe_in_python(path, program, command, options), command)
    if (module := _after(words, "--module")) and (config := _after(words, "--config")):
        beside = path.parent / f"{module.rpartition('.')[2]}.py"
        source = read_source(_text(beside), config, beside.name) if beside.exists() else read_named(module, config)
        return read_torchtitan_python(source, command, options)
    if "--num-layers" in words:  # Megatron's own flags are the launch, even if DeepSpeed runs them.
        return read_megatron(command, options)
    named = _after(words, "--config-name").removesuffix(".yaml")
    if is_nemo(settings := merged(_config_of(path, [f"{named}.yaml"], command), keys_said(command.arguments))):
        return _with_unset(read_nemo(settings, options), command)
    for option, reader in (
        ("--job.config_file", "torchtitan"),
        ("--job.config-file", "torchtitan"),
        ("--deepspeed_config", "deepspeed"),
        ("--deepspeed", "deepspeed"),
        ("--config_file", "accelerate"),
    ):
        named = _after(words, option)
        if not named.lower().endswith((".toml", ".json", ".yaml", ".yml")):
            continue
        inner = path.parent / Path(named).name if not (path.parent / named).exists() else path.parent / named
        text = command.files.get(inner.name) or _text(inner)
        if reader == "torchtitan":
            return read_torchtitan(text, command, options, name=inner.name)
        if reader == "deepspeed":
            return read_deepspeed(parse_json(text.encode(), name=inner.name), command, options)
        settings = {**read_yaml(text, name=hole_text(inner.name)), **launcher_config(command.launcher)}
        return read_accelerate(settings, command, options, partial(_beside, path, command=command))
    if _per_device(command) or "accelerate" in [word.rpartition("/")[2] for word in words]:
        return read_accelerate(_told_alone(path, command), command, options, partial(_beside, path, command=command))
    if not any("--" in word or "=" in word for word in command.arguments):
        must = "must hold a training command with its arguments (torchrun pretrain_gpt.py --num-layers ...)"
        raise InputError("launch", printable(path.name), must)
    if not any(word.partition("=")[0] in argument_names() - set(COMMON) for word in command.arguments):
        must = "must hold arguments of a trainer that is known; a recipe by name does not say what it sets"
        raise InputError("launch", printable(command.program or path.name), must, NEAREST)
    return read_megatron(command, options)


def _per_device(command: ScriptCommand) -> bool:
    """Whether a command states the batch of a device, as programs on Hugging Face's Trainer take it."""
    return any(word.partition("=")[0] == "--per_device_train_batch_size" for word in command.arguments)


COMMON = ("--lr", "--optimizer", "--seed", "--save", "--load", "--weight-decay", "--num-workers", "--log-interval")
"""Arguments of Megatron-LM that other programs have too."""


def _recipe_started(path: Path, command: ScriptCommand, options: Options) -> LaunchReading | None:
    """The reading of a command that starts the program of a dialect, or has a dialect's own keys; None for another."""
    words = (*command.launcher, command.program, *command.arguments)
    said, dialect = keys_said(command.arguments), dialect_started(words)
    config = _config_of(path, command.arguments, command)
    if started := dialect is not None:
        _check_config(dialect, config, said, command)
    else:
        check_pretraining(command, path.name)
    if dialect is None and "--num-layers" not in words:
        of_flags = dialect_of(said, path.name)
        claimed = of_flags if of_flags and not of_flags.only_in_files else dialect_of(config, path.name)
        dialect = claimed if claimed and claimed.name != "trl" else None
    if dialect is None:
        return None
    package = re.search(r"(\w+)(?:[./]\w+)+?$", command.program.removesuffix(".py")[-400:])
    if not started and package and package[1] in dialect.programs:
        must = f"is a program of {dialect.title} or of a copy of it whose steps are not read"
        raise InputError("launch", hole_text(command.program), must, NEAREST)
    settings = merged(config, {name: value for name, value in said.items() if name not in OF_CONFIG})
    settings, command = _under_launcher(path, settings, command)
    return read_recipe(dialect, settings, command, options, partial(_beside, path, command=command))


def _check_config(dialect: Dialect, config: JsonMap, said: JsonMap, command: ScriptCommand) -> None:
    """Raise `InputError` if a trainer is started with a file of keys that is not there: it says the run."""
    named = _config_named(command.arguments) or str(next((said[key] for key in OF_CONFIG if key in said), ""))
    if config or dialect.required or not (named or dialect.only_in_files) or set(dialect.needs) <= set(said):
        return
    must = f"has the keys of {dialect.title}'s run, and is neither beside the script nor written by it"
    raise InputError("launch", hole_text(named or command.program or dialect.name), must, "both in one folder")


def _under_launcher(path: Path, keys: JsonDict, command: ScriptCommand) -> tuple[JsonDict, ScriptCommand]:
    """A run's keys with the sharding, and a command with the devices, of the file that accelerate is started with."""
    beside = _config_of(path, [_after(command.launcher, "--config_file")], command)
    if isinstance(processes := beside.get("num_processes"), int):
        command = replace(command, num_devices=command.num_devices or processes)
    return {**_of_launcher(beside), **keys}, command


def _of_launcher(config: JsonMap) -> JsonDict:
    """The sharding of accelerate's configuration in the keys of Hugging Face's Trainer."""
    own = config.get("deepspeed_config")
    if config.get("distributed_type") == "DEEPSPEED" and isinstance(own, dict):
        offload = {"offload_optimizer": {"device": own.get("offload_optimizer_device", "none")}}
        return {"deepspeed": {"zero_optimization": {"stage": own.get("zero_stage", 2), **offload}}}
    return {"fsdp": "full_shard"} if config.get("distributed_type") == "FSDP" else {}


OF_CONFIG = ("config", "config_name", "config_file", "config_path", "c")
"""Options that name the file of keys."""


def _config_of(path: Path, words: Sequence[str], command: ScriptCommand) -> JsonDict:
    """The file of keys that words name, next to the script or written by it; empty if there is none."""
    name = _config_named(words)
    text = _beside(path, name, command) if name else None
    return read_yaml(text, name=name.rpartition("/")[2]) if text else {}


def _config_named(words: Sequence[str]) -> str:
    return next((word.partition("=")[2] or word for word in words if word.endswith((".yaml", ".yml"))), "")


def _with_unset(reading: LaunchReading, command: ScriptCommand) -> LaunchReading:
    """A reading of a configuration, and the variables of the command that starts it which may change any of it."""
    return replace(reading, unknown=(*unset_arguments(command.arguments), *reading.unknown))


def _told_alone(path: Path, command: ScriptCommand) -> JsonDict:
    """The configuration given by options without a file: accelerate's, or Hugging Face Trainer's own."""
    of_launcher = launcher_config(command.launcher)
    if not any(word.startswith("--fsdp") for word in command.arguments):
        return of_launcher
    words = " ".join(parse_flags(command.arguments).given.get("--fsdp", [])).split()
    strategy = next((word for word in words if "shard" in word), "full_shard")
    own: JsonDict = {"fsdp_sharding_strategy": strategy.upper(), "fsdp_offload_params": "offload" in words}
    if named := _after(command.arguments, "--fsdp_config"):
        last = named.rpartition("/")[2]
        text = named if named.startswith("{") else _beside(path, named, command) or _text(path.parent / last)
        told = parse_json(text.encode(), name=printable(last))
        own |= {key if key.startswith("fsdp_") else f"fsdp_{key}": value for key, value in told.items()}
    return {"distributed_type": "FSDP", "fsdp_config": own, **of_launcher}


def _maxtext_keys(script: Path, command: ScriptCommand) -> JsonDict:
    """Keys of a MaxText command: from the file it names, if that is next to the script, then from the command line."""
    config = next((word for word in command.arguments if word.endswith((".yml", ".yaml"))), "base.yml")
    keys, beside = keys_said(command.arguments), _config_of(script, command.arguments, command)
    if not beside and not config.endswith("base.yml") and "model_name" not in keys:
        must = "is not beside the script, and sets the model, the batch and anything else"
        raise InputError("launch", hole_text(config), must, "both in one folder")
    return {**beside, **keys}


def _beside(script: Path, name: str, command: ScriptCommand | None = None) -> str | None:
    """The text of a file that a script names: one that it writes itself, or one in its own folder or one folder in it;
    nothing else is looked up."""
    *_, folder, last = ("", *name.split("/"))
    if command and last in command.files:
        return command.files[last]
    within = [script.parent / last, *([script.parent / folder / last] if folder.strip(".") else [])]
    try:
        return next((_text(file) for file in within if file.is_file() and file != script), None)
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


def _yaml(path: Path, text: str, options: Options) -> LaunchReading:
    """Read a YAML file: accelerate's, NeMo's for a GPT, MaxText's, or Megatron's test recipes (``MODEL_ARGS:`` with
    flags as keys)."""
    value = read_yaml(text, name=path.name)
    if dialect := dialect_of(value, path.name):
        return read_recipe(dialect, value, None, options, partial(_beside, path))
    if is_maxtext(value):
        return read_maxtext(value, None, options)
    if is_nemo(value):
        return read_nemo(value, options)
    if script := script_in(value):
        return _of_script(path, script, options)
    arguments = value.get("MODEL_ARGS")
    if not isinstance(arguments, dict):
        _check_claimed(path.name, value, ACCELERATE_KEYS, "accelerate's (distributed_type, mixed_precision ...)")
        return read_accelerate(value, None, options, partial(_beside, path))
    words = [word for flag, values in arguments.items() if values is not False for word in _argument(flag[2:], values)]
    return read_megatron(ScriptCommand(launcher=(), program="", arguments=tuple(words)), options)


def _check_claimed(name: str, config: JsonMap, keys: re.Pattern[str], dialect: str) -> None:
    """Raise `InputError` unless a file has a key of the dialect's own, with the formats that it resembles."""
    if any(keys.fullmatch(key) for key in config):
        return
    alike = [title for title, needed in launch_words()["other_formats"].items() if set(needed) <= set(config)]
    looks = f"; its keys are those of {' or '.join(alike)}, which sartor does not read as a launch" if alike else ""
    raise InputError("launch", printable(name), f"has no key of a launch: neither {dialect} nor another's{looks}", READ)


READ = (
    "a Megatron-LM script, NeMo or MaxText YAML, torchtitan TOML, DeepSpeed JSON, accelerate YAML, or a recipe of "
    "axolotl, LLaMA-Factory, ms-swift, TRL, AutoModel, torchtune, nanotron, verl, OpenRLHF or DeepSpeed-Chat"
)


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


_Both = tuple[float, float]
_Price = Callable[[TrainingJob, TrainingPlan], _Both]
"""Seconds of a step, and bytes of the fullest device."""
SAME = 1e-9
"""Relative difference below which two prices are equal."""
NOT_SAID = (
    "shape", "trainer", "routing_skew", "document_len", "trains_weights", "lora_rank", "lora_targets",
    "frozen_bits", "global_batch_size",
)  # fmt: skip
"""Fields of a job that are compared apart, belong to the data, or are refused before."""
WORDS = {"attention_kernel": "attention", "dispatch_once": "deepep", "splits_experts": "split_experts"}
"""Names of options, where they differ from the field's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lost:
    """A field that the files have at another value."""

    field: str
    asked: Any
    found: Any
    of_trainer: bool = False

    @property
    def name(self) -> str:
        return WORDS.get(self.field, self.field)

    @property
    def word(self) -> str:
        return f"{self.name}={_word(self.found)}"

    def put(self, job: TrainingJob) -> TrainingJob:
        """The job with the files' value."""
        if self.of_trainer:
            return replace(job, trainer=replace(job.trainer, **{self.field: self.found}))
        return replace(job, **{self.field: self.found})


def checked(
    written: LaunchFiles, job: TrainingJob, plan: TrainingPlan, price: _Price, limit_bytes: float = math.inf
) -> LaunchFiles:
    """The files, with notes on every difference between what they say and the job and plan that were asked for. Raises
    `InputError` for a switch that was asked for, changes the price, and is not in them.

    ``limit_bytes`` is what a device may hold.
    """
    again, plan_of_files = _read_back(written, job)
    lost, wanted_price = tuple(_lost(job, again)), price(job, plan)
    same = canonical(plan, int(job.shape.num_layers)) == plan_of_files
    price_of_files = price(again, plan_of_files)
    notes = list[str]()
    for loss in lost:
        matters = _differ(price(loss.put(job), plan), wanted_price)
        if matters and _was_asked(loss, job):
            raise _refusal(written.kind, loss)
        if matters or _was_asked(loss, job):
            notes.append(
                f"{loss.word} in the files, not {_word(loss.asked)}{'' if matters else ': no change in price'}"
            )
    if _differ(price_of_files, wanted_price) or not same:
        notes.append(_priced(written.kind, job, wanted_price, price_of_files, limit_bytes))
    if job.routing_skew != 1:
        notes.append(f"routing_skew={job.routing_skew:g} is of the data: plan --launch prices even routing")
    return replace(written, notes=(*notes, *written.notes))


def _read_back(written: LaunchFiles, job: TrainingJob) -> tuple[TrainingJob, TrainingPlan]:
    """The job and plan in written files; data's own properties (routing) and sizes that no file has are the job's."""
    with tempfile.TemporaryDirectory() as folder:
        save_files(written, folder)
        reading = read_launch(folder, shape=job.shape)
    again = reading.job(reading.shape or job.shape, reading.parts.seq_len or job.seq_len)
    unsaid = {name: getattr(job, name) for name in NOT_SAID[2:]}
    return replace(again, **unsaid), reading.plan


def _lost(job: TrainingJob, again: TrainingJob) -> Iterator[_Lost]:
    for name in (f.name for f in fields(job) if f.name not in NOT_SAID):
        if (before := getattr(job, name)) != (after := getattr(again, name)):
            yield _Lost(field=name, asked=before, found=after)
    for name in SWITCHES:
        if (before := getattr(job.trainer, name)) != (after := getattr(again.trainer, name)):
            yield _Lost(field=name, asked=before, found=after, of_trainer=True)


def _was_asked(lost: _Lost, job: TrainingJob) -> bool:
    """Whether a switch differs from what the job's trainer does by itself."""
    if not lost.of_trainer:
        usual = {f.name: f.default for f in fields(TrainingJob)} | {
            "context_parallel": job.trainer.usual_context_parallel,
            "recompute_modules": lost.asked,
        }
        return bool(lost.asked != usual[lost.field])
    records = [record for record in TRAINERS.values() if record.name == job.trainer.name]
    return all(_differs(lost, record) and _differs(lost, as_launched(record)) for record in records) and bool(records)


def _differs(lost: _Lost, trainer: Trainer) -> bool:
    releases = [release.changes for release in trainer.releases]
    usual = [getattr(trainer, lost.field), *(c[lost.field] for c in releases if lost.field in c)]
    return lost.asked not in usual


def _refusal(kind: LaunchKind, lost: _Lost) -> InputError:
    must = f"{kind.title}'s files cannot say it: the run would have {lost.word}"
    others = "" if kind is LaunchKind.MEGATRON else ", or --write megatron"
    return InputError(lost.name, _word(lost.asked), must, f"{lost.word}{others}")


def _priced(kind: LaunchKind, job: TrainingJob, price: _Both, price_of_files: _Both, limit_bytes: float) -> str:
    change = f"{100 * (price_of_files[0] / price[0] - 1):+.2g}%"
    full = ", more than it may hold" if price_of_files[1] > limit_bytes else ""
    times = f"{format_seconds(price_of_files[0])} ({change}) and {format_bytes(price_of_files[1])} per device{full}"
    own = job.trainer.name == record_named(kind.value).name
    whose = "the plan" if own else f"the plan, priced for {job.trainer.name},"
    return f"{kind.title}'s files take {times}; {whose} takes {format_seconds(price[0])} and {format_bytes(price[1])}"


def _differ(price: _Both, changed: _Both) -> bool:
    return any(abs(a - b) > SAME * max(abs(a), abs(b)) for a, b in zip(price, changed, strict=True))


def _word(value: object) -> str:
    if isinstance(value, frozenset):
        return "+".join(sorted(str(member.value) for member in value)) or "none"
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def switches_in_files(kind: LaunchKind) -> tuple[str, ...]:
    """Switches that the files of a trainer say, if only by their defaults; the program that they start decides on the
    others."""
    sections = (kind.value, *_BESIDE.get(kind, ()))
    of_files = {row.field for section in sections for row in rows(section) if row.default != ""}
    return tuple(name for name, switch in SWITCHED.items() if switch.field in of_files)


_BESIDE = {
    LaunchKind.MEGATRON_BRIDGE: ("megatron",),
    LaunchKind.DEEPSPEED: ("huggingface",),
    LaunchKind.ACCELERATE: ("huggingface",),
}
"""Further sections of the table that a trainer's files may say."""


def depends_on(unpriced: Sequence[str], stages: Sequence[StageMemory], limit_bytes: float) -> tuple[Turn, ...]:
    """Which of a launch's ``unpriced`` switches could turn whether it fits into ``limit_bytes`` per device: those that
    could alone, or all together if none could; and every variable (``$NAME``) that may hold any arguments."""
    change_bytes = max(stage.total_bytes() for stage in stages) - limit_bytes
    sign = 1 if change_bytes <= 0 else -1

    def turned_by(*switches: Row) -> bool:
        sizes = [stage.total_bytes() + sign * _most_bytes(stage, switches, sign) for stage in stages]
        return (max(sizes) > limit_bytes) == (sign > 0)

    switches = [(value, row) for value, row in _switches(unpriced) if row.sign in (0, sign)]
    alone = [(value, row) for value, row in switches if turned_by(row)]
    together = [] if alone or not turned_by(*(row for _, row in switches)) else switches
    others = {row.argument: [r.argument for _, r in together if r is not row] for _, row in together}
    turns = (_turn(v, row, stages, change_bytes, others.get(row.argument, [])) for v, row in alone or together)
    word = "fits if they save" if change_bytes > 0 else "does not fit if they add more than"
    figures = {"change_bytes": abs(change_bytes)}
    variables = (
        Turn(field=name, value="", verdict=f"{word} {format_bytes(abs(change_bytes))}", figures=figures)
        for name in unpriced
        if name.startswith("$")
    )
    return (*variables, *turns)


def _switches(unpriced: Iterable[str]) -> list[tuple[str, Row]]:
    """The values and rows of switches that are on and may change memory."""
    table = {row.argument: row for kind in LaunchKind for row in rows(kind, "unpriced")}
    split = [re.split("[ =]", words, maxsplit=1) for words in unpriced]
    switches = [(value[0] if value else "on", table[name]) for name, *value in split if name in table]
    return [(v, row) for v, row in switches if v.lower().removesuffix(".0") not in (*OFF, text_of(row.default or ""))]


def _most_bytes(stage: StageMemory, switches: Sequence[Row], sign: int) -> float:
    """The most that switches together may add to a stage (``sign`` 1) or take away; no part is taken away twice."""
    names = {name for row in switches for name in row.bytes_of}
    shares = {name: sum(row.share for row in switches if name in row.bytes_of) for name in names}
    return sum(stage.part_bytes(name) * (share if sign > 0 else min(share, 1.0)) for name, share in shares.items())


def _turn(value: str, row: Row, stages: Sequence[StageMemory], change_bytes: float, others: Sequence[str]) -> Turn:
    priced = f"{' and '.join(row.bytes_of)}: {format_bytes(max(s.part_bytes(*row.bytes_of) for s in stages))} as priced"
    beside = f", together with {' and '.join(others)}" if others else ""
    word = "fits if it saves" if change_bytes > 0 else "does not fit if it adds more than"
    verdict = f"{word} {format_bytes(abs(change_bytes))} ({priced}){beside}"
    return Turn(field=row.argument, value=value, verdict=verdict, figures={"change_bytes": abs(change_bytes)})
