"""Expand a launch script's words as the shell would, without running anything.

It follows assignments, arrays, ``export``, ``${NAME:-default}``, ``$((a * b))``, continuation lines, comments, ``if``
and ``&&`` tests, ``case``, functions, here-documents that a shell reads, and ``source`` of a file next to the script.
What only a running shell knows (``$(command)``, loops beyond their first round, variables set elsewhere) becomes a
hole: a word with a hole is never guessed, and the line it came from is recorded.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import takewhile

from sartor.errors import InputError
from sartor.launch.shell_words import ECHO, HOLE, Scanner, Statement, Variable, Word, statements_of

MAX_CHARS = 1_000_000
"""Longest script accepted; real ones stay below 100 kB."""
MAX_WORDS = 100_000
"""Longest array or command that is expanded."""
MAX_DEPTH = 8
"""Deepest nesting of functions and sourced files."""
MAX_STATEMENTS = 200_000
"""Most statements that are followed, counting every call of a function."""
Beside = Callable[[str], str | None]


def nothing_beside(name: str) -> str | None:
    """Default for ``beside``: no other files."""
    return None


@dataclass(slots=True)
class Shell:
    """The commands of a script in order, its variables at the end, and notes on what could not be followed."""

    variables: dict[str, list[str]] = field(default_factory=dict)
    commands: list[list[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    holes: dict[str, str] = field(default_factory=dict)
    functions: dict[str, list[Statement]] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    """Files that the script itself writes from here-documents."""
    beside: Beside = nothing_beside
    unset: set[str] = field(default_factory=set)
    """Variables that only a branch sets which is not taken: empty where they stand."""
    batch: list[str] = field(default_factory=list)
    """Options of the batch system or shell that another script is passed to."""
    depth: int = 0
    followed: int = 0


def read_shell(text: str, variables: dict[str, str] | None = None, beside: Beside = nothing_beside) -> Shell:
    """Follow a script. ``variables`` are set beforehand; ``beside`` returns the text of a file that the script sources,
    or None. Raises `InputError` for unclosed quotes."""
    if len(text) > MAX_CHARS:
        raise InputError("launch script", f"{len(text)} characters", f"must have at most {MAX_CHARS}")
    shell = Shell(variables={name: [value] for name, value in (variables or {}).items()}, beside=beside)
    try:
        _run(shell, statements_of(text))
    except RecursionError:
        raise InputError("launch script", "deeply nested", "must nest its ${...} less deeply") from None
    return shell


# -- following ----------------------------------------------------------------------------------------------------

_ASSIGNS = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_LOOPS = {"for": "done", "while": "done", "until": "done", "select": "done", "case": "esac"}
_TESTS = ("[", "[[", "test")


def _run(shell: Shell, statements: list[Statement]) -> None:
    """Follow statements in order, skipping loops and branches whose test is false."""
    live: list[bool] = []
    decided: list[bool] = []
    index = 0
    while index < len(statements):
        statement, index = statements[index], index + 1
        shell.followed += 1
        if shell.followed > MAX_STATEMENTS:
            raise InputError("launch script", "its functions", f"must not follow more than {MAX_STATEMENTS} statements")
        word = _plain(statement.words)
        if statement.function:
            stop = _closing(statements, index)
            if all(live):
                shell.functions[statement.function] = statements[index:stop]
            index = stop + 1
        elif word in _LOOPS and not statement.array:
            stop = _loop_end(statements, index, _LOOPS[word])
            if all(live) and word == "case":
                _case(shell, statement, statements[index:stop])
            elif all(live) and not (
                word == "for"
                and (values := _loop_values(shell, statement))
                and _first_round(shell, statement, values, statements[index:stop])
            ):
                shell.notes.append(f"line {statement.line}: `{word}` is skipped: loops are not evaluated")
            index = stop + 1
        elif word == "if":
            holds = all(live) and _test(shell, statement)
            while statement.end in ("&&", "||") and index < len(statements) and _is_test(statements[index]):
                both, statement, index = statement.end == "&&", statements[index], index + 1
                if all(live) and holds is both:
                    holds = _test(shell, statement, first=0)
            live.append(holds)
            decided.append(holds)
        elif word in ("elif", "else") and live:
            outer = all(live[:-1])
            live[-1] = outer and not decided[-1] and (word == "else" or _test(shell, statement))
            decided[-1] |= live[-1]
            if word == "else":
                _do(shell, statement, drop=1) if all(live) else None
        elif word == "fi" and live:
            live.pop()
            decided.pop()
        elif all(live) and word in _TESTS and statement.end in ("&&", "||"):
            if _test(shell, statement, first=0) is not (statement.end == "&&"):
                index = _past_chain(statements, index)
        elif all(live):
            _do(shell, statement, drop=int(word in ("then", "do", "{")))
        else:
            words = [_plain((word,)) for word in statement.words[:2]]
            shell.unset |= {match[1] for match in map(_ASSIGNS.match, words) if match} | {statement.array}


def _is_test(statement: Statement) -> bool:
    return _plain(statement.words) in (*_TESTS, "!") or _plain(statement.words[-1:]) in ("]", "]]")


def _closing(statements: list[Statement], index: int) -> int:
    """Position of the lone ``}`` that ends a function's body."""
    depth = 1
    while index < len(statements):
        word = _plain(statements[index].words)
        depth += bool(statements[index].function) + (word == "{") - (word == "}")
        if depth == 0:
            return index
        index += 1
    return index


def _loop_end(statements: list[Statement], index: int, end: str) -> int:
    waiting = [end]
    while index < len(statements):
        words = {
            _plain(statements[index].words),
            _plain(statements[index].words[1:]) if _opens(statements[index]) else "",
        }
        inner = next((word for word in words if word in _LOOPS and not statements[index].array), None)
        if inner:
            waiting.append(_LOOPS[inner])
        elif waiting[-1] in words:
            waiting.pop()
            if not waiting:
                return index
        index += 1
    return index


def _opens(statement: Statement) -> bool:
    """Whether the first word only precedes another statement (``do for ...``, ``then case ...``)."""
    return _plain(statement.words) in ("do", "then", "else", "{")


def _past_chain(statements: list[Statement], index: int) -> int:
    """Position after the command that a test guards, and those chained to it."""
    while index < len(statements) and statements[index].end == "&&":
        index += 1
    return index + 1


def _case(shell: Shell, head: Statement, rest: list[Statement]) -> None:
    """Follow the first branch whose pattern matches the word; none if only the running shell knows the word."""
    subject = "".join(text for word in head.words[1:2] for text in _expand(shell, word))
    if HOLE in subject:
        shell.notes.append(f"line {head.line}: a case of a word that only the running shell knows is skipped")
        return
    parts, index = [Statement(line=head.line, words=head.words[3:], end=head.end), *rest], 0
    while index < len(parts):
        fits = False
        while index < len(parts):
            each, index = parts[index], index + 1
            patterns = [text for word in each.words for text in _expand(shell, word)]
            fits |= any(fnmatchcase(subject, pattern) for pattern in patterns)
            if each.end == ")":
                break
        stop = index
        while stop < len(parts) and (parts[stop].words or parts[stop].end != ";;"):
            stop += 1
        if fits:
            _run(shell, parts[index:stop])
            return
        index = stop + 1


def _loop_values(shell: Shell, head: Statement) -> list[str]:
    """The values of a ``for`` loop, if the script itself gives them."""
    if _plain(head.words[2:3]) != "in":
        return []
    values = [text for word in head.words[3:] for text in _expand(shell, word)]
    return [] if HOLE in "".join(values) else values


def _first_round(shell: Shell, head: Statement, values: list[str], body: list[Statement]) -> bool:
    """Follow only a sweep's first round (which run is meant is unknown), and no loop that starts nothing."""
    name, before, started = _plain(head.words[1:2]), dict(shell.variables), len(shell.commands)
    shell.variables[name] = values[:1]
    _run(shell, body)
    if not any(word.startswith("--") for command in shell.commands[started:] for word in command):
        shell.variables = before
        return False
    if len(values) > 1:
        shell.notes.append(f"line {head.line}: the first of {len(values)} rounds of a loop, {name}={values[0]}")
    return True


def _plain(words: tuple[Word, ...]) -> str:
    first = words[0] if words else ()
    return "".join(part for part in first if isinstance(part, str))


def _do(shell: Shell, statement: Statement, drop: int = 0) -> None:
    if statement.array:
        items = [text for word in statement.words for text in _expand(shell, word)]
        before = shell.variables.get(statement.array, []) if statement.appends else []
        if len(before) + len(items) > MAX_WORDS:
            raise InputError("launch script", statement.array, f"grows beyond {MAX_WORDS} words")
        shell.variables[statement.array] = before + items
        return
    words = statement.words[drop:]
    declares = False
    while words and _plain(words[:1]) in (*_DECLARES, "-a", "-x", "time", "exec", "!"):
        declares |= _plain(words[:1]) in _DECLARES
        words = words[1:]
    if declares:  # drop names without a new value
        words = tuple(word for word in words if _ASSIGNS.match("".join(p for p in word if isinstance(p, str))))
    while words and isinstance(words[0][0] if words[0] else None, str):
        match = _ASSIGNS.match("".join(p if isinstance(p, str) else HOLE for p in words[0]))
        if not match or HOLE in match[0]:
            break
        _assign(shell, words[0], match[1], len(match[0]), appends=bool(match[2]))
        words = words[1:]
    command = [text for word in words for text in _expand(shell, word)]
    if command[:1] == ["eval"]:  # its words are parsed again: up to a pipe or a redirection
        command = list(takewhile(lambda word: not re.match(r"[|;&]|\d?>", word), command[1:]))
        command = [re.sub(r"^(['\"])(.*)\1$", r"\2", word) for word in command]
    if not command or command == ["}"]:
        return
    if command[0] == "read" and statement.document:
        shell.variables[command[-1]] = [" ".join(_filled(shell, statement.document.replace("\n", " ")))]
        return
    if command[0] == "read" and statement.target:
        _read_words(shell, [name for name in command[1:] if not name.startswith("-")], statement.target)
        return
    if command[0] == "let":
        shell.variables |= {n: [_calculate(shell, v)] for n, _, v in (word.partition("=") for word in command[1:]) if v}
        return
    if command[0] == "echo" and statement.target:
        shell.files[_base(shell, statement.target)] = " ".join(command[1:])
    if statement.document and statement.target:
        text = statement.document
        shell.files[_base(shell, statement.target)] = text if statement.literal else _written(shell, text)
    if (inner := _inner(shell, command, statement)) is None:
        shell.commands.append(command)
    elif shell.depth < MAX_DEPTH:
        shell.depth += 1
        saved = {name: shell.variables.get(name) for name in "@#123456789"}
        if command[0] in shell.functions or _base_of(command[0]) in (*_SHELLS, "srun"):
            command = command if command[0] in shell.functions else command[1:]
            shell.variables |= {"@": command[1:], "#": [str(len(command) - 1)]}
            shell.variables |= {str(k + 1): [text] for k, text in enumerate(command[1:10])}
        _run(shell, inner)
        for name, value in saved.items():
            shell.variables.pop(name, None)
            if value is not None:
                shell.variables[name] = value
        shell.depth -= 1


def _read_words(shell: Shell, names: list[str], word: Word) -> None:
    """``IFS=, read -r A B <<< "$TEXT"``: the last name takes what is left."""
    text, separator = " ".join(_expand(shell, word)), "".join(shell.variables.get("IFS", []))
    if HOLE not in text + separator:
        pieces = text.split(separator or None, len(names) - 1)
        shell.variables |= {name: [piece.strip()] for name, piece in zip(names, pieces, strict=False)}


NOT_BESIDE = "is not in the script's folder, so what it sets is unknown"
_DECLARES = ("export", "local", "readonly", "declare")
_SHELLS = ("bash", "sh", "sbatch")
_STARTERS = ("srun", "torchrun", "mpirun")
"""Launchers that may start a shell on every rank."""


def _inner(shell: Shell, command: list[str], statement: Statement) -> list[Statement] | None:
    """The statements a command runs: those of a function, a sourced file, or a script passed to a shell."""
    name = command[0].rsplit("/", 1)[-1]
    if command[0] in shell.functions:
        return shell.functions[command[0]]
    if statement.document and not statement.target and any(word.rsplit("/", 1)[-1] in _SHELLS for word in command):
        return statements_of(statement.document.replace("\\$", "$"))
    if script := script_of(command):
        text = shell.files.get(_base_of(script)) or shell.beside(script)
        if text is not None and len(text) <= MAX_CHARS:
            index = command.index(script)
            shell.batch += command[1:index]
            del command[1:index]
            return statements_of(text)
    usual = r"(activate|\.bashrc|\.profile|modules?|conda|setvars)"
    if len(command) > 1 and name in ("source", ".") and not re.search(usual, command[1]):
        shown = re.sub(f"{HOLE}(\\w*){HOLE}?", r"$\1", command[1])
        shell.notes.append(f"line {statement.line}: {shown} {NOT_BESIDE}")
    return None


def script_of(command: list[str]) -> str:
    """The file that a command sources or passes to a shell or batch system; empty if it does neither."""
    name = _base_of(command[0])
    if name in ("source", ".") and len(command) > 1:
        return command[1]
    started = name in _SHELLS or any(_base_of(word) in _SHELLS for word in command[:-1] if name in _STARTERS)
    return next((word for word in command[1:] if started and word.endswith((".sh", ".slurm", ".sbatch"))), "")


def _base(shell: Shell, word: Word) -> str:
    return _base_of("".join(_expand(shell, word)))


def _base_of(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def _assign(shell: Shell, word: Word, name: str, skip: int, *, appends: bool) -> None:
    value: list[str | Variable] = []
    for part in word:
        if isinstance(part, str) and skip:
            part, skip = part[skip:], skip - min(skip, len(part))
        value.append(part if isinstance(part, str) else Variable(name=part.name, default=part.default, quoted=True))
    text = "".join(_expand(shell, tuple(value)))
    before = "".join(shell.variables.get(name, [])) if appends else ""
    if len(before) + len(text) > MAX_CHARS:
        raise InputError("launch script", name, f"grows beyond {MAX_CHARS} characters")
    shell.variables[name] = [before + text]
    if HOLE in text:
        shell.holes[name] = "what only the running shell knows"


def _expand(shell: Shell, word: Word) -> list[str]:
    """The words that one word expands to: an array's items, an unquoted variable's parts, or just itself."""
    if len(word) == 1 or (len(word) == 2 and word[0] == ""):
        last = word[-1]
        if isinstance(last, Variable):
            value = _look_up(shell, last)
            if not last.quoted:  # the shell splits unquoted variables, and items of unquoted arrays
                return [piece for item in value for piece in item.split()]
            if len(value) != 1:
                return value
    text = ""
    quoted = False
    for part in word:
        if isinstance(part, str):
            text += part
            quoted |= part == "" or " " in part
        else:
            quoted |= part.quoted
            text += " ".join(_look_up(shell, part))
    return [text] if quoted else text.split()


def _look_up(shell: Shell, variable: Variable) -> list[str]:
    name = variable.name
    if name.startswith("(("):
        return [_calculate(shell, name[2:-2])]
    if name == ECHO:
        return _filled(shell, variable.default or "")
    if variable.instead:
        joined = "".join(shell.variables.get(name, []))
        return _filled(shell, variable.default or "") if joined else [""]
    if name in shell.variables and (shell.variables[name] != [""] or variable.default is None):
        return shell.variables[name]
    if variable.default is not None:
        value = " ".join(_filled(shell, variable.default))
        shell.variables[name] = [value]
        if value:
            shown = f"${name}" if name.isdigit() else name
            shell.notes.append(f"{shown}={value} (the script's default)")
        return [value]
    if name in "@*#" or name in shell.unset:
        return []
    return [HOLE + name + HOLE]


def _filled(shell: Shell, text: str) -> list[str]:
    """The words of a ``${NAME:-text}``."""
    return [piece for word in Scanner(text=text).words(until="\n") for piece in _expand(shell, word)]


_IN_DOCUMENT = re.compile(r"(?<!\\)\$(?:\(\((?P<sum>[^\n]{1,200}?)\)\)|\{(?P<name>\w+)\}|(?P<plain>[A-Za-z_]\w*))")


def _written(shell: Shell, text: str) -> str:
    """A here-document with the values of its variables; those that are not known stay as they are."""

    def value(match: re.Match[str]) -> str:
        name = match["name"] or match["plain"]
        known = _calculate(shell, match["sum"]) if match["sum"] else " ".join(_look_up(shell, Variable(name=name)))
        return match[0] if HOLE in known else known

    return _IN_DOCUMENT.sub(value, text).replace("\\$", "$")


def _calculate(shell: Shell, text: str) -> str:
    """Integer arithmetic with + - * / %, comparisons, ``a ? b : c`` and parentheses on numbers and variables."""
    filled = re.sub(
        r"\$?\{?([A-Za-z_]\w*)\}?", lambda m: "".join(_look_up(shell, Variable(name=m[1], quoted=True))), text
    )
    if HOLE in filled or not re.fullmatch(r"[\d\s+*/%()<>=!?:-]{1,200}", filled):
        return HOLE
    try:
        tree = ast.parse(filled.strip().replace("?", " and ").replace(":", " or "), mode="eval")
        return str(_value(tree.body))
    except (SyntaxError, ValueError, KeyError, ZeroDivisionError):
        return HOLE


_SIGNS: dict[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv,
    ast.Mod: operator.mod, ast.Gt: operator.gt, ast.Lt: operator.lt, ast.GtE: operator.ge, ast.LtE: operator.le,
    ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip


def _value(node: ast.expr) -> int:
    """The value of a parsed sum, in which ``a and b or c`` stands for the shell's ``a ? b : c``."""
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_value(inner)
        case ast.BinOp(left=left, op=sign, right=right) | ast.Compare(left=left, ops=[sign], comparators=[right]):
            return int(_SIGNS[type(sign)](_value(left), _value(right)))
        case ast.BoolOp(op=ast.Or(), values=[*choices, otherwise]):
            pairs = [choice.values for choice in choices if isinstance(choice, ast.BoolOp)]
            return next((_value(yes) for condition, yes in pairs if _value(condition)), _value(otherwise))
    raise ValueError


def _test(shell: Shell, statement: Statement, first: int = 1) -> bool:
    """Whether a test holds; if unknown, it is assumed true, with a note."""
    words = ["".join(_expand(shell, word)) for word in statement.words[first:]]
    inner = [word for word in words if word not in ("[", "]", "[[", "]]", "then", "test")]
    answer = _judge(inner)
    if answer is None:
        shell.notes.append(f"line {statement.line}: a condition that only the running shell can decide is assumed true")
    return answer is not False


def _judge(words: list[str]) -> bool | None:
    if words[:1] == ["!"]:
        inner = _judge(words[1:])
        return None if inner is None else not inner
    if len(words) == 2 and words[0] in ("-z", "-n"):
        empty = not words[1].replace(HOLE, "") or bool(re.fullmatch(f"{HOLE}\\w*{HOLE}", words[1]))
        return empty if words[0] == "-z" else not empty
    if len(words) == 1 and words[0] in ("-z", "-n"):
        return words[0] == "-z"
    if len(words) == 3:  # an unset variable is empty
        words = [re.sub(f"^{HOLE}\\w+{HOLE}$", "", word) for word in words]
    if len(words) != 3 or HOLE in "".join(words):
        return None
    left, sign, right = words
    if sign in ("=", "==", "!="):
        return (left == right) is (sign != "!=")
    if sign in ("-eq", "-ne", "-gt", "-lt", "-ge", "-le") and left.lstrip("-").isdigit() and right.isdigit():
        a, b = int(left), int(right)
        return {"-eq": a == b, "-ne": a != b, "-gt": a > b, "-lt": a < b, "-ge": a >= b, "-le": a <= b}[sign]
    return None
