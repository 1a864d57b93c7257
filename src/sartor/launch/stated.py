"""What a launch states: the flags of a command line, or the fields of a configuration file.

A getter marks what it reads and checks it; `left` lists what nobody read, ``open`` has what stands there without a
value that can be known from the file."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from sartor.bounded import packaged_toml, parse_json, printable
from sartor.errors import InputError
from sartor.json_types import JsonDict, JsonMap
from sartor.launch.shell_words import HOLE

if TYPE_CHECKING:
    from sartor.model.shape import TransformerShape

MAX_SIZE = 2**40
MANY = 2**20
"""Number of values of a flag that takes a list."""
ALONE = re.compile(rf"{HOLE}(\w*{HOLE})?").fullmatch
"""A word that is nothing but a variable or command without a known value."""
OF_ARGUMENTS = re.compile(r"ARG|EXTRA|OPT(ION)?S?(\b|_|\W)|FLAG|OVERRIDE", re.IGNORECASE).search
OF_FILES = re.compile(
    r"PATH|DIR|FILE|NAME|PORT|ADDR|SCRIPT|PROGRAM|CONF|CFG|YA?ML|JSON|DATA|PYTHON|CMD", re.IGNORECASE
).search
"""Names of variables that hold arguments, and of those that hold a file, a host or a program."""
PLACEHOLDER = re.compile(rf"{HOLE}|\$\{{|\{{\{{|\$\w+$")
"""What stands for a value that another program fills in: a shell's variable, ``${...}``, ``{{ ... }}``."""

TEMPLATE = re.compile(r"\{\{.{1,80}?\}\}|\{%.{1,80}?%\}|<%.{1,80}?%>")
"""A part that a template's program replaces, by which a file may not even be YAML."""


@cache
def launch_words() -> JsonDict:
    """``words.toml``: programs, formats and arguments that no row of the launch-field table has."""
    return packaged_toml("launch", "words.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is stated beside a launch, and wins over it."""

    num_devices: int = 0
    """0: as many as the launch says."""
    shape: TransformerShape | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Numbers by field of the launch table, read in place of the file's before they are checked."""
    words: Mapping[str, str] = field(default_factory=dict)
    """Words by field of the table: recipe, optimizer, attention."""
    fields: frozenset[str] = frozenset()
    """All stated fields of the launch table; what a file says of them may be wrong."""

    def devices(self, of_launch: int) -> int:
        """The devices of the run: the stated number, else the launch's."""
        return self.num_devices or of_launch

    def check_degrees(self, num_devices: int, product: int) -> None:
        """Raise `InputError` if stated degrees do not divide the devices; ``product`` is of all degrees but dp."""
        stated = [name for name in ("tp", "pp", "cp") if name in self.sizes]
        if stated and num_devices % product:
            must = f"the launch has {num_devices} devices, and tp x pp x cp is {product}"
            raise InputError(stated[0], self.sizes[stated[0]], must, "--num-devices, to state another number")


NO_OPTIONS = Options()
LEFT_TO_PROGRAM = 'left to the program ("auto")'
NOT_IN_FILE = "left to the program"
"""The words of a field whose value the program fills in that reads the file, whether the file says so or nothing."""


@dataclass(slots=True, kw_only=True)
class _Statements:
    """What is read of a launch, by name."""

    options: Options = NO_OPTIONS
    assumptions: list[str] = field(default_factory=list)
    read: set[str] = field(default_factory=set)
    open: dict[str, str] = field(default_factory=dict)
    replaced: dict[str, str] = field(default_factory=dict)
    """Words of the file for a field that an option states."""
    unchecked: frozenset[str] = frozenset()
    """Names whose value may be wrong, as an option states what they say."""

    def _refused(self, name: str, value: object, must: str, nearest: str = "") -> None:
        """Raise `InputError` for a value that is wrong, or leave it open where an option states what it says."""
        if name not in self.unchecked:
            raise InputError(name, printable(value) if isinstance(value, str) else value, must, nearest)
        self.open[name] = printable(str(value))

    def _held_open(self, name: str, value: object) -> bool:
        """Whether only another program fills in a value; it is then open, with a note."""
        if not isinstance(value, str) or not PLACEHOLDER.search(value):
            return False
        if name not in self.open:
            self.assumptions.append(f"{name} is {hole_text(value)}, which the file does not set: ignored")
        self.open[name] = hole_text(value)
        return True


@dataclass(slots=True, kw_only=True)
class Flags(_Statements):
    """Flags by name, each with its values."""

    given: dict[str, list[str]]
    alternatives: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Other plausible values of sizes that nothing says."""
    odd: list[str] = field(default_factory=list)
    """Words that belong to no flag."""
    unset: list[tuple[str, int, str]] = field(default_factory=list)
    """Variables that stand alone: the flag before them (empty: none), their place among its values, their word."""
    arity: dict[str, int] = field(default_factory=dict)
    """How many values a flag that was read takes."""

    def has(self, name: str) -> bool:
        return name in self.given

    def gives(self, name: str) -> bool:
        """Whether a flag is given with a value that is known and not left to the program; it does not count as read."""
        values = self.given.get(name, ("auto",))
        return not values or not (PLACEHOLDER.search(values[0]) or values[0] == "auto")

    def on(self, *names: str) -> bool:
        """Whether a switch is given, by any of its names."""
        self.read |= set(names)
        for name in names:
            self.arity.setdefault(name, 0)
        return any(name in self.given for name in names)

    def flag(self, name: str, default: bool = False) -> bool:
        """A boolean that may have a value, as Hugging Face's Trainer has it: ``--bf16``, ``--bf16 true``; a variable
        named for arguments (``--bf16 $EXTRA``) is not its value."""
        if not self.on(name):
            return default
        values = self.given[name]
        if not values or (ALONE(values[0]) and OF_ARGUMENTS(values[0])):
            return True
        word = self.word(name)
        return default if word is None else word.lower() in ("true", "1", "yes")

    def size(self, name: str, default: int | None = None, *, least: int = 1, most: int = MAX_SIZE) -> int | None:
        """An integer from ``least`` to ``most``, or the default if the flag is absent or its value unknown."""
        text = self.word(name)
        if text is None:
            return default
        if not re.fullmatch(r"[+-]?\d{1,15}", text) or int(text) < least:
            self._refused(name, text, f"must be an integer of at least {least}")
            return default
        if int(text) > most:
            self._refused(name, text, f"must be at most {most}")
            return default
        return int(text)

    def number(self, name: str, default: float) -> float:
        """A finite number."""
        text = self.word(name)
        if text is None:
            return default
        if not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", text):
            raise InputError(name, printable(text), "must be a number")
        return float(text)

    def word(self, name: str, choices: Sequence[str] = ()) -> str | None:
        """The flag's value; None if it is absent or not known from the file alone."""
        self.read.add(name)
        self.arity[name] = max(self.arity.get(name, 0), 1)
        if name not in self.given:
            return None
        values = self.given[name]
        if not values:
            raise InputError(name, "no value", "must be followed by its value", ", ".join(choices[:6]))
        if self._held_open(name, values[0]):
            return None
        if not choices or values[0] in choices:
            return values[0]
        self._refused(name, values[0], f"must be one of {', '.join(choices)}", _near(values[0], choices))
        return None

    def shown(self, name: str) -> str:
        """The words of a flag, for display; empty if it is absent."""
        self.read.add(name)
        self.arity[name] = MANY
        return hole_text(" ".join(self.given[name])) or "true" if name in self.given else ""

    def words(self, name: str) -> list[str]:
        """All values of a flag."""
        self.read.add(name)
        self.arity[name] = MANY
        return self.given.get(name, [])

    def left(self) -> list[str]:
        """Names of flags that were not read, in the order given."""
        return [name for name in self.given if name not in self.read]

    def unset_arguments(self) -> tuple[str, ...]:
        """Variables without a value that may hold any arguments: they stand where no flag takes a value, or are named
        for arguments behind a flag of which it is not known how many values it takes."""
        free = (
            word
            for name, place, word in self.unset
            if place >= self.arity.get(name, MANY if name else 0) or (name not in self.arity and OF_ARGUMENTS(word))
        )
        return tuple(dict.fromkeys(hole_text(word) for word in free if OF_ARGUMENTS(word) or not OF_FILES(word)))


def _near(word: str, choices: Sequence[str], cutoff: float = 0.6) -> str:
    return "".join(difflib.get_close_matches(word, choices, 1, cutoff))


def unset_arguments(words: Sequence[str]) -> tuple[str, ...]:
    """Variables without a value that may hold any arguments, among words of which only ``key=value`` and ``--key
    value`` are read."""
    behind = ("", *words)
    pairs = [(word, before.startswith("--") and "=" not in before) for before, word in zip(behind, words, strict=False)]
    alone = [word for word, of_flag in pairs if ALONE(word) and not of_flag]
    return tuple(dict.fromkeys(hole_text(word) for word in alone if OF_ARGUMENTS(word) or not OF_FILES(word)))


def parse_flags(words: Iterable[str], options: Options = NO_OPTIONS) -> Flags:
    """Parse ``--flag value value`` and ``--flag=value``; the last one wins if a flag is repeated."""
    flags = Flags(given={}, options=options)
    current: list[str] | None = None
    name = ""
    for word in words:
        if word.startswith("--") and len(word) > 2 and HOLE not in word.partition("=")[0]:
            name, sign, value = word.partition("=")
            if name in flags.given:
                flags.assumptions.append(f"{printable(name)} is given twice: the last one counts")
            current = flags.given[name] = [value] if sign else []
        elif current is not None:
            if ALONE(word):
                flags.unset.append((name, len(current), word))
            current.append(word)
        elif ALONE(word):
            flags.unset.append(("", 0, word))
        elif word.strip(HOLE + " "):
            flags.odd.append(word)
    return flags


def hole_text(word: str) -> str:
    """A word with its unknown parts (holes) as in a shell: ``$NAME``, ``$(...)``."""
    named = re.sub(f"{HOLE}(\\w+){HOLE}", r"$\1", word)
    return printable(named.replace(HOLE, "$(...)"))


def shown_flag(name: str, values: list[str], similar: Iterable[str] = ()) -> str:
    """An unread flag for display, with a similar one that the trainer has."""
    near = difflib.get_close_matches(name.replace("_", "-"), sorted(similar), 1, 0.8)
    text = " ".join([printable(name), *(hole_text(v) for v in values[:3]), *(["..."] if len(values) > 3 else [])])
    return f"{text} (did you mean {near[0]}?)" if near and near[0] != name else text


def keys_said(words: Sequence[str]) -> JsonDict:
    """The keys of a command line (``--key value``, ``--key=value``, ``key=value``, ``-tp 4``), nested by their dots."""
    out: JsonDict = {}
    index = 0
    while index < len(words):
        word, index = words[index], index + 1
        name, sign, text = word.lstrip("+~").partition("=")
        if not re.fullmatch(r"-{0,2}[A-Za-z][\w.-]*", name) or not (sign or name.startswith("-")):
            continue
        values = [text] if sign else []
        while not sign and index < len(words) and not re.match(r"--|-[A-Za-z]|[+~]*[\w.]+=", words[index]):
            values.append(words[index])
            index += 1
        _put(out, name.lstrip("-").replace("-", "_").split("."), values)
    return out


def _put(table: JsonDict, path: Sequence[str], values: Sequence[str]) -> None:
    for part in path[:-1]:
        inner = table.get(part)
        table[part] = inner if isinstance(inner, dict) else {}
        table = table[part]
    table[path[-1]] = [*map(_scalar, values)] if len(values) > 1 else _scalar(values[0]) if values else True


def _scalar(text: str) -> object:
    """A word of a command line as YAML would read it."""
    lower = text.lower()
    if lower in ("true", "false", "null"):
        return {"true": True, "false": False}.get(lower)
    if re.fullmatch(r"[+-]?\d{1,15}", text):
        return int(text)
    if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d{1,3})?", lower):
        return float(text)
    if text.startswith("[") and text.endswith("]"):
        return [_scalar(part.strip(" '\"")) for part in text[1:-1].split(",") if part.strip()]
    if text.startswith("{") and text.endswith("}"):
        try:
            return parse_json(text.encode(), name="argument")
        except InputError:
            return text
    return text


def merged(config: JsonMap, others: JsonMap) -> JsonDict:
    """A nested table with the keys of another, which wins."""
    out = dict(config)
    for name, value in others.items():
        inner = out.get(name)
        out[name] = merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return out


NO_OTHERS: Mapping[str, tuple[str, ...]] = {}


@dataclass(slots=True, kw_only=True)
class StatedDocument(_Statements):
    """Fields of a nested table by dotted path. ``"auto"`` (filled in by the program) counts as not given; ``older``
    maps a section to sections that held its fields in earlier versions."""

    raw: JsonDict
    older: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: NO_OTHERS)
    left_to_program: set[str] = field(default_factory=set)
    """Paths where ``"auto"`` stands."""

    def find(self, path: str) -> Any:
        """The value at a path, or None."""
        place, value = self._at(path)
        if value is None:
            return None
        self.read.add(place)
        if self._held_open(place, value):
            return None
        if value == "auto":
            self.left_to_program.add(place)
            return None
        return value

    def shown(self, path: str) -> str:
        """What stands at a path, for display; empty if nothing does."""
        place, value = self._at(path)
        self.read.add(place)
        if value is None or value == "auto":
            return ""
        return str(value).lower() if isinstance(value, bool) else hole_text(str(value))

    def _at(self, path: str) -> tuple[str, Any]:
        """Where a field is, in its section or an older one, and what stands there."""
        section, _, rest = path.partition(".")
        for place in (path, *(f"{section_name}.{rest}" for section_name in self.older.get(section, ()))):
            value: Any = self.raw
            for part in place.split("."):
                value = value.get(part) if isinstance(value, dict) else None
            if value is not None:
                return place, value
        return path, None

    def has(self, path: str) -> bool:
        return self.find(path) is not None

    def gives(self, path: str) -> bool:
        """As of `Flags`."""
        _, value = self._at(path)
        return value not in (None, "auto") and not (isinstance(value, str) and PLACEHOLDER.search(value))

    def on(self, *paths: str) -> bool:
        """Whether a field is true, by any of its paths."""
        values = [self.find(path) for path in paths]
        return True in values

    def size(
        self, path: str, default: int | None = None, *, least: int = 1, most: int = MAX_SIZE, also: Sequence[int] = ()
    ) -> int | None:
        """An integer of at least ``least``, or one of ``also``; the default if not given."""
        value = self.find(path)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not (least <= value <= MAX_SIZE or value in also):
            self._refused(path, value, f"must be an integer of at least {least}")
            return default
        if value > most:
            self._refused(path, value, f"must be at most {most}", str(most))
            return default
        return value

    def count(self, path: str, default: int, *, least: int = 1) -> int:
        """`size` with a default; -1 (all) is allowed if it is the default."""
        count = self.size(path, least=least, also=(-1,) if default == -1 else ())
        return default if count is None else count

    def number(self, path: str, default: float) -> float:
        value = self.find(path)
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise InputError(path, value, "must be a number")
        return default if value is None else float(value)

    def flag(self, path: str, default: bool = False) -> bool:
        """A boolean."""
        value = self.find(path)
        if value is not None and not isinstance(value, bool):
            self._refused(path, value, "must be true or false")
            return default
        return default if value is None else value

    def word(self, path: str, choices: Sequence[str] = ()) -> str | None:
        """A string; an integer is accepted too."""
        value = self.find(path)
        if value is None:
            return None
        if value is False and "no" in choices:  # as YAML 1.1 reads it
            return "no"
        if isinstance(value, bool) and str(value).lower() in choices:
            return str(value).lower()
        if not isinstance(value, (str, int)) or isinstance(value, bool):
            self._refused(path, value, "must be a string")
            return None
        if not choices or str(value) in choices:
            return str(value)
        must = f"must be one of {', '.join(choices)}"
        self._refused(path, printable(str(value)), must, _near(str(value), choices, 0.3))
        return None

    def choice(self, path: str, default: str, choices: tuple[str, ...] = ()) -> str:
        """A string that must be one of ``choices``, if there are any."""
        word = self.word(path, choices)
        return default if word is None else word

    def off(self, path: str) -> bool:
        """Whether a field nobody knows is off."""
        return self.shown(path).lower() in OFF

    def left(self) -> list[str]:
        """Paths that were not read, neither themselves nor as part of a table."""
        return [p for p in _paths(self.raw) if not any(p == r or p.startswith(r + ".") for r in self.read)]


Stated = Flags | StatedDocument


def resolved(config: JsonMap) -> JsonDict:
    """The keys with references to other keys (``${data.max_length}``, ``${.sibling}``) filled in."""

    def filled(value: object, table: JsonMap) -> object:
        if isinstance(value, dict):
            return {name: filled(inner, value) for name, inner in value.items()}
        match = re.fullmatch(r"\$\{(\.?)([\w.]+)\}", value) if isinstance(value, str) else None
        named = StatedDocument(raw=dict(table if match[1] else config)).find(match[2]) if match else None
        return value if named is None else named

    return {name: filled(value, config) for name, value in config.items()}


BEARING = re.compile(
    r"batch|parallel|shard|zero|[fh]sdp|recompute|checkpointing|activation_checkpoint|checkpoint_activation|remat|precision|"
    r"dtype|fp8|fp16|bf16|quantiz|offload|optim|pipeline|hetero|accumulat|lora|peft|adapter|[48]_?bit|packing|(?<![a-z])([tpced]p|ac)_|"
    r"^--rank$|hidden_size|hidden_layers|intermediate_size|num_layers|num_experts|seq_?len|world_size"
)
"""In the name of a field that nobody knows: it may change batch, length, sizes, sharding, precision, recomputation or
optimizer."""


WITHOUT_BEARING = re.compile(
    r"(.*\.)?((adam_)?beta_?[12s]|(adam_)?eps(ilon)?|((max|min)_)?lr|weight_decay|momentum|merge_(lora|adapters?)|"
    r"lora_(alpha|dropout)|\w*(warmup|clip_grad|grad_clip)\w*)"
)
"""A field of the learning rate, the optimizer's arithmetic or the export, whatever section it is in."""


def bearing(unknown: Iterable[str]) -> dict[str, str]:
    """Fields that the trainer does not have, by whose names they could change the price."""
    lower = {name: name.lower() for name in unknown}
    return {
        name: "as given" for name, low in lower.items() if BEARING.search(low) and not WITHOUT_BEARING.fullmatch(low)
    }


NO_PRICE = re.compile(r"eval|save|kwargs|^--lora_(?!r)|cls_to_wrap")
"""In the name of a program's flag that does not change a training step, though another word in it might."""


def of_program(flags: Flags) -> tuple[list[str], list[str], list[str]]:
    """Unread flags of the program that a launcher starts: those by whose names they could change the price, those that
    no training program is known to have, and those without effect."""
    left = [name for name in flags.left() if " ".join(flags.given[name] or ["on"]).lower() not in OFF]
    bears = [name for name in left if BEARING.search(name.lower()) and not NO_PRICE.search(name)]
    silent = re.compile(f"--({'|'.join(launch_words()['no_bearing']['program'])})")
    others = (name for name in left if name not in bears and not NO_PRICE.search(name))
    strange = [name for name in others if not silent.match("--" + name[2:].replace("-", "_"))]
    return bears, strange, [name for name in flags.left() if name not in (*bears, *strange)]


OFF = ("", "false", "none", "null", "0", "[]", "{}")
"""Values that leave a flag or a key off."""


def _paths(table: JsonMap, prefix: str = "") -> list[str]:
    out: list[str] = []
    for key, value in table.items():
        out += _paths(value, f"{prefix}{key}.") if isinstance(value, dict) else [f"{prefix}{key}"]
    return out


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
        if match := TEMPLATE.search(text):
            line, must = text.count("\n", 0, match.start()) + 1, "is a placeholder that another program fills in"
            shown = f"line {line}: {printable(match[0])}"
            raise InputError(printable(name), shown, must, "the file it writes") from None
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
