"""``sartor design`` as people script against it: keys, exit codes, sentences, bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from design_samples import SMALL_CONFIG
from sartor import api
from sartor.designs import baselines as joint_baselines
from sartor.designs.candidates import Baseline, Progress

pytestmark = pytest.mark.slow

Call = Callable[..., Any]

SPACE = """
num_tensor_cores = [1, 4]
num_vector_cores = [1, 2]
array_rows = { from = 16, to = 32, step = 16 }
array_cols = 32
global_buffer_mib = 2
hbm_gb = [0.02, 0.2]
"""


@pytest.fixture
def small(tmp_path: Path) -> list[object]:
    """A question that takes no time."""
    return ["design", "--model", write_model(tmp_path, "small"), *write_space(tmp_path), *COUNTS]


COUNTS = ["--num-devices", "8", "--global-batch-size", "32", "--microbatch-size", "1,4", "--tp", "1,2"]
COUNTS += ["--no-baselines", "--executor", "serial"]
FEW = ["--tp", "1", "--microbatch-size", "4", "--recompute", "none"]


def write_model(folder: Path, name: str, **changes: Any) -> Path:
    (folder / name).mkdir()
    (folder / name / "config.json").write_text(json.dumps(SMALL_CONFIG | changes))
    return folder / name


def write_space(folder: Path, text: str = SPACE) -> list[object]:
    (folder / "space.toml").write_text(text)
    return ["--space", folder / "space.toml"]


def without_clock(body: Any) -> Any:
    """An answer without what a wall clock decides."""
    if isinstance(body, dict):
        return {key: without_clock(value) for key, value in body.items() if key != "wall_s"}
    return [without_clock(value) for value in body] if isinstance(body, list) else body


def test_the_answer_has_the_contracts_keys(sartor: Call, small: list[object]) -> None:
    ran = sartor(*small, "--json")
    assert ran.code == 0, ran.err
    assert ran.err == ""
    body = ran.body
    assert list(body)[:3] == ["schema", "version", "status"]
    assert body["schema"] == "sartor/design/1"
    assert body["status"] == "optimal"
    assert body["gap"] == 0
    best = body["best"]
    assert {"architecture", "area_mm2", "power_w", "plan", "throughput", "objective"} <= set(best)
    assert list(best["energy_j_per_token"]) == ["small"]
    limit = str(best["energy_j_per_token"]["small"] * 1.001)
    assert sartor(*small, "--energy-j-per-token", limit, "--json").body["best"]["objective"] == best["objective"]
    assert body["upper_bound"] == best["objective"] == pytest.approx(best["throughput"]["small"])
    assert body["space_size"] == 8 * 2 * 2 * 2
    assert 0 < body["evaluated"] <= 16
    assert body["evaluated"] + body["pruned"] == 16
    assert body["wall_s"] > 0
    assert sum(best["area"].values()) == pytest.approx(best["area_mm2"])
    assert sum(best["power"].values()) == pytest.approx(best["power_w"])
    plan = best["plan"]["small"]
    assert 0 < plan["low_s"] < plan["step_s"] < plan["high_s"]
    assert plan["source"] == "analytic"
    assert 0 < plan["mfu"] < 1
    assert plan["tp"] * plan["pp"] * plan["dp"] <= 8
    assert sum(plan["time"].values()) == pytest.approx(plan["step_s"], rel=1e-6)
    assert plan["sequences_per_s"] == pytest.approx(32 / plan["step_s"])
    assert plan["peak_bytes"] <= best["architecture"]["hbm_bytes"]
    assert len(plan["stages"]) == plan["pp"]
    assert body["convergence"][-1]["incumbent"] == best["objective"]


def test_the_terminal_fits_100_columns_and_says_chip_plan_proof_and_area(sartor: Call, small: list[object]) -> None:
    ran = sartor(*small, "--verbose")
    assert ran.code == 0
    assert max(len(line) for line in ran.out.splitlines()) <= 100
    for words in ("tensor cores of", "Proved optimal: none of 64", "Where the time goes", "Where the area"):
        assert words in " ".join(ran.out.split())


def test_the_sizes_of_plans_that_were_tried_stand_beside_the_proof(sartor: Call, small: list[object]) -> None:
    out = " ".join(sartor(*small, "--microbatch-size", "1,2", "--tp", "1", "--verbose").out.split())
    assert "Plans tried: tp 1; cp 1, 2; chunks per device 1, 2, 4; microbatches of 1, 2." in out
    assert "2 is the largest --microbatch-size that was tried" in out
    served = " ".join(sartor(*small, "--objective", "train:0.5,decode:0.5").out.split())
    assert "seq or" in served
    assert ", the geometric mean of sequences/s and tokens/s (2 jobs, weights 0.5 and 0.5)" in served


def test_chips_of_a_front_are_told_apart_by_their_clock(sartor: Call, small: list[object], tmp_path: Path) -> None:
    space = write_space(tmp_path, SPACE.replace("[1, 4]", "4") + "clock_mhz = [900, 1000]\n")
    out = sartor(*small, *space, *FEW, "--pareto", "area_mm2,power_w").out
    assert "0.9 GHz" in out
    assert "1 GHz" in out


def test_several_models_are_weighed(sartor: Call, small: list[object], tmp_path: Path) -> None:
    other = write_model(tmp_path, "deep", n_layer=8)
    small = [*small, *FEW]
    body = sartor(*small, "--model", other, "--weights", "1,3", "--seq-len", "128,64", "--json").body
    assert [model["seq_len"] for model in body["question"]["models"]] == [128, 64]
    a, b = (body["best"]["throughput"][name] for name in ("small", "deep"))
    assert body["best"]["objective"] == pytest.approx(a**0.25 * b**0.75)
    plain = sartor(*small, "--model", other, "--mean", "arithmetic", "--json").body
    assert plain["best"]["objective"] == pytest.approx(sum(plain["best"]["throughput"].values()) / 2)


@pytest.mark.parametrize(
    ("objective", "per"),
    [
        ("throughput-per-mm2", "area_mm2"),
        ("throughput-per-watt", "power_w"),
        ("throughput-per-dollar", "usd"),
        ("throughput-per-ownership-dollar", "ownership_usd"),
    ],
)
def test_an_objective_is_throughput_over_what_it_says_of_all_devices(
    sartor: Call, small: list[object], objective: str, per: str
) -> None:
    body = sartor(*small, "--objective", objective, "--json").body
    best, devices = body["best"], body["question"]["num_devices"]
    assert devices > 1
    assert best["objective"] == pytest.approx(best["throughput"]["small"] / (best[per] * devices))


def test_a_front_over_budgets_is_proved_and_none_of_its_points_beats_another(sartor: Call, small: list[object]) -> None:
    body = sartor(*small, *FEW, "--pareto", "area_mm2,power_w", "--json").body
    assert body["pareto_axes"] == ["area_mm2", "power_w"]
    assert body["pareto_proved"] is True
    assert sartor(*small, *FEW, "--pareto", "objective,area_mm2,power_w", "--json").body["pareto"] == body["pareto"]
    points = [(-each["objective"], each["area_mm2"], each["power_w"]) for each in body["pareto"]]
    assert len(points) > 1
    assert points[0][0] == -body["best"]["objective"]
    for one in points:
        for other in points:
            assert one is other or not all(a <= b for a, b in zip(one, other, strict=True))
    assert "Proved over the whole space" in sartor(*small, *FEW, "--pareto", "area_mm2").out


def test_budgets_hold(sartor: Call, small: list[object]) -> None:
    free = sartor(*small, "--json").body["best"]
    held = sartor(*small, "--area-mm2", free["area_mm2"] * 0.99, "--hbm-gib", "0.1", "--json").body["best"]
    assert held["area_mm2"] <= free["area_mm2"] * 0.99
    assert held["architecture"]["hbm_bytes"] == 0.02e9
    assert held["objective"] < free["objective"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--area-mm2", "0.5"], "area_mm2=0.5: the smallest of 8 candidates takes"),
        (["--power-w", "0.001"], "power_w=0.001: the smallest of 8 candidates takes"),
        (["--hbm-gib", "0.000001"], "hbm_bytes=1073.74 (1.05 KiB): the smallest of 8 candidates takes"),
        (["--tp", "3"], "widths: none of 3 splits small on 8 devices"),
        (["--energy-j-per-token", "1e-20", *FEW], "energy_j_per_token"),
    ],
)
def test_no_point_that_fits_is_an_answer_with_exit_code_3(
    sartor: Call, small: list[object], words: list[str], named: str
) -> None:
    ran = sartor(*small, *words, "--json")
    assert ran.code == 3
    assert (ran.body["status"], ran.body["best"]) == ("infeasible", None)
    assert named in ran.body["tightest"]
    assert named in ran.err
    text = sartor(*small, *words)
    assert text.code == 3
    assert "No point of the space fits" in text.out


def test_a_spaces_own_limit_is_called_by_its_name(sartor: Call, small: list[object], tmp_path: Path) -> None:
    words = [*small, *write_space(tmp_path, SPACE + "area_limit_mm2 = 1\n"), "--json"]
    assert sartor(*words).body["tightest"].startswith("area_limit_mm2=1: the smallest of 8 candidates takes")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--area-mm2", "-3"], "--area-mm2=-3.0: must be positive"),
        (["--area-mm2", "nan"], "--area-mm2=nan: must be positive and finite"),
        (["--area-mm2", "-5"], "--area-mm2=-5.0: must be positive and finite; nearest: 5"),
        (["--power-w", "0"], "--power-w=0.0: must be positive and finite; nearest: leave it out for no limit"),
        (["--hbm-gib", "0"], "--hbm-gib=0.0: must be positive"),
        (["--num-devices", "1099511627776"], "--num-devices=1099511627776: must be at most 10^7"),
        (["--global-batch-size", "1099511627776"], "--global-batch-size=1099511627776: must be at most 10^7"),
        (["--objective", "speed"], "--objective=speed: must be one of throughput, throughput-per-mm2"),
        (["--mean", "median"], "--mean=median: must be one of geometric, arithmetic"),
        (["--weights", "1,2"], "--weights=1.0,2.0: must hold one value, or one for each of the 1 models"),
        (["--weights", "0"], "--weights of small=0.0: must be positive"),
        (["--weights", "x"], "--weights=x: must be a number"),
        (["--seq-len", "0"], "--seq-len of small=0"),
        (["--seq-len", "12,x"], "--seq-len=12,x: must be a whole number"),
        (["--microbatch-size", "64"], "must hold one of at most --global-batch-size=32"),
        (["--recompute", "some"], "--recompute=some: must be none, full"),
        (["--time-limit", "0"], "--time-limit=0.0: must be a number of seconds above 0"),
        (["--tolerance", "-1"], "--tolerance=-1.0: must be"),
        (["--tp", "0"], "--tp of small=0"),
        (["--num-devices", "0"], "--num-devices=0"),
        (["--space", "publishd"], "--space=publishd: must be a named space"),
        (["--space", "none.toml"], "must be a catalogue name or a TOML file"),
        (["--area-model", "half"], "--area-model=half: must be one of published, die"),
        (["--pareto", "colour"], "--pareto=colour: must be an axis that can be a budget; nearest: area_mm2"),
        (["--executor", "cloud"], "--executor=cloud: must be serial, local or a scheduler's address"),
        (["--workers", "0"], "--workers=0: must be at least 1"),
        (["--model", "no-such-model"], "--model=no-such-model: not in the zoo"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(
    sartor: Call, small: list[object], words: list[str], sentence: str
) -> None:
    ran = sartor(*small, *words, "--json")
    assert sentence in ran.refusal()


@pytest.mark.parametrize("missing", ["--model", "--num-devices"])
def test_what_must_be_given_is_named(sartor: Call, small: list[object], missing: str) -> None:
    at = small.index(missing)
    ran = sartor(*small[:at], *small[at + 2 :])
    assert ran.code == 2
    assert f"missing option {missing}" in ran.err


def test_a_model_given_twice_is_refused(sartor: Call, small: list[object]) -> None:
    ran = sartor(*small, "--model", small[2])
    assert ran.code == 2
    assert "must be named apart" in ran.err


def test_other_ways_to_choose_are_priced_and_ctrl_c_keeps_those_there_are(
    sartor: Call, small: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def two(*_: Any, **__: Any) -> Iterator[Baseline]:
        yield Baseline(
            name="chip, expert placement", ranked=None, evaluations=3, seconds=1.0, note="none fits; t1 p1 d8"
        )
        yield Baseline(name="chip, searched placement", ranked=None, evaluations=3, seconds=1.0, note="none fits")
        raise KeyboardInterrupt

    monkeypatch.setattr("sartor.engine.run.compare", two)
    ran = sartor(*small, "--baselines", "--json")
    assert ran.code == 130
    body = ran.body
    assert (body["status"], body["interrupted"]) == ("optimal", True)
    names = [baseline["name"] for baseline in body["baselines"]]
    assert names == ["chip, expert placement", "chip, searched placement"]
    assert {"objective", "evaluated", "note", "wall_s"} <= set(body["baselines"][0])
    text = sartor(*small, "--baselines", "--verbose").out
    assert "chip: none fits" in text
    assert "t1 p1" not in text


def test_ctrl_c_answers_with_the_best_so_far_and_130(
    sartor: Call, small: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(progress: Progress) -> None:
        if progress.evaluated:
            raise KeyboardInterrupt

    design = api.design
    monkeypatch.setattr(api, "design", lambda *given, **words: design(*given, **words | {"progress": stop}))
    ran = sartor(*small, "--json")
    assert ran.code == 130
    assert ran.body["interrupted"] is True
    assert ran.body["best"]["objective"] <= ran.body["upper_bound"]
    assert "best result so far" in ran.err


def test_nothing_found_in_time_is_no_success(sartor: Call, small: list[object]) -> None:
    ran = sartor(*small, "--time-limit", "0.000001", "--json")
    assert (ran.code, ran.body["status"], ran.body["best"]) == (3, "unknown", None)
    assert ran.body["upper_bound"] is None or ran.body["upper_bound"] > 0
    assert "Out of time before a point was found" in ran.err
    text = sartor(*small, "--time-limit", "0.000001")
    assert text.code == 3
    assert "Out of time before a point was found" in text.out


def test_ctrl_c_before_a_point_was_found_says_that_there_is_none(
    sartor: Call, small: list[object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from sartor.designs import search

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(search, "run_in_time", stop)
    ran = sartor(*small, "--json")
    assert (ran.code, ran.body["status"], ran.body["best"]) == (130, "unknown", None)
    assert "nothing found yet" in ran.err
    assert "best result" not in ran.err
    assert "A command with --study FILE goes on where it ended." in sartor(*small).out
    assert "Run the same command again to go on from here." in sartor(*small, "--study", tmp_path / "s.db").out


def test_a_study_goes_on_and_refuses_another_question(sartor: Call, small: list[object], tmp_path: Path) -> None:
    words = ["--study", tmp_path / "study.db", "--json"]
    first, again = (sartor(*small, *words).body for _ in range(2))
    alone = sartor(*small, "--executor", "local", "--json").body
    for body in (first, again, alone):
        for key in ("convergence", "wall_s"):
            del body[key]
    assert without_clock(first) == without_clock(again) == without_clock(alone)
    other = sartor(*small, "--num-devices", "16", *words)
    assert other.code == 2
    assert "--num-devices" in other.err


def test_page_and_figures_are_written(sartor: Call, small: list[object], tmp_path: Path) -> None:
    ran = sartor(*small, *FEW, "--html", tmp_path / "page.html", "--png", tmp_path / "figures")
    assert ran.code == 0
    page = (tmp_path / "page.html").read_text()
    for anchor in ("search", "others", "plans", "chip", "layer", "pipeline", "reading"):
        assert f'id="{anchor}"' in page
    names = {path.stem for path in (tmp_path / "figures").iterdir()}
    assert {"step", "floor_plan", "layer_forward", "layer_backward", "pipeline"} <= names


@pytest.mark.parametrize("words", [["--html", "."], ["--out", "."], ["--png", "space.toml"]])
def test_what_cannot_be_written_is_said_before_anything_is_computed(
    sartor: Call, small: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(api, "design", None)
    ran = sartor(*small, *words)
    assert ran.code == 2
    assert words[0] in ran.err


def test_why_the_best_is_faster_is_told_model_by_model(
    sartor: Call, small: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = joint_baselines.known_chips
    monkeypatch.setattr(joint_baselines, "known_chips", lambda *asked: [next(iter(known(*asked)))])
    words = [*small, *FEW, "--baselines"]
    (reason,) = sartor(*words, "--json").body["reasons"]
    assert reason["factor"] == pytest.approx(reason["placement_factor"] * reason["chip_factor"])
    assert {"arrays", "lanes", "buffer"} <= set(reason["left"])
    assert "256 vector lanes instead of 64" in reason["text"]
    out = sartor(*words, "--verbose").out
    assert "The best chip against TPUv4-like" in out
    assert f"{reason['factor']:.2f}x as fast as TPUv4-like with expert placement" in " ".join(out.split())


def test_spaces_are_in_the_catalogue(sartor: Call) -> None:
    entries = {entry["name"]: entry for entry in sartor("catalog", "spaces", "--json").body["entries"]}
    assert (entries["phaze"]["num_points"], entries["phaze"]["num_candidates"]) == (75_712, 29_360)
    assert "phaze" in sartor("catalog", "spaces").out
    assert "29,360" in sartor("catalog", "spaces", "phaze").out


def test_the_best_chip_and_its_step_are_written_for_other_tools(
    sartor: Call, small: list[object], tmp_path: Path
) -> None:
    folders = {tool: tmp_path / tool for tool in ("zigzag", "timeloop", "chakra")}
    ran = sartor(*small, *(word for tool, folder in folders.items() for word in (f"--{tool}", folder)), "--json")
    assert ran.code == 0
    assert sorted(path.name for path in folders["zigzag"].iterdir()) == ["accelerator.yaml", "mapping.yaml"]
    assert [path.name for path in folders["timeloop"].iterdir()] == ["architecture.yaml"]
    (plan,) = ran.body["best"]["plan"].values()
    assert len(list(folders["chakra"].glob("step.*.et"))) == plan["num_devices"]


def test_a_folder_that_cannot_be_written_is_named(sartor: Call, small: list[object], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ran = sartor(*small, "--zigzag", tmp_path / "file" / "chip")
    assert ran.code == 2
    assert "--zigzag=" in ran.err


def test_with_all_shapes_the_best_shape_is_part_of_the_proof(sartor: Call, small: list[object]) -> None:
    asked = [*small, *FEW, "--shapes", "all", "--params-tolerance", "0.05"]
    body = json.loads(sartor(*asked, "--json").out)
    joint, shape = body["shapes"], body["best"]["shape"]
    assert body["status"] == "optimal"
    assert body["gap"] == 0
    assert {"num_layers", "hidden_size", "num_heads", "ffn_hidden_size", "num_params", "changed"} <= set(shape)
    assert abs(shape["params_change"]) <= 0.05
    assert all(shape[field] == new for field, (_, new) in shape["changed"].items())
    assert joint["as_it_is"] <= joint["in_turn"] <= body["best"]["objective"]
    assert joint["gain_over_turns"] == body["best"]["objective"] / joint["in_turn"]
    assert body["evaluated"] + body["pruned"] + body["left_out"] + body["waiting"] == body["num_points"]
    assert body["space_size"] == body["num_points"] == joint["num_shapes"] * 16
    text = sartor(*asked).out
    assert "Best shape: " in text
    assert "over the chip first and then the shape" in text


def test_a_family_of_models_has_one_chip_and_a_shape_each(sartor: Call, small: list[object], tmp_path: Path) -> None:
    other = write_model(tmp_path, "other", n_layer=2, n_positions=64)
    asked = [*small, *FEW, "--model", other, "--shapes", "all", "--params-tolerance", "0.05", "--tolerance", "0.02"]
    ran = sartor(*asked, "--json")
    assert ran.code == 0, ran.err
    best, joint = ran.body["best"], ran.body["shapes"]
    assert len(best["shapes"]) == 2
    assert ran.body["gap"] <= 0.02
    assert joint["as_it_is"] <= best["objective"]
    assert joint["num_shapes"] > joint["distinct"] > 1
    assert "takes one model" in sartor(*small, "--model", other, "--shapes", "4").err


@pytest.mark.parametrize(
    "more",
    [
        ["--global-batch-size", "5"],
        ["--microbatch-size", "3"],
        ["--recompute", "full"],
        ["--optimizer", "sgd"],
        ["--zero-stage", "3"],
        ["--cp", "4"],
        ["--virtual-stages", "2"],
    ],
)
def test_options_of_training_are_refused_for_serving_alone(sartor: Call, tmp_path: Path, more: list[str]) -> None:
    asked = ["design", "--model", "gpt2", "--num-devices", "1", *write_space(tmp_path), "--objective", "decode"]
    ran = sartor(*asked, *more)
    assert ran.code == 2
    assert f"{more[0]}={more[1]}: is of training" in ran.err


def test_one_device_is_designed_without_links_and_several_are_refused(sartor: Call, tmp_path: Path) -> None:
    asked = ["design", "--model", write_model(tmp_path, "small"), *write_space(tmp_path, SPACE + "num_links = 0\n")]
    asked += ["--global-batch-size", "8", "--no-baselines", *FEW, "--json", "--num-devices"]
    ran = sartor(*asked, "1")
    assert (ran.code, ran.body["status"], ran.err) == (0, "optimal", "")
    several = sartor(*asked, "2")
    assert several.code == 2
    assert "num_links=0: must be at least 1 for each chip, to join 2 devices" in several.err


def test_a_chip_without_links_is_named_as_the_reason_why_it_has_no_cluster(
    sartor: Call, tmp_path: Path, repo_dir: Path
) -> None:
    text = (repo_dir / "src/sartor/hardware/accelerators/tpu_v4_like.toml").read_text()
    (tmp_path / "alone.toml").write_text(text.replace("num_links = 6", "num_links = 0"))
    ran = sartor("estimate", "gpt2", "--gpu", tmp_path / "alone.toml")
    assert ran.code == 2
    assert "num_links=0: alone has no links that could join devices" in ran.err


def test_an_encoder_is_not_designed_for_decoding(sartor: Call, tmp_path: Path) -> None:
    asked = ["--num-devices", "1", *write_space(tmp_path), "--objective", "decode"]
    ran = sartor("design", "--model", "bert-large", *asked)
    assert ran.code == 2
    assert "BERT large is an encoder-only model, which does not decode" in ran.err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--evidence", "-1"], "--evidence=-1.0: limits a search over all shapes; nearest: --shapes all"),
        (["--shapes", "some"], "--shapes=some: must be a whole number of at least 1, or all"),
        (["--shapes", "all", "--fleet", "tpu_v4_like"], "--fleet=tpu_v4_like: is compared with a number of shapes"),
        (["--shapes", "all", "--params-tolerance", "2"], "--params-tolerance=2.0: must be a share from 0 to 1"),
        (["--shapes", "all", "--evidence", "9"], "evidence=9.0: the width of the quality guard must be from 0 to 4"),
    ],
)
def test_shapes_that_cannot_be_asked_for_are_refused_in_a_sentence(
    sartor: Call, small: list[object], more: list[str], said: str
) -> None:
    ran = sartor(*small, *more)
    assert ran.code == 2
    assert said in ran.err
