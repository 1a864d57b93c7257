"""The ``sartor`` command line.

One module per group of commands; ``main`` turns every outcome into the contract's exit code: 0 answered, 1 a
check failed, 2 unusable input (one sentence on stderr), 3 nothing feasible, 130 interrupted.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import typer

from sartor.cli.common import Exit, complain
from sartor.errors import InputError, InternalError, UsageError

if TYPE_CHECKING:
    app: typer.Typer
    """The application with every command, made when first needed."""

GROUPS = {
    "decide": ("lint", "advise"),
    "plan": ("plan",),
    "design": ("design",),
    "study": ("study",),
    "predict": ("estimate", "gemm", "collective"),
    "solve": ("place",),
    "schedule": ("schedule",),
    "validate": ("validate",),
    "calibrate": ("calibrate",),
    "measure": ("measure",),
    "extract": ("extract",),
    "catalog": ("catalog",),
    "serve": ("serve",),
}
"""Modules of this package and their commands, in the order of the help. Only the module of the requested command is
loaded."""


@cache
def app_with(*modules: str) -> typer.Typer:
    """The command line with the commands of some modules."""
    found = typer.Typer(
        name="sartor",
        help="Fit a model's shape to the hardware, the hardware to the model, and the training plan to both.",
        no_args_is_help=True,
        add_completion=True,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    found.callback()(_root)
    for module in modules:
        import_module(f"sartor.cli.{module}").register(found)
    return found


def app_for(words: Sequence[str]) -> typer.Typer:
    """The commands to load for a command line: its own, or all if it names none."""
    named = [module for module, commands in GROUPS.items() if words and words[0] in commands]
    return app_with(*(named or GROUPS))


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


# typer bundles click; its exception classes are reached through the ones typer exports.
_UsageError: Any = typer.BadParameter.__base__


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with the contract's code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(run(words))


INTERNAL = 70
"""Exit code of an error of sartor's own (EX_SOFTWARE of sysexits.h)."""


def run(words: list[str]) -> int:
    """Run one command line and return its exit code; only unexpected failures show a traceback."""
    as_json = "--json" in words
    try:
        result = app_for(words)(args=words, prog_name="sartor", standalone_mode=False)
        return int(result) if isinstance(result, int) else 0
    except Exit as exit_:
        return exit_.code
    except InputError as error:
        complain(error, as_json=as_json, command=_command(words))
        return 2
    except _UsageError as error:
        if not error.format_message().strip():  # asked for nothing: the help has been printed in answer
            return 2 if words else 0
        complain(_from_usage(error), as_json=as_json, command=_command(words))
        return 2
    except typer.Exit as exit_:
        return int(exit_.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted()
    except BrokenPipeError:
        _hush_stdout()  # the reader (head, less) has gone: nobody is left to tell
        return 0
    except Exception as error:
        if _of_an_interrupt(error):
            return _interrupted()
        of_machine = _machines(error)
        complain(of_machine or _internal_error(error), as_json=as_json, command=_command(words))
        return 2 if of_machine else INTERNAL


def _machines(error: Exception) -> InputError | None:
    """Errors of the machine, not of the program: no memory, no disk space."""
    if isinstance(error, MemoryError):
        return InputError("input", "as given", "needs more memory than this machine has; try a smaller problem")
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        if not error.filename:
            _hush_stdout()
        return InputError("output", error.filename or "stdout", "must have room: the disk is full")
    return None


def _hush_stdout() -> None:
    """Discard further output to a closed stream, including the final flush."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _internal_error(error: Exception) -> InputError:
    """The message for an internal error, or the traceback with SARTOR_DEBUG=1."""
    if os.environ.get("SARTOR_DEBUG"):
        raise error
    sentence = " ".join(str(error).split())[:200]
    return InternalError(
        "sartor",
        f"internal error (please report): {type(error).__name__}: {sentence}; SARTOR_DEBUG=1 shows the traceback",
    )


def _interrupted() -> int:
    print("interrupted", file=sys.stderr)
    return 128 + signal.SIGINT


def _of_an_interrupt(error: BaseException | None) -> bool:
    """Whether an error comes from Ctrl-C: while C code is loaded, it becomes a ``SystemError``."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


def _command(words: list[str]) -> str:
    return next((word for word in words if not word.startswith("-")), "sartor")


def _from_usage(error: Any) -> InputError:
    """A parser error as one sentence."""
    field = getattr(error, "option_name", None) or getattr(getattr(error, "param", None), "name", None)
    possibilities = ", ".join(getattr(error, "possibilities", None) or ())
    message = " ".join(str(error.format_message()).split()).rstrip(".").split(" (Possible options")[0]
    return UsageError(field or "command line", message, possibilities)
