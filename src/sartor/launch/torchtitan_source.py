"""torchtitan's named models (flavors) and configurations, and what a Python configuration says, without running it.

Python is parsed into tables with the older TOML's names: calls with literal values (``TrainingConfig(seq_len=8192)``,
``FullAC.Config()``), assignments to fields (``config.training.seq_len = 8192``), a flavor (``model_registry("8B")``), a
named configuration as a base (``config = llama3_8b()``). Computed values are listed as not understood.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from sartor.bounded import packaged_toml, printable
from sartor.errors import InputError
from sartor.json_types import JsonDict
from sartor.model.shape import Numerics, TransformerShape, Value
from sartor.model.zoo import load_model

SECTIONS = {"training", "parallelism", "compile", "activation_checkpoint", "optimizer"}
POLICIES = {
    "FullAC": {"mode": "full"},
    "SelectiveAC": {"mode": "selective", "selective_ac_option": "op"},
    "MemoryBudgetAC": {"mode": "memory_budget"},
}
CONVERTED = {"Float8": "float8", "MXFP8": "mx", "NVFP4": "nvfp4"}


@dataclass(slots=True)
class RecipeSource:
    """The contents of a module: values by dotted path, the model's module and flavor, and settings by class."""

    values: JsonDict = field(default_factory=dict)
    module: str = ""
    flavor: str = ""
    settings: dict[str, JsonDict] = field(default_factory=dict)
    mtp_layers: int = 0
    unknown: list[str] = field(default_factory=list)


def read_source(text: str, function: str, name: str) -> RecipeSource:
    """The configuration that a function of a module returns. Raises `InputError`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about odd literals concern the file's owner
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputError(printable(name), "not Python", f"must be valid Python; {error}") from None
    source = RecipeSource()
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    if function not in functions:
        raise InputError("--config", printable(function), f"must be a function of {name}", ", ".join(functions))
    _constants(tree, source)
    _follow(functions[function], functions, source, _modules(tree), depth=0)
    return source


def read_named(module: str, config: str) -> RecipeSource:
    """One of torchtitan's named configurations. Raises `InputError` if its values are unknown."""
    config_values = _named_config(module.rpartition(".")[2], config)
    if config_values is None:
        must = "must be a configuration of torchtitan 0.3.0 whose values are known, or a file beside the script"
        raise InputError("--config", printable(config), must, ", ".join(_config_names(module)))
    return RecipeSource(values=dict(config_values[1]), module=module.rpartition(".")[2], flavor=config_values[0])


def _modules(tree: ast.Module) -> dict[str, str]:
    """Imported names, with the last part of their packages (``model_registry`` -> ``llama3``)."""
    out: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            parts = [part for part in node.module.split(".") if part != "config_registry"]
            out |= {alias.asname or alias.name: parts[-1] if parts else "" for alias in node.names}
    return out


def _constants(tree: ast.Module, source: RecipeSource) -> None:
    """Module-level dictionaries that set fields of classes: ``ROPE = {"theta": 500000}``."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict) and isinstance(node.targets[0], ast.Name):
            value = _literal(node.value)
            if isinstance(value, dict):
                source.settings[node.targets[0].id] = {str(k): v for k, v in value.items()}


def _follow(
    node: ast.FunctionDef,
    functions: dict[str, ast.FunctionDef],
    source: RecipeSource,
    modules: dict[str, str],
    depth: int,
) -> None:
    for statement in node.body:
        for call in [x for x in ast.walk(statement) if isinstance(x, ast.Call)]:
            _base(call, functions, source, modules, depth)
        for call in [x for x in ast.walk(statement) if isinstance(x, ast.Call)]:
            _call(call, source, modules)
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            _assign(statement.targets[0], statement.value, source)


def _base(
    call: ast.Call, functions: dict[str, ast.FunctionDef], source: RecipeSource, modules: dict[str, str], depth: int
) -> None:
    """Apply a base configuration made by another function, of this module or torchtitan's own."""
    name = _last(call.func)
    if name in functions and depth < 5:
        _follow(functions[name], functions, source, modules, depth + 1)
    elif modules.get(name, "") and (config_values := _named_config(modules[name], name)):
        source.module, source.flavor = modules[name], config_values[0]
        source.values |= config_values[1]


def _call(call: ast.Call, source: RecipeSource, modules: dict[str, str]) -> None:
    name = _last(call.func)
    if name == "model_registry":
        flavor = _literal(call.args[0]) if call.args else None
        if isinstance(flavor, str):
            source.flavor, source.module = flavor, modules.get("model_registry", source.module)
    for keyword in call.keywords:
        if keyword.arg == "num_mtp_layers" and isinstance(layers := _literal(keyword.value), int):
            source.mtp_layers = layers
        elif keyword.arg == "converters":
            _convert(keyword.value, source)
        elif keyword.arg in SECTIONS and name == "Config":
            _section(keyword.arg, keyword.value, source)


def _assign(target: ast.expr, value: ast.expr, source: RecipeSource) -> None:
    """Handle ``config.training.seq_len = 8192`` and ``config.compile = CompileConfig(enable=True)``."""
    path = _path(target)[1:]
    if len(path) == 1 and path[0] in SECTIONS:
        _section(path[0], value, source)
    elif len(path) == 2 and path[0] in SECTIONS:
        _put(f"{path[0]}.{path[1]}", value, source)


def _section(name: str, value: ast.expr, source: RecipeSource) -> None:
    if name == "activation_checkpoint":
        policy = next((_path(x.func)[0] for x in ast.walk(value) if isinstance(x, ast.Call)), "")
        policy_values = {"mode": "none"} if _is_none(value) else POLICIES.get(policy)
        if policy_values is None:
            source.unknown.append(f"activation_checkpoint={printable(ast.unparse(value)[:60])}")
            return
        source.values = {k: v for k, v in source.values.items() if not k.startswith("activation_checkpoint.")}
        source.values |= {f"activation_checkpoint.{k}": v for k, v in policy_values.items()}
        return
    if isinstance(value, ast.Call) and name != "optimizer":
        for keyword in value.keywords:
            if keyword.arg:
                _put(f"{name}.{keyword.arg}", keyword.value, source)


def _put(path: str, node: ast.expr, source: RecipeSource) -> None:
    value = _literal(node)
    if value is None and not _is_none(node):
        source.unknown.append(f"{path}={printable(ast.unparse(node)[:60])}")
    elif value is not None:
        source.values[path] = value


def _convert(value: ast.expr, source: RecipeSource) -> None:
    """Record which converters replace linear layers, and their recipe."""
    for call in (x for x in ast.walk(value) if isinstance(x, ast.Call)):
        kind = next((word for start, word in CONVERTED.items() if _path(call.func)[0].startswith(start)), "")
        if kind:
            source.values.setdefault("model.converters", []).append(kind)
            recipes = [_literal(k.value) for k in call.keywords if k.arg == "recipe_name"]
            if kind == "float8":
                source.values["float8.recipe_name"] = recipes[0] if recipes else "rowwise"


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, MemoryError, RecursionError, SyntaxError):
        return None


def _path(node: ast.expr) -> list[str]:
    """The parts of a dotted name ``a.b.c``."""
    words: list[str] = []
    while isinstance(node, ast.Attribute):
        words.append(node.attr)
        node = node.value
    return [node.id if isinstance(node, ast.Name) else "", *reversed(words)]


def _last(node: ast.expr) -> str:
    return _path(node)[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavor:
    """A torchtitan model, with the zoo's name for the same sizes, and the numerics in which it differs."""

    module: str
    flavor: str
    zoo: str
    numerics: Mapping[str, Value] = field(default_factory=dict)

    @property
    def shape(self) -> TransformerShape:
        return load_model(self.zoo)

    @property
    def computes(self) -> Numerics:
        """What the flavor computes beyond its sizes."""
        numerics = self.shape.numerics
        return Numerics(values={**(numerics.values if numerics else {}), **self.numerics})


def flavor_of(shape: TransformerShape) -> Flavor | None:
    """The torchtitan model of the same sizes, or None."""
    sizes = shape.fields()
    for flavor in flavors():
        flavor_shape = flavor.shape
        if flavor_shape.fields() == sizes and flavor_shape.tied_embeddings is shape.tied_embeddings:
            return flavor
    return None


def named_flavor(module: str, flavor: str) -> Flavor | None:
    """The model with a name such as ``("llama3", "8B")``; the suffix of fine-tuning recipes is ignored."""
    bare = module.removesuffix("_ft")
    return next((x for x in flavors() if (x.module, x.flavor.lower()) == (bare, flavor.lower())), None)


def _named_config(module: str, config: str) -> tuple[str, JsonDict] | None:
    """(flavor, values) of a named configuration, ``--module llama3 --config llama3_8b``."""
    row = _flavor_table()["config"].get(config)
    if row is None or not config.startswith(module):
        return None
    return str(row["flavor"]), dict(row["values"])


def _config_names(module: str) -> list[str]:
    """Configurations of a module whose values are known."""
    return [name for name in _flavor_table()["config"] if name.startswith(module)]


@cache
def flavors() -> tuple[Flavor, ...]:
    """Every torchtitan model that is in the zoo."""
    return tuple(Flavor(**row) for row in _flavor_table()["flavor"])


@cache
def _flavor_table() -> JsonDict:
    return packaged_toml("launch", "torchtitan_flavors.toml")
