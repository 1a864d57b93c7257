"""The ``sartor`` command line.

One module per group of commands; ``main`` turns every outcome into an exit code: 0 success, 1 a check failed, 2
unusable input (one sentence on stderr), 3 nothing feasible, 70 internal error, 130 interrupted, 141 the reader of a
pipe has gone.
"""

from __future__ import annotations

import errno
import gc
import io
import os
import re
import shlex
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import typer

from sartor.cli.common import Command, Commands, Exit, complain, say
from sartor.errors import NOT_GIVEN, InputError, InternalError, UsageError
from sartor.interrupts import deaf, listen, point
from sartor.json_types import envelope

if TYPE_CHECKING:
    app: typer.Typer
    """The application with every command, made when first needed."""

GROUPS = {
    "decide": ("advise", "lint"),
    "plan": ("plan", "place", "schedule"),
    "design": ("design", "study"),
    "predict": ("estimate", "gemm", "collective", "operators", "serving", "deploy"),
    "diagnose": ("diagnose", "compare"),
    "validate": ("validate",),
    "calibrate": ("calibrate",),
    "measure": ("measure",),
    "extract": ("extract", "catalog", "schema"),
    "page": ("page",),
}
"""Modules of this package and their commands (or the group of that name), in the order of the help. Only the requested
command's module is loaded."""


FORMER = {"serve": "page"}
"""Old names of commands, which still work."""


@cache
def app_with(*modules: str, only: str = "") -> typer.Typer:
    """A command line app with the commands of the given modules, or ``only`` one: options of others take time too."""
    found = typer.Typer(
        name="sartor",
        cls=Commands,
        help="Fit a model's shape to the hardware, the hardware to the model, and the training plan to both.\n\n"
        "Example: sartor advise llama-3-8b --gpu h100",
        no_args_is_help=True,
        add_completion=True,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    found.callback()(_root)
    for module in modules:
        loaded = import_module(f"sartor.cli.{module}")
        if group := getattr(loaded, "group", None):
            found.add_typer(group, name=module)
        else:
            for command in (only,) if only else GROUPS[module]:
                found.command()(getattr(loaded, command))
    for app in (found, *(group.typer_instance for group in found.registered_groups)):
        for registered in app.registered_commands if app else ():
            registered.cls = Command
    return found


def app_for(words: Sequence[str]) -> typer.Typer:
    """The app for a command line: with its command, or with all if it names none."""
    named = [module for module, commands in GROUPS.items() if words and words[0] in commands]
    return app_with(*named, only=words[0]) if named else app_with(*GROUPS)


def __getattr__(name: str) -> Any:
    if name == "app":
        return app_with(*GROUPS)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _print_version(wanted: bool) -> None:
    if wanted:
        from sartor import __version__

        print(f"sartor {__version__}")
        raise typer.Exit


def _root(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Root of the command line; see the commands below."""


# typer bundles click; its exception classes are only reachable through those that typer exports.
_UsageError: Any = typer.BadParameter.__base__


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    _fill_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that cannot show a letter of a name gets its escape
            stream.reconfigure(errors="backslashreplace")
    listen()
    gc.set_threshold(10_000, 10, 10)  # as often as Python does it, looking for cycles takes 6% of a command
    warnings.showwarning = lambda message, *_: say(f"sartor: {message}")
    code = run(list(sys.argv[1:] if arguments is None else arguments))
    deaf()  # everything is printed; do not interrupt Python's shutdown
    sys.exit(code)


INTERNAL = 70
"""Exit code of an internal error (EX_SOFTWARE of sysexits.h)."""
COMPLETING = "_SARTOR_COMPLETE"
"""Set by a shell that asks for completions."""
INTERRUPTED = 128 + signal.SIGINT
GONE = 128 + 13
"""Exit code if the reader of stdout has gone: 128 + SIGPIPE, as shells report for any filter ended by a pipe. Never 1,
which would mean a finding."""


def run(words: list[str]) -> int:
    """Run one command line and return its exit code, after flushing all output."""
    if words and (name := FORMER.get(words[0])):
        say(f"sartor: `sartor {words[0]}` is now `sartor {name}` (to price a served model: `serving`, `deploy`)")
        words = [name, *words[1:]]
    try:
        _refuse_empty(words)
        code = _code(words)
        sys.stdout.flush()
        if code != INTERRUPTED:
            point()  # for a Ctrl-C that came too late to stop anything
        return code
    except InputError as error:
        return _complain(_as_typed(error, words), 2, words)
    except _UsageError as error:
        if not error.format_message().strip():  # no arguments: the help has been printed
            return 2 if words else 0
        return _complain(_from_usage(error), 2, words)
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted()
    except (Exception, SystemExit) as error:
        if _comes_from(error, KeyboardInterrupt):  # C code that is being loaded turns it into a SystemError
            return _interrupted()
        if _comes_from(error, BrokenPipeError):  # typer turns it into an exit with 1
            _hush(sys.__stdout__)  # nobody reads any more
            return GONE
        if isinstance(error, SystemExit) and (not error.code or COMPLETING in os.environ):
            return int(bool(error.code))  # typer has answered a shell at TAB, or printed its script
        of_machine = _machines(error)
        if of_machine:
            return _complain(of_machine, 2, words)
        return _complain(_internal_error(error, words), INTERNAL, words)


def _refuse_empty(words: list[str]) -> None:
    """Raise ``InputError`` for an empty word: a variable of the shell that is not set must not become a default."""
    for before, word in zip(("", *words), words, strict=False):
        if not word.strip() or (word.startswith("--") and word.endswith("=")):
            field = (
                word.rstrip("=") if word.strip() else before if before.startswith("-") else f"the word after {before}"
            )
            raise InputError(field, "''", "is empty: give it a value, or leave it out")


_parser = cache(typer.main.get_command)  # an app that is called builds it anew, as long as a refused file takes


def _code(words: list[str]) -> int:
    """The exit code of a command that ended without an error."""
    try:
        result = _parser(app_for(words))(args=words, prog_name="sartor", standalone_mode=False)
    except Exit as exit_:
        return exit_.code
    except typer.Exit as exit_:
        result = exit_.exit_code
    if result == INTERRUPTED:  # typer has caught the interrupt
        raise KeyboardInterrupt
    return int(result) if isinstance(result, int) else 0


def _as_typed(error: InputError, words: list[str]) -> InputError:
    """The error with flags instead of argument names, if it is about an option that was typed or is missing."""
    name, *rest = error.field.split(" ")
    flag = ARGUMENT_FLAGS.get(name, f"--{name.replace('_', '-')}")
    typed = error.value == NOT_GIVEN or any(word == flag or word.startswith(f"{flag}=") for word in words)
    if not (typed and name.isidentifier() and name.islower() and type(error) is InputError):
        return error
    must, nearest = (_SIZES.sub(lambda m: f"--{m[0].replace('_', '-')}", text) for text in (error.must, error.nearest))
    return InputError(" ".join([flag, *rest]), error.value, must, nearest)


_SIZES = re.compile(r"\b(num_devices|global_batch_size)\b")
"""Arguments that errors from elsewhere name, and which are not keys of ``--fix`` or ``--set``."""


ARGUMENT_FLAGS = {"trainer": "--write", "folder": "--write"}
"""Flags that are not named after the Python API's arguments."""


def _complain(error: InputError, code: int, words: list[str]) -> int:
    """Print the error, if the streams still take output, and return the exit code."""
    command = next((word for word in words if not word.startswith("-")), "sartor")
    for stream, speak in ((sys.stderr, complain), (sys.stdout, _complain_json)):
        if stream is sys.stderr or "--json" in words:
            try:
                speak(error, command)
                stream.flush()
            except OSError:
                _hush(stream)
    return code


def _complain_json(error: InputError, command: str) -> None:
    """Print the error object on stdout."""
    sys.stdout.write(envelope(command if command.isidentifier() else "sartor", {"error": error.to_dict()}))


def _machines(error: BaseException) -> InputError | None:
    """An error for a failure of the machine (no memory, disk space or stdout); None if it is not one."""
    if isinstance(error, MemoryError):
        return InputError("input", "as given", "needs more memory than this machine has; try a smaller problem")
    if not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EBADF):
        return None
    if not error.filename:
        _hush(sys.stdout)
    must = "must be open" if error.errno == errno.EBADF else "must have room: the disk is full"
    return InputError("output", error.filename or "stdout", must)


def _fill_streams() -> None:
    """Replace closed streams, so that the next opened file does not get their number and output: writing to stdout then
    fails, and stderr goes nowhere."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            handle = os.open(os.devnull, os.O_WRONLY if name == "stderr" else os.O_RDONLY)
            setattr(sys, name, open(handle, "r" if name == "stdin" else "w"))  # noqa: SIM115, PTH123
            assert handle == number, f"{name} is closed, and {handle} is the first free number"


def _hush(stream: Any) -> None:
    """Discard further output to a broken stream, including the final flush."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _internal_error(error: BaseException, words: list[str]) -> InputError:
    """The error to report; the traceback goes to stderr with SARTOR_DEBUG=1."""
    if os.environ.get("SARTOR_DEBUG"):
        traceback.print_exception(error)
    sentence = " ".join(str(error).split())[:200]
    asked = shlex.join(["sartor", *words])[:500]
    return InternalError(
        "sartor",
        f"internal error (please report it with this command: {asked}): {type(error).__name__}: {sentence}; "
        "SARTOR_DEBUG=1 shows the traceback",
    )


def _interrupted() -> int:
    with suppress(OSError):
        say("interrupted")
    return INTERRUPTED


def _comes_from(error: BaseException | None, kind: type[BaseException]) -> bool:
    """Whether an error is of a kind, or was raised while handling one."""
    while error is not None:
        if isinstance(error, kind):
            return True
        error = error.__cause__ or error.__context__
    return False


OTHER_WORDS = {
    "--gpu": "--cluster (a GPU's name is one too)",
    "--gpus": "--num-devices", "--world-size": "--num-devices", "--chips": "--num-devices",
    "--nodes": "--num-devices", "--precision": "--dtype", "--recipe": "--dtype", "--quantization": "--dtype",
    "--fp8": "--dtype", "--bf16": "--dtype", "--fp16": "--dtype", "--fp4": "--dtype", "--batch": "--microbatch-size",
    "--batch-size": "--microbatch-size", "--micro-batch-size": "--microbatch-size", "--sequence-length": "--seq-len",
    "--rate": "--concurrency", "--users": "--concurrency", "--framework": "--kernels", "--engine": "--kernels",
    "--global-batch-size": "--concurrency", "--microbatch-size": "--concurrency", "--cluster": "--gpu",
}  # fmt: skip
"""Options of other commands and tools, with ours of the same meaning but different spelling."""


def _meant(error: Any, option: str) -> str:
    """The command's name for an unknown option: another option, or an axis of ``--fix``; empty if there is none."""
    if error.ctx is None:
        return ""
    params = error.ctx.command.params
    has = {word for param in params for word in param.opts if word.startswith("-")}
    if not option:
        return "--model" if "--model" in has and "extra argument" in error.format_message() else ""
    axis = option.lstrip("-").replace("-", "_")
    if "--fix" in has and axis in import_module("sartor.model.plan").AXES:
        return f"--fix {axis}=VALUE"
    if axis in {param.name for param in params if param.param_type_name == "argument"}:
        return f"the argument {axis.upper()}, without {option}"
    meant = OTHER_WORDS.get(option, "")
    return meant if meant.partition(" ")[0] in has else ""


def _from_usage(error: Any) -> InputError:
    """A parser error as one sentence."""
    field = getattr(error, "option_name", None) or getattr(getattr(error, "param", None), "name", None)
    if meant := _meant(error, str(getattr(error, "option_name", ""))):
        unknown = f"No such option: {field}" if field else error.format_message().rstrip(".")
        return UsageError(field or "command line", unknown, meant)
    if re.fullmatch(r"-[0-9.]", str(field)):
        return UsageError(str(field), f"No such option: {field} (sizes must be at least 1)")
    possibilities = ", ".join(getattr(error, "possibilities", None) or ())
    message = " ".join(str(error.format_message()).split()).rstrip(".").split(" (Possible options")[0]
    message = message.replace("Input should be a valid number, unable to parse string as a number", "must be a number")
    if "Missing option '--data'" in message:
        message += ", a folder or file of measurements of your own (none is shipped; docs/howto/validate.md)"
    message = re.sub(r"'([^']{60})[^']{3,}'", r"'\1...'", message)
    return UsageError(field or "command line", message, possibilities)
