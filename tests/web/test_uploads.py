"""Files as text in a question: judged as the command line judges the files, and nothing else is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sartor import api
from sartor.hardware.catalog import ACCELERATORS, GPUS
from sartor.hardware.cluster_catalog import CLUSTERS
from sartor.web.work import Answerer

A100 = GPUS.text("a100_sxm")
DGX = CLUSTERS.text("dgx-a100")
JOB = {"model": "gpt2-xl", "num_devices": 16, "global_batch_size": 32}


def asked(route: str, body: dict[str, Any]) -> tuple[int, Any]:
    reply = Answerer()({"route": route}, json.dumps(body).encode())
    return reply.status, json.loads(reply.body)


@pytest.fixture(scope="module")
def calibration() -> str:
    """What the package knows of the A100, as a file of one's own with another launch."""
    text = (Path(api.__file__).parent.parent / "cost" / "correction" / "data" / "a100_sxm.bf16.toml").read_text()
    return 'gpu = "a100_sxm"\ndtype = "bf16"\n' + text


def test_a_datasheet_sent_is_the_device_asked_about() -> None:
    status, told = asked("estimate", {"model": "gpt2-xl", "gpu_toml": A100})
    assert status == 200
    assert told["totals"] == asked("estimate", {"model": "gpt2-xl", "gpu": "a100_sxm"})[1]["totals"]
    slower = A100.replace("hbm_gb_per_s = 2039", "hbm_gb_per_s = 1000").replace('name = "a100_sxm"', 'name = "mine"')
    assert slower != A100
    status, body = asked("shape", {"model": "gpt2-xl", "gpu_toml": slower})
    assert status == 200
    assert body["gpu"]["name"] == "mine"
    assert body["totals"]["time_s"] > told["totals"]["time_s"]


def test_a_device_of_ones_own_is_compared_by_its_name() -> None:
    mine = A100.replace('name = "a100_sxm"', 'name = "mine"')
    ask = {"model": "gpt2-xl", "gpu_toml": mine, "shapes": [{"set": {}}]}
    assert asked("compare", ask)[1]["gpus"] == ["mine"]
    assert asked("compare", {**ask, "gpus": ["h100_sxm", "mine"]})[1]["gpus"] == ["h100_sxm", "mine"]


def test_a_cluster_sent_is_planned_on() -> None:
    status, told = asked("plan", {**JOB, "cluster_toml": DGX})
    known = asked("plan", {**JOB, "cluster": "dgx-a100"})[1]
    assert status == 200
    assert told["best"]["step_s"] == known["best"]["step_s"]


def test_a_calibration_sent_moves_times_and_is_known_by_its_text(calibration: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(calibration)
    ask = {"model": "gpt2-xl", "gpu": "a100_sxm"}
    for text in (calibration, calibration.replace("launch_s = ", "launch_s = 1")):
        path.write_text(text)
        status, told = asked("estimate", {**ask, "calibration": text})
        assert status == 200
        expected = api.estimate("gpt2-xl", "a100_sxm", calibration=path).time_s
        assert told["totals"]["time_s"] == pytest.approx(float(expected))
        assert str(tmp_path) not in json.dumps(told)


@pytest.mark.parametrize("route", ["shape", "lint", "sweep", "compare", "advise", "gemm"])
def test_every_question_of_a_device_takes_a_calibration(route: str, calibration: str) -> None:
    ask: dict[str, Any] = {"model": "gpt2-xl", "gpu": "a100_sxm", "calibration": calibration}
    more = {
        "sweep": {"field": "vocab_size", "values": [50257, 50304]},
        "compare": {"gpus": ["a100_sxm"], "shapes": [{}]},
        "advise": {"gpus": ["a100_sxm"], "top": 1},
        "gemm": {"m": 512, "n": 512, "k": 512},
    }.get(route, {})
    for key in {"compare": ["gpu"], "advise": ["gpu"], "gemm": ["model"]}.get(route, []):
        ask.pop(key)
    status, told = asked(route, {**ask, **more})
    assert status == 200, told


@pytest.mark.parametrize(
    ("route", "body", "says"),
    [
        ("estimate", {"model": "gpt2", "gpu_toml": "= ["}, "gpu_toml='the text sent': must be readable as TOML"),
        ("estimate", {"model": "gpt2", "gpu_toml": ""}, "vendor"),
        ("estimate", {"model": "gpt2", "gpu_toml": A100 + "\n[price2]\nx = 1\n"}, "price2"),
        ("estimate", {"model": "gpt2", "gpu_toml": A100.replace("num_sms = 108", "num_sms = -3")}, "num_sms"),
        ("estimate", {"model": "gpt2", "gpu_toml": {"num_sms": 3}}, "must be a word"),
        ("plan", {**JOB, "cluster_toml": DGX.replace("devices_per_node = 8", "devices_per_node = 0")}, "devices_per"),
        ("plan", {**JOB, "cluster_toml": "gpu = [1]"}, "devices_per_node"),
        ("plan", {**JOB, "cluster_toml": "x = " + "[" * 5000}, "TOML"),
        ("estimate", {"model": "gpt2", "calibration": "gpu = 3"}, "must name its gpu"),
        ("estimate", {"model": "gpt2", "calibration": "x"}, "calibration='the text sent': must be readable as TOML"),
        ("estimate", {"model": "gpt2", "calibration": "\ud800"}, "must be text in UTF-8"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_the_command_line_refuses_is_refused_with_its_sentence(
    route: str, body: dict[str, Any], says: str
) -> None:
    status, told = asked(route, body)
    assert status == 422, told
    assert says in told["error"]["message"]
    assert "/tmp" not in told["error"]["message"]


@pytest.mark.parametrize("name", ["../h100.toml", "/etc/passwd", "a.toml", "..\\x", "sub/h100_sxm"])
def test_no_path_in_a_cluster_is_followed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.toml").write_text(A100)
    monkeypatch.chdir(tmp_path)
    for text in (
        f"gpu = {json.dumps(name)}\n" + DGX.partition("\n")[2].replace('gpu = "a100_sxm"', ""),
        DGX + f"\n[[others]]\ngpu = {json.dumps(name)}\n",
    ):
        status, told = asked("plan", {**JOB, "cluster_toml": text})
        assert status == 422
        assert "no file is read by its path" in told["error"]["message"] or "TOML" in told["error"]["message"]


def test_a_file_to_change_can_be_had(server: Any) -> None:
    assert server.get("/api/catalog/gpus/A100/toml").text == A100
    assert server.get("/api/catalog/clusters/dgx-a100/toml").text == DGX
    assert server.get("/api/catalog/models/gpt2/toml").status_code == 422
    assert server.get("/api/catalog/gpus/nothing/toml").status_code == 422


def test_nothing_is_left_behind(calibration: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert asked("estimate", {"model": "gpt2", "gpu": "a100_sxm", "calibration": calibration})[0] == 200
    assert asked("estimate", {"model": "gpt2", "calibration": "x"})[0] == 422
    assert list(tmp_path.iterdir()) == []


CHIP = ACCELERATORS.text("tpu_v4_like")


def test_an_accelerator_stands_where_a_gpu_does() -> None:
    status, told = asked("shape", {"model": "gpt2-xl", "gpu": "TPU-v4-like"})
    assert status == 200
    assert told["gpu"]["name"] == "tpu_v4_like"
    status, both = asked("compare", {"model": "gpt2-xl", "gpus": ["h100", "tpu_v4_like"], "shapes": [{"set": {}}]})
    assert (status, both["gpus"]) == (200, ["h100_sxm", "tpu_v4_like"])
    status, refused = asked("estimate", {"model": "gpt2-xl", "gpu": "tpu_v4_like", "calibration": "x = 1"})
    assert status == 422
    assert refused["error"]["message"].startswith("calibration='the text sent': a calibration file adds measurements")


def test_an_accelerator_sent_is_the_device_asked_about() -> None:
    known = asked("estimate", {"model": "gpt2-xl", "gpu": "tpu_v4_like"})[1]["totals"]
    sent = asked("estimate", {"model": "gpt2-xl", "gpu_toml": CHIP})[1]["totals"]
    ends = ("low_s", "high_s")  # a file of one's own may mean more with the keys that it leaves out
    assert sent["low_s"] <= known["low_s"] < known["high_s"] <= sent["high_s"]
    assert {name: sent[name] for name in sent if name not in ends} == {n: known[n] for n in known if n not in ends}
    faster = f'name = "mine"\n{CHIP}'.replace("clock_mhz = 1050", "clock_mhz = 2100")
    status, told = asked("shape", {"model": "gpt2-xl", "gpu_toml": faster})
    assert (status, told["gpu"]["name"]) == (200, "mine")
    assert told["totals"]["time_s"] < known["time_s"]
    wrong = CHIP.replace("array_rows = 128", "array_rows = 0")
    status, refused = asked("estimate", {"model": "gpt2-xl", "gpu_toml": wrong})
    assert (status, refused["error"]["field"]) == (422, "array_rows")


def test_the_file_of_an_accelerator_is_there_to_start_from(server: Any) -> None:
    assert server.get("/api/catalog/accelerators/TPU-v4-like/toml").text == CHIP
