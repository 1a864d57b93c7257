"""Commands and files that start the servers of a deployment, written and read back by tables of the engines' options
(``serving.toml``)."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from sartor.bounded import decoded, packaged_toml, parse_json, printable, read_bytes
from sartor.errors import InputError
from sartor.json_types import JsonDict, JsonMap
from sartor.launch.shell import read_shell
from sartor.launch.stated import PLACEHOLDER, parse_flags, read_yaml, write_yaml
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
        "devices": server.stage_devices,
        "pp": server.pp if server.pp > 1 else None,
        "copies": server.copies if server.copies > 1 else None,
        "copied": server.copies > 1,
        "ep": server.ep if server.ep > 1 else None,
        "whole_experts": server.ep > 1,
        "running": pool.running,
        "running_in_all": pool.running * server.copies,
        "role": pool.role or None,
        "connector": json.dumps(connector) if pool.role else None,
        "transceiver": "DEFAULT" if pool.role else None,
        "without_overlap": pool.role == "prefill",  # which TensorRT-LLM's servers for prompts alone do not have
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
    if engine.name == "trtllm" and any(
        row["value"] in stated for row in _tables()["trtllm"]["options"] if "key" in row
    ):
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


def _tables() -> JsonDict:
    """Of every engine by name: its options, and what else `serving.toml` says."""
    return packaged_toml("launch", "serving.toml")


def server_command(pool: ServerPool, longest: int = 0, *, whole: bool = False) -> str:
    """The command that starts one server; ``whole``: with what a file states besides."""
    table, values = _tables()[pool.server.engine.name], settings(pool, longest)
    words = [*(f"{name}=ADDRESS" for name in _address(pool) if not whole), table["program"]]
    for row in table["options"]:
        if "flag" in row and row["value"] in values and (whole or not row.get("file")):
            value = "" if row.get("switch") else f" {shlex.quote(str(values[row['value']]))}"
            words.append(row["flag"] + value)
    return " ".join(words)


def _address(pool: ServerPool) -> tuple[str, ...]:
    """The variable with the address at which a server of pools apart is reached, if its engine has one."""
    address = _tables()[pool.server.engine.name].get("address")
    return (address,) if address and pool.role else ()


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
        server = pool.server
        about = f"{pool.count} of these, each on {server.num_devices} {server.gpu.name} in {server.dtype.value}"
        address = "".join(f"export {name}=$(hostname -I | cut -d' ' -f1)\n" for name in _address(pool))
        files[f"{pool.name}.sh"] = f"#!/bin/sh\n# {about}\n{address}exec {command}\n"
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
    table = _tables()[engine.name]
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
    for row in _tables()[engine]["options"]:
        if "key" in row and row["value"] in values:
            *path, last = row["key"].split(".")
            inner = nested
            for name in path:
                inner = inner.setdefault(name, {})
            inner[last] = values[row["value"]]
    return nested


def _image(server: Server) -> str:
    """The image of the engine's release for a device; "" if none is known."""
    table, engine = _tables()[server.engine.name], server.engine
    if server.gpu.vendor != "NVIDIA":
        return "" if engine.release else str(table["images"].get(server.gpu.generation, ""))
    release = (engine.release or engine.usual_release).removeprefix("v")
    return str(table["image"].format(release=release + ".0" * (2 - release.count("."))))


_RESOURCES = {"NVIDIA": "nvidia.com/gpu", "AMD": "amd.com/gpu"}
"""What Kubernetes' device plugins call a vendor's GPUs."""


def _manifests(pool: ServerPool, command: str, config: JsonDict) -> Iterator[JsonDict]:
    """A deployment of Kubernetes with its service."""
    name, file = f"sartor-{pool.name}", f"{pool.name}-{CONFIG}"

    def manifest(kind: str, version: str = "v1", **rest: Any) -> JsonDict:
        return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **rest}

    container: JsonDict = {
        **_container(pool, pool.name),
        "command": ["/bin/sh", "-c", command.replace(file, f"/config/{file}")],
        "ports": [{"containerPort": 8000}],
        "resources": {"limits": {_RESOURCES.get(pool.server.gpu.vendor, ""): pool.server.num_devices}},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    volumes: list[JsonDict] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    if config:
        container["volumeMounts"] += [{"name": "config", "mountPath": "/config"}]
        volumes += [{"name": "config", "configMap": {"name": name}}]
        yield manifest("ConfigMap", data={file: write_yaml(config)})
    spec = {"containers": [container], "volumes": volumes}
    template = {"metadata": {"labels": {"app": name}}, "spec": spec}
    selector = {"matchLabels": {"app": name}}
    yield manifest("Deployment", "apps/v1", spec={"replicas": pool.count, "selector": selector, "template": template})
    yield manifest("Service", spec={"selector": {"app": name}, "ports": [{"port": 8000, "targetPort": 8000}]})


def _values(pool: ServerPool, command: str) -> JsonDict:
    """A role's values of llm-d's chart."""
    sizes = {"tensor": pool.server.tp, "data": pool.server.copies}
    container = {**_container(pool, "vllm"), "modelCommand": "vllmServe", "args": shlex.split(command)[3:]}
    return {"create": True, "replicas": pool.count, "parallelism": sizes, "containers": [container]}


def _container(pool: ServerPool, name: str) -> JsonDict:
    """A container's name, image and variables."""
    pod: JsonDict = {"valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    variables = [{"name": variable, **pod} for variable in _address(pool)]
    return {"name": name, "image": _image(pool.server)} | ({"env": variables} if variables else {})


# -- reading -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedServer:
    """A server as a command or manifest starts it; what the file does not say is left out."""

    engine: str
    release: str
    model: str
    role: str
    """``prefill``, ``decode``, or "" where one server does both."""
    count: int
    devices: int
    """Devices that a manifest asks for; 0: it does not say."""
    values: JsonDict
    """By the names of ``serving.toml``."""
    findings: tuple[tuple[str, str, str], ...]
    """Grade, option and sentence."""
    gpu: str = ""
    dtype: str = ""

    def stated(self) -> JsonDict:
        """The fields of a run, and the copies of attention, that the file says."""
        values, engine = self.values, self.engine
        copied = values.get("copied", "false").lower() == "true"
        devices, copies = self._size("devices") or 1, self._size("copies") or 1
        if engine != "vllm":  # TensorRT-LLM's are all devices; without copied attention SGLang's are whole servers
            copies = (devices if engine == "trtllm" else copies) if copied else 1
        tp = self._size("tp") or max(devices // copies, 1)
        shared = copies if engine == "sglang" else 1
        chunk = self._size("step_tokens") or self._size("raised_tokens") or self._size("chunk_in_all")
        running, pp = self._size("running") or self._size("running_in_all"), self._size("pp")
        cache = str(values.get("cache", values.get("cache_sglang", "auto"))).replace("bfloat16", "bf16")
        quantized = str(values.get("quantization", values.get("float", "")))
        fields = {
            "tp": tp,
            "copies": copies,
            "ep": tp * copies if "whole_experts" in values else self._size("ep"),
            "pp": pp if pp != 1 else None,
            "utilization": self._number("utilization"),
            "max_num_batched_tokens": chunk and chunk // shared,
            "max_num_seqs": running and max(running // shared, 1),
            "kernels": f"{engine}@{self.release}" if self.release else engine,
            "kv_dtype": None if cache == "auto" else "fp8" if cache.startswith("fp8") else cache,
            "dtype": self.dtype or _tables()[engine]["types"].get(quantized),
        }
        return {name: value for name, value in fields.items() if value is not None}

    @property
    def longest(self) -> int:
        """Tokens of the longest request, if stated; else 0."""
        return self._size("longest") or 0

    def _size(self, name: str) -> int | None:
        number = self._number(name)
        return None if number is None else int(number)

    def _number(self, name: str) -> float | None:
        """A value in units, of which engines take ``8k`` for 8,000 and ``8K`` for 8,192."""
        text = self.values.get(name, "auto")
        if text in ("auto", "-1"):
            return None
        match = re.fullmatch(r"(\d{1,12}(?:\.\d+)?|\.\d+)([kKmM]?)", text)
        if match is None or not float(match[1]):
            raise InputError(name, printable(text), "must be a number above 0, as the file gives it", "8192")
        return float(match[1]) * {"": 1, "k": 1e3, "m": 1e6, "K": 2**10, "M": 2**20}[match[2]]


_ABOUT = re.compile(r"^# (\d+) of these(?:, each on \d+ (\S+) in (\S+))?$", re.MULTILINE)
_BEARS = re.compile(
    r"mem|parallel|batch|kv|cache|token|seq|len|size|offload|graph|quant|spec|lora|moe|expert|stage|rank"
)
"""Words in the names of options that may change memory, parallelism or batches."""


def read_servers(path: Path) -> tuple[StartedServer, ...]:
    """The servers that a script, Dockerfile, manifest, values of a chart or TensorRT-LLM's configuration starts, or the
    scripts of a folder. Nothing in it is run. Raises `InputError`."""
    scripts = sorted(file for file in path.glob("*.sh") if FILES.fullmatch(file.name)) if path.is_dir() else [path]
    started = [server for script in scripts for server in _started_in(script)]
    if not started:
        must = f"starts no server of {', '.join(packaged_toml('launch', 'serving.toml'))}"
        raise InputError("launch", printable(str(path)), must, "a script with `vllm serve MODEL ...`")
    return tuple(started)


def starts_servers(path: Path, text: str) -> bool:
    """Whether a file with this text starts a serving engine."""
    if not any(re.search(table["starts"], text) for table in _tables().values()):
        return False
    try:
        return bool(read_servers(path))
    except InputError:
        return False


def _started_in(path: Path) -> Iterator[StartedServer]:
    text = decoded(read_bytes(path, "launch", "must be a script or manifest"), "launch", str(path))
    about = _ABOUT.search(text)
    count, gpu, dtype = about.groups("") if about else ("1", "", "")
    if path.suffix in (".yaml", ".yml"):
        documents = [read_yaml(part, name=path.name) for part in re.split(r"^---\s*$", text, flags=re.MULTILINE)]
        beside = {name: file for document in documents for name, file in (document.get("data") or {}).items()}
        around = {"role": "", "replicas": 1, "model": "MODEL"}
        for document in documents:
            yield from _of_manifest(document, dict(around), partial(_file, path, beside))
        return
    lines = re.findall(r"^[ \t]*(?:CMD|ENTRYPOINT)\s+(.+)$", text.replace("\\\n", " "), re.MULTILINE)
    image = "".join(re.findall(r"^[ \t]*FROM\s+(\S+)", text, re.MULTILINE)[-1:])
    words = [word for line in lines for word in _exec_form(line, path.name)]
    commands = [[image, *words]] if lines else read_shell(text).commands
    role = next((role for role in ("prefill", "decode") if role in path.stem), "")
    for words in commands:
        if server := _started(words, partial(_file, path, {}), role, int(count)):
            yield replace(server, gpu=gpu, dtype=dtype)


def _exec_form(line: str, name: str) -> list[str]:
    """The words of a Dockerfile's ``CMD``: a list in JSON, or a line of the shell."""
    try:
        return [str(word) for word in json.loads(line)] if line.startswith("[") else shlex.split(line)
    except ValueError:
        raise InputError("launch", printable(f"{name}: {line}"), "must be a list in JSON or a line of words") from None


def _file(script: Path, beside: JsonMap, name: str) -> str:
    """The text of a configuration: of a manifest's own, or in the script's folder."""
    last = Path(name).name
    if last in beside:
        return str(beside[last])
    return decoded(read_bytes(script.parent / last, "launch", f"must lie beside {script.name}"), "launch", last)


def _of_manifest(node: Any, about: JsonDict, config_of: Any) -> Iterator[StartedServer]:
    """Servers of a mapping's containers, wherever they are in it; ``about``: what the mappings around say."""
    if isinstance(node, list):
        for item in node:
            yield from _of_manifest(item, about, config_of)
    if not isinstance(node, dict):
        return
    named = f"{node.get('metadata')} {node.get('name')}"
    role = next((role for role in ("prefill", "decode") if role in named), about["role"])
    artifact = (node.get("modelArtifacts") or {}).get("name", about["model"])
    about = about | {"role": role, "model": artifact}
    about |= {"replicas": node["replicas"]} if "replicas" in node else {}
    words = [word for key in ("command", "args") for word in _words(node.get(key))]
    if words or node.get("modelCommand"):
        words = [*(["vllm", "serve", about["model"]] if node.get("modelCommand") == "vllmServe" else []), *words]
        script = words[words.index("-c") + 1 :][:1] if "-c" in words else []
        nested = [line for text in script for line in read_shell(text).commands]
        limits = str((node.get("resources") or {}).get("limits") or {})
        devices = int((re.findall(r"\w+\.com/gpu': '?(\d+)", limits) or [0])[0])
        for line in nested or [words]:
            server = _started([str(node.get("image", "")), *line], config_of, about["role"], int(about["replicas"]))
            if server is not None:
                yield replace(server, devices=devices)
        return
    if "kv_cache_config" in node or "tensor_parallel_size" in node:
        config = write_yaml(node)
        yield from filter(None, [_started(["trtllm-serve", "MODEL"], lambda _: config, "", 1, config="this file")])
        return
    for key, value in node.items():
        yield from _of_manifest(value, about | ({"role": key} if key in ("prefill", "decode") else {}), config_of)


def _words(value: Any) -> list[str]:
    """A command of a manifest: a list of words, or one line."""
    return shlex.split(value) if isinstance(value, str) else [str(word) for word in value or []]


def _started(words: Sequence[str], config_of: Any, role: str, count: int, config: str = "") -> StartedServer | None:
    """The server that a command starts; None if it starts none."""
    tables = _tables()
    pairs = [f"{word} {then}" for word, then in zip(words, (*words[1:], ""), strict=True)]
    begins = {name: re.compile(rf"(?:\S*/)?(?:{table['starts']})") for name, table in tables.items()}
    starts = [(index, name) for index, pair in enumerate(pairs) for name in tables if begins[name].match(pair)]
    if not starts:
        return None
    index, engine = starts[-1]
    table, rest = tables[engine], list(words[index + 1 :])
    rest = rest[1:] if rest[:1] == ["serve"] else rest
    release = "".join(re.findall(r"(?:vllm|sglang|release)\S*:v?(\d+(?:\.\d+)+)", " ".join(words[: index + 1]))[-1:])
    flags = parse_flags([_option(word, table) for word in rest])
    file = config or (flags.given.get("--config") or [""])[0]
    nested = dict(_leaves(read_yaml(config_of(file), name=file))) if file else {}
    given = {name: values[0] if values else "true" for name, values in flags.given.items()}
    unset = [name for name, value in given.items() if PLACEHOLDER.search(value)]
    if unset:
        raise InputError(unset[0], printable(given[unset[0]]), "is a variable that the file does not set", "a number")
    rows = {row.get("flag", row.get("key")): row["value"] for row in table["options"]}
    rows |= {row["also"]: row["value"] for row in table["options"] if "also" in row}
    said = {name: value for name, value in (nested | given).items() if name in rows}
    left = [name for name in nested | given if name not in rows or (name in table["unpriced"] and role != "prefill")]
    values = {rows[name]: value for name, value in said.items()}
    if transfer := values.get("connector"):
        kind = str(parse_json(transfer.encode(), name="--kv-transfer-config").get("kv_role"))
        role = {"kv_producer": "prefill", "kv_consumer": "decode"}.get(kind, role)
    named = next((given[name] for name in ("--model", "--model-path") if name in given), "")
    return StartedServer(
        engine=engine,
        release=release,
        model=named or (flags.odd[0] if flags.odd else "MODEL"),
        role=str(values.get("role", role)),
        count=count,
        devices=0,
        values=values,
        findings=tuple(finding for name in left for finding in _of_option(name, engine, release, given.get(name, ""))),
    )


def _option(word: str, table: JsonMap) -> str:
    """An option by the name that the table has for it."""
    name, sign, value = word.partition("=")
    if not name.startswith("-"):
        return word
    name = table["aliases"].get(name, name)
    style = name.replace("_", "-") if "tp_size" not in str(table["options"]) else name
    return f"{table['aliases'].get(style, style)}{sign}{value}"


def _leaves(config: JsonMap, above: str = "") -> Iterator[tuple[str, str]]:
    """The values of a nested configuration, by their paths."""
    for key, value in config.items():
        leaf = [(above + key, json.dumps(value).strip('"'))]
        yield from _leaves(value, f"{above}{key}.") if isinstance(value, dict) else leaf


_ALIKE = {"running_in_all": "running", "chunk_in_all": "step_tokens", "cache_sglang": "cache", "devices": "tp"}
"""Settings that say the same by another count."""


def _of_option(name: str, engine: str, release: str, value: str) -> Iterator[tuple[str, str, str]]:
    """What is to say of an option that sets nothing of the price."""
    tables = _tables()
    table, plain = tables[engine], name.lstrip("-").partition(".")[0]
    others = {o: {row.get("flag"): row["value"] for row in tables[o]["options"]} for o in tables if o != engine}
    theirs = [(o, rows[name]) for o, rows in others.items() if name in rows]
    if name in table["gone"]:
        since, _, instead = table["gone"][name].partition(": ")
        yield "warn", name, f"{name} is no option of {engine} since {since}: {instead}"
    elif plain in table["plain"] or name in table["unpriced"] or plain in table["unpriced"]:
        what = table["unpriced"].get(name, table["unpriced"].get(plain, ""))
        if what and value not in ("false", "null"):
            yield "warn", name, f"{name} {what}: the price is without it"
    elif theirs:
        rows = {_ALIKE.get(row["value"], row["value"]): row.get("flag", row.get("key")) for row in table["options"]}
        value = theirs[0][1]
        instead = rows.get(_ALIKE.get(value, value), "none for it")
        yield "error", name, f"{name} is an option of {theirs[0][0]}; {engine} has {instead}"
    elif _BEARS.search(name):
        yield "warn", name, f"{name} is not read and may change memory, parallelism or batches: the price is without it"
    else:
        yield "info", name, f"{name} is not read"
