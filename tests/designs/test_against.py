"""Catalogue GPUs beside the chips of a design: the same seconds as ``plan``, and what the chip needs to win."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import sartor
from sartor import cli
from sartor.hardware.catalog import load_gpu

SMALL = [
    "--num-devices",
    "8",
    "--global-batch-size",
    "64",
    "--seq-len",
    "512",
    "--no-baselines",
    "--executor",
    "serial",
]


def test_a_gpu_beside_a_chip_takes_what_plan_says_it_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    space = tmp_path / "space.toml"
    space.write_text(
        "num_tensor_cores = [4, 8]\nnum_vector_cores = [4]\narray_cols = [128]\narray_rows = [128]\n"
        "global_buffer_mib = [32]\nnode_nm = 7\n"
    )
    with pytest.raises(SystemExit) as ended:
        cli.main(["design", "--model", "gpt2", *SMALL, "--space", str(space), "--against", "h100", "--json"])
    assert ended.value.code == 0
    body = json.loads(capsys.readouterr().out)
    (found,) = body["against"]
    mine = found["per_model"][next(iter(found["per_model"]))]
    best = sartor.plan("gpt2", found["cluster"], num_devices=8, global_batch_size=64, seq_len=512).best
    assert best is not None
    assert mine["step_s"] == pytest.approx(best.step_s, rel=1e-12)
    assert mine["low_s"] < mine["step_s"] < mine["high_s"]
    chip_s = mine["step_s"] / mine["ratio"]
    assert body["best"]["objective"] == pytest.approx(64 / chip_s)
    assert mine["needed"]["area"] == pytest.approx(body["best"]["area_mm2"] / load_gpu("h100").die_mm2 / mine["ratio"])


def test_a_served_gpu_takes_what_estimate_says_and_keeps_memory_and_latency(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    space = tmp_path / "space.toml"
    space.write_text(
        "num_tensor_cores = [8]\nnum_vector_cores = [4]\narray_cols = [128]\narray_rows = [128]\n"
        "global_buffer_mib = [32]\nnode_nm = 7\n"
    )
    asked = ["design", "--model", "gpt2-xl", "--num-devices", "4", "--no-baselines", "--executor", "serial", "--json"]
    asked += ["--objective", "decode", "--context-len", "1000", "--tpot-ms", "6", "--against", "h100"]
    with pytest.raises(SystemExit):
        cli.main([*asked, "--space", str(space)])
    body = json.loads(capsys.readouterr().out)
    (mine,) = body["against"][0]["per_model"].values()
    assert mine["step_s"] <= 0.006
    (model,), how = body["question"]["models"], mine["plan"]
    assert (model["phase"], model["context_len"], model["latency_s"]) == ("decode", 1000, 0.006)
    known = sartor.estimate(
        "gpt2-xl", "h100", phase="decode", tp=how["tp"], microbatch_size=how["microbatch_size"], context_len=1000
    )
    assert mine["step_s"] == pytest.approx(float(known.time_s), rel=0.02)
    rate = how["dp"] * how["microbatch_size"] / mine["step_s"]
    assert mine["ratio"] == pytest.approx(body["best"]["objective"] / rate)


def test_a_device_to_compare_with_that_there_is_not_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["design", "--model", "gpt2", *SMALL, "--against", "tpu_v4_lik"])
    assert ended.value.code == 2
    assert "tpu_v4_like" in capsys.readouterr().err


def test_a_gpu_and_a_tpu_stand_beside_the_baselines_where_none_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    space = tmp_path / "space.toml"
    space.write_text(
        "num_tensor_cores = [8]\nnum_vector_cores = [4]\narray_cols = [128]\narray_rows = [128]\n"
        "global_buffer_mib = [32]\nnode_nm = 7\n"
    )
    asked = [
        "design",
        "--model",
        "gpt2",
        *SMALL,
        "--microbatch-size",
        "4",
        "--tp",
        "1",
        "--space",
        str(space),
        "--json",
    ]
    found = []
    for more in ([], ["--baselines"]):
        with pytest.raises(SystemExit) as ended:
            cli.main([*asked, *more])
        assert ended.value.code == 0
        found.append(json.loads(capsys.readouterr().out)["against"])
    assert found[0] == []
    assert [each["gpu"] for each in found[1]] == ["h100_sxm", "tpu_v5p"]
    for each in found[1]:
        (model,) = each["per_model"].values()
        assert model["low_s"] < model["step_s"] < model["high_s"]
    with pytest.raises(SystemExit):
        cli.main([*asked[:-1], "--baselines"])
    out = " ".join(capsys.readouterr().out.split())
    assert "Against h100_sxm the model itself favours chips" in out
    with pytest.raises(SystemExit):
        cli.main([*asked[:-1], "--against", "tpu_v5p"])
    out = " ".join(capsys.readouterr().out.split())
    assert "The chip is priced at ideal rates, the GPU as measured: expect less than 'chip vs GPU' says." in out
