"""A launch script's words, as the shell would see them, without running anything.

Assignments, arrays, ``export``, ``${NAME:-default}``, ``$((a * b))``, continuation lines, comments and simple ``if``
tests are followed. What only a running shell knows (``$(command)``, loops, variables set elsewhere) stays a hole: a
word with a hole in it is never guessed, and the line it came from is remembered.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from sartor.errors import InputError

MAX_CHARS = 1_000_000
"""Longest script that is read; real ones stay below 100 kB."""
MAX_WORDS = 100_000
"""Longest array or command that is followed."""
HOLE = "\x00"
"""Stands in a word for what the file does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """``$NAME``, ``${NAME:-default}``, ``${NAME[@]}``; quoted ones stay one word."""

    name: str
    default: str | None = None
    quoted: bool = False


Word = tuple[str | Variable, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One command or assignment, with its line. ``array`` names the array that the words are put in."""

    line: int
    words: tuple[Word, ...]
    array: str = ""
    appends: bool = False


@dataclass(slots=True)
class Shell:
    """The commands of a script in order, its variables at the end, and what could not be followed."""

    variables: dict[str, list[str]] = field(default_factory=dict)
    commands: list[list[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    holes: dict[str, str] = field(default_factory=dict)


def read_shell(text: str, variables: dict[str, str] | None = None) -> Shell:
    """Follow a script. ``variables`` are what the caller sets beforehand. Raises `InputError` for unclosed quotes."""
    if len(text) > MAX_CHARS:
        raise InputError("launch script", f"{len(text)} characters", f"must have at most {MAX_CHARS}")
    shell = Shell(variables={name: [value] for name, value in (variables or {}).items()})
    try:
        _run(shell, _statements(text))
    except RecursionError:
        raise InputError("launch script", "deeply nested", "must nest its ${...} less deeply") from None
    return shell


# -- reading ------------------------------------------------------------------------------------------------------


def _statements(text: str) -> list[Statement]:
    scan = _Scanner(text=text.replace("\r\n", "\n").replace("\\\n", " \x01"))
    out = []
    while scan.at < len(scan.text):
        statement = scan.statement()
        if statement is not None:
            out.append(statement)
    return out


_ARRAY = re.compile(r"(?:(?:export|declare|local|readonly)\s+(?:-\w+\s+)*)?([A-Za-z_]\w*)(\+?)=\(")
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
_BRACED = re.compile(r"(?P<name>[A-Za-z_]\w*|[0-9@*#])(?:\[[@*]\])?(?:(?P<op>:?[-=])(?P<default>.*))?", re.DOTALL)


@dataclass(slots=True)
class _Scanner:
    text: str
    at: int = 0
    line: int = 1

    def statement(self) -> Statement | None:
        self._blanks("\n;&|")
        if self.at >= len(self.text):
            return None
        line = self.line
        if found := _ARRAY.match(self.text, self.at):
            self.at = found.end()
            words = self._words(until=")")
            return Statement(line=line, words=tuple(words), array=found[1], appends=bool(found[2]))
        words = self._words(until="\n;&|")
        return Statement(line=line, words=tuple(words)) if words else None

    def _words(self, until: str) -> list[Word]:
        """Words up to one of the characters in ``until``; inside parentheses, lines do not end them."""
        out: list[Word] = []
        while True:
            self._blanks("\n" if until == ")" else "")
            if self.at >= len(self.text):
                return out
            char = self.text[self.at]
            if char in until or char in "();&|":
                self.at += 1
                self.line += char == "\n"
                return out
            if found := re.compile(r"\d*[<>]{1,2}&?[\d-]?").match(self.text, self.at):
                self.at = found.end()
                if not found[0][-1].isdigit() and not found[0].endswith("-"):
                    self._blanks("")
                    self._word()
                continue
            out.append(self._word())

    def _blanks(self, also: str) -> None:
        """Past blanks and comments."""
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "#" and (self.at == 0 or self.text[self.at - 1] in " \t\n;\x01("):
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif char in " \t\x01" or char in also:
                self.line += char in "\n\x01"
                self.at += 1
            else:
                return

    def _word(self) -> Word:
        parts: list[str | Variable] = []
        while self.at < len(self.text) and self.text[self.at] not in " \t\n;&|()\x01":
            parts += self._piece()
        return tuple(parts)

    def _piece(self) -> list[str | Variable]:
        char = self.text[self.at]
        if char == "'":
            return [self._until("'").replace(" \x01", "")]
        if char == '"':
            return self._quoted()
        if char == "\\" and self.at + 1 < len(self.text):
            self.at += 2
            return [self.text[self.at - 1]]
        if char == "`":
            self._until("`")
            return [HOLE]
        if char == "$":
            return [self._dollar(quoted=False)]
        self.at += 1
        return [char]

    def _quoted(self) -> list[str | Variable]:
        start, self.at = self.line, self.at + 1
        parts: list[str | Variable] = [""]
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == '"':
                self.at += 1
                return parts
            if char == "$":
                parts.append(self._dollar(quoted=True))
            elif char == "`":
                self._until("`")
                parts.append(HOLE)
            else:
                self.at += 2 if char == "\\" else 1
                self.line += char in "\n\x01"
                parts.append("" if char == "\x01" else self.text[self.at - 1])
        raise InputError("launch script", f"line {start}", 'has a quote " that is never closed')

    def _until(self, quote: str) -> str:
        end = self.text.find(quote, self.at + 1)
        if end < 0:
            raise InputError("launch script", f"line {self.line}", f"has a quote {quote} that is never closed")
        inner = self.text[self.at + 1 : end]
        self.line += inner.count("\n") + inner.count("\x01")
        self.at = end + 1
        return inner

    def _dollar(self, *, quoted: bool) -> str | Variable:
        self.at += 1
        if self.text.startswith("((", self.at):
            return self._arithmetic(quoted)
        if self.text.startswith("(", self.at):
            self._closing("(", ")")
            return HOLE
        if self.text.startswith("{", self.at):
            inner = self._closing("{", "}")
            found = _BRACED.fullmatch(inner)
            return Variable(name=found["name"], default=found["default"], quoted=quoted) if found else HOLE
        found = _NAME.match(self.text, self.at)
        if not found:
            return "$"
        self.at = found.end()
        return Variable(name=found[0], quoted=quoted)

    def _arithmetic(self, quoted: bool) -> str | Variable:
        inner = self._closing("(", ")")
        return Variable(name="((" + inner.strip("()") + "))", quoted=True)

    def _closing(self, opening: str, closing: str) -> str:
        depth, start = 0, self.at
        for at in range(start, len(self.text)):
            depth += {opening: 1, closing: -1}.get(self.text[at], 0)
            if depth == 0:
                self.at = at + 1
                return self.text[start + 1 : at]
        raise InputError("launch script", f"line {self.line}", f"has a {opening} that is never closed")


# -- following ----------------------------------------------------------------------------------------------------

_ASSIGNS = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_LOOPS = {"for": "done", "while": "done", "until": "done", "case": "esac", "select": "done"}


def _run(shell: Shell, statements: list[Statement]) -> None:
    """Statements in order; branches that a test rules out and loops are passed over."""
    live: list[bool] = []
    decided: list[bool] = []
    waiting: list[str] = []
    for statement in statements:
        word = _plain(statement.words)
        if waiting:
            waiting += [_LOOPS[word]] if word in _LOOPS else []
            if word == waiting[-1]:
                waiting.pop()
            continue
        if word in _LOOPS and not statement.array:
            waiting.append(_LOOPS[word])
            if all(live):
                shell.notes.append(f"line {statement.line}: `{word}` is skipped: loops and functions are not evaluated")
        elif word == "if":
            live.append(all(live) and _test(shell, statement))
            decided.append(live[-1])
        elif word in ("elif", "else") and live:
            outer = all(live[:-1])
            live[-1] = outer and not decided[-1] and (word == "else" or _test(shell, statement))
            decided[-1] |= live[-1]
            if word == "else":
                _do(shell, statement, drop=1) if all(live) else None
        elif word == "fi" and live:
            live.pop()
            decided.pop()
        elif all(live):
            _do(shell, statement, drop=int(word in ("then", "do", "{")))


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
    while words and _plain(words[:1]) in ("export", "local", "readonly", "declare", "-a", "-x", "time", "exec", "!"):
        words = words[1:]
    while words and isinstance(words[0][0] if words[0] else None, str):
        found = _ASSIGNS.match("".join(p if isinstance(p, str) else HOLE for p in words[0]))
        if not found or HOLE in found[0]:
            break
        _assign(shell, words[0], found[1], len(found[0]), appends=bool(found[2]))
        words = words[1:]
    command = [text for word in words for text in _expand(shell, word)]
    if command and command != ["}"]:
        shell.commands.append(command)


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
    """The words that one word becomes: an array's items, an unquoted variable's parts, or just itself."""
    if len(word) == 1 or (len(word) == 2 and word[0] == ""):
        last = word[-1]
        if isinstance(last, Variable):
            found = _look_up(shell, last)
            if len(found) != 1 or last.quoted:
                return found
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
    if name in shell.variables and (shell.variables[name] != [""] or variable.default is None):
        return shell.variables[name]
    if variable.default is not None:
        scan = _Scanner(text=variable.default)
        value = "".join("".join(_expand(shell, w)) for w in scan._words(until="\n"))
        shell.variables[name] = [value]
        if value:
            shown = f"${name}" if name.isdigit() else name
            shell.notes.append(f"{shown}={value} (the script's default)")
        return [value]
    if name in "@*#":
        return []
    return [HOLE + name + HOLE]


def _calculate(shell: Shell, text: str) -> str:
    """Integer arithmetic of + - * / % and parentheses over numbers and variables."""
    filled = re.sub(
        r"\$?\{?([A-Za-z_]\w*)\}?", lambda m: "".join(_look_up(shell, Variable(name=m[1], quoted=True))), text
    )
    if HOLE in filled or not re.fullmatch(r"[\d\s+*/%()-]{1,200}", filled) or "**" in filled:
        return HOLE
    try:
        return str(_sum(re.findall(r"\d+|[-+*/%()]", filled)))
    except (ZeroDivisionError, IndexError, ValueError):
        return HOLE


def _sum(tokens: list[str]) -> int:
    value = _product(tokens)
    while tokens and tokens[0] in "+-":
        value += _product(tokens) if tokens.pop(0) == "+" else -_product(tokens)
    return value


def _product(tokens: list[str]) -> int:
    value = _atom(tokens)
    while tokens and tokens[0] in "*/%":
        sign, other = tokens.pop(0), _atom(tokens)
        value = value * other if sign == "*" else value // other if sign == "/" else value % other
    return value


def _atom(tokens: list[str]) -> int:
    token = tokens.pop(0)
    if token == "-":
        return -_atom(tokens)
    if token == "(":
        value = _sum(tokens)
        tokens.pop(0)
        return value
    return int(token)


def _test(shell: Shell, statement: Statement) -> bool:
    """Whether a test holds; one that cannot be told is taken as true, and said."""
    words = ["".join(_expand(shell, word)) for word in statement.words[1:]]
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
    if len(words) != 3 or HOLE in "".join(words):
        return None
    left, sign, right = words
    if sign in ("=", "==", "!="):
        return (left == right) is (sign != "!=")
    if sign in ("-eq", "-ne", "-gt", "-lt", "-ge", "-le") and left.lstrip("-").isdigit() and right.isdigit():
        a, b = int(left), int(right)
        return {"-eq": a == b, "-ne": a != b, "-gt": a > b, "-lt": a < b, "-ge": a >= b, "-le": a <= b}[sign]
    return None
