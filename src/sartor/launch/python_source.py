"""The keys of the run that a Python recipe makes (NeMo 2, Megatron Bridge, torchtitan), read from its text, never run.

A call becomes a table of its keyword arguments, with the called name as ``_target_`` and the others as ``_args_``;
``recipe.trainer.devices = 8`` sets a key of it. Functions of the file are followed with their arguments. What only the
running program knows is a placeholder (``${args.devices}``), as is a key that is set under a condition.
"""

from __future__ import annotations

import ast
import math
import operator
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from sartor.bounded import printable
from sartor.errors import InputError, Stated
from sartor.json_types import JsonDict

TARGET, ARGS = "_target_", "_args_"
CHANGED = "_changed_by_"
"""Functions from elsewhere that were handed a table, and may set any key of it."""
MADE_OF = ("Config", "Partial", "partial")
"""Calls whose first argument is what is called (nemo_run, functools)."""
HANDED = re.compile(r"pretrain|finetune|train|p?print|isinstance|str|repr|vars|list|sorted|asdict|partial")
"""Functions that change no table that they are handed."""
COPIES = {"int", "float", "str", "bool", "list", "copy.deepcopy", "deepcopy"}
BUILT_IN = {*COPIES, "dict", "setattr", "getattr", "len", "max", "min", "sum", "range", "zip", "enumerate", "round"}
MOST_CALLS, DEEPEST, MOST_ITEMS, MOST_STEPS = 2000, 12, 1000, 20_000
ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
}
COMPARED: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Gt: operator.gt,
    ast.Lt: operator.lt,
}


def parsed(text: str, name: str) -> ast.Module:
    """The syntax tree of a file. Raises `InputError`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about odd literals concern the file's owner
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputError(printable(name), "not Python", f"must be valid Python; {error}") from None


def recipe_in(text: str, name: str, given: Mapping[str, object]) -> JsonDict:
    """The one recipe that a file makes, with ``given`` arguments of its command line (by name). Raises `InputError` for
    none, or several that differ."""
    tables: list[JsonDict] = []
    for table in tables_in(text, name, given):
        if _is_recipe(table) and table not in tables:
            tables.append(table)
    if not tables:
        must = "must make a recipe of NeMo (llm.llama3_8b.pretrain_recipe), Megatron Bridge or torchtitan"
        raise InputError("launch", printable(name), must)
    if len(tables) > 1:
        called = ", ".join(dict.fromkeys(str(table[TARGET]) for table in tables))
        must = f"makes {len(tables)} recipes that differ ({printable(called)}); must make one"
        raise InputError("launch", printable(name), must, "a file that makes one of them")
    return tables[0]


def tables_in(text: str, name: str, given: Mapping[str, object]) -> list[JsonDict]:
    """The table of every call that a file makes. Raises `InputError`."""
    module = _Module(tree=parsed(text, name), given=given)
    module.run()
    return module.tables


def made_by(text: str, name: str, function: str) -> tuple[JsonDict, JsonDict, list[JsonDict]]:
    """What a function of a file returns, the names of the file, and every call on the way. Raises `InputError`."""
    module = _Module(tree=parsed(text, name), given={})
    module.begin()
    if function not in module.functions:
        raise InputError("--config", printable(function), f"must be a function of {name}", ", ".join(module.functions))
    module.tables.clear()
    table = module.call_own(module.functions[function], [], {}, 0)
    return table if isinstance(table, dict) else {}, module.names, module.tables


def _is_recipe(table: JsonDict) -> bool:
    named = re.search(r"(pretrain|finetune)_recipe\w*$|_(pretrain|sft|peft|finetune)_config$", str(table[TARGET]))
    return bool(named) or any({"model", part} <= table.keys() for part in ("trainer", "train"))


def changed_by(table: object) -> tuple[str, ...]:
    """Functions that may have set any key of a table, as variables of a shell are written."""
    if not isinstance(table, dict):
        return ()
    own = tuple(f"${name}" for name in table.get(CHANGED, ()))
    return tuple(dict.fromkeys([*own, *(name for inner in table.values() for name in changed_by(inner))]))


def recipe_keys(table: JsonDict) -> JsonDict:
    """A recipe's keys by the names that its trainer's command line has (``dialects.toml``)."""
    keys = plain(table)
    model, called = table.get("model"), str(table[TARGET])
    name = _model_name(model) or ("" if "." not in called and "_" not in called else called)
    positional = dict(zip(("dir", "name", "num_nodes", "num_gpus_per_node"), table.get(ARGS, ()), strict=False))
    if "recipe" not in _last(called) and "trainer" not in table:
        return {**keys, "mixed_precision": _precision(table.get("mixed_precision")), "model_recipe_name": _last(name)}
    keys = {**(positional if called.endswith("_recipe") else {}), **keys, "factory": _factory(name)}
    trainer = table.get("trainer")
    if isinstance(trainer, dict):
        keys["trainer"]["plugins"] = _precision(trainer.get("plugins"))
    if called.endswith("_recipe") and "num_nodes" not in keys and not _has(table, "trainer", "num_nodes"):
        keys.pop("num_gpus_per_node", None)  # a recipe's own number of nodes is not in the file
        keys.get("trainer", {}).pop("devices", None)
    scheme = keys.pop("peft_scheme", "lora" if "finetune_recipe" in called else None)
    if isinstance(table.get("peft"), dict) or (scheme and str(scheme).lower() != "none"):
        rank = 32 if isinstance(table.get("peft"), dict) else scheme if is_hole(scheme) else 8  # LoRA's, the recipes'
        keys["peft"] = {"dim": rank, **(keys["peft"] if isinstance(keys.get("peft"), dict) else {})}
    return keys


def _has(table: JsonDict, section: str, key: str) -> bool:
    return isinstance(table.get(section), dict) and key in table[section]


def plain(table: JsonDict) -> JsonDict:
    """A table without what was called; a value that a call computes is a placeholder."""
    out: JsonDict = {}
    for name, value in table.items():
        if name in (TARGET, ARGS, CHANGED) or callable(value):
            continue
        inner = plain(value) if isinstance(value, dict) else value
        if inner != {} or not isinstance(value, dict):
            out[name] = inner
        elif name not in ("optim", "log", "resume", "model", "data", "trainer") and TARGET in value:
            out[name] = f"${{{value[TARGET]}}}"
    return out


def _factory(name: str) -> str:
    """``llama3_8b`` of ``llm.llama3_8b.pretrain_recipe``."""
    parts = name.split(".")
    return parts[-2] if "recipe" in parts[-1] and len(parts) > 1 else parts[-1]


def _last(name: str) -> str:
    return name if "/" in name else name.rpartition(".")[2]


def _model_name(model: object) -> str:
    """The model that a table's calls name: a repository, or a size in the name of a class."""
    if not isinstance(model, dict):
        return ""
    for word in model.get(ARGS, ()):
        if isinstance(word, str) and "/" in word and not is_hole(word):
            return word
    match = re.fullmatch(r"(\w+?)(?:Config|ModelProvider)(\w+)", str(model.get(TARGET, "")).rpartition(".")[2])
    inner = (model.get("config"), *model.get(ARGS, ()))
    return f"{match[1]}_{match[2]}".lower() if match else next(filter(None, map(_model_name, inner)), "")


def _precision(value: object) -> object:
    """The word of a precision: a name, or that of the call that makes it."""
    if not isinstance(value, dict):
        return value
    word = next(iter(value.get(ARGS, ())), value.get("precision", str(value[TARGET]).rpartition(".")[2]))
    narrow = value.get("fp8")
    return f"{word}_fp8_{value.get('fp8_recipe', 'delayed')}" if narrow and not is_hole(narrow) else narrow or word


def hole(node: ast.AST) -> str:
    """The placeholder of an expression that only the running program knows."""
    text = "".join(c if c.isalnum() or c in "._" else "_" for c in ast.unparse(node))
    return f"${{{text[:60]}}}"


def is_hole(value: object) -> bool:
    return isinstance(value, str) and value.startswith("${")


class _Returned(Exception):
    def __init__(self, value: object) -> None:
        super().__init__()
        self.value = value


@dataclass(slots=True)
class _Module:
    """A file as it is followed: its functions, its names, and every table that a call made."""

    tree: ast.Module
    given: Mapping[str, object]
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    options: JsonDict = field(default_factory=dict)
    """Arguments of the command line that the file declares, with their defaults."""
    names: JsonDict = field(default_factory=dict)
    tables: list[JsonDict] = field(default_factory=list)
    calls: int = 0
    steps: int = 0
    unsure: int = 0
    """Conditions around the statement that cannot be decided here."""
    outside: int = 0
    """Those around the call of the function that is followed."""
    perhaps: list[object] = field(default_factory=list)
    """What that function may return under such a condition."""

    def begin(self) -> None:
        """Follow the module's own statements."""
        self.functions = {node.name: node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef)}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
                self._declare(node)
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom):
                self.names |= {a.asname or a.name: f"{node.module or ''}.{a.name}".strip(".") for a in node.names}
            elif isinstance(node, ast.Import):
                self.names |= {a.asname: a.name for a in node.names if a.asname}
        self._follow(self.tree.body, self.names, 0)

    def run(self) -> None:
        """Follow the module's statements, then every function that nothing in it names."""
        self.begin()
        used = {
            node.func.id
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        for name, function in self.functions.items():
            if name not in used or function.decorator_list:
                self.call_own(function, [], {}, 0)

    def _declare(self, call: ast.Call) -> None:
        words = [word.value for word in call.args if isinstance(word, ast.Constant) and isinstance(word.value, str)]
        name = next((word.lstrip("-").replace("-", "_") for word in words if word.startswith("--")), "")
        literals = {k.arg: k.value.value for k in call.keywords if k.arg and isinstance(k.value, ast.Constant)}
        default = literals.get("default", False if literals.get("action") == "store_true" else None)
        if name:
            self.options[name] = self.given.get(name, default)

    # -- statements ------------------------------------------------------------------------------------------------

    def _follow(self, body: Iterable[ast.stmt], names: JsonDict, depth: int) -> None:
        for statement in body:
            self.steps += 1
            if self.steps > MOST_STEPS:
                raise InputError("launch", Stated("a Python file"), "must say its recipe in fewer steps")
            self._statement(statement, names, depth)

    def _statement(self, node: ast.stmt, names: JsonDict, depth: int) -> None:
        if isinstance(node, ast.Assign):
            value = self.value(node.value, names, depth)
            for target in node.targets:
                self._assign(target, value, names, depth)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._assign(node.target, self.value(node.value, names, depth), names, depth)
        elif isinstance(node, ast.AugAssign):
            self._assign(node.target, hole(node), names, depth)
        elif isinstance(node, ast.Expr):
            self.value(node.value, names, depth)
        elif isinstance(node, ast.Return):
            value = None if node.value is None else self.value(node.value, names, depth)
            if self.unsure == self.outside:
                raise _Returned(self._settled(value, node))
            self.perhaps.append(value)
        elif isinstance(node, ast.If):
            self._branch(node, names, depth)
        elif isinstance(node, ast.For):
            self._loop(node, names, depth)
        elif isinstance(node, ast.While):
            self._perhaps(node.body, names, depth)
        elif isinstance(node, ast.With | ast.Try):
            self._follow(node.body, names, depth)

    def _settled(self, value: object, node: ast.AST) -> object:
        """What a function returns, which it may not do in every case."""
        if all(other is value or other == value for other in self.perhaps):
            return value
        if not isinstance(value, dict):
            return hole(node)
        value.setdefault(CHANGED, []).append("another return")
        return value

    def _branch(self, node: ast.If, names: JsonDict, depth: int) -> None:
        main = isinstance(node.test, ast.Compare) and getattr(node.test.left, "id", "") == "__name__"
        test = True if main else self.value(node.test, names, depth)
        if not is_hole(test) and not isinstance(test, dict):
            self._follow(node.body if test else node.orelse, names, depth)
            return
        self._perhaps(node.body, names, depth)
        self._perhaps(node.orelse, names, depth)

    def _loop(self, node: ast.For, names: JsonDict, depth: int) -> None:
        items = self.value(node.iter, names, depth)
        if isinstance(items, list | tuple) and len(items) < MOST_ITEMS // 10:
            for item in items:
                self._assign(node.target, item, names, depth)
                self._follow(node.body, names, depth)
            return
        for target in ast.walk(node.target):
            if isinstance(target, ast.Name):
                names[target.id] = hole(target)
        self._perhaps(node.body, names, depth)

    def _perhaps(self, body: Iterable[ast.stmt], names: JsonDict, depth: int) -> None:
        self.unsure += 1
        self._follow(body, names, depth)
        self.unsure -= 1

    def _assign(self, target: ast.expr, value: object, names: JsonDict, depth: int) -> None:
        if isinstance(target, ast.Name):
            unsure = self.unsure and names.get(target.id) != value
            names[target.id] = hole(target) if unsure and not isinstance(value, dict) else value
        elif isinstance(target, ast.Attribute):
            table = self._table(target.value, names, depth)
            if table is not None:
                self._put(table, target.attr, value, target)
        elif isinstance(target, ast.Tuple) and isinstance(value, list | tuple) and len(target.elts) == len(value):
            for part, item in zip(target.elts, value, strict=True):
                self._assign(part, item, names, depth)

    def _put(self, table: JsonDict, name: str, value: object, node: ast.AST) -> None:
        table[name] = hole(node) if self.unsure and table.get(name) != value else value

    def _table(self, node: ast.expr, names: JsonDict, depth: int) -> JsonDict | None:
        """The table that an expression names, made where it is not there yet."""
        if isinstance(node, ast.Attribute):
            outer = self._table(node.value, names, depth)
            if outer is None:
                return None
            inner = outer.get(node.attr)
            if not isinstance(inner, dict):
                inner = {} if inner is None else {TARGET: str(inner)}
                outer[node.attr] = inner
            return inner
        value = self.value(node, names, depth)
        if isinstance(node, ast.Name) and value == node.id:  # a part of a file, which made it above
            value = names[node.id] = {TARGET: node.id}
            self.tables.append(value)
        return value if isinstance(value, dict) else None

    # -- expressions -----------------------------------------------------------------------------------------------

    def value(self, node: ast.expr, names: JsonDict, depth: int) -> object:
        """What an expression is: a literal, a table, the dotted name of something imported, or a placeholder."""
        with suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            literal = ast.literal_eval(node)
            return sorted(literal) if isinstance(literal, set) else literal
        if isinstance(node, ast.Name):
            return names.get(node.id, self.names.get(node.id, node.id))
        if isinstance(node, ast.Attribute):
            return self._attribute(node, names, depth)
        if isinstance(node, ast.Call):
            return self._call(node, names, depth)
        if isinstance(node, ast.List | ast.Tuple):
            return [self.value(item, names, depth) for item in node.elts]
        if isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            return {key.value: self.value(v, names, depth) for key, v in pairs if isinstance(key, ast.Constant)}
        if isinstance(node, ast.IfExp):
            test = self.value(node.test, names, depth)
            chosen = node.body if test else node.orelse
            return hole(node) if is_hole(test) else self.value(chosen, names, depth)
        return self._computed(node, names, depth)

    def _computed(self, node: ast.expr, names: JsonDict, depth: int) -> object:
        parts: list[object] = []
        apply: Callable[..., Any] | None = None
        if isinstance(node, ast.BinOp):
            parts, apply = [self.value(x, names, depth) for x in (node.left, node.right)], ARITHMETIC.get(type(node.op))
            small = MOST_ITEMS if any(isinstance(part, list) for part in parts) else math.inf
            sizes = [len(part) if isinstance(part, list) else part for part in parts]
            apply = apply if all(isinstance(size, int | float) and size < small for size in sizes) else None
        elif isinstance(node, ast.Compare) and len(node.ops) == 1:
            parts = [self.value(x, names, depth) for x in (node.left, node.comparators[0])]
            apply = COMPARED.get(type(node.ops[0]))
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            parts, apply = [self.value(node.operand, names, depth)], operator.not_
        elif isinstance(node, ast.BoolOp):
            parts = [self.value(x, names, depth) for x in node.values]
            apply = (lambda *x: all(x)) if isinstance(node.op, ast.And) else (lambda *x: next(filter(None, x), x[-1]))
        if apply is None or any(is_hole(part) or part == {} for part in parts):
            return hole(node)
        with suppress(TypeError, ZeroDivisionError, OverflowError):
            return apply(*parts)
        return hole(node)

    def _attribute(self, node: ast.Attribute, names: JsonDict, depth: int) -> object:
        base = self.value(node.value, names, depth)
        if isinstance(base, dict):
            parser = str(base.get(TARGET, "")).endswith("ArgumentParser")
            if parser and self.options.get(node.attr) is not None:
                return self.options[node.attr]
            return hole(node) if parser else base.setdefault(node.attr, {})  # may be set later, under another name
        if is_hole(base) or not isinstance(base, str):
            stated = self.options.get(node.attr) if base == "${args}" else None
            return hole(node) if stated is None else stated
        return f"{base}.{node.attr}"

    def _call(self, node: ast.Call, names: JsonDict, depth: int) -> object:
        self.calls += 1
        words = [self.value(x, names, depth) for x in node.args if not isinstance(x, ast.Starred)]
        keys = dict(self._keywords(node, names, depth))
        function, called = node.func, ast.unparse(node.func)
        if isinstance(function, ast.Attribute):
            base = self.value(function.value, names, depth)
            if isinstance(base, dict):  # a method: of what it returns, the table is known best
                base |= {function.attr: True} if function.attr.endswith("_enable") else {}
                return [[key, item] for key, item in base.items()] if function.attr == "items" else base
            called = f"{base}.{function.attr}" if isinstance(base, str) and not is_hole(base) else function.attr
        elif called not in self.functions:
            called = str(self.value(function, names, depth))
        if called.endswith(("is_bf16_supported", "is_bfloat16_supported")):
            return True  # on any GPU that trains in bf16
        if called in ("os.environ.get", "os.getenv") and len(words) == 2:
            return words[1]
        if called in BUILT_IN or called.startswith(("os.", "sys.")):
            return self._built_in(called, words, keys, node)
        if called.rpartition(".")[2] in MADE_OF and words:
            called, words = str(words[0]), words[1:]
        if called in self.functions and self.calls < MOST_CALLS and depth < DEEPEST:
            return self.call_own(self.functions[called], words, keys, depth + 1)
        last = called.rpartition(".")[2]
        if isinstance(function, ast.Name) and last.lower() == last and not HANDED.fullmatch(last):
            for table in (value for value in (*words, *keys.values()) if isinstance(value, dict)):
                table.setdefault(CHANGED, []).append(last)
        table = {TARGET: called, **({ARGS: words} if words else {}), **keys}
        self.tables.append(table)
        return table

    def _built_in(self, called: str, words: list[object], keys: JsonDict, node: ast.Call) -> object:
        if called == "dict" and not words:
            return keys
        if called == "setattr" and len(words) == 3 and isinstance(words[0], dict):
            if is_hole(words[1]) or not isinstance(words[1], str):
                words[0].setdefault(CHANGED, []).append(called)
            else:
                self._put(words[0], words[1], words[2], node)
            return None
        return words[0] if called in COPIES and len(words) == 1 else hole(node)

    def _keywords(self, node: ast.Call, names: JsonDict, depth: int) -> Iterator[tuple[str, object]]:
        for keyword in node.keywords:
            value = self.value(keyword.value, names, depth)
            if keyword.arg:
                yield keyword.arg, value
            elif isinstance(value, dict):
                yield from value.items()
            else:
                yield CHANGED, [ast.unparse(keyword.value)]

    def call_own(self, node: ast.FunctionDef, words: list[object], keys: JsonDict, depth: int) -> object:
        """What a function of the file returns for these arguments; others have their defaults."""
        every = [*node.args.posonlyargs, *node.args.args]
        local: JsonDict = {arg.arg: f"${{{arg.arg}}}" for arg in (*every, *node.args.kwonlyargs)}
        if node.args.kwarg:
            local[node.args.kwarg.arg] = {}
        for arg, default in zip(reversed(every), reversed(node.args.defaults), strict=False):
            local[arg.arg] = self.value(default, self.names, depth)
        for arg, inner in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
            local |= {} if inner is None else {arg.arg: self.value(inner, self.names, depth)}
        local |= {arg.arg: value for arg, value in zip(every, words, strict=False)} | keys
        before = self.outside, self.perhaps
        self.outside, self.perhaps = self.unsure, []
        try:
            self._follow(node.body, local, depth)
        except _Returned as returned:
            return returned.value
        finally:
            self.unsure = self.outside
            self.outside, self.perhaps = before
        return None
