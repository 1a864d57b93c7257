"""The scoreboard's peers: what each is asked of a run, what it is spared, and what is said of one that is not there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from sartor.validate.training_rows import TrainingCase, _training_case

ROW = {
    "model": "GPT-175B", "L": "96", "h": "12288", "a": "96", "kv": "96", "head_dim": "128", "d_ff": "49152",
    "gated": "0", "vocab": "51200", "seq": "2048", "gpu": "A100-SXM4-80GB", "n_gpu": "64", "gpus_per_node": "8",
    "framework": "Megatron-LM", "dtype": "bf16", "tp": "8", "sp": "1", "pp": "8", "vp": "3", "dp": "1", "mbs": "1",
    "gbs": "64", "recompute": "full", "iter_time_s": "18.1", "run_kind": "pretrain", "source": "ours",
    "plan_known": "1", "zero_stage": "0",
}  # fmt: skip

CALCULON = """
class System:
    def __init__(self, cfg):
        self.cfg = cfg
"""
CALCULON_LLM = """
class Llm:
    class Error(Exception):
        pass
    class Application:
        def __init__(self, cfg):
            self.cfg = cfg
    class Execution:
        def __init__(self, cfg):
            assert cfg["num_procs"] == cfg["tensor_par"] * cfg["pipeline_par"] * cfg["data_par"]
            self.cfg = cfg
    def __init__(self, app, log):
        self.app = app
    def compile(self, system, exe):
        self.exe = exe.cfg
    def run(self, system):
        if self.exe["batch_size"] == 65:
            raise self.Error("no")
    def get_stats_json(self, layers):
        return {"total_time": self.exe["pipeline_interleaving"] + self.exe["tensor_par_net"]
                + 10 * self.exe["pipeline_par_net"]}
"""
SIMUMAX = """
import json
import pathlib
class PerfLLM:
    def configure(self, strategy_config, model_config, system_config):
        self.strategy = json.loads(pathlib.Path(strategy_config).read_text())
    def run_estimate(self):
        pass
    def analysis_cost(self):
        return {"duration_time_per_iter": f"{self.strategy['tp_size']} s"}
"""


@pytest.fixture
def peers(repo_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(repo_dir / "lab"))
    import peers as found  # type: ignore[import-not-found]

    yield found
    for name in [name for name in sys.modules if name.split(".")[0] in ("peers", "calculon", "simumax")]:
        del sys.modules[name]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in {
        "calculon/__init__.py": CALCULON,
        "calculon/llm.py": CALCULON_LLM,
        "systems/a100_80g.json": "{}",
        "simumax/__init__.py": "",
        "simumax/core/__init__.py": "",
        "simumax/core/perf_llm.py": SIMUMAX,
        "a100_sxm.json": "{}",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def case(**change: str) -> TrainingCase:
    found = _training_case({**ROW, **change})
    assert not found.reason
    return found


def test_calculon_is_asked_in_its_own_words_and_spared_what_it_has_none_for(peers: Any, checkout: Path) -> None:
    found, missing = peers.peers(calculon=str(checkout))
    calculon = next(each for each in found if each.name == "Calculon")
    assert "SimuMax" in missing
    assert calculon.step_s(case()) == 3 + 0 + 10, "three chunks; tensor in the node, pipeline across nodes"
    for change, why in (
        ({"gpu": "H200-SXM-141GB"}, "no system"),
        ({"kv": "8"}, "grouped-query"),
        ({"gated": "1"}, "gated"),
        ({"dtype": "fp8_delayed", "gpu": "H100-SXM-80GB"}, "not 16 bits"),
        ({"cp": "2", "n_gpu": "128"}, "context parallelism"),
    ):
        with pytest.raises(peers.Refused, match=why):
            calculon.step_s(case(**change))


def test_simumax_is_asked_of_the_device_its_system_file_is_of(peers: Any, checkout: Path) -> None:
    found, _ = peers.peers(simumax=str(checkout), simumax_system=str(checkout / "a100_sxm.json"))
    simumax = next(each for each in found if each.name == "SimuMax")
    assert simumax.step_s(case()) == 8.0
    with pytest.raises(peers.Refused, match="another device"):
        simumax.step_s(case(gpu="H100-SXM-80GB"))


def test_a_checkout_that_is_not_there_is_said(peers: Any, tmp_path: Path) -> None:
    _, missing = peers.peers(calculon=str(tmp_path / "nowhere"), simumax=str(tmp_path))
    assert "not a folder" in missing["Calculon"]
    assert "no system file" in missing["SimuMax"]


def test_llm_analysis_gives_flops_over_half_of_the_peak(peers: Any) -> None:
    pytest.importorskip("llm_analysis", reason="needs llm-analysis from the package index")
    found, _ = peers.peers()
    step_s = found[0].step_s(case(recompute="none"))
    flops = 3 * 24 * 64 * 2048 * 96 * 12288**2 * (1 + 2048 / (6 * 12288) + 51200 / (12 * 96 * 12288))
    assert step_s == pytest.approx(flops / (64 * 312e12 * 0.5), rel=0.01)
