"""Every `sartor` command that a page shows: its options are known, and in the long run (`make long`) it answers.

What a page shows of a command's output is compared in test_docs.py. Files that a reader has and the repository has not
(`config.json`, `gemms.csv`, ...) are stood in for.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from effort import LONG
from fuzz.readers import READERS
from sartor.cli import app, run

REPO = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = [REPO / "README.md", REPO / "examples" / "README.md", *sorted((REPO / "docs").rglob("*.md"))]
ELSEWHERE = {
    r"^sartor (page|serve)\b": "serves until it is stopped: tests/web",
    r"^sartor (extract|measure)\b": "wants torch: make test-torch",
    r"tcp://first-host": "wants a cluster: tests/engine/test_executors.py",
    r"diagnose torchtitan.log": "reads a log of two runs: tests/traces",
    r"--num-devices 1024 .*--study gpt3.db": "takes hours",
    r"records\.csv|my-calibration\.toml|\bllama\.json|mine\.json|end_to_end/|measured/|gemm\.parquet": "reads what "
    "another command of its page, or the reader, measured: tests/validate",
}
"""Commands that are only checked for their options, and where they run."""


def commands() -> Iterator[tuple[str, str]]:
    """The page and each of its `sartor` commands."""
    for page in PAGES:
        for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
            for line in block[2].replace("\\\n", " ").splitlines() if block[1] in {"", "bash", "console"} else ():
                command = line.removeprefix("$ ").strip()
                if re.match(r"sartor [a-z]", command) and "..." not in command:
                    yield str(page.relative_to(REPO)), " ".join(shlex.split(command, comments=True))


ALL = list(dict.fromkeys(commands()))
TOOL = typer.main.get_command(app)


@pytest.mark.parametrize(("page", "command"), ALL, ids=[f"{page}: {command}" for page, command in ALL])
def test_a_command_of_a_page_names_options_that_there_are(page: str, command: str) -> None:
    tool = TOOL
    words = shlex.split(command)[1:]
    while hasattr(tool, "commands") and words and words[0] in tool.commands:
        tool = tool.commands[words.pop(0)]
    options = {name for parameter in tool.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert not {word.partition("=")[0] for word in words if word.startswith("--")} - options


@pytest.mark.skipif(not LONG, reason="two minutes: a part of `make long`")
@pytest.mark.parametrize(("page", "command"), ALL, ids=[f"{page}: {command}" for page, command in ALL])
def test_a_command_of_a_page_answers(page: str, command: str, reader: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if any(re.search(pattern, command) for pattern in ELSEWHERE):
        return
    monkeypatch.chdir(reader)
    err = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
        code = run(shlex.split(command)[1:])
    assert code in {0, 1, 3}, err.getvalue()


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the examples and the files that a reader of the pages has."""
    folder = tmp_path_factory.mktemp("reader")
    shutil.copytree(REPO / "examples", folder / "examples")
    config = (REPO / "examples" / "pythia-2.8b" / "config.json").read_bytes()
    launch, run_log = READERS["megatron"].files()[0], READERS["log"].files()[0]
    trace = (REPO / "examples" / "gpt2" / "trace.json.gz").read_bytes()
    training, records = READERS["training"].files()[0], READERS["measured"].files()[0]
    files = {
        **dict.fromkeys(
            ("config.json", "my/config.json", "path/to/config.json", "configs/my-model/config.json"), config
        ),
        "my_gpu.toml": READERS["gpu"].files()[0],
        "h100.toml": READERS["calibration"].files()[0].replace(b"h200_sxm", b"h100_sxm"),
        "run.sh": launch,
        "train.toml": b"[training]\nlocal_batch_size = 1\nseq_len = 4096\n[parallelism]\ntensor_parallel_degree = 8\n",
        **dict.fromkeys(("torchtitan.log", "baseline.log", "today.log"), run_log),
        **dict.fromkeys(("before.json.gz", "after.json.gz"), trace),
        **dict.fromkeys(("runs.csv", "rows.csv"), training),
        "my.csv": records,
        "gemms.csv": READERS["records"].files()[0],
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder
