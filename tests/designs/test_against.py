"""Catalogue GPUs beside the chips of a design: the same seconds as ``plan``, and what the chip needs to win."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import sartor
from sartor import cli
from sartor.designs.against import on_network_of
from sartor.hardware.catalog import load_gpu
from sartor.hardware.cluster_catalog import load_cluster
from sartor.report.design_words import headlines

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


@pytest.mark.slow
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


@pytest.mark.slow
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


SPACE = "num_tensor_cores = [4, 8]\nnum_vector_cores = [4]\narray_cols = [128]\narray_rows = [128]\n"
SPACE += "global_buffer_mib = [32]\nnode_nm = 7\n"
H100_NETWORK = "num_links = 18\nlink_gb_per_s = 25\nscale_up_devices = 8\nscale_out_gb_per_s = 50\n"


def designed(folder: Path, text: str, *gpus: str | Path, devices: int = 16) -> sartor.DesignAnswer:
    path = folder / "space.toml"
    path.write_text(text)
    run = {"num_devices": devices, "global_batch_size": 64, "seq_len": 512, "baselines": False}
    return sartor.design("gpt2", space=path, against=gpus, **run)


@pytest.mark.slow
def test_a_gpu_is_priced_on_the_chips_network_too_and_the_first_lines_say_which(tmp_path: Path) -> None:
    answer = designed(tmp_path, SPACE + "num_links = 1\nlink_gb_per_s = 10\n", "h100")
    (entry,) = answer.against
    (model,) = entry.models
    chip_s, chip = model.chip_step_s, answer.best.evaluation.point.accelerator
    assert entry.network == "all devices at 10 GB/s"
    there = on_network_of(chip, load_cluster(entry.cluster, 16))
    assert [(tier.span, tier.bytes_per_s) for tier in there.tiers] == [(0, 10e9)]
    best = sartor.plan("gpt2", there, num_devices=16, global_batch_size=64, seq_len=512).best
    assert best is not None
    assert model.equal_step_s == pytest.approx(best.step_s, rel=1e-12)
    assert model.equal_ratio == pytest.approx(best.step_s / chip_s)
    assert model.equal_ratio > model.ratio, "on ten gigabytes a second the GPU waits too"
    (line,) = (line for line in headlines(answer) if "h100_sxm" in line)
    assert line.startswith(
        f"{model.equal_ratio:.3g}x the throughput of h100_sxm as measured, device for device, both on"
    )
    assert line.endswith(f"(all devices at 10 GB/s); {model.ratio:.3g}x with h100_sxm on its own (dgx-h100).")


@pytest.mark.slow
def test_on_equal_networks_both_ratios_are_one(tmp_path: Path) -> None:
    (entry,) = designed(tmp_path, SPACE + H100_NETWORK, "h100").against
    assert entry.network == "groups of 8 at 450 GB/s, 50 GB/s beyond"
    assert entry.models[0].equal_ratio == pytest.approx(entry.models[0].ratio, rel=1e-9)


@pytest.mark.slow
def test_an_own_chip_sustains_what_the_spaces_chips_do_unless_its_file_says_otherwise(tmp_path: Path) -> None:
    own = "num_tensor_cores = 8\nnum_vector_cores = 4\narray_cols = 128\narray_rows = 128\nvector_lanes = 128\n"
    own += 'global_buffer_mib = 32\nclock_mhz = 1050\nmemory = "hbm2"\nnum_stacks = 4\nnode_nm = 7\n'
    paths = [tmp_path / name for name in ("mine.toml", "stated.toml")]
    for path, more in zip(paths, ("", "sustained_share = 1.0\n"), strict=True):
        path.write_text(own + more)
    answer = designed(tmp_path, SPACE + "sustained_share = 0.5\n", *paths, devices=8)
    rates = {line.name: line.ranked.objective for line in answer.result.baselines if line.ranked}
    best = answer.best.objective
    assert rates["mine, searched placement"] == pytest.approx(best, rel=1e-9)
    assert rates["stated, searched placement"] > 1.1 * best
    (said,) = (words for words in answer.assumptions if words.startswith("mine: "))
    assert said.startswith("mine: sustained_share=0.5, ")
    assert said.endswith("(as the space's chips: its file does not say)")
    assert any(line.startswith("1.00x the sequences/s of mine, ") for line in headlines(answer))


@pytest.mark.slow
def test_a_default_that_decides_is_named_before_the_plans(tmp_path: Path) -> None:
    small = SPACE.replace("[128]", "[32]").replace("[4, 8]", "64") + "vector_lanes = 1024\n"
    open_key = [words for words in designed(tmp_path, small).warnings if words.startswith("tensor_core_sram_kib=")]
    assert len(open_key) == 1
    assert "is a default, which the space does not state: with " in open_key[0]
    stated = designed(tmp_path, small + "tensor_core_sram_kib = 16\n")
    assert not any("tensor_core_sram_kib=16 is a default" in words for words in stated.warnings)


@pytest.mark.parametrize(
    ("words", "option"), [(["--against", "nosuch"], "--against"), (["--fleet", "nosuch", "--shapes", "2"], "--fleet")]
)
def test_an_unknown_device_is_an_error_of_the_option_it_came_from(
    words: list[str], option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["design", "--model", "gpt2", *SMALL, *words])
    assert f"{option}=nosuch: not in the catalogue" in capsys.readouterr().err
