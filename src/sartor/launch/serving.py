"""Commands and files that start the servers of a deployment, from tables of the engines' options (``serving.toml``)."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from sartor.bounded import packaged_toml
from sartor.json_types import JsonDict, JsonMap
from sartor.launch.stated import write_yaml
from sartor.operators import DType
from sartor.step.serving.deploy import Deployment
from sartor.step.serving.served import Server, longest_tokens
from sartor.units import ceil_div

DRAFT_MODEL = "DRAFT_MODEL"
"""Stands for the checkpoint that drafts, where the model has no layer for it."""
CONFIG = "config.yaml"
"""TensorRT-LLM's file of what has no flag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPool:
    """Equal servers of a deployment."""

    server: Server
    count: int
    role: str
    """``prefill`` or ``decode``, or "" where one pool does both."""
    running: int
    """Sequences of a copy at once: as many as the objectives allow, for bursts."""

    @property
    def name(self) -> str:
        return self.role or "server"

    @property
    def nodes(self) -> int:
        """Nodes of one server."""
        return ceil_div(self.server.num_devices, self.server.gpu.devices_per_node)


def pools_of(deployment: Deployment) -> tuple[ServerPool, ...]:
    """The pools of a deployment, prompts first."""
    layout = deployment.layout
    running = math.ceil(deployment.most_at_once / (layout.server.copies * layout.decode_workers))
    pools = [(layout.prefill, "prefill", layout.prefill_workers)] if layout.prefill else []
    return tuple(
        ServerPool(server=server, role=role, count=workers * deployment.replicas, running=running)
        for server, role, workers in (*pools, (layout.server, "decode" if pools else "", layout.decode_workers))
        if server is not None
    )


def settings(pool: ServerPool, longest: int = 0) -> JsonDict:
    """What a pool's servers are started with, by the names of ``serving.toml``; what an engine has by default is left
    out. ``longest``: tokens of the longest request."""
    server, engine = pool.server, pool.server.engine
    narrow = server.cache is DType.FP8
    quantized = server.dtype.value == "fp8" and server.stored is None
    connector = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
    step_tokens = engine.max_num_batched_tokens or engine.step_tokens(server.gpu)
    raised = pool.running > step_tokens and engine.name == "vllm"  # which refuses fewer tokens a step than sequences
    values = {
        "tp": server.tp,
        "devices": server.num_devices,
        "copies": server.copies if server.copies > 1 else None,
        "copied": server.copies > 1,
        "ep": server.ep if server.ep > 1 else None,
        "whole_experts": server.ep > 1,
        "running": pool.running,
        "running_in_all": pool.running * server.copies,
        "role": pool.role or None,
        "connector": json.dumps(connector) if pool.role else None,
        "transceiver": "DEFAULT" if pool.role else None,
        "quantization": "fp8" if quantized and engine.name != "trtllm" else None,
        "longest": longest or None,
        "step_tokens": None if raised else step_tokens,
        "chunk_in_all": step_tokens * server.copies,  # SGLang divides it by the copies of attention
        "float": _float_word(server),
        "ray": "ray" if pool.nodes > 1 and server.copies == 1 else None,
        "ray_of_copies": "ray" if pool.nodes > 1 and server.copies > 1 else None,
        "nodes": pool.nodes if pool.nodes > 1 else None,
        "rank": "RANK" if pool.nodes > 1 else None,
        "head": "HEAD:5000" if pool.nodes > 1 else None,
        "raised_tokens": pool.running if raised else None,
        "host": "0.0.0.0",
        "port": 8000,
        "utilization": round(float(engine.utilization(server.gpu, server.tp, server.copies)), 3),
        "cache": "fp8" if narrow else None,
        "cache_sglang": "fp8_e4m3" if narrow else None,
        **(_speculation(server) if server.draft_tokens else {}),
    }
    stated = {name: value for name, value in values.items() if value not in (None, False)}
    if engine.name == "trtllm" and any(row["value"] in stated for row in _rows("trtllm") if "key" in row):
        stated["config"] = CONFIG
    return stated


def _float_word(server: Server) -> str | None:
    """``--dtype`` where activations are not in the type of checkpoints, bf16: on devices without it, or as stated."""
    dtype = server.dtype if server.dtype.bytes >= 2 else server.gpu.default_dtype
    return {DType.FP16: "half", DType.FP32: "float32"}.get(dtype)


def _speculation(server: Server) -> JsonDict:
    """Drafts by the model's own layer (MTP) or, where it has none, by a model of one layer (EAGLE-3)."""
    tokens, own = server.draft_tokens, server.shape.mtp_layers > 0
    model = {} if own else {"model": DRAFT_MODEL}
    config = {"method": "mtp" if own else "eagle3", **model, "num_speculative_tokens": tokens}
    return {
        "drafts": json.dumps(config),
        "algorithm": "EAGLE" if own else "EAGLE3",  # SGLang's EAGLE is MTP where the model has the layer
        "decoding": "MTP" if own else "Eagle",
        "draft_model": None if own else DRAFT_MODEL,
        "draft_steps": tokens,
        "draft_branches": 1,
        "checked": tokens + 1,
        "draft_layers": tokens if own else None,
        "draft_tokens": None if own else tokens,
    }


def _rows(engine: str) -> list[JsonDict]:
    rows: list[JsonDict] = packaged_toml("launch", "serving.toml")[engine]["options"]
    return rows


def server_command(pool: ServerPool, longest: int = 0, *, whole: bool = False) -> str:
    """The command that starts one server; ``whole``: with what a file states besides."""
    table, values = packaged_toml("launch", "serving.toml")[pool.server.engine.name], settings(pool, longest)
    words = [table["program"]]
    for row in table["options"]:
        if "flag" in row and row["value"] in values and (whole or not row.get("file")):
            value = "" if row.get("switch") else f" {shlex.quote(str(values[row['value']]))}"
            words.append(row["flag"] + value)
    return " ".join(words)


def commands(deployment: Deployment, longest: int) -> tuple[str, ...]:
    """What starts one server of each kind, and how many of them; with the tokens of the longest request where a server
    has no room for the model's context, which engines else refuse."""
    return tuple(
        f"{pool.count} x: {server_command(pool, 0 if _holds_context(pool.server) else longest)}"
        for pool in pools_of(deployment)
    )


def _holds_context(server: Server) -> bool:
    return longest_tokens(server) >= server.shape.max_positions


FILES = re.compile(r"(server|prefill|decode)(\.sh|-config\.yaml)|kubernetes\.yaml|llm-d-values\.yaml")
"""Names of what `serving_files` writes."""


def serving_files(deployment: Deployment, model: str, longest: int) -> dict[str, str]:
    """Files that start a deployment, by name: a script per kind of server, TensorRT-LLM's configuration and, for
    servers within a node, manifests of Kubernetes and for vLLM the values of llm-d's chart."""
    model = model if "/" in model else "MODEL"  # the zoo's names are no checkpoints
    files, values, manifests = {}, {}, []
    pools, engine = pools_of(deployment), deployment.layout.server.engine.name
    for pool in pools:
        command = server_command(pool, longest, whole=True).replace("MODEL", shlex.quote(model), 1)
        config = _nested(engine, settings(pool, longest))
        if config:
            files[f"{pool.name}-{CONFIG}"] = write_yaml(config)
            command = command.replace(CONFIG, f"{pool.name}-{CONFIG}")
        files[f"{pool.name}.sh"] = f"#!/bin/sh\n# {pool.count} of these\nexec {command}\n"
        manifests += list(_manifests(pool, command, config))
        values[pool.role or "decode"] = _values(pool, command)
    if all(pool.nodes == 1 and _image(pool.server) for pool in pools):
        files["kubernetes.yaml"] = "---\n".join(map(write_yaml, manifests))
        if engine == "vllm" and pools[0].server.gpu.vendor == "NVIDIA":
            artifact = {"modelArtifacts": {"uri": f"hf://{model}", "name": model}}
            files["llm-d-values.yaml"] = write_yaml({**artifact, "prefill": {"create": False}, **values})
    return files


def left_to_do(deployment: Deployment) -> Iterator[str]:
    """What the files of a deployment leave to the user, in sentences."""
    pools, server = pools_of(deployment), deployment.layout.server
    engine = server.engine
    table = packaged_toml("launch", "serving.toml")[engine.name]
    if len(pools) > 1:
        yield f"Requests go through a router before both kinds of servers, which no file starts: {table['router']}."
    if server.stored is None and server.dtype.bytes < 2 and "quantization" not in settings(pools[-1]):
        yield f"{engine.name} does not quantize weights to {server.dtype.value} itself: name a checkpoint in it."
        if engine.narrow_cache and server.cache.bytes >= 2:
            yield f"One whose keys and values are in {server.cache.value}: {engine.name} follows the checkpoint."
    if nodes := [pool.nodes for pool in pools if pool.nodes > 1]:
        yield f"A server spans {max(nodes)} nodes: {table['nodes']}. No file for Kubernetes."
    elif not _image(server):
        release = f" {engine.release}" if engine.release else ""
        yield f"No file for Kubernetes: no image of {engine.name}{release} for {server.gpu.name} is known."


def _nested(engine: str, values: JsonMap) -> JsonDict:
    """The configuration file of what has no flag."""
    nested: JsonDict = {}
    for row in _rows(engine):
        if "key" in row and row["value"] in values:
            *path, last = row["key"].split(".")
            inner = nested
            for name in path:
                inner = inner.setdefault(name, {})
            inner[last] = values[row["value"]]
    return nested


def _image(server: Server) -> str:
    """The image of the engine's release for a device; "" if none is known."""
    table, release = (
        packaged_toml("launch", "serving.toml")[server.engine.name],
        server.engine.release.removeprefix("v"),
    )
    if server.gpu.vendor != "NVIDIA":
        return "" if release else str(table["images"].get(server.gpu.generation, ""))
    whole = release + ".0" * (2 - release.count(".")) if release else table["release"]
    return str(table["image"].format(release=whole))


_RESOURCES = {"NVIDIA": "nvidia.com/gpu", "AMD": "amd.com/gpu"}
"""What Kubernetes' device plugins call a vendor's GPUs."""


def _manifests(pool: ServerPool, command: str, config: JsonDict) -> Iterator[JsonDict]:
    """A deployment of Kubernetes with its service."""
    labels = {"app": f"sartor-{pool.name}"}
    container: JsonDict = {
        "name": pool.name,
        "image": _image(pool.server),
        "command": ["/bin/sh", "-c", command.replace(f"{pool.name}-{CONFIG}", f"/config/{pool.name}-{CONFIG}")],
        "ports": [{"containerPort": 8000}],
        "resources": {"limits": {_RESOURCES.get(pool.server.gpu.vendor, ""): pool.server.num_devices}},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    volumes: list[JsonDict] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    if config:
        container["volumeMounts"] += [{"name": "config", "mountPath": "/config"}]
        volumes += [{"name": "config", "configMap": {"name": f"sartor-{pool.name}"}}]
        data = {f"{pool.name}-{CONFIG}": write_yaml(config)}
        yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"sartor-{pool.name}"}, "data": data}
    yield {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": f"sartor-{pool.name}"},
        "spec": {
            "replicas": pool.count,
            "selector": {"matchLabels": dict(labels)},
            "template": {"metadata": {"labels": dict(labels)}, "spec": {"containers": [container], "volumes": volumes}},
        },
    }
    ports = [{"port": 8000, "targetPort": 8000}]
    service = {"selector": labels, "ports": ports}
    yield {"apiVersion": "v1", "kind": "Service", "metadata": {"name": f"sartor-{pool.name}"}, "spec": service}


def _values(pool: ServerPool, command: str) -> JsonDict:
    """A role's values of llm-d's chart."""
    sizes = {"tensor": pool.server.tp, "data": pool.server.copies}
    container = {
        "name": "vllm",
        "image": _image(pool.server),
        "modelCommand": "vllmServe",
        "args": shlex.split(command)[3:],
    }
    return {"create": True, "replicas": pool.count, "parallelism": sizes, "containers": [container]}
