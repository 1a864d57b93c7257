"""The script inside a scheduler's file: a task of SkyPilot, or the pods of Kubernetes (Job, PyTorchJob, JobSet,
TrainJob ...)."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from sartor.json_types import JsonDict, JsonMap

STARTS = re.compile(r"\.py\b|\s-m\s|\b(torchrun|accelerate|deepspeed|axolotl|llamafactory-cli|swift|tune)\b")
"""What a script that trains holds."""
GPUS = ("nvidia.com/gpu", "amd.com/gpu", "google.com/tpu")
REPEATED = ("replicas", "parallelism")


def script_in(config: JsonMap) -> str | None:
    """The script that a scheduler's file starts, its devices in a header as Slurm's; None for another file."""
    script = _of_skypilot(config) or (_of_pods(config) if {"apiVersion", "kind"} <= config.keys() else None)
    return script if script and STARTS.search(script) else None


def _of_skypilot(config: JsonMap) -> str | None:
    run, wanted = config.get("run"), _table(config.get("resources")).get("accelerators", "")
    if not isinstance(run, str) or "resources" not in config:
        return None
    words = [f"{name}:{count}" for name, count in wanted.items()] if isinstance(wanted, dict) else [str(wanted)]
    local = int(match[1]) if (match := re.fullmatch(r"[\w.-]+:(\d{1,3})", words[0] if words else "")) else 1
    nodes = config.get("num_nodes", 1)
    counts = {"SKYPILOT_NUM_NODES": nodes, "SKYPILOT_NUM_GPUS_PER_NODE": local}
    return _headed(nodes, local, {**_texts(config.get("envs")), **counts}, run)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pod:
    script: str
    replicas: int
    devices: int
    variables: JsonDict


def _of_pods(config: JsonMap) -> str | None:
    """The script of the first pod that trains; pods with the same one are nodes of one run."""
    pods = [pod for pod in _pods(config, 1) if STARTS.search(pod.script)]
    if not pods:
        return None
    nodes = sum(pod.replicas for pod in pods if pod.script == pods[0].script)
    return _headed(nodes, pods[0].devices, pods[0].variables, pods[0].script)


def _pods(config: object, replicas: int) -> Iterator[_Pod]:
    """Every container below an entry, with the nodes that start it."""
    if isinstance(config, list):
        for item in config:
            yield from _pods(item, replicas)
    if not isinstance(config, dict):
        return
    counts = [config[name] for name in REPEATED if isinstance(config.get(name), int)]
    replicas *= max([1, *counts])
    for name, inner in config.items():
        if name != "containers":
            yield from _pods(inner, replicas)
        for container in _list(inner) if name == "containers" else [inner] if name == "trainer" else ():
            if isinstance(container, dict):
                yield _pod(container, replicas)


def _pod(container: JsonMap, replicas: int) -> _Pod:
    words = [str(word) for part in ("command", "args") for word in _list(container.get(part))]
    words = [re.sub(r"\$\((\w+)\)", r"${\1}", word) for word in words]  # Kubernetes writes $(NAME) for ${NAME}
    nodes, local = (container.get(name) for name in ("numNodes", "numProcPerNode"))  # of a TrainJob's trainer
    limits = _table(_table(container.get("resources", container.get("resourcesPerNode"))).get("limits"))
    named = [_table(row) for row in _list(container.get("env"))]
    return _Pod(
        script=" ".join(word if re.fullmatch(r"[\w@%+=:,./${}-]+", word) else shlex.quote(word) for word in words),
        replicas=replicas * (nodes if isinstance(nodes, int) else 1),
        devices=next(
            (int(str(count)) for count in (*map(limits.get, GPUS), local) if re.fullmatch(r"\d{1,3}", str(count))), 0
        ),
        variables=_texts({str(row.get("name")): row.get("value") for row in named}),
    )


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _table(value: object) -> JsonMap:
    return value if isinstance(value, dict) else {}


def _texts(values: object) -> JsonDict:
    pairs = values.items() if isinstance(values, dict) else ()
    return {
        name: value for name, value in pairs if isinstance(value, str | int) and re.fullmatch(r"[A-Za-z_]\w*", name)
    }


def _headed(nodes: object, local: int, variables: JsonMap, script: str) -> str:
    header = f"#SBATCH --nodes={nodes}\n#SBATCH --gpus-per-node={local}\n" if isinstance(nodes, int) and local else ""
    exports = "".join(f"export {name}={shlex.quote(str(value))}\n" for name, value in variables.items())
    return f"{header}{exports}{script}\n"
