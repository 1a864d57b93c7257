"""Split a launch script into statements of words; `shell` follows them.

Words keep their variables and quoting; functions, ``case`` and here-documents keep their text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from sartor.errors import InputError

HOLE = "\x00"
"""Marks a part of a word that is not known from the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """``$NAME``, ``${NAME:-default}``, ``${NAME[@]}``; quoted ones stay one word."""

    name: str
    default: str | None = None
    quoted: bool = False
    instead: bool = False
    """``${NAME:+words}``: the words if the variable is set, else nothing."""


Word = tuple[str | Variable, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One command or assignment, with its line. ``array`` names the array that the words are assigned to."""

    line: int
    words: tuple[Word, ...]
    array: str = ""
    appends: bool = False
    end: str = ""
    """Its terminator: end of line (empty), ``;``, ``;;``, ``&``, ``&&``, ``|``, ``||`` or a parenthesis."""
    document: str = ""
    """The here-document that it reads."""
    literal: bool = False
    """Whether variables in the here-document stay as they are (``<< 'EOF'``)."""
    target: Word = ()
    """The file its output goes to, or the words of a here-string."""
    function: str = ""
    """Name of the function that begins here; its body follows, up to a lone ``}``."""


def statements_of(text: str) -> list[Statement]:
    lines = re.sub(r"(?m)^([ \t]*#.*)\\$", r"\1", text.replace("\r\n", "\n"))  # a comment ends with its line
    scan = Scanner(text=lines.replace("\\\n", " \x01"))
    out = []
    while scan.at < len(scan.text):
        statement = scan.statement()
        if statement is not None:
            out.append(statement)
    return out


_ARRAY = re.compile(r"(?:(?:export|declare|local|readonly)\s+(?:-\w+\s+)*)?([A-Za-z_]\w*)(\+?)=\(")
_FUNCTION = re.compile(r"(?:function\s+([\w-]+)\s*(?:\(\s*\))?|([A-Za-z_][\w-]*)\s*\(\s*\))\s*\{(?=\s)")
_REDIRECT = re.compile(r"\d*(?:<<<|<<-?|[<>]{1,2})&?[\d-]?")
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
_BRACED = re.compile(r"(?P<name>[A-Za-z_]\w*|[0-9@*#])(?:\[[@*]\])?(?:(?P<op>:?[-=+])(?P<default>.*))?", re.DOTALL)


@dataclass(slots=True)
class Scanner:
    text: str
    at: int = 0
    line: int = 1
    end: str = ""
    documents: list[str] = field(default_factory=list)
    literal: bool = False
    target: Word = ()

    def statement(self) -> Statement | None:
        self._skip()
        if self.at >= len(self.text):
            return None
        line = self.line
        if self.text.startswith(";;", self.at):
            self.at += 2
            return Statement(line=line, words=(), end=";;")
        if match := _FUNCTION.match(self.text, self.at):
            self.at = match.end()
            self.line += match[0].count("\n")
            return Statement(line=line, words=(), function=match[1] or match[2])
        if match := _ARRAY.match(self.text, self.at):
            self.at = match.end()
            words = self.words(until=")")
            return Statement(line=line, words=tuple(words), array=match[1], appends=bool(match[2]))
        self.target, self.documents = (), []
        words = self.words(until="\n;&|")
        end = self.end
        document = self._document() if self.documents else ""
        if not words and not end:
            return None
        return Statement(
            line=line, words=tuple(words), end=end, document=document, literal=self.literal, target=self.target
        )

    def _skip(self) -> None:
        """Skip blanks, comments and separators of statements, except the ``;;`` of a case."""
        while True:
            self._blanks("\n&|")
            if self.text.startswith(";", self.at) and not self.text.startswith(";;", self.at):
                self.at += 1
            else:
                return

    def words(self, until: str) -> list[Word]:
        """Words up to a character in ``until``; line ends inside parentheses do not end them."""
        out: list[Word] = []
        self.end = ""
        while True:
            self._blanks("\n" if until == ")" else "")
            if self.at >= len(self.text):
                return out
            char = self.text[self.at]
            if char in until or char in "();&|":
                if char == ";" and self.text.startswith(";;", self.at):
                    return out
                double = char in "&|" and self.text.startswith(char * 2, self.at)
                self.end = "" if char == "\n" else char * (2 if double else 1)
                self.at += 2 if double else 1
                self.line += char == "\n"
                return out
            if match := _REDIRECT.match(self.text, self.at):
                self.at = match.end()
                self._redirect(match[0])
                continue
            out.append(self._word())

    def _redirect(self, sign: str) -> None:
        """Skip a redirection, recording its file or here-document."""
        if sign[-1].isdigit() or (sign.endswith("-") and "<<" not in sign):
            return
        self._blanks("")
        literal = self.text[self.at : self.at + 1] in ("'", '"', "\\")
        word = self._word()
        text = "".join(part for part in word if isinstance(part, str))
        if sign.lstrip("0123456789").startswith("<<") and not sign.endswith("<<<"):
            self.documents.append(text)
            self.literal = literal
        elif sign in (">", ">>", "<<<"):
            self.target = word

    def _document(self) -> str:
        """The text of a here-document, up to the line with its terminator."""
        if not self.text.startswith("\n", self.at - 1):  # the rest of the line comes first
            end = self.text.find("\n", self.at)
            self.at = len(self.text) if end < 0 else end + 1
            self.line += 1
        text = ""
        for word in self.documents:
            match = re.compile(rf"^[\t ]*{re.escape(word)}[\t ]*$", re.MULTILINE).search(self.text, self.at)
            stop = match.start() if match else len(self.text)
            text = self.text[self.at : stop]
            self.line += text.count("\n") + text.count("\x01") + 1
            self.at = match.end() + 1 if match else stop
        return text.replace(" \x01", "\\\n")

    def _blanks(self, also: str) -> None:
        """Skip blanks and comments."""
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
            return [_substituted(self._until("`"))]
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
                parts.append(_substituted(self._until("`")))
            else:
                self.at += 2 if char == "\\" else 1
                if self.at > len(self.text):
                    break
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
            return Variable(name=f"({self._closing('(', ')')})", quoted=True)
        if self.text.startswith("[", self.at):
            return Variable(name=f"(({self._closing('[', ']')}))", quoted=True)
        if self.text.startswith("(", self.at):
            return _substituted(self._closing("(", ")"))
        if self.text.startswith("{", self.at):
            inner = self._closing("{", "}")
            match = _BRACED.fullmatch(inner)
            if not match:
                return HOLE
            alternative = (match["op"] or "").endswith("+")
            return Variable(name=match["name"], default=match["default"], quoted=quoted, instead=alternative)
        match = _NAME.match(self.text, self.at)
        if not match:
            return "$"
        self.at = match.end()
        return Variable(name=match[0], quoted=quoted)

    def _closing(self, opening: str, closing: str) -> str:
        depth, start = 0, self.at
        for offset in range(start, len(self.text)):
            depth += {opening: 1, closing: -1}.get(self.text[offset], 0)
            if depth == 0:
                self.at = offset + 1
                return self.text[start + 1 : offset]
        raise InputError("launch script", f"line {self.line}", f"has a {opening} that is never closed")


_EXPR = re.compile(r"\s*expr\s+([^|;&<>]{1,200}?)\s*")
_ECHO = re.compile(r"\s*echo\s+(?!-)([^|;&<>]+?)\s*(\|\s*(tr\s+(-s\s+)?'\\n'\s+' '|xargs|sed 's/  \\\+/ /g')\s*)*")
ECHO = "(echo"
"""The name of what ``echo`` prints, be it on one line."""
_CAT = re.compile(r"\s*cat\s*<<-?\s*(['\"]?)(\w+)\1[ \t]*\n(.*?)\n[ \t]*\2\s*", re.DOTALL)


def _substituted(command: str) -> str | Variable:
    """What ``$(command)`` puts in its place, of the commands that need no running: ``expr`` of numbers and variables,
    ``echo`` of words, and ``cat`` of a here-document."""
    if match := _EXPR.fullmatch(command):
        return Variable(name=f"(({match[1].replace(chr(92), '')}))", quoted=True)
    if match := _ECHO.fullmatch(command):
        return Variable(name=ECHO, default=match[1])
    if match := _CAT.fullmatch(command):
        return match[3].replace(" \x01", "\\\n").replace("\\$", "$")
    return "" if command.lstrip().startswith("#") else HOLE
