"""Launch scripts: find the training command in one without running it, refuse what does not pretrain a decoder, and
write a script around a trainer's arguments."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from sartor.bounded import printable
from sartor.errors import InputError
from sartor.launch.plan import LaunchFile
from sartor.launch.shell import Beside, Shell, nothing_beside, read_shell, script_of
from sartor.launch.shell_words import HOLE
from sartor.launch.stated import hole_text, launch_words, parse_flags


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptCommand:
    """The training command of a script: its launcher, number of devices, program, and arguments."""

    launcher: tuple[str, ...]
    program: str
    arguments: tuple[str, ...]
    num_devices: int = 0
    """0: unknown from the script."""
    notes: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    """Files that the script writes, by name."""


def devices_in(command: ScriptCommand | None) -> frozenset[str]:
    """``num_devices`` where a command says it."""
    return frozenset({"num_devices"} if command and command.num_devices else ())


# -- finding ------------------------------------------------------------------------------------------------------

_RENDEZVOUS = re.compile(
    r"(MASTER|NODE_RANK|RANK|MEGATRON_PATH|TRAIN_SCRIPT|HOSTFILE|\w*(PATH|DIR|FILE|NAME|PORT|ADDR))"
)
"""Variables whose defaults do not affect the plan."""
_KEY = re.compile(r"[a-z]\w*=")
"""Arguments of MaxText (and, below, of NeMo)."""
_DOTTED = re.compile(r"[+~]*(trainer|model|exp_manager)\.[\w.]+=")
_MODULE = re.compile(r"(?!torch\.|accelerate\.|deepspeed\.)\w+(\.\w+)+")
_PROGRAM = re.compile(r"(?:.*/)?[\w.-]+\.py|torchtitan\.train|(?i:maxtext(?:\.\w+)*\.train)")


def find_command(text: str, beside: Beside = nothing_beside) -> ScriptCommand:
    """The command with the most flags; flags on lines of their own count as one command. ``beside`` returns the text of
    a file that the script sources."""
    shell = read_shell(text, _of_slurm(_header(text)), beside=beside)
    commands = [inner for command in shell.commands for inner in _unwrapped(command, shell)]
    if commands and all(command[0].startswith("--") for command in commands):
        commands = [[word for command in commands for word in command]]
    best = max(commands, key=_weight, default=[])
    if (scripts := [name for c in shell.commands if (name := script_of(c))]) and not any(map(_weighs, commands)):
        must = "is the script that the file starts, and is not beside it: its arguments are not known"
        raise InputError("launch", printable(scripts[-1].replace(HOLE, "$")), must, "both in one folder")
    modules = {i + 1 for i, word in enumerate(best[:-1]) if word in ("-m", "--module")}  # verl.trainer.main_ppo
    started = (
        i for i, word in enumerate(best) if _PROGRAM.fullmatch(word) or (i in modules and _MODULE.fullmatch(word))
    )
    index = next(started, None)
    first = next((i for i, word in enumerate(best) if word.startswith("--")), len(best))
    launcher = best[:index] if index is not None else best[:first]
    program = best[index] if index is not None else ""
    rest = best[index + 1 :] if index is not None else [w for i, w in enumerate(best) if i or w.startswith("--")]
    notes = [hole_text(note) for note in dict.fromkeys(shell.notes) if not _RENDEZVOUS.match(note)]
    return ScriptCommand(
        launcher=tuple(launcher),
        program=program,
        arguments=tuple(rest),
        num_devices=_devices([*shell.batch, *(best if index is None else launcher)], shell, text),
        notes=(*_others(best, commands), *notes),
        files=shell.files,
    )


def _others(best: list[str], commands: list[list[str]]) -> list[str]:
    """A note on further commands that start a training program, which are further runs."""
    others = (command for command in commands if command != best and not _holds(command, best))
    started = [text for command in others if _TRAINS.search(text := " ".join(command[:40]))]
    count = len(dict.fromkeys(started))
    if not count or not _TRAINS.search(" ".join(best)):
        return []
    return [f"the script starts {count} more training command{'s' * (count > 1)}; the one with most arguments is read"]


def _holds(command: list[str], best: list[str]) -> bool:
    """Whether a word of a command is the script that holds the other."""
    return any(" " in word and all(part in word for part in best[-2:]) for word in command)


_TRAINS = re.compile(r"(?<![\w.-])([\w.]*(pre)?train\w*(\.py)?|sft|pt)(?=\s+(\S+\s+)?-)")
"""A program that trains, by its name, before its arguments."""


def _weighs(command: list[str]) -> bool:
    return _weight(command)[0] > 0 and not script_of(command)


def _weight(command: list[str]) -> tuple[int, int]:
    flags = sum(word.startswith("--") for word in command)
    keys = sum(bool(_KEY.match(word)) for word in command) if any("axtext" in word.lower() for word in command) else 0
    keys += sum(bool(_DOTTED.match(word)) or word.endswith((".yaml", ".yml")) for word in command)
    return (flags + keys, -len(command))


def _unwrapped(command: list[str], shell: Shell) -> list[list[str]]:
    """The command, and commands inside a word that is itself a script (``srun bash -c "torchrun ..."``)."""
    first = command.index("--") if "--" in command else 0
    if first and all(any(map(_PROGRAM.fullmatch, part)) for part in (command[:first], command[first:])):
        command = command[first + 1 :]  # what a program of the cluster's own starts
    out = [command]
    for word in command:
        if " " in word and len(word) < 100_000 and any(map(_PROGRAM.fullmatch, word.split())):
            variables = {
                name: " ".join(value) for name, value in shell.variables.items() if HOLE not in " ".join(value)
            }
            inner = read_shell(re.sub(f"{HOLE}(?:(\\w+){HOLE})?", r"${\1}", word).replace("${}", "$(...)"), variables)
            shell.files |= inner.files
            out += [command[: command.index(word)] + words for words in inner.commands]
    return out


def _devices(launcher: list[str], shell: Shell, text: str) -> int:
    """Devices from the launcher's flags, else from a batch system's header, else from WORLD_SIZE."""
    flags = parse_flags(word.replace("_", "-") if word.startswith("--") else word for word in launcher).given

    def number(*names: str) -> int:
        for name in names:
            value = (flags.get(name) or [""])[0].partition(":")[0]
            if value.isdigit() and len(value) < 10:
                return int(value)
        return 0

    local = number("--nproc-per-node", "--num-gpus")
    nodes = number("--nnodes", "--num-nodes")
    if total := number("--num-processes") or _single(launcher, "-np", "-n") or _included(launcher):
        return total
    header = _header(text)
    nodes = nodes or header.get("nodes", 0) or number("--nodes") or _single(launcher, "-N")
    if local:
        return local * (nodes or (1 if "--nnodes" not in flags else 0))
    if number("--ntasks"):
        return number("--ntasks")
    local = number("--ntasks-per-node", "--gpus-per-node") or header.get("local", 0)
    if local and nodes:
        return local * nodes
    return _of_environment(shell, launcher)


def _of_environment(shell: Shell, launcher: Sequence[str]) -> int:
    """Devices from variables that programs read: processes of a node by nodes, WORLD_SIZE, or the devices made visible
    (by which ms-swift splits the model instead)."""

    def number(name: str) -> int:
        text = "".join(shell.variables.get(name, []))
        return int(text) if text.isdigit() and len(text) < 10 else 0

    visible = "".join(shell.variables.get("CUDA_VISIBLE_DEVICES", []))
    count = len(visible.split(",")) if re.fullmatch(r"\d+(,\d+)*", visible) else 0
    local = number("NPROC_PER_NODE") or (0 if count > 1 and "swift" in launcher else count)
    nodes = number("NNODES") if "NNODES" in shell.variables else 1
    return number("NPROC_PER_NODE") * nodes or number("WORLD_SIZE") or local * nodes


def _single(launcher: list[str], *names: str) -> int:
    """The integer after a single-dash option."""
    counts = [after for name, after in pairwise(launcher) if name in names and after.isdigit() and len(after) < 10]
    return int(counts[0]) if counts else 0


def _included(launcher: list[str]) -> int:
    """Devices listed for DeepSpeed (``--include host-0:0,1@host-1:0,1``), if every host lists them."""
    words = [after for name, after in pairwise(launcher) if name in ("-i", "--include")]
    hosts = words[0].split("@") if words else []
    return sum(len(host.partition(":")[2].split(",")) for host in hosts) if all(":" in host for host in hosts) else 0


def _of_slurm(header: Mapping[str, int]) -> dict[str, str]:
    """The variables that Slurm sets from a header."""
    nodes, local = header.get("nodes", 0), header.get("local", 0)
    counts = dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), nodes)
    counts |= dict.fromkeys(("SLURM_GPUS_PER_NODE", "SLURM_NTASKS_PER_NODE", "SLURM_GPUS_ON_NODE"), local)
    counts |= dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS"), nodes * local)
    return {name: str(count) for name, count in counts.items() if count}


def _header(text: str) -> dict[str, int]:
    """Nodes and devices per node from ``#SBATCH`` lines."""
    out: dict[str, int] = {}
    for line in re.findall(r"^#SBATCH\s+(.{1,200})$", text, flags=re.MULTILINE):
        if match := re.search(r"(?:--nodes[= ]|-N\s*)(\d{1,6})\b", line):
            out["nodes"] = int(match[1])
        if match := re.search(
            r"(?:--gpus-per-node[= ]|--ntasks-per-node[= ]|--gres[= ]gpu:)(?:\w+:)?(\d{1,4})\b", line
        ):
            out["local"] = max(int(match[1]), out.get("local", 0))
        if match := re.search(r"(?:--ntasks[= ]|-n\s*|--gpus[= ])(?:\w+:)?(\d{1,6})\b", line):
            out["total"] = int(match[1])
    if "nodes" not in out and out.get("local") and out.get("total", 0) % out["local"] == 0:
        out |= {"nodes": out["total"] // out["local"]} if "total" in out else {}
    return out


# -- writing ------------------------------------------------------------------------------------------------------


def beside_script(name: str) -> str:
    """A file in the script's own folder, for a command that is started anywhere."""
    return f'"$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)/{name}"'


def launch_script(
    *,
    about: str,
    launcher: str,
    nodes: tuple[int, int],
    script: str,
    groups: Mapping[str, Sequence[tuple[str, ...]]],
    env: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
) -> LaunchFile:
    """``launch.sh``: a comment, the rendezvous of ``nodes`` (how many, and devices on each), one array per group of
    arguments, and the command. A variable of ``env`` without a value is unset."""
    lines = ["#!/usr/bin/env bash", f"# {about}", "# Written by sartor."]
    lines += [f"# {note[0].upper()}{note[1:]}." for note in notes]
    lines += ["set -euo pipefail", *(_set(name, value) for name, value in (env or {}).items()), ""]
    lines += _array("DISTRIBUTED_ARGS", _rendezvous(launcher, *nodes))
    for name, arguments in groups.items():
        lines += _array(name, arguments)
    arrays = " ".join(f'"${{{name}[@]}}"' for name in groups)
    lines += [f'{launcher} "${{DISTRIBUTED_ARGS[@]}}" {script} \\', f'    {arrays} "$@"']
    return LaunchFile(name="launch.sh", text="\n".join(lines) + "\n", executable=True)


def _set(name: str, value: str) -> str:
    return f"export {name}={value}" if value else f"unset {name}"


def _rendezvous(launcher: str, nodes: int, local: int) -> list[tuple[str, ...]]:
    if launcher == "accelerate launch":
        first_node = [
            ("--machine_rank", '"${NODE_RANK:?the number of this node}"'),
            ("--main_process_ip", '"${MASTER_ADDR:?address of the first node}"'),
            ("--main_process_port", '"${MASTER_PORT:-29500}"'),
        ]
        return [("--config_file", beside_script("accelerate.yaml")), *(first_node if nodes > 1 else [])]
    if launcher == "deepspeed":
        hosts = [("--hostfile", '"${HOSTFILE:?file that lists the nodes}"')] if nodes > 1 else []
        return [("--num_nodes", str(nodes)), ("--num_gpus", str(local)), *hosts]
    out: list[tuple[str, ...]] = [("--nproc-per-node", str(local)), ("--nnodes", str(nodes))]
    if nodes > 1:
        out += [
            ("--node-rank", '"${NODE_RANK:?the number of this node}"'),
            ("--master-addr", '"${MASTER_ADDR:?address of the first node}"'),
            ("--master-port", '"${MASTER_PORT:-29500}"'),
        ]
    return out


def _array(name: str, arguments: Sequence[tuple[str, ...]]) -> list[str]:
    return [f"{name}=(", *("    " + " ".join(_quoted(word) for word in words) for words in arguments), ")", ""]


def _quoted(word: str) -> str:
    return word if word.startswith('"$') else shlex.quote(word)


NEAREST = "a script that starts pretrain_gpt.py, torchtitan.train, or a causal language model's training program"


def check_pretraining(command: ScriptCommand, name: str) -> None:
    """Raise `InputError` if the command's words show that it does not pretrain a decoder."""
    program = command.program.rsplit("/", 1)[-1].removesuffix(".py").lower()
    words = re.split(r"[_\-. ]", program or " ".join(command.launcher[:2]).rpartition("/")[2])
    reasons = [row["why"] for row in launch_words()["programs"] for word in words if re.fullmatch(row["words"], word)]
    if reasons:
        shown = hole_text(command.program or name)
        raise InputError("launch", shown, f"must pretrain a decoder; {reasons[0]}", NEAREST)
    check_arguments(word.partition("=")[0] for word in command.arguments if word.startswith("--"))


def check_arguments(names: Iterable[str], allowed: Sequence[str] = ()) -> None:
    """Raise `InputError` for arguments or keys that only a run has that does not train a decoder alone; ``allowed``:
    kinds of such runs that are read."""
    plain = [(given, re.sub(r"[^a-z0-9]+", "-", given.lower()).strip("-")) for given in names]
    for row in launch_words()["programs"]:
        pattern = re.compile("|".join(row.get("arguments", ("(?!)",))))
        shown = next((given for given, text in plain if pattern.fullmatch(text)), "")
        if shown and row.get("kind") not in allowed:
            raise InputError(printable(shown), "given", f"must pretrain a decoder; {row['why']}", NEAREST)


def check_known(strange: Sequence[str], count: int, command: ScriptCommand | None, other: str = "") -> None:
    """Raise `InputError` if many arguments of a program (or of the ``other`` that has a file's keys) are of no trainer:
    what it computes is then not known."""
    if not (command or other) or len(strange) < FEW or len(strange) <= count * SHARE:
        return
    shown = ", ".join(printable(name) for name in strange[:3])
    must = f"is not known, and {len(strange)} of its {count} arguments are of no trainer that is ({shown})"
    raise InputError("launch", hole_text((command and command.program) or other or "program"), must, NEAREST)


FEW, SHARE = 4, 0.25
"""Fewest arguments of no known trainer, and their share, from which a program is not taken for a known one: no launch
that is read in tests/corpus has more than two, and a copy of Megatron-LM has 11 of 67 (Apertus, 2025)."""
