"""Files without end, deep or long beyond reason: one sentence each, before anything is parsed or built."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sartor.bounded import MAX_CSV_BYTES, MAX_TOML_BYTES, parse_json, parse_toml, read_csv
from sartor.errors import InputError
from sartor.hardware.catalog import GPUS

DEEP = ".".join(["a"] * 50_000) + " = 1\n"
LONG_NUMBERS = ("9" * 4300, "0x" + "f" * 100_000, "9" * 41)


@pytest.mark.parametrize("text", [DEEP, f"[{DEEP[:-5]}]\n", "a = " + "[" * 50_000, "a = " + "{a = " * 50_000])
def test_toml_nested_without_end_is_refused_before_it_is_parsed(text: str) -> None:
    with pytest.raises(InputError, match="nested too deeply"):
        parse_toml(text, "gpu", "mine.toml")


@pytest.mark.parametrize("digits", LONG_NUMBERS)
def test_numbers_too_long_for_arithmetic_are_refused(digits: str) -> None:
    with pytest.raises(InputError, match="digits"):
        parse_toml(f"num_sms = {digits}\n", "gpu", "mine.toml")
    if "x" not in digits:
        with pytest.raises(InputError, match="digits"):
            parse_json(f'{{"a": {digits}}}'.encode(), name="config.json")


def test_dots_brackets_and_digits_inside_text_are_only_text() -> None:
    text = 'a = """\n' + "[" * 99 + "." * 99 + '"""\nb = "' + "9" * 99 + "\"\nc = '" + "[" * 99 + "'\n# " + "a." * 99
    assert set(parse_toml(text, "gpu", "mine.toml")) == {"a", "b", "c"}
    assert parse_toml(f"a = 0.{'1' * 99}\n", "gpu", "mine.toml")["a"] > 0.1


@pytest.mark.parametrize("text", ['"""\\"' * 50_000, '"' + '\\"' * 100_000, '"""' + "\\" * 99_999, "'''" * 99_999])
def test_strings_that_never_end_take_no_longer_than_others(text: str) -> None:
    with pytest.raises(InputError):
        parse_toml(f"a = {text}", "gpu", "mine.toml")
    with pytest.raises(InputError):
        parse_json(f'{{"a": {text}'.encode(), name="config.json")


def test_a_file_too_large_is_refused_unread(tmp_path: Path) -> None:
    for name, size in (("c.toml", MAX_TOML_BYTES), ("t.csv", MAX_CSV_BYTES)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size + 1)
    from sartor.cost.correction.calibration_file import read_calibration_file, read_training_table

    for read in (read_calibration_file, read_training_table):
        with pytest.raises(InputError, match="must be at most"):
            read(tmp_path / "c.toml")
    with pytest.raises(InputError, match="must be at most"):
        read_csv(tmp_path / "t.csv", "--data", "must be a table", ("a",))


def test_a_file_that_is_cut_off_says_that_it_ends_early(tmp_path: Path) -> None:
    for text in ('{"a": 1, "b', '{"a": 1,', '{"a": [1, 2', '{"a"'):
        with pytest.raises(InputError, match="ends early"):
            parse_json(text.encode(), name="config.json")
    for text in ("a = 1\nb = [1, ", "a = 1\n[sec", 'a = """x'):
        with pytest.raises(InputError, match="ends early"):
            parse_toml(text, "gpu", "mine.toml")
    (tmp_path / "t.csv").write_text("a,b,c\n1,2,3\n4,5")
    with pytest.raises(InputError, match="ends early: its last line has 2 of 3 columns"):
        read_csv(tmp_path / "t.csv", "--data", "must be a table", ("a",))


def test_a_path_is_shown_whole_and_a_value_as_the_file_spells_it() -> None:
    path = "/a/long/path" * 12 + "/config.json"
    assert path in str(InputError("model", path, "no such file"))
    assert str(InputError("x", None, "must be")) == "x=null: must be"
    assert str(InputError("x", True, "must be")) == "x=true: must be"
    assert str(InputError("x", [None, False, "a"], "must be")) == 'x=[null, false, "a"]: must be'


@pytest.mark.parametrize("name", ["../../x", "/etc/passwd", "a/b", "..", ".hidden", "a\\\\b"])
def test_a_devices_name_is_no_path(tmp_path: Path, name: str, sartor: Callable[..., object]) -> None:
    sheet = tmp_path / "mine.toml"
    sheet.write_text(GPUS.text("h100").replace('"h100_sxm"', f'"{name}"', 1))
    ran = sartor("gemm", 512, 512, 512, "--gpu", sheet, "--json")
    assert "must be a name" in ran.refusal()  # type: ignore[attr-defined]


@pytest.mark.parametrize("layers", ["2000000", "65537"])
def test_a_launch_of_millions_of_layers_is_refused(tmp_path: Path, layers: str, sartor: Callable[..., object]) -> None:
    script = tmp_path / "launch.sh"
    words = "--hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --micro-batch-size 1 --global-batch-size 64"
    script.write_text(f"torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers {layers} {words}\n")
    ran = sartor("plan", "--launch", script, "--cluster", "dgx-h100", "--json")
    assert "--num-layers" in ran.refusal()  # type: ignore[attr-defined]
    assert "at most 65536" in ran.refusal()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('gpu = "h200_sxm"\n[gemm]\nstep_s = 1e-7', "calibration=gpu: .* not a section of step constants"),
        ("[generation.hopper]\ncompute_factor = 1.0", r"must have step constants in \[default\]"),
        ("[default]\nstep_sigma = 40.0", "default.step_sigma=40.0: must be at most 3"),
        ("[default]\nstep_sigma = nan", "default.step_sigma=nan: must be a finite number"),
        ("[default]\ncompute_factor = 1e300", "default.compute_factor=1e.300: must be at most 1000"),
        ("[default]\ncompute_facto = 1.0", "default: compute_facto=.*nearest: compute_factor"),
        ("[default]\njitter = 0.0\n[generation.hoper]\njitter = 0.1", "generation.hoper=.*nearest: hopper"),
    ],
)
def test_a_calibration_of_another_kind_or_without_sense_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    from sartor.cost.correction.calibration_file import read_training_table
    from sartor.step.coefficients import check_constants

    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(InputError, match=sentence):
        check_constants(read_training_table(tmp_path / "mine.toml"), "mine.toml")


@pytest.mark.parametrize("was", ["log_sigma = ", "log_sigma_small = "])
@pytest.mark.parametrize("value", ["nan", "inf", "-1.0", "400.0"])
def test_a_fit_whose_deviation_has_no_sense_is_refused(tmp_path: Path, was: str, value: str) -> None:
    from fuzz.readers import READERS
    from sartor.cost.correction.calibration_file import read_calibration_file

    lines = READERS["calibration"].files()[0].decode().splitlines()
    (tmp_path / "mine.toml").write_text("\n".join(was + value if line.startswith(was) else line for line in lines))
    with pytest.raises(InputError, match=f"gemm.{was.split()[0]}={value.rstrip('.0')}"):
        read_calibration_file(tmp_path / "mine.toml")


def test_a_fit_with_a_section_that_nobody_reads_is_refused(tmp_path: Path) -> None:
    from fuzz.readers import READERS
    from sartor.cost.correction.calibration_file import read_calibration_file

    (tmp_path / "mine.toml").write_text("gem = 3\n" + READERS["calibration"].files()[0].decode())
    with pytest.raises(InputError, match=r"gem=3: .*nearest: gemm"):
        read_calibration_file(tmp_path / "mine.toml")
