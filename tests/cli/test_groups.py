"""A command is loaded alone; all of them are what their modules register."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sartor.cli import GROUPS, app_for, app_with


def commands(module: str) -> set[str]:
    app = app_with(module)
    named = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    return named | {str(group.name) for group in app.registered_groups}


@pytest.mark.parametrize("module", GROUPS)
def test_every_module_registers_the_commands_it_is_known_by(module: str) -> None:
    assert commands(module) == set(GROUPS[module])


def test_a_word_that_is_no_command_meets_all_of_them() -> None:
    whole = app_with(*GROUPS)
    assert app_for([]) is app_for(["--help"]) is app_for(["plna"]) is whole
    assert app_for(["page", "--help"]) is not whole


def test_serving_waits_for_no_other_command() -> None:
    code = (
        "import sys; from sartor.cli import run; run(['serve', '--port', 'x']); "
        "print([m for m in sys.modules if m.startswith('sartor.cli.') or m in ('numpy', 'starlette')])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.stdout.strip() == "['sartor.cli.common', 'sartor.cli.options', 'sartor.cli.page']"


@pytest.mark.parametrize("command", ["estimate", "lint", "advise"])
def test_a_question_loads_no_figures_and_no_other_room(command: str) -> None:
    code = (
        f"import sys, numpy; first = {{*sys.modules}}; from sartor.cli import run; run(['{command}', 'gpt2']); "
        "names = ('sartor', 'numpy', 'pydantic', 'altair', 'yaml'); "
        "print(*(m for m in sys.modules.keys() - first if m.partition('.')[0] in names))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    loaded = ran.stdout.splitlines()[-1].split()
    drawing = tuple(f"sartor.report.{name}" for name in ("figures", "charts", "page", "frame", "palette", "draw_"))
    unused = ("pydantic", "altair", "yaml", "numpy.ma.", "sartor.web", "sartor.launch", "sartor.traces", "sartor.read")
    others = (
        "sartor.cost.chip",
        "sartor.api.grids",
        "sartor.plans.grid",
        "sartor.model.traced",
        "sartor.answers.serving",
    )
    assert not [module for module in loaded if module.startswith((*drawing, *unused, *others))]
    assert len([module for module in loaded if module.startswith("sartor")]) < 195, loaded
