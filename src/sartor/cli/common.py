"""Console and output shared by all commands, and files that must not be overwritten by their own command."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from sartor.errors import InputError, visible
from sartor.interrupts import activity, patient
from sartor.json_types import envelope

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console
    from rich.table import Table

    from sartor.json_types import JsonDict, JsonMap


class Exit(Exception):
    """Exit with this code, after everything was printed."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


LONG_S, AGAIN_S = 3.0, 0.5
"""Seconds after which a command says how far it is, and how often."""


@contextmanager
def progress_line() -> Iterator[None]:
    """How far the work is, on the last line of stderr, if that is a terminal and the work takes more than `LONG_S`."""
    if not sys.stderr.isatty():
        yield
        return
    begin, over = time.perf_counter(), threading.Event()

    def tell() -> None:
        wait_s = LONG_S
        while not over.wait(wait_s):
            wait_s = AGAIN_S
            now = time.perf_counter()
            with suppress(OSError):
                width = os.get_terminal_size(2).columns or USUAL
                _write_line(visible(progress_text(now - begin, now))[: width - 1])

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        _write_line("")


def _write_line(text: str) -> None:
    """Write over the line of progress of a terminal, which may have gone."""
    with suppress(OSError, ValueError):
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[2K{text}")
            sys.stderr.flush()


def progress_text(seconds: float, now: float) -> str:
    """``pricing plans, 34%, 12 s, about 23 s left``, ``now`` being a time of `time.perf_counter`."""
    words = [activity.words or "working"]
    left_s = None if activity.end is None else max(activity.end - now, 0.0)
    if activity.total and activity.end is None:
        words.append(f"{activity.done / activity.total:.0%}")
        left_s = (now - activity.begin) * (activity.total / activity.done - 1) if activity.done else None
    words.append(f"{seconds:.0f} s")
    if left_s is not None:
        words.append(f"{'about' if activity.end is None else 'at most'} {left_s:.0f} s left")
    return ", ".join(words)


def parse_sets(words: list[str] | None, *, field: str = "--set", name: str = "FIELD", near: str = "") -> dict[str, str]:
    """``["num_heads=20"]`` -> ``{"num_heads": "20"}``."""
    out: dict[str, str] = {}
    for word in words or ():
        key, sign, value = word.partition("=")
        if not sign or not key.strip() or not value.strip():
            raise InputError(field, word, f"must read {name}=VALUE", near or "--set num_heads=32")
        if out.setdefault(key.strip(), value.strip()) != value.strip():
            raise InputError(field, word, f"{key.strip()} is already {out[key.strip()]}")
    return out


def parse_fix(words: list[str] | None, option: str = "--fix") -> dict[str, str]:
    """``["tp=8,pp=4", "recompute=none"]`` -> ``{"tp": "8", "pp": "4", "recompute": "none"}``."""
    pairs = [word.strip() for word in ",".join(words or ()).split(",") if word.strip()]
    return parse_sets(pairs, field=option, name="KEY", near=f"{option} tp=8,pp=4")


def words_of(text: str | None) -> tuple[str, ...]:
    """``"none, full"`` -> ``("none", "full")``."""
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())


def write_page(path: Path, page: str) -> None:
    """Write an HTML page, and say so."""
    from sartor.files import write_atomic

    write_atomic(path, page.encode())
    say(f"wrote {path}")


def write_figures(folder: Path, records: JsonMap) -> None:
    """Write each record's figure as a PNG, and say so."""
    from sartor.report.figures import export_pngs

    for path in export_pngs(records, folder):
        say(f"wrote {path}")


def answer(command: str, body: JsonDict | Callable[[], JsonDict], *, as_json: bool, out: Path | None) -> None:
    """Write a command's JSON, or what a function makes of it: to stdout with ``--json``, to a file with ``--out``."""
    if not (as_json or out):
        return
    text = envelope(command, body() if callable(body) else body)
    if out:
        from sartor.files import write_atomic

        write_atomic(out, text.encode(), field="--out")
    if as_json:
        _write_line("")
        with patient():  # write the object whole
            sys.stdout.write(text)
            sys.stdout.flush()


def complain(error: InputError, command: str) -> None:
    """Print one sentence on stderr."""
    say(" ".join(f"sartor: {error}".split("\n")))


def console() -> Console:
    """The terminal, at most ``WIDEST`` (or ``COLUMNS``) columns wide; plain text if it is not a terminal. Markup and
    control characters in files and names are printed, not interpreted."""
    from rich.console import Console
    from rich.segment import Segment

    class Plain(Console):
        """Escapes text at the one place that all output passes; sartor's own styles are applied later."""

        def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
            for segment in super().render(renderable, options):
                if segment.control or visible(segment.text) == segment.text:
                    yield segment
                else:
                    yield Segment(visible(segment.text), segment.style)

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would exit with 1

    probe = Console()
    told = os.environ.get("COLUMNS", "").isdecimal() or probe.is_terminal
    width = max(NARROWEST, min(probe.width, WIDEST)) if told else USUAL
    return Plain(width=width, soft_wrap=False, highlight=False, markup=False, emoji=False)


NARROWEST, USUAL, WIDEST = 40, 100, 140
"""Columns of printed text."""


def say(text: str) -> None:
    """Print a note on stderr."""
    _write_line("")
    print(visible(text), file=sys.stderr)


def show(renderable: object) -> None:
    """Print to the terminal."""
    _write_line("")
    console().print(renderable)


_KEY = "sartor.outputs"


def declare(context: typer.Context, option: str, path: Path) -> None:
    """Note that ``option`` names a file to be written; `check_outputs` compares it once all words are parsed."""
    context.meta.setdefault(_KEY, {})[option] = path


class _Converted:
    """Commands whose options are converted late."""

    def get_params(self, ctx: Any) -> Any:
        """The options, with typer's own for help."""
        params: list[TyperOption] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if not isinstance(param.process_value, partial):
                param.process_value = partial(_process_value, param, param.process_value)  # type: ignore[method-assign]
                param.shell_complete = partial(_completions, param, param.shell_complete)  # type: ignore
        return params


def _completions(
    param: TyperOption, usual: Callable[[typer.Context, str], Sequence[object]], ctx: typer.Context, typed: str
) -> Sequence[object]:
    """What a shell offers at TAB for a value: known words that begin as typed, else typer's own (files)."""
    words = (word for word in _values(param, ctx) if word.startswith(typed))
    return [SimpleNamespace(value=word, type="plain", help=None) for word in words] or usual(ctx, typed)


def _values(param: TyperOption, ctx: typer.Context) -> Sequence[str]:
    """Known values of an option or argument: names of a catalogue, fields, or the words that its metavar lists."""
    from sartor.api.models import catalog_names
    from sartor.model.editing import EDITABLE
    from sartor.operators import DType
    from sartor.run.fields import FIELDS
    from sartor.step.trainers import TRAINERS

    metavar, name = str(param.metavar or ""), str(param.name)
    if shelf := ctx.params.get("what") if (ctx.command.name, name) == ("catalog", "name") else SHELF_OF.get(metavar):
        return catalog_names(shelf) + (catalog_names("gpus") if shelf == "clusters" else [])
    if metavar == "FIELD=VALUE":
        return [f"{field}=" for field in EDITABLE]
    if metavar in ("KEY=VALUE,...", "AXIS=VALUE,..."):
        return [f"{field}=" for field, row in FIELDS.items() if row.axis]
    if name in FIELDS and FIELDS[name].choices:
        return FIELDS[name].choices
    if name == "space":
        from sartor.read.space_file import space_names

        return space_names()
    if name in ("framework", "dtype"):
        return list(TRAINERS) if name == "framework" else [dtype.value for dtype in DType]
    return metavar.split("|") if "|" in metavar and metavar.islower() else ()


SHELF_OF = {"GPU": "gpus", "CLUSTER": "clusters", "MODEL": "models", "MODULE_OR_MODEL": "models", "RULE": "rules"}
"""Catalogues by the metavar of an option that takes their names."""


def _process_value(param: TyperOption, convert: Callable[..., object], ctx: typer.Context, value: object) -> object:
    """The value of an option, converted by typer only if there is something to convert: an option that is left out and
    a value of the right type need none of pydantic, which takes as long to load as the rest of the command line."""
    if value is None and not param.required:
        value = () if param.multiple or param.nargs == -1 else None
    elif not _is_converted(param, value):
        return convert(ctx, value)
    elif isinstance(value, tuple):
        value = list(value)
    return value if param.callback is None else param.callback(ctx, param, value)


def _is_converted(param: TyperOption, value: object) -> bool:
    """Whether a value, or each of a list, already has its option's type, and there are no bounds and no parser."""
    descriptor = getattr(param, "type_descriptor", None)
    if descriptor is None:
        return False
    expected, info = descriptor.annotation, descriptor.parameter_info
    is_several = isinstance(value, list | tuple)
    kinds = {list[type(entry)] for entry in value} if is_several else {type(value)}  # type: ignore[misc,attr-defined]
    return kinds == {expected} and info.min is info.max is None and (info.parser is None or expected is not str)


class Command(_Converted, TyperCommand):
    """A command that takes each subject once, unless it may be repeated, and checks its output files before it runs."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        if not ctx.resilient_parsing:  # a shell completes what will be typed
            _refuse_repeated(self.params, args)  # type: ignore[arg-type]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        check_outputs(ctx)
        if self.name == "page":  # works until it is stopped
            return super().invoke(ctx)
        with progress_line():
            return super().invoke(ctx)

    def format_help(self, *places: Any) -> None:
        from typer import rich_utils

        table = vars(rich_utils)["Table"]
        try:
            vars(rich_utils)["Table"] = _options_table()
            super().format_help(*places)
        finally:
            vars(rich_utils)["Table"] = table


def _options_table() -> type[Table]:
    """The table of a help page: all names of an option below each other, none cut; then its value, and its help."""
    from rich.table import Table
    from rich.text import Text

    class WholeNames(Table):
        def add_row(self, *cells: Text, **style: bool) -> None:  # type: ignore[override]
            *required, long, short, no_long, no_short, value, words = cells
            if not self.columns:
                for _ in (*required, "names"):
                    self.add_column(no_wrap=True)
            cells_of_names = (long, short, no_long, no_short)
            names = Text("\n").join(name for cell in cells_of_names if cell.plain for name in cell.split(","))
            super().add_row(*required, names, value, words)

    return WholeNames


class Commands(_Converted, TyperGroup):
    """A group of commands."""


SUBJECTS = ("--gpu", "--cluster", "--framework")
"""Options that name what is priced; two of them are two questions."""


def _refuse_repeated(params: Sequence[TyperOption], words: Sequence[str]) -> None:
    """Raise ``InputError`` for a subject that stands twice, with different values, but is taken once; of other options
    the last counts, so that a command can be extended."""
    for param in params:
        if getattr(param, "multiple", False):
            continue
        flags = [flag for flag in param.opts if flag in SUBJECTS]
        values = [
            word.partition("=")[2] if "=" in word else next(iter(words[i + 1 : i + 2]), "")
            for i, word in enumerate(words)
            if any(word == flag or word.startswith(f"{flag}=") for flag in flags)
        ]
        if len(set(values)) > 1:
            raise InputError(flags[0], " and ".join(values), "is taken once; leave one out", values[0])


def check_outputs(context: typer.Context) -> None:
    """Raise ``InputError`` if an output file is also an input (model, GPU, calibration, ...) or another output."""
    outputs: dict[str, Path] = context.meta.get(_KEY, {})
    if not outputs:
        return
    named = {param.name: max(param.opts, key=len) for param in context.command.params}
    for option, path in outputs.items():
        for name, value in context.params.items():
            other = named.get(name, name)
            written = other in outputs
            if other != option and any(_are_same(path, each, written=written) for each in _files(value)):
                does = "also writes" if written else "reads"
                by = other if other.startswith("-") else f"the argument {other.upper()}"
                raise InputError(option, str(path), f"is the file that {by} {does}; must be another file")


def _files(value: Any) -> Iterator[str]:
    """Every path that an option's value may name: each of several, with or without commas; of a folder its config."""
    if isinstance(value, list | tuple):
        for each in value:
            yield from _files(each)
    elif isinstance(value, str | Path) and str(value):
        yield from (str(value), os.path.join(value, "config.json"))  # noqa: PTH118
        if "," in str(value):
            yield from str(value).split(",")


def _are_same(output: Path, other: str, *, written: bool) -> bool:
    """Whether two names lead to one regular file; of two that are written, also to one that does not exist yet."""
    try:
        if output.exists():
            return output.is_file() and output.samefile(other)
        return written and os.path.realpath(output) == os.path.realpath(other)
    except (OSError, ValueError):
        return False
