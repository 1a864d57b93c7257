"""The OpenAPI document is a true one: a fuzzer that knows nothing but it finds no 5xx and no answer it does not say."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from effort import LONG, times
from sartor.launch.plan import WRITTEN
from sartor.run.fields import TrainingOptions
from sartor.web.openapi import openapi
from sartor.web.routes import ROUTES, route_named

KEPT = "positive_data_acceptance"
"""Not asked for: what fits a schema may still be a model there is not, and is then refused with a sentence."""

SAME_BODY = ("/api/plan", "/api/plan/figures", "/api/plan/trace", "/api/plan/launch")
"""Questions that read the body of /api/plan/why; every value of every field is tried on that one alone."""

SAME_SHAPE = tuple(f"/api/{name}" for name in ("advise", "compare", "lint", "report", "sweep"))
"""Questions that read a shape as /api/shape and /api/estimate do: every value is tried on them in the long run."""


@pytest.mark.slow
def test_schemathesis_finds_nothing_to_complain_of(server: Any, tmp_path: Path) -> None:
    if importlib.util.find_spec("schemathesis") is None:
        pytest.skip("schemathesis is not installed")
    every = f"{len(ROUTES) + 1}/{len(ROUTES) + 1}"  # every question, and /health
    assert every in _schemathesis(server, tmp_path, "examples,fuzzing", "--max-examples", str(times(3, 100)))
    left_out = SAME_BODY if LONG else (*SAME_BODY, *SAME_SHAPE)
    assert f"{len(ROUTES) + 1 - len(left_out)}/" in _schemathesis(
        server, tmp_path, "coverage", *(word for path in left_out for word in ("--exclude-path", path))
    )


def _schemathesis(server: Any, folder: Path, phases: str, *words: str) -> str:
    """What it printed; every answer must have passed."""
    kept = ["--exclude-checks", KEPT, "--request-timeout", "60", "--no-color", "--seed", "2"]
    command = [sys.executable, "-W", "ignore", "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json"]
    asked = [*command, "--generation-database", "none", "--phases", phases, *kept, *words]
    ran = subprocess.run(asked, capture_output=True, text=True, timeout=1800, cwd=folder)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-2000:]
    return ran.stdout


def test_every_operation_has_an_identifier_of_its_own_and_says_how_it_refuses() -> None:
    operations = [operation for path in openapi()["paths"].values() for operation in path.values()]
    names = [operation["operationId"] for operation in operations]
    assert len(set(names)) == len(names)
    for operation in operations:
        if operation["operationId"] != "health":
            assert {"200", "422", "429", "default"} <= set(operation["responses"])


def test_the_page_of_the_documentation_is_the_table_of_routes(repo_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(repo_dir / "tools")
    tool = importlib.import_module("http_docs")
    assert (repo_dir / "docs" / "http-api.md").read_text(encoding="utf-8") == tool.page()


def test_launch_files_are_offered_for_every_trainer_there_is() -> None:
    (route,) = (route for route in ROUTES if route.name == "plan_launch")
    (field,) = (field for field in route.fields if field.name == "trainer")
    assert field.words == tuple(kind.value for kind in WRITTEN)


@pytest.mark.parametrize("name", ["estimate", "lint", "advise", "plan", "shape", "sweep", "compare", "report"])
def test_a_question_about_a_run_takes_every_field_of_a_training_run(name: str) -> None:
    assert {*TrainingOptions.__annotations__} <= {field.name for field in route_named(name).fields}
