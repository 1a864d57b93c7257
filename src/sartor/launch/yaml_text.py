"""Read YAML launch files with PyYAML: a mapping with string keys; errors name the line.

The loader is PyYAML's own, not libyaml's, which crashes the process on deeply nested text (6.0.3: ``[`` 400,000 times).
"""

from __future__ import annotations

from typing import Any

from sartor.bounded import printable
from sartor.errors import InputError
from sartor.json_types import JsonDict, JsonMap

MAX_CHARS = 200_000
"""Longest text accepted: about three seconds."""


def read_yaml(text: str, *, name: str = "file.yaml") -> JsonDict:
    """The mapping of a YAML text. Raises `InputError` if it is not YAML, not a mapping, or has a duplicate key."""
    import yaml

    if len(text) > MAX_CHARS:
        raise InputError(printable(name), f"{len(text)} characters", f"must have at most {MAX_CHARS}")

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
        """Keeps keys as written; rejects duplicate keys, and aliases, with which a file can grow without limit."""

        def compose_node(self, parent: object, index: object) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise yaml.MarkedYAMLError(problem="has an alias (*name)", problem_mark=self.peek_event().start_mark)
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> JsonDict:
            out: JsonDict = {}
            for key, value in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    raise yaml.MarkedYAMLError(problem="has a key that is not a word", problem_mark=key.start_mark)
                if key.value in out:
                    raise yaml.MarkedYAMLError(problem=f"gives {key.value} twice", problem_mark=key.start_mark)
                out[key.value] = self.construct_object(value, deep=True)
            return out

    try:
        value = yaml.load(text, Loader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise InputError(printable(name), f"line {line}", printable(f"must be YAML: {error.problem}")) from None
    except (yaml.YAMLError, ValueError) as error:  # a character that YAML forbids, or an impossible date
        raise InputError(printable(name), "line 1", printable(f"must be YAML: {error}")) from None
    if value is not None and not isinstance(value, dict):
        raise InputError(printable(name), "line 1", "must hold a mapping (`key: value`)")
    return value or {}


def write_yaml(value: JsonMap) -> str:
    """Nested mappings of scalars and lists as YAML, keys in the order given."""
    import yaml

    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=1000))
