"""torch and what goes with it as empty shells, so that a trainer's configuration classes are imported without them.

Importing this module puts a finder before all others: ``import torch`` gives a module whose every name is a class that
can be subclassed, called and used as a decorator, and that does nothing.
"""

from __future__ import annotations

import abc
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Iterator
from typing import Any

NAMES = {
    "PIL", "datasets", "deep_ep", "einops", "helion", "huggingface_hub", "numpy", "pyarrow", "safetensors",
    "spmd_types", "tensorboard", "tokenizers", "torch", "torch_checkpointing", "torch_remat", "torchao", "torchcomms",
    "torchdata", "transformers", "triton", "wandb",
}  # fmt: skip


class Shell(abc.ABCMeta):
    """A class of the stand-in: its attributes are further ones."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = shell(name)
        setattr(cls, name, made)
        return made

    def __call__(cls, *given: Any, **named: Any) -> Any:
        if "_is_shell" not in cls.__dict__:
            return super().__call__(*given, **named)
        return decorated(given) if not named else Thing()

    def __or__(cls, other: Any) -> Any:
        return cls

    __ror__ = __or__
    __getitem__ = __or__

    def __ge__(cls, other: Any) -> bool:
        return True

    def __lt__(cls, other: Any) -> bool:
        return False


class Thing:
    """An object of the stand-in: attributes, calls, arithmetic and blocks, all without effect."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return shell(name)

    def __call__(self, *given: Any, **named: Any) -> Any:
        return decorated(given)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *why: object) -> None:
        return None

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __bool__(self) -> bool:
        return False

    def same(self, *others: Any) -> Any:
        return self

    __getitem__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __neg__ = same


def decorated(given: tuple[Any, ...]) -> Any:
    """A class that is decorated stays one; anything else becomes a `Thing`."""
    return given[0] if len(given) == 1 and isinstance(given[0], type) else Thing()


def shell(name: str) -> Any:
    return Shell(name, (), {"_is_shell": True, "__init__": lambda self, *given, **named: None})


class Package(types.ModuleType):
    __version__ = "99.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {}) if name in ("dtype", "device") else shell(name)
        setattr(self, name, made)
        return made


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        known = name.partition(".")[0] in NAMES
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if known else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        made = Package(spec.name)
        made.__path__ = []
        return made

    def exec_module(self, module: types.ModuleType) -> None:
        return None


sys.meta_path.insert(0, Finder())
