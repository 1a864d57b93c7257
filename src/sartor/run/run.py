"""The question as one record: every fact a step depends on, each with its origin.

A run is asked with the facts that a user states, and completed (`sartor.ask.complete`) by rules, by a trainer's usual
values and by the search; an answer carries the finished run, so that it never says more than was asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Origin(Enum):
    """Where a value comes from, the strongest first."""

    STATED = "stated"
    """By the user: an option, a file, a log."""
    IMPLIED = "implied"
    """By a rule from stated values: a trainer pads the vocabulary."""
    USUAL = "usual"
    """By a trainer's record, or what such runs usually have."""
    SEARCHED = "searched"
    """By the search: the fastest that fits."""
    OPEN = "open"
    """Nothing says it: the answer holds for each of its plausible values, or says for which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Value(Generic[T]):
    """A fact of a run."""

    value: T
    origin: Origin
    source: str = ""
    """The option, file and line, rule or record it comes from, in words."""
    alternatives: tuple[T, ...] = ()
    """Of a value that was not stated: other plausible ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Facts of a run by the name of their field (`sartor.run.fields`); a field that is absent is open."""

    facts: Mapping[str, Value[Any]]

    @classmethod
    def stated(cls, source: str = "option", /, **values: Any) -> Run:
        """The run of which these values are stated; None is not a value."""
        return cls(facts={}).with_(Origin.STATED, source, **values)

    def with_(self, origin: Origin, source: str = "", /, **values: Any) -> Run:
        """The run with these values too, all of one origin; None is not a value."""
        also = {
            name: Value(value=value, origin=origin, source=source)
            for name, value in values.items()
            if value is not None
        }
        return replace(self, facts={**self.facts, **also})

    def among(self, name: str, *alternatives: Any) -> Run:
        """The run with the other plausible values of a field that was not stated."""
        return replace(self, facts={**self.facts, name: replace(self.facts[name], alternatives=alternatives)})

    def without(self, *names: str) -> Run:
        """The run with these fields open again."""
        return replace(self, facts={name: fact for name, fact in self.facts.items() if name not in names})

    def get(self, name: str, default: Any = None) -> Any:
        """A field's value; ``default`` where it is open."""
        fact = self.facts.get(name)
        return default if fact is None else fact.value

    def __contains__(self, name: str) -> bool:
        return name in self.facts

    def __iter__(self) -> Iterator[str]:
        return iter(self.facts)

    def origin(self, name: str) -> Origin:
        """Where a field's value comes from; open where it has none."""
        return self.facts[name].origin if name in self.facts else Origin.OPEN

    def states(self, name: str) -> bool:
        """Whether the user stated a field."""
        return self.origin(name) is Origin.STATED

    def of_origin(self, *origins: Origin) -> dict[str, Any]:
        """The values of these origins by field."""
        return {name: fact.value for name, fact in self.facts.items() if fact.origin in origins}


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Another plausible value of something not stated, and the verdict that it would turn."""

    field: str
    value: Any
    verdict: str
    """What would be said with this value, in words."""
    figures: Mapping[str, float]
    """Key figures with this value."""
    usual: str = ""
    """The value that was taken instead; empty where the verdict says it."""
    settled_by: str = ""
    """What would state it."""

    @property
    def of_memory(self) -> bool:
        """Whether the verdict is about memory."""
        return not {"peak_bytes", "change_bytes"}.isdisjoint(self.figures)

    @property
    def of_arguments(self) -> bool:
        """Whether the field is a variable of a script, which may hold any arguments."""
        return self.field.startswith("$")
