"""Extracted graphs as files: read as they were written, priced like the built-in lowering, refused with a sentence."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sartor
from sartor import api
from sartor.errors import InputError
from sartor.model.counts import count_params
from sartor.model.lower import lower
from sartor.model.lower.graph import lower_layer
from sartor.model.lower.traced import traced_shape
from sartor.model.workload import Phase, Workload
from sartor.operators import Part, Pass
from sartor.read.graph_json import graph_body, is_graph, parse_graph, read_graph
from sartor.read.huggingface import read_model

GRAPH = Path(__file__).resolve().parents[1] / "golden" / "tiny_llama_graph.json"
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "intermediate_size": 640,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 1024,
    "max_position_embeddings": 512, "tie_word_embeddings": False,
}  # fmt: skip
"""What the golden graph was extracted from: --microbatch-size 2 --seq-len 128 (torch 2.13.0, transformers 5.23.0)."""


def body() -> dict[str, Any]:
    return json.loads(GRAPH.read_text())


def workload(batch: Any = 2, phase: Phase = Phase.TRAIN) -> Workload:
    return Workload(shape=traced_shape(read_graph(GRAPH)), microbatch_size=batch, seq_len=128, phase=phase)


def test_a_graph_is_read_as_it_was_written() -> None:
    model = read_graph(GRAPH)
    again = parse_graph(json.loads(json.dumps({"schema": "sartor/extract/1", **graph_body(model)})))
    assert (again.graph, again.calls, again.layers) == (model.graph, model.calls, model.layers)


def test_parameters_and_matmul_flops_are_those_of_the_built_in_lowering() -> None:
    built_in = read_model(CONFIG)
    traced, shape = read_graph(GRAPH), traced_shape(read_graph(GRAPH))
    assert traced.num_params == built_in.num_params == count_params(shape).total
    ours = lower(Workload(shape=built_in.shape, microbatch_size=2, seq_len=128))
    assert lower(workload()).matmul_flops == ours.matmul_flops


def test_the_optimizer_steps_over_every_parameter_once() -> None:
    steps = [op for op in lower(workload(), optimizer=True).operators if op.pass_ is Pass.OPTIMIZER]
    assert sum(op.cols * op.count for op in steps) == read_graph(GRAPH).num_params


def frozen_but(share: int) -> dict[str, Any]:
    """The golden graph with one in ``share`` parameters of its layers trained and none around them."""
    found = body()
    rows = [(row, row["weight_sets"]) for row in found["layers"]]
    for row, _ in rows:
        row["trainable_params"] = row["num_params"] // share
    found["model"]["trainable_params"] = sum(row["trainable_params"] * sets for row, sets in rows)
    found["model"]["trainable_embedding_params"] = 0
    return found


def test_frozen_parameters_have_no_gradients_and_no_optimizer_and_buffers_are_held(tmp_path: Path) -> None:
    words: dict[str, Any] = {
        "cluster": "dgx-a100",
        "num_devices": 8,
        "global_batch_size": 64,
        "fix": {"dp": 8, "zero_stage": 0},
    }
    held = []
    for name, made in (("all", body()), ("few", frozen_but(64))):
        made["layers"][0]["buffer_bytes"] = 0.0 if name == "all" else 1e6
        (tmp_path / f"{name}.json").write_text(json.dumps(made))
        held.append(api.plan(tmp_path / f"{name}.json", **words).best)
    whole, few = held
    trained = parse_graph(frozen_but(64)).num_params - parse_graph(frozen_but(64)).frozen_params
    ratio = trained / read_graph(GRAPH).num_params
    assert few.footprint.grad_bytes == pytest.approx(whole.footprint.grad_bytes * ratio)
    assert few.footprint.optimizer_bytes == pytest.approx(whole.footprint.optimizer_bytes * ratio)
    assert few.footprint.param_bytes == pytest.approx(whole.footprint.param_bytes + 3e6)  # three layers
    steps = [
        op
        for op in lower(
            Workload(shape=traced_shape(parse_graph(frozen_but(64))), seq_len=128), optimizer=True
        ).operators
        if op.pass_ is Pass.OPTIMIZER
    ]
    assert sum(op.cols * op.count for op in steps) == trained


def test_buffers_are_held_in_inference_too(tmp_path: Path) -> None:
    held = []
    for bytes_ in (0.0, 1e6):
        made = body()
        made["layers"][0]["buffer_bytes"] = bytes_
        (tmp_path / "graph.json").write_text(json.dumps(made))
        held.append(api.estimate(tmp_path / "graph.json", "a100", phase="prefill").serving.memory.param_bytes)
    assert held[1] - held[0] == pytest.approx(3e6)


def test_more_trained_parameters_than_parameters_are_refused() -> None:
    made = body()
    made["model"]["trainable_params"] = made["model"]["num_params"] + 1
    with pytest.raises(InputError, match="must be at most num_params"):
        parse_graph(made)


@given(batch=st.integers(1, 64))
def test_products_grow_with_the_batch_and_an_array_gives_what_a_number_gives(batch: int) -> None:
    one, many = lower(workload(batch)), lower(workload(np.array([1, batch])))
    assert one.matmul_flops == pytest.approx(lower(workload(1)).matmul_flops * batch)
    assert many.matmul_flops[1] == one.matmul_flops
    for a, b in zip(one.operators, many.operators, strict=True):
        assert np.broadcast_to(b.flops, (2,))[1] == a.flops


def test_prefill_is_the_forward_part_of_training() -> None:
    train, prefill = lower(workload()), lower(workload(phase=Phase.PREFILL))
    forward = [op for op in train.operators if op.pass_ is Pass.FORWARD]
    assert list(prefill.operators) == forward
    assert all(a < b < len(forward) for a, b in prefill.edges)


def test_the_layers_graph_adds_up_to_the_models() -> None:
    layer, whole = lower_layer(workload()), lower(workload())
    one = layer.forward.matmul_flops + layer.backward.matmul_flops
    layers = sum(op.flops * op.count for op in whole.operators if op.part is Part.LAYER and hasattr(op, "dtype"))
    vector = sum(op.flops * op.count for op in (*layer.forward.operators, *layer.backward.operators)) - one
    assert 3 * (one + vector) == pytest.approx(layers)
    assert layer.forward.edges
    assert all(a < b for a, b in layer.forward.edges)


def test_estimate_prices_a_graph_in_place_of_a_config() -> None:
    found = api.estimate(GRAPH, "h100_sxm")
    assert found.graph.tokens == 256
    assert 0 < float(found.microbatch.low_s) < float(found.microbatch.time_s) < float(found.microbatch.high_s)
    assert 0 < found.layer_time_s * 3 <= found.microbatch.time_s
    assert any("traced" in note for note in found.question.assumptions)


def test_a_plan_of_a_graph_keeps_tensor_and_context_parallelism_at_one() -> None:
    answer = sartor.plan(str(GRAPH), "dgx-h100", num_devices=8, global_batch_size=32)
    assert answer.best is not None
    dims = answer.best.plan.dims
    assert (dims.tp, dims.cp, dims.ep) == (1, 1, 1)
    assert "traced on one device: tp and cp are 1" in answer.search.rejected


def test_a_design_takes_its_layers_from_the_graph_and_leaves_them_whole() -> None:
    from sartor.designs.ask import design_models
    from sartor.designs.parts import CopySplit, model_parts

    (model,), notes = design_models([traced_shape(read_graph(GRAPH))], 4)
    assert notes == ("tiny_llama: seq_len=128 (default)",)
    parts = model_parts(model, CopySplit(microbatch_size=1, width=1), 16)
    assert parts is not None
    names = [op.name for op in parts.parts[1].forward.operators]
    assert {"self_attn.q_proj", "self_attn.attention", "mlp.down_proj"} <= set(names)
    assert len(parts.order) == 3
    assert model_parts(model, CopySplit(microbatch_size=1, width=2), 16) is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"phase": "decode"}, "traced forward over whole sequences"),
        ({"seq_len": 64}, "was traced at seq_len=128"),
        ({"dtype": "fp8"}, "was traced in bf16"),
        ({"tp": 2}, "traced on one device"),
        ({"set": {"num_layers": 2}}, "shape of an extracted graph is fixed"),
    ],
)
def test_what_was_not_traced_is_refused(words: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        api.estimate(GRAPH, "h100_sxm", **words)


@pytest.mark.parametrize("journey", [api.lint, api.advise])
def test_journeys_that_change_a_shape_refuse_a_graph(journey: Any) -> None:
    with pytest.raises(InputError, match=r"give a config\.json"):
        journey(GRAPH, "h100_sxm")


def _with(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    out = copy.deepcopy(body())
    at = out
    for key in path[:-1]:
        at = at[key]
    if value is ...:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return out


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("schema",), "sartor/extract/9", "sartor/extract/1"),
        (("operators",), [], "at least one operator"),
        (("operators", 4, "m"), 0, r"operators\[4\]\.m=0"),
        (("operators", 4, "m"), 2.5, "must be an integer"),
        (("operators", 4, "m"), True, "must be an integer"),
        (("operators", 4, "m"), ..., "must be given"),
        (("operators", 4, "kind"), "gem", "nearest: gemm"),
        (("operators", 4, "dtype"), "bf15", "nearest: bf16"),
        (("operators", 4, "layer"), 7, "index into 1 layers"),
        (("operators", 3, "bytes_moved"), -1, "at least 0"),
        (("edges", 0), [5, 2], "two indices a < b"),
        (("edges", 0), [0, 999], "two indices a < b"),
        (("layers", 0, "positions"), [0, 1], "as many as count=3"),
        (("layers", 0, "positions"), [0, 1, 1], "each once"),
        (("layers",), [], "at least one kind"),
        (("model",), 3, "must be an object"),
        (("workload", "phase"), "decode", "must be one of train, prefill"),
    ],
)
def test_a_damaged_graph_is_refused_with_its_place(path: tuple[Any, ...], value: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse_graph(_with(path, value), "graph.json")


def test_only_extracted_graphs_are_taken_for_graphs(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG))
    assert is_graph(GRAPH)
    assert not is_graph(config)
    assert not is_graph(tmp_path)
    assert not is_graph(Path("no such file"))
