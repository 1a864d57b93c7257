"""A user's own ``nn.Module``: the import path of a factory, and the inputs to call its module with."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from sartor.errors import InputError
from sartor.json_types import JsonDict, JsonMap
from sartor.read.torch_trace.autocast import autocasts
from sartor.read.torch_trace.records import line_of
from sartor.read.torch_trace.trace import Subject

if TYPE_CHECKING:
    from torch.nn import Module

_INPUT = re.compile(r"(?:(?P<name>\w+)=)?(?P<shape>\d+(?:x\d+)*|scalar)(?::(?P<dtype>\w+))?\Z")
EXAMPLE = "x=8x1024:float32"
SHORT = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "f32": "float32", "long": "int64", "int": "int32"}


def own_module(source: str, inputs: Sequence[str], *, dtype: str | None, batch_axis: int = 0) -> Subject:
    """The subject of ``package.module:factory`` (or ``path/to/file.py:factory``).

    The factory is a function without arguments or an ``nn.Module`` class; it returns the module, or the module and its
    example inputs (a tensor, a tuple, or a dictionary by name). ``batch_axis`` is the axis of sequences in the first
    input: 0, or 1 if tokens come first. Raises ``InputError``.
    """
    with autocasts():  # a module may keep one that it makes here
        built = _call(_factory(source), source)
    model, example = built if isinstance(built, tuple) and len(built) == 2 else (built, None)
    if not isinstance(model, torch.nn.Module):
        must = "must return an nn.Module, or an nn.Module and its example inputs"
        raise InputError(source, type(model).__name__, must)
    _check_made(model, source)
    model = model.to("meta")
    if dtype is not None:
        model = model.to(getattr(torch, dtype))
    args, words = _inputs(model, inputs, example, source)
    if dtype is not None:
        args, words = _narrowed((args, words), getattr(torch, dtype))
    batch, seq = _sizes([*args, *words.values()], batch_axis)
    return Subject(
        name=type(model).__name__,
        source=source,
        model=model,
        args=args,
        inputs=words,
        microbatch_size=batch,
        seq_len=seq,
        notes=(_read_as(batch, seq, batch_axis),),
    )


def _check_made(model: Module, source: str) -> None:
    """Raise if a lazy module does not know its sizes yet."""
    unmade = torch.nn.parameter.UninitializedTensorMixin
    names = [name for name, p in (*model.named_parameters(), *model.named_buffers()) if isinstance(p, unmade)]
    if names:
        must = "is a lazy module's, without a size; name its sizes (nn.Linear for nn.LazyLinear) or run it once first"
        raise InputError(source, names[0], must)


def _narrowed(tree: Any, dtype: torch.dtype) -> Any:
    """Inputs in the model's dtype: floating ones only."""
    if isinstance(tree, torch.Tensor):
        return tree.to(dtype) if tree.is_floating_point() else tree
    if isinstance(tree, dict):
        return {key: _narrowed(item, dtype) for key, item in tree.items()}
    return type(tree)(_narrowed(item, dtype) for item in tree) if type(tree) in (tuple, list) else tree


def _factory(source: str) -> Callable[..., object]:
    where, _, name = source.rpartition(":")
    module = _import(where, source)
    factory: Any = module
    for part in name.split("."):
        factory = getattr(factory, part, None)
    if factory is None:
        import difflib

        near = difflib.get_close_matches(name, [n for n in vars(module) if not n.startswith("_")], 3, 0.4)
        raise InputError(source, name, f"is not in {where}", ", ".join(near))
    if not callable(factory):
        raise InputError(source, name, "must be a function or an nn.Module class", "make_model")
    built: Callable[..., object] = factory
    return built


def _import(where: str, source: str) -> ModuleType:
    if not where:
        raise InputError(source, where, "must read package.module:factory", "mypackage.models:make_model")
    try:
        if where.endswith(".py"):
            return _import_file(Path(where), source)
        if "" not in sys.path:
            sys.path.insert(0, "")
        return importlib.import_module(where)
    except InputError:
        raise
    except ModuleNotFoundError as error:
        missing = error.name or where
        must = f"cannot be imported: no module named {missing}; run where it can be, or set PYTHONPATH"
        raise InputError(source, where, must) from error
    except Exception as error:
        raise InputError(source, where, f"fails while being imported: {said(error)}") from error


def _import_file(path: Path, source: str) -> ModuleType:
    import importlib.util

    if not path.is_file():
        raise InputError(source, str(path), "must be a Python file that exists")
    spec = importlib.util.spec_from_file_location(f"sartor_extracted_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise InputError(source, str(path), "must be a Python file")
    folder = str(path.resolve().parent)
    if folder not in sys.path:  # as `python file.py` has it: its siblings can be imported
        sys.path.insert(0, folder)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _call(factory: Callable[..., object], source: str) -> Any:
    needed = [
        name
        for name, p in _parameters(factory).items()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    if needed:
        must = f"must be callable without arguments; it takes {', '.join(needed)}: wrap it in a function"
        raise InputError(source, getattr(factory, "__name__", "factory"), must)
    name = getattr(factory, "__name__", "factory")
    try:
        with torch.device("meta"):
            return factory()
    except Exception as error:
        if "meta" not in str(error):
            raise InputError(source, name, f"fails: {said(error)}{line_of(error)}") from error
    try:
        return factory()  # it reads tensor values while being built: build on the host, then drop the memory
    except Exception as error:
        raise InputError(source, name, f"fails: {said(error)}{line_of(error)}") from error


def _parameters(factory: Callable[..., object]) -> JsonMap:
    try:
        return inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return {}


def _inputs(model: Module, words: Sequence[str], example: object, source: str) -> tuple[tuple[object, ...], JsonDict]:
    """Inputs from the command line take precedence over the factory's."""
    if words:
        args: list[object] = []
        named: JsonDict = {}
        for word in words:
            name, tensor = _parse_input(word)
            _check_name(model, name)
            if name:
                named[name] = tensor
            else:
                args.append(tensor)
        return tuple(args), named
    if example is None:
        names = ", ".join(_forward_names(model)) or "x"
        must = f"needs its inputs ({names}): give --input for each, or let the factory return (module, inputs)"
        raise InputError("input", "not given", must, EXAMPLE)
    if isinstance(example, Mapping):
        return (), {str(k): _meta(v) for k, v in example.items()}
    if isinstance(example, (tuple, list)):
        return tuple(_meta(v) for v in example), {}
    return (_meta(example),), {}


def _check_name(model: Module, name: str) -> None:
    parameters = _parameters(model.forward)
    if name and name not in parameters and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        names = ", ".join(_forward_names(model))
        raise InputError("input", name, f"{type(model).__name__}.forward has no such argument; it has {names}", names)


def _forward_names(model: Module) -> list[str]:
    kinds = _parameters(model.forward)
    return [name for name, p in kinds.items() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]


def _parse_input(word: str) -> tuple[str, Any]:
    """``x=8x1024:bfloat16`` as a name and a meta tensor. The default dtype is float32."""
    match = _INPUT.match(word)
    if not match:
        raise InputError("input", word, "must read NAME=SHAPE:DTYPE", EXAMPLE)
    shape = () if match["shape"] == "scalar" else tuple(int(part) for part in match["shape"].split("x"))
    dtype_word = match["dtype"] or "float32"
    dtype = getattr(torch, SHORT.get(dtype_word, dtype_word), None)
    if not isinstance(dtype, torch.dtype):
        raise InputError("input", word, f"{dtype_word} is not a PyTorch dtype", "float32, bfloat16, int64")
    if any(length < 1 for length in shape):
        raise InputError("input", word, "every length must be at least 1", EXAMPLE)
    return match["name"] or "", torch.empty(shape, dtype=dtype, device="meta")


def _meta(value: object) -> Any:
    if isinstance(value, Mapping):
        return {key: _meta(item) for key, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_meta(item) for item in value)  # type: ignore[call-arg, attr-defined]
    return value.to("meta") if isinstance(value, torch.Tensor) else value


def _read_as(batch: int, seq: int, batch_axis: int) -> str:
    sentence = f"the first input is read as {batch} sequence{'s' * (batch > 1)} of {seq} token{'s' * (seq > 1)}"
    return sentence + ("; --batch-axis 1 if tokens come first" if batch_axis == 0 and seq > 1 else "")


def _sizes(values: Sequence[Any], batch_axis: int) -> tuple[int, int]:
    """Sequences and tokens per sequence: the first two axes of the first input; one token if it has fewer than three
    axes and is not integer ids."""
    tensors = [t for t in values if isinstance(t, torch.Tensor) and t.dim()]
    if not tensors:
        return 1, 1
    first = tensors[0]
    ids = not first.is_floating_point() and first.dim() == 2
    if not (ids or first.dim() == 3):
        return int(first.shape[0]), 1
    return int(first.shape[batch_axis]), int(first.shape[1 - batch_axis])


def said(error: Exception | None) -> str:
    """An error of other code as one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
