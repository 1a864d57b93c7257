"""Counting: against hand-derived closed forms, and the laws that hold whatever the sizes."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sartor.errors import InputError
from sartor.model.counts import (
    AttentionSquare,
    count_params,
    forward_matmul_flops,
    layer_params,
    layer_runs,
)
from sartor.model.editing import edit
from sartor.model.layer import AttentionMixer, DenseFfn, Layer, MoeFfn, Norm
from sartor.model.shape import LayerRun, Stack, TransformerShape
from sartor.model.zoo import load_model
from sartor.read.huggingface import read_model


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as text:
        return list(csv.DictReader(text))


def decoder(
    hidden: int = 64, layers: int = 3, heads: int = 4, kv: int = 2, d: int = 16, ffn: int = 128, vocab: int = 1000
) -> TransformerShape:
    layer = Layer(
        mixers=(AttentionMixer(num_heads=heads, num_kv_heads=kv, head_dim=d),),
        ffn=DenseFfn(ffn_hidden_size=ffn),
        norms=(Norm(), Norm()),
    )
    stack = Stack(name="decoder", hidden_size=hidden, runs=(LayerRun(layer=layer, count=layers),), norms=(Norm(),))
    return TransformerShape(name="toy", stacks=(stack,), vocab_size=vocab, tied_embeddings=False)


sizes = st.fixed_dictionaries(
    {
        "hidden": st.integers(1, 200),
        "layers": st.integers(1, 9),
        "kv": st.integers(1, 4),
        "d": st.integers(1, 40),
        "ffn": st.integers(1, 500),
        "vocab": st.integers(1, 5000),
    }
)


@given(sizes)
def test_a_llama_has_the_parameters_of_the_textbook_formula(s: dict[str, int]) -> None:
    h, n, kv, d, f, v = (s[k] for k in ("hidden", "layers", "kv", "d", "ffn", "vocab"))
    a = 2 * kv
    per_layer = 2 * h * a * d + 2 * h * kv * d + 3 * h * f + 2 * h
    assert count_params(decoder(heads=a, **s)).total == n * per_layer + h + 2 * v * h


@given(sizes, st.integers(1, 8), st.integers(1, 300))
def test_a_forward_pass_takes_two_flops_per_weight_and_token(s: dict[str, int], batch: int, seq: int) -> None:
    shape = decoder(heads=2 * s["kv"], **s)
    counts, flops = count_params(shape), forward_matmul_flops(shape, batch, seq)
    norms = (2 * s["layers"] + 1) * s["hidden"]
    assert flops.linear == 2 * batch * seq * (counts.total - norms - s["vocab"] * s["hidden"])
    assert flops.attention == batch * s["layers"] * 2 * s["kv"] * seq**2 * 4 * s["d"]
    assert flops.total == flops.linear + flops.attention


@given(sizes, st.integers(1, 300))
def test_masks_only_take_away(s: dict[str, int], seq: int) -> None:
    shape = decoder(heads=2 * s["kv"], **s)
    full = forward_matmul_flops(shape, 1, seq).attention
    masked = forward_matmul_flops(shape, 1, seq, square=AttentionSquare.MASKED).attention
    assert full / 2 <= masked <= full


def test_an_array_of_shapes_counts_like_each_of_its_entries() -> None:
    shape = decoder()
    hidden, ffn = np.array([64, 80, 96])[:, None], np.array([128, 256])
    counts = count_params(edit(shape, hidden_size=hidden, ffn_hidden_size=ffn))
    flops = forward_matmul_flops(edit(shape, hidden_size=hidden, ffn_hidden_size=ffn), 2, 128)
    assert np.shape(counts.total) == (3, 2)
    for i, h in enumerate((64, 80, 96)):
        for j, f in enumerate((128, 256)):
            one = edit(shape, hidden_size=h, ffn_hidden_size=f)
            assert counts.total[i, j] == count_params(one).total
            assert flops.linear[i, j] == forward_matmul_flops(one, 2, 128).linear


def test_layers_and_what_is_outside_add_up_to_the_total() -> None:
    shape = decoder()
    inside = sum(count * params for count, params in layer_runs(shape.main))
    assert count_params(shape).total == inside + 64 + 2 * 1000 * 64
    assert layer_runs(shape.main) == ((3, layer_params(shape.main.runs[0].layer, 64)),)


def test_runs_are_written_in_the_order_of_the_layers() -> None:
    shape = decoder()
    narrow = shape.main.runs[0].layer
    wide = replace(narrow, ffn=DenseFfn(ffn_hidden_size=256))
    runs = (LayerRun(layer=narrow, count=2, positions=(0, 2)), LayerRun(layer=wide, count=1, positions=(1,)))
    a, b = layer_params(narrow, 64), layer_params(wide, 64)
    assert layer_runs(replace(shape.main, runs=runs)) == ((1, a), (1, b), (1, a))


def test_active_parameters_leave_the_experts_out_that_a_token_does_not_choose() -> None:
    shape = decoder()
    moe = MoeFfn(num_experts=8, experts_per_token=2, expert=DenseFfn(ffn_hidden_size=32))
    layer = replace(shape.main.runs[0].layer, ffn=moe)
    sparse = replace(shape, stacks=(replace(shape.main, runs=(LayerRun(layer=layer, count=3),)),))
    counts, one = count_params(sparse), 3 * 64 * 32
    assert counts.routed_expert == 3 * 8 * one
    assert counts.total - counts.active == 3 * 6 * one
    dense = count_params(edit(sparse, experts_per_token=8))
    assert dense.active == dense.total


def test_a_tied_head_is_counted_once_and_multiplied_all_the_same() -> None:
    untied, tied = decoder(), replace(decoder(), tied_embeddings=True)
    assert count_params(untied).total - count_params(tied).total == 1000 * 64
    assert forward_matmul_flops(untied, 1, 10) == forward_matmul_flops(tied, 1, 10)


def test_shared_weights_count_once_and_run_every_time() -> None:
    shape = decoder()
    shared = replace(shape, stacks=(replace(shape.main, runs=(replace(shape.main.runs[0], weight_sets=1),)),))
    assert count_params(shape).total - count_params(shared).total == 2 * layer_params(shape.main.runs[0].layer, 64)
    assert forward_matmul_flops(shared, 1, 10) == forward_matmul_flops(shape, 1, 10)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_heads": 3}, ("num_heads=3", "num_kv_heads 2", "2 and 4")),
        ({"num_kv_heads": 3}, ("num_kv_heads=3", "num_heads 4", "2 and 4")),
        ({"hidden_size": -1}, ("hidden_size=-1", "positive")),
        ({"num_layers": 0}, ("num_layers=0", "positive")),
        ({"hiden_size": 64}, ("hiden_size", "hidden_size")),
        ({"num_experts": 8}, ("num_experts", "none")),
    ],
)
def test_an_edit_that_makes_no_model_is_refused_with_what_would(
    changes: dict[str, int], words: tuple[str, ...]
) -> None:
    with pytest.raises(InputError) as caught:
        edit(decoder(), **changes)
    for word in words:
        assert word in str(caught.value)


def test_an_edit_counts_like_a_file_with_the_edited_fields() -> None:
    config = {
        "model_type": "afmoe", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 64,
        "num_key_value_heads": 2, "vocab_size": 512, "num_dense_layers": 2, "intermediate_size": 512,
    }  # fmt: skip
    edits: tuple[tuple[dict[str, int], dict[str, int]], ...] = (
        ({"hidden_size": 320}, {"hidden_size": 320}),
        ({"num_heads": 6}, {"num_attention_heads": 6}),
        ({"head_dim": 32}, {"head_dim": 32}),
        ({"num_kv_heads": 1, "ffn_hidden_size": 300}, {"num_key_value_heads": 1, "intermediate_size": 300}),
    )
    for changes, fields in edits:
        edited = edit(read_model(config).shape, **changes)
        assert count_params(edited).total == count_params(read_model(config | fields).shape).total


def test_linear_products_equal_the_products_the_published_classes_ran(shared_dir: Path) -> None:
    """truth_gemms.csv lists every product of one forward pass: its weight products sum to ours."""
    folder = shared_dir / "data/configs"
    seq_lens = {r["name"]: int(r["seq_len"] or 0) for r in rows_of(folder / "truth.csv")}
    products: dict[tuple[str, str], int] = {}
    for row in rows_of(folder / "truth_gemms.csv"):
        if row["op"] in ("mm", "addmm", "grouped_mm"):
            key = (row["family"], row["name"])
            products[key] = products.get(key, 0) + int(row["flops"])
    decoders = [k for k in products if k[0] in ("llama", "qwen3_moe", "gemma3", "falcon", "deepseek_v3", "gpt_oss")]
    assert len(decoders) >= 8
    for family, name in decoders:
        shape = read_model(folder / family / name / "config.json").shape
        assert forward_matmul_flops(shape, 1, seq_lens[name]).linear == products[family, name]


def test_shared_experts_that_are_whole_routed_ones_change_their_width_with_them() -> None:
    """DeepSeek's file has one width for both; Qwen2-MoE's shared expert has its own."""
    wider = edit(load_model("deepseek-v2"), expert_ffn_hidden_size=1792).moe_ffn
    assert wider is not None
    assert wider.shared is not None
    assert wider.shared.ffn_hidden_size == 2 * 1792


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("d_ff", {"ffn_hidden_size": 2048}),
        ("d_model", {"hidden_size": 768, "head_dim": 64}),
        ("num_heads", {"num_heads": 12, "head_dim": 64}),
        ("d_kv", {"head_dim": 128}),
    ],
)
def test_an_edit_changes_the_encoder_and_the_decoder_as_the_key_of_a_config_does(
    key: str, changes: dict[str, int]
) -> None:
    sizes = {"num_layers": 6, "num_decoder_layers": 4, "d_model": 512, "d_kv": 64, "d_ff": 1024, "num_heads": 8}
    config = {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "vocab_size": 32128, **sizes}
    edited = edit(read_model(config).shape, **changes)
    assert count_params(edited).total == read_model({**config, key: next(iter(changes.values()))}).num_params
