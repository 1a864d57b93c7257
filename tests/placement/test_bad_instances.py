"""Every instance that cannot be placed is named in one sentence: field, value, what must hold, what is near."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from sartor.errors import InputError
from sartor.read.problems_json import parse_placement, parse_terms, read_placement


def instance() -> dict[str, Any]:
    def layers(t: int) -> list[dict[str, Any]]:
        return [
            {
                "id": id_,
                "parameterSize": 10.0,
                "activationSize": 5,
                "optimalLatencyFw": 1.0 / t,
                "optimalLatencyBw": 2.0 / t,
                "isTensorParallelized": t > 1,
            }
            for id_ in (-1, 0, 1)
        ]

    edges = [{"sourceId": u, "destId": v, "communicationCost": 3} for u, v in ((-1, 0), (0, 1))]
    return {
        "maxMemoryPerDevice": 1000,
        "maxDevices": 4,
        "bandwidth": 10.0,
        "mbsInBatch": 8,
        "activationRecomputation": False,
        "optimizerAlgorithm": "Adam",
        "nodes": {"1": layers(1), "2": layers(2)},
        "edges": {"1": edges, "2": copy.deepcopy(edges)},
        "fixedPP": 1,
        "fixedTMPC": 1,
        "fixedDP": 2,
        "numTransformerLayers": 3,
    }


def test_the_sample_itself_is_fine() -> None:
    assert parse_placement(instance()).layer_ids == (-1, 0, 1)


def test_the_experts_strategy_may_be_left_out() -> None:
    raw = instance()
    for name in ("fixedPP", "fixedTMPC", "fixedDP", "numTransformerLayers"):
        del raw[name]
    assert parse_placement(raw).fixed is None


BAD: list[tuple[list[Any], Any, str]] = [
    (["maxDevices"], 0, "maxDevices=0: must be an integer from 1"),
    (["maxDevices"], 2.5, "maxDevices=2.5: must be an integer; nearest: 2"),
    (["maxDevices"], True, "maxDevices=true: must be an integer"),
    (["maxDevices"], None, "maxDevices=null: must be an integer"),
    (["maxMemoryPerDevice"], -1, "maxMemoryPerDevice=-1.0: must be a positive finite number of bytes"),
    (["maxMemoryPerDevice"], float("nan"), "maxMemoryPerDevice=nan: must be a positive finite"),
    (["bandwidth"], 0, "bandwidth=0.0: must be a positive finite number of bytes per second"),
    (["bandwidth"], "fast", 'bandwidth="fast" (a string): must be a number'),
    (["mbsInBatch"], 0, "mbsInBatch=0"),
    (["activationRecomputation"], "no", "activationRecomputation=no: must be true or false"),
    (["optimizerAlgorithm"], "Adamw", "optimizerAlgorithm=Adamw: must be SGD or Adam; nearest: Adam"),
    (["optimizerAlgorithm"], 3, "optimizerAlgorithm=3: must be SGD or Adam"),
    (["nodes"], [], "nodes=[]: must be an object"),
    (["nodes", "1"], {}, 'nodes["1"]={}: must be a list'),
    (["nodes", "1"], [], "must hold at least one layer"),
    (["nodes", "1", 0], 7, 'nodes["1"][0]=7: must be an object'),
    (
        ["nodes", "1", 1, "id"],
        -1,
        'id in nodes["1"]=-1: ids must be unique; this one is given twice, to layers [0] and [1]',
    ),
    (["nodes", "1", 1, "id"], -1, "of the list; nearest: 0, which none has"),
    (["nodes", "1", 1, "id"], "0", 'nodes["1"][1].id='),
    (["nodes", "1", 0, "optimalLatencyFw"], -0.5, 'optimalLatencyFw of layer -1 in nodes["1"]=-0.5'),
    (["nodes", "2", 2, "optimalLatencyBw"], float("inf"), 'optimalLatencyBw of layer 1 in nodes["2"]=inf'),
    (["nodes", "1", 0, "parameterSize"], -3, "parameterSize of layer -1"),
    (["nodes", "1", 0, "activationSize"], float("nan"), "activationSize of layer -1"),
    (["nodes", "1", 0, "isTensorParallelized"], 1, "isTensorParallelized=1: must be true or false"),
    (["nodes", "2", 0, "id"], 5, 'sourceId in edges["2"]=-1: must be the id of a layer'),
    (["edges", "1", 0, "sourceId"], 4, 'sourceId in edges["1"]=4: must be the id of a layer; nearest: 1, 0'),
    (["edges", "1", 0, "communicationCost"], -1, "communicationCost of -1 -> 0"),
    (["edges", "1", 0, "communicationCost"], "big", 'communicationCost="big" (a string): must be a number'),
    (["edges", "1", 1, "destId"], -1, "0 -> -1"),
    (["edges", "1", 1, "sourceId"], 1, "1 -> 1"),
    (["edges", "2"], [], 'edges of width "2"='),
    (["fixedTMPC"], 4, "fixedTMPC=4: must be one of the widths in nodes (1, 2); nearest: 2"),
    (["fixedPP"], 0, "fixedPP=0"),
]


@pytest.mark.parametrize(("path", "value", "words"), BAD, ids=[f"{p[-1]}={v}"[:40] for p, v, _ in BAD])
def test_a_bad_value_is_named(path: list[Any], value: Any, words: str) -> None:
    raw = instance()
    place = raw
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(InputError) as caught:
        parse_placement(raw)
    assert words in str(caught.value)


@pytest.mark.parametrize("name", [*instance(), "fixedPP"])
def test_a_missing_field_is_named(name: str) -> None:
    raw = instance()
    del raw[name]
    with pytest.raises(InputError, match=f"{name}=missing: must be given"):
        parse_placement(raw)


@pytest.mark.parametrize("name", ["id", "parameterSize", "optimalLatencyFw", "isTensorParallelized"])
def test_a_missing_field_of_a_layer_is_named(name: str) -> None:
    raw = instance()
    del raw["nodes"]["2"][1][name]
    with pytest.raises(InputError, match="must be given") as caught:
        parse_placement(raw)
    assert f'nodes["2"][1].{name}' in str(caught.value)


def test_a_misspelt_field_names_the_one_that_is_given() -> None:
    raw = instance()
    raw["bandwith"] = raw.pop("bandwidth")
    with pytest.raises(InputError, match="bandwidth=missing: must be given; nearest: bandwith"):
        parse_placement(raw)


@pytest.mark.parametrize(("name", "near"), [("maxDevice", "maxDevices"), ("fixedTPMC", "fixedTMPC")])
def test_a_field_beside_the_one_it_misspells_is_refused_and_a_comment_is_not(name: str, near: str) -> None:
    parse_placement(instance() | {"comment": "drawn by hand"})
    with pytest.raises(InputError, match=f"instance={name}: is not a known field.*nearest: {near}"):
        parse_placement(instance() | {name: 4})


@pytest.mark.parametrize(
    ("rows", "name", "near"),
    [
        ("nodes", "expertParameterSiz", "expertParameterSize"),
        ("nodes", "parametersize", "parameterSize"),
        ("edges", "communicationCosts", "communicationCost"),
    ],
)
def test_a_misspelt_field_of_a_layer_or_an_edge_is_refused_and_a_comment_is_not(
    rows: str, name: str, near: str
) -> None:
    raw = instance()
    raw[rows]["2"][0]["comment"] = "measured"
    parse_placement(raw)
    raw[rows]["2"][0][name] = 4
    with pytest.raises(InputError) as caught:
        parse_placement(raw)
    assert str(caught.value).startswith(f'{rows}["2"][0]={name}: is not a known field')
    assert str(caught.value).endswith(f"nearest: {near}")


@pytest.mark.parametrize("lacking", ["nodes", "edges"])
def test_a_width_must_have_layers_and_edges(lacking: str) -> None:
    raw = instance()
    del raw[lacking]["2"]
    with pytest.raises(InputError, match=f"{lacking}='no width 2': must have the widths of"):
        parse_placement(raw)


@pytest.mark.parametrize("key", ["0", "-1", "two", "1.5", "", "4 xp2"])
def test_a_width_must_be_a_positive_integer(key: str) -> None:
    raw = instance()
    raw["nodes"][key], raw["edges"][key] = raw["nodes"].pop("2"), raw["edges"].pop("2")
    with pytest.raises(InputError):
        parse_placement(raw)


def test_a_cycle_is_shown_whole() -> None:
    raw = instance()
    for edges in raw["edges"].values():
        edges.append({"sourceId": 1, "destId": 0, "communicationCost": 1})
    with pytest.raises(InputError, match=r"0 -> 1 -> 0|1 -> 0 -> 1"):
        parse_placement(raw)


@pytest.mark.parametrize("text", ["", "[1, 2]", "{", '{"a": 1, "a": 2}', "<html>", '{"nodes": NaN}'])
def test_a_file_that_is_no_instance_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "instance.json"
    file.write_text(text)
    with pytest.raises(InputError):
        read_placement(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_placement(tmp_path / "none.json")


TIER = {"devices": 8, "bandwidth": 1e9}
TYPE = {"name": "a", "maxDevices": 8, "maxMemoryPerDevice": 1e9}


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"zerostages": [1]}, "zerostages: must be a known term; nearest: zeroStages"),
        ({"tiers": [{"devices": 8}]}, "terms.tiers[0].bandwidth=missing"),
        ({"tiers": [TIER | {"latncy": 1}]}, "terms.tiers[0]=latncy: must be a known field; nearest: latency"),
        ({"tiers": [TIER | {"note": ""}]}, "terms.tiers[0]=note: must be a known field"),
        (
            {"deviceTypes": [TYPE | {"slowdwn": 2}]},
            "terms.deviceTypes[0]=slowdwn: must be a known field; nearest: slow",
        ),
        ({"virtualStages": ["2"]}, "must be an integer"),
        ({"deviceTypes": [{"name": "a", "maxDevices": 0, "maxMemoryPerDevice": 1}]}, "maxDevices of a=0"),
        ({"resyncEveryStage": 1}, "must be true or false"),
    ],
)
def test_bad_terms_are_named(raw: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_terms(raw)
    assert words in str(caught.value)


def test_the_example_files_are_read(repo_dir: Path) -> None:
    folder = repo_dir / "examples" / "placement"
    assert len(read_placement(folder / "encoder_decoder.json").layer_ids) == 26
    assert parse_terms(json.loads((folder / "nvlink_nodes.terms.json").read_text())).resync_every_stage
