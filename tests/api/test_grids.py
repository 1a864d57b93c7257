"""Lists and arrays as values of a run's fields: each entry of a grid is the answer of the single call."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sartor import api
from sartor.answers.grid import EstimateGrid
from sartor.errors import InputError

STATED = {"cp": 1, "zero_stage": 1, "recompute": "none", "sequence_parallel": False}
SIZES = {"num_devices": 16, "global_batch_size": 32}
GRIDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "stated plans, in a pipeline and not": (
        *("llama-3.1-8b", "h100"),
        {**STATED, **SIZES, "tp": [1, 2, 3], "pp": [1, 4], "microbatch_size": [1, 2], "schedule": "1f1b"}
        | {"virtual_stages": 1},
    ),
    "plans that do not fit": ("llama-3-70b", "a100", {**STATED, **SIZES, "tp": [4, 8], "pp": [1, 2]}),
    "switches": (
        *("gpt2", "h100"),
        {**SIZES, "tp": 2, "pp": 1, "cp": 1, "microbatch_size": 1, "zero_stage": [0, 1]}
        | {"recompute": ["full", "none"], "sequence_parallel": [True, False]},
    ),
    "axes left open": ("gpt2", "h100", {**SIZES, "tp": [1, 2], "microbatch_size": 2}),
    "jobs alone, all of the plan open": ("gpt2", "h100", {"num_devices": [8, 16], "global_batch_size": 64}),
    "batches alone, one that few plans divide": ("gpt2", "h100", {"num_devices": 8, "global_batch_size": [64, 100]}),
    "jobs, in another order than plans": (
        *("gpt2", "h100"),
        {**STATED, "tp": [2, 1], "pp": 1, "microbatch_size": 1, "seq_len": [512, 1024], "global_batch_size": [32, 64]}
        | {"num_devices": [16, 8]},
    ),
    "experts": (
        *("mixtral-8x7b", "h100"),
        {**STATED, "recompute": "full", "num_devices": 64, "global_batch_size": 64, "tp": 1, "pp": 4, "ep": [1, 8]}
        | {"virtual_stages": 1, "microbatch_size": range(1, 3), "schedule": "1f1b"},
    ),
    "what stays open, from point to point": (
        *("gpt2", "v100_sxm"),
        {"num_devices": 8, "global_batch_size": 32, "seq_len": 512, "framework": "deepspeed", "pp": 1, "tp": 1}
        | {"cp": [1, 2], "zero_stage": [1, 2], "microbatch_size": 1, "recompute": "none"},
    ),
    "switches of experts in uneven stages": (
        *("qwen3-30b-a3b", "h100"),
        {"num_devices": 64, "global_batch_size": 128, "seq_len": 1024, "dtype": "fp8", "recompute": "full", "tp": 1}
        | {"pp": [4, 5], "cp": [1, 2], "ep": [1, 8], "zero_stage": 1, "microbatch_size": 1, "schedule": "1f1b"}
        | {"virtual_stages": [1, 2]},
    ),
    "a chip": (
        "gpt2",
        "tpu_v4_like",
        {**SIZES, "tp": np.array([1, 2]), "pp": 1, "microbatch_size": [1, 2], "recompute": "none"},
    ),
    "decode": (
        *("llama-3.1-8b", "h100"),
        {"phase": "decode", "microbatch_size": [1, 64], "context_len": [128, 4096], "tp": [1, 3, 8]},
    ),
    "decode at its own length": (
        *("mixtral-8x7b", "h100"),
        {"phase": "decode", "microbatch_size": [1, 8], "seq_len": [128, 2048], "tp": 4},
    ),
    "prefill": ("llama-3.1-8b", "a100", {"phase": "prefill", "microbatch_size": [1, 2], "seq_len": [128, 1024]}),
}
FIGURES = EstimateGrid.FIGURES


@pytest.mark.parametrize("name", GRIDS)
def test_an_entry_of_a_grid_is_the_answer_of_the_single_call(name: str) -> None:
    model, gpu, options = GRIDS[name]
    grid = api.estimate(model, gpu, **options)
    single = {field: value for field, value in options.items() if field not in grid.axes}
    assert grid.time_s.shape == tuple(len(values) for values in grid.axes.values())
    for index in np.ndindex(grid.time_s.shape):
        point = {field: values[i] for (field, values), i in zip(grid.axes.items(), index, strict=True)}
        try:
            answer = api.estimate(model, gpu, **single, **point)
        except InputError:
            assert np.isnan(grid.time_s[index])
            continue
        if answer.cannot_run:
            assert np.isnan(grid.time_s[index])
            continue
        figures = [getattr(grid, name)[index] for name in FIGURES]
        assert figures == pytest.approx([float(getattr(answer, name)) for name in FIGURES], rel=1e-12)
        assert bool(grid.fits[index]) is answer.fits


def test_a_grid_says_what_stays_open_within_its_intervals() -> None:
    axes = {**SIZES, **STATED, "pp": 1, "microbatch_size": 2}
    grid, single = (api.estimate("gpt2", "h100", tp=tp, **axes) for tp in ([1, 2], 1))
    (words,) = (words for words in grid.assumptions if words.startswith("not stated, within the intervals"))
    facts = single.question.run.facts
    for name in (name for name, value in facts.items() if value.alternatives):
        assert f"{name}={facts[name].value} (or {', '.join(map(str, facts[name].alternatives))})" in words
    assert words in grid.to_dict()["assumptions"]
    served = api.estimate("gpt2", "h100", phase="decode", microbatch_size=[1, 2])
    assert any("intervals also cover" in words for words in served.assumptions)


def test_a_grid_is_a_table() -> None:
    pytest.importorskip("pandas")
    grid = api.estimate("gpt2", "h100", tp=[1, 2], microbatch_size=[1, 2], pp=1, **STATED, **SIZES)
    frame = grid.to_frame()
    assert frame.shape[0] == grid.num_points == 4
    assert frame["tp"].tolist() == [1, 1, 2, 2]
    np.testing.assert_array_equal(frame["time_s"], grid.time_s.ravel())
    assert frame["plan.recompute"].tolist() == ["none"] * 4
    body = json.loads(json.dumps(grid.to_dict()))
    assert body["points"][3]["microbatch_size"] == 2
    assert repr(grid) == "<EstimateGrid: model GPT-2 small, GPU h100_sxm, points 4, grid 2 tp x 2 microbatch_size>"
    assert grid._repr_html_().count("<tr>") == 5


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a field with one value": (
        {"dtype": ["bf16", "fp8"]},
        "dtype=.*: has one value in a train grid: call estimate for each",
    ),
    "a number of recomputed layers": (
        {**SIZES, "recompute_layers": [1, 2]},
        "recompute_layers=.*: has one value in a train grid: call estimate for each",
    ),
    "recomputed layers beside kinds of recomputation": (
        {**SIZES, "recompute": ["none", "full"], "recompute_layers": 2},
        "recompute_layers=2: means recompute=full",
    ),
    "several changes of the shape": ({**SIZES, "set": [{"num_heads": 6}]}, "set=.*: has one value in a grid"),
    "an axis of training in decode": ({"phase": "decode", "pp": [1, 2]}, "pp=.*: has one value in a decode grid"),
    "no batch": ({"tp": [1, 2], "num_devices": 8}, "missing argument global_batch_size: must be stated beside several"),
    "no devices": (
        {"tp": [1, 2], "global_batch_size": 8},
        "missing argument num_devices: must be stated beside several",
    ),
    "no values": ({**SIZES, "tp": []}, "tp=.*: must be different values, at least one"),
    "a value twice": ({**SIZES, "tp": [1, 2, 1]}, "tp=.*: must be different values"),
    "a value below its bounds": ({**SIZES, "tp": [0, 1]}, "tp=0: must be an integer from 1"),
    "a word that is none": ({**SIZES, "recompute": ["all"]}, "recompute=all: must be one of none"),
    "a field that is none": ({**SIZES, "tpp": [1, 2]}, "tpp=.*: is not a field of a run; nearest: tp"),
    "more than a device in decode": (
        {"phase": "decode", "microbatch_size": [1, 2**20]},
        "missing argument tp: must be stated beside several values of another field: not every point fits",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_grid_has_is_refused_in_one_sentence(name: str) -> None:
    options, sentence = REFUSED[name]
    with pytest.raises(InputError, match=sentence):
        api.estimate("gpt2", "h100", **options)


def test_lists_type_as_a_grid_and_single_values_as_one_estimate(tmp_path: Path, repo_dir: Path) -> None:
    checker = pytest.importorskip("mypy.api")
    snippet = tmp_path / "snippet.py"
    snippet.write_text(
        "from sartor import estimate\n"
        'reveal_type(estimate("gpt2", "h100", microbatch_size=[1, 2, 4]))\n'
        'reveal_type(estimate("gpt2", "h100", microbatch_size=1, num_devices=8))\n',
        encoding="utf-8",
    )
    said, problems, code = checker.run(["--config-file", str(repo_dir / "pyproject.toml"), str(snippet)])
    assert (code, problems) == (0, ""), said
    grid, single = (line for line in said.splitlines() if "Revealed type" in line)
    assert "EstimateGrid" in grid
    assert "ModelEstimate" in single
