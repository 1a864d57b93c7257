"""Records that cannot be changed, made in half the time that ``dataclasses`` takes: a command makes 250 of them before
it starts. Only ``__init__`` is compiled; the others read fields by name. Type checkers see the standard decorator."""

from __future__ import annotations

import dataclasses
from dataclasses import MISSING, FrozenInstanceError, field, fields, replace
from operator import attrgetter
from typing import TYPE_CHECKING, NoReturn, cast

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass
    from types import FunctionType

    from _typeshed import DataclassInstance
else:

    def dataclass(cls: type | None = None, *, frozen: bool = False, **options: bool):
        """The decorator of a record; of one that can be changed the standard one."""
        return _decorator(**options) if frozen else dataclasses.dataclass(cls, **options)


__all__ = ["dataclass", "field", "fields", "replace"]

_Methods = dict[str, "Callable[..., object]"]


def _decorator(*, slots: bool = False, kw_only: bool = False, repr: bool = True) -> Callable[[type], type]:
    def made(cls: type) -> type:
        own = set(cls.__dict__) - {"__hash__" if cls.__dict__.get("__hash__") is None else ""}
        record: type = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)(cls)
        printed: _Methods = {"__repr__": _text} if repr else {}
        pickled: _Methods = {"__getstate__": _state, "__setstate__": _set_state} if slots else {}
        for name, method in (
            _IMMUTABLE | pickled | printed | _comparison(record) | {"__init__": _init(record)}
        ).items():
            if name not in own:
                setattr(record, name, method)
        return record

    return made


def _init(cls: type[DataclassInstance]) -> Callable[..., None]:
    """``__init__``, compiled: each field is set past ``__setattr__``, in order, then ``__post_init__`` is called."""
    scope: dict[str, object] = {"_set": object.__setattr__, "_MISSING": MISSING, "__name__": cls.__module__}
    parameters: dict[bool, list[str]] = {False: ["self"], True: []}
    body = []
    for row in (row for row in fields(cls) if row.init):
        name, default, factory = row.name, f"_default_{row.name}", f"_factory_{row.name}"
        scope |= {default: row.default, factory: row.default_factory}
        unless_set = "=_MISSING" if row.default_factory is not MISSING else ""
        parameters[row.kw_only is True].append(name + (f"={default}" if row.default is not MISSING else unless_set))
        value = f"{factory}() if {name} is _MISSING else {name}" if unless_set else name
        body.append(f"_set(self, {name!r}, {value})")
    body += ["self.__post_init__()"] if hasattr(cls, "__post_init__") else []
    words = ", ".join(parameters[False] + ["*"] * bool(parameters[True]) + parameters[True])
    exec(f"def __init__({words}):\n " + "\n ".join(body or ["pass"]), scope)
    init = cast("FunctionType", scope["__init__"])
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__annotations__ = {row.name: row.type for row in fields(cls)} | {"return": None}
    return init


def _comparison(cls: type[DataclassInstance]) -> _Methods:
    """Equality and hash by the fields that are compared."""
    names = [row.name for row in fields(cls) if row.compare]
    read: Callable[[object], object] = (
        attrgetter(*names) if len(names) > 1 else lambda r: tuple(getattr(r, n) for n in names)
    )

    def equal(self: object, other: object) -> bool:
        return read(self) == read(other) if other.__class__ is self.__class__ else NotImplemented

    return {"__eq__": equal, "__hash__": lambda self: hash(read(self))}


def _text(self: DataclassInstance) -> str:
    values = (f"{row.name}={getattr(self, row.name)!r}" for row in fields(self) if row.repr)
    return f"{type(self).__qualname__}({', '.join(values)})"


def _refuse(self: object, name: str, *value: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


_IMMUTABLE: _Methods = {"__setattr__": _refuse, "__delattr__": _refuse}


def _state(self: DataclassInstance) -> list[object]:
    return [getattr(self, row.name) for row in fields(self)]


def _set_state(self: DataclassInstance, state: list[object]) -> None:
    for row, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, row.name, value)
