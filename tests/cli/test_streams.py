"""What a command's output meets: a full disk, a reader who has gone, no stdout at all, names that would be obeyed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sartor.cli import common, run

FULL = Path("/dev/full")
WORDS = ["gemm", "512", "512", "512", "--gpu", "a100"]
BOTH = pytest.mark.parametrize("as_json", [[], ["--json"]], ids=["people", "json"])


def sartor(shell: str, *words: str) -> subprocess.CompletedProcess[str]:
    """A command line run by bash, where ``"$@"`` stands for the words."""
    command = ["bash", "-c", f'set -o pipefail; "$@" {shell}', "bash", sys.executable, "-m", "sartor", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.skipif(not FULL.exists(), reason="only Linux has a device that is always full")
@BOTH
def test_a_full_disk_is_said_in_one_sentence(as_json: list[str]) -> None:
    ran = sartor("> /dev/full", *WORDS, *as_json)
    assert (ran.returncode, ran.stderr) == (2, "sartor: output=stdout: must have room: the disk is full\n")


@BOTH
def test_a_closed_stdout_is_said_in_one_sentence(as_json: list[str]) -> None:
    ran = sartor(">&-", *WORDS, *as_json)
    assert (ran.returncode, ran.stderr) == (2, "sartor: output=stdout: must be open\n")


def test_a_closed_stderr_changes_nothing() -> None:
    ran = sartor("2>&-", *WORDS, "--json")
    assert ran.returncode == 0
    assert json.loads(ran.stdout)["schema"] == "sartor/gemm/1"
    assert sartor("2>&-", "gemm", "0", "1", "1", "--gpu", "a100").returncode == 2


@BOTH
def test_a_reader_who_has_gone_ends_it_as_any_filter_without_a_word(as_json: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    words = [sys.executable, "-m", "sartor", *WORDS, *as_json]
    ran = subprocess.run(words, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (ran.returncode, ran.stderr) == (141, b"")


def test_an_error_of_our_own_is_70_with_the_command_to_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no\x1b[31m good")

    monkeypatch.setattr(common, "answer", broken)
    for debug in (False, True):
        monkeypatch.setenv("SARTOR_DEBUG", "1" if debug else "")
        assert run([*WORDS, "--json"]) == 70
        out, err = capsys.readouterr()
        assert "please report it with this command: sartor gemm 512 512 512 --gpu a100 --json" in err
        assert "\x1b" not in err.splitlines()[-1]
        assert ("Traceback" in err) == debug
        assert json.loads(out)["error"]["internal"] is True


def test_an_exit_of_foreign_code_is_an_error_of_our_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(common, "answer", lambda *_, **__: sys.exit(3))
    assert run([*WORDS, "--json"]) == 70


def test_a_module_that_is_extracted_prints_to_stderr_and_cannot_choose_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def noisy(*_: object, **__: object) -> None:
        print("from Python")
        os.write(1, b"from C\n")
        sys.exit(3)

    monkeypatch.setattr("sartor.read.extract.extract", noisy)
    assert run(["extract", "my.module:make", "--json"]) == 2
    out, err = capfd.readouterr()
    assert json.loads(out)["error"]["field"] == "MODULE_OR_MODEL"
    assert "from Python" in err
    assert "from C" in err
    assert "it ends the program (SystemExit(3))" in err


ESCAPES = "\x1b[31mred\x1b]0;title\x07\u202e[bold]b[/bold]"


@pytest.mark.parametrize("place", ["key of a GPU", "schedule id", "path", "name of a GPU"])
def test_what_a_name_says_is_shown_and_not_obeyed(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    words = {
        "key of a GPU": lambda: ["gemm", "8", "8", "8", "--gpu", _gpu(tmp_path, key='"a\\u001b[31mb"')],
        "name of a GPU": lambda: ["gemm", "8", "8", "8", "--gpu", _gpu(tmp_path, name="A\\u001b[31m[bold]b")],
        "schedule id": lambda: ["schedule", _instance(tmp_path), "--time-limit", "0", "--verbose"],
        "path": lambda: ["estimate", ESCAPES[:20], "--gpu", "a100"],
    }[place]()
    run(words)
    out, err = capsys.readouterr()
    own = out.replace("\x1b[", "")  # rich's own styles begin like this
    assert "\x1b[31m" not in out + err
    assert not set(own + err) & set("\x1b\x07\u202e\x9b")
    assert ("[bold]" if place == "name of a GPU" else "\\x1b") in out + err


def _gpu(folder: Path, key: str = "", name: str = "mine") -> str:
    text = (Path(__file__).parents[2] / "src/sartor/hardware/datasheets/a100_sxm.toml").read_text()
    path = folder / "gpu.toml"
    path.write_text((f"{key} = 1\n" if key else "") + text.replace('name = "a100_sxm"', f'name = "{name}"'))
    return str(path)


def _instance(folder: Path) -> str:
    ops = [{"id": f"{k}{ESCAPES}", "type": "TC", "latency": 1, "intra_latency": 1} for k in range(3)]
    path = folder / "i.json"
    path.write_text(json.dumps({"num_tc": 1, "num_vc": 1, "ops": ops, "edges": []}))
    return os.fspath(path)


def test_a_name_that_a_terminal_cannot_show_is_printed_with_escapes(tmp_path: Path, repo_dir: Path) -> None:
    (tmp_path / "modèle").mkdir()
    config = (repo_dir / "examples" / "llama-3-8b" / "config.json").read_text()
    (tmp_path / "modèle" / "config.json").write_text(config)
    words = [sys.executable, "-m", "sartor", "estimate", str(tmp_path / "modèle"), "--gpu", "h100"]
    ran = subprocess.run(words, capture_output=True, env=os.environ | {"PYTHONIOENCODING": "ascii"}, check=False)
    assert ran.returncode in (0, 3), ran.stderr
    assert b"mod\\xe8le on " in ran.stdout
