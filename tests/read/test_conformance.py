"""Every golden configuration is counted to the unit as transformers builds it (rows: lab/transformers_truth.py)."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from sartor.model.counts import count_params, forward_matmul_flops, layer_runs
from sartor.read.huggingface import ModelReading, read_model

GOLDEN = Path(__file__).parent.parent / "golden"


def _rows() -> list[tuple[dict[str, str], dict[str, object]]]:
    with (GOLDEN / "conformance.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    configs = [json.loads(line)["config"] for line in (GOLDEN / "configs.jsonl").read_text().splitlines()]
    return list(zip(rows, configs, strict=True))


def _counted(reading: ModelReading, seq_len: int) -> dict[str, str]:
    shape = reading.shape
    counts, flops = count_params(shape), forward_matmul_flops(shape, 1, seq_len)
    return {
        "params": str(counts.total),
        "text_params": str(counts.text),
        "layer_params_runs": ";".join(f"{count}x{params}" for count, params in layer_runs(shape.main)),
        "active_params": str(counts.active),
        "linear_flops": str(flops.linear),
        "attention_flops": str(flops.attention),
    }


def test_every_golden_config_is_counted_to_the_unit() -> None:
    rows = _rows()
    assert len(rows) > 700
    wrong = []
    for row, config in rows:
        ours = _counted(read_model(dict(config)), int(row["seq_len"] or 2048))
        wrong += [
            f"{row['model_type']} {row['variant']} {c}: {v}, not {row[c]}"
            for c, v in ours.items()
            if row[c] and v != row[c]
        ]
    assert wrong == []


def test_what_is_not_settled_says_why() -> None:
    silent = [row["model_type"] for row, _ in _rows() if not row["params"] and not row["note"]]
    assert silent == []


@pytest.mark.parametrize("model_type", ["llava", "qwen2_vl", "mllama", "blip-2", "gemma3"])
def test_text_alone_does_not_run_the_tower(model_type: str) -> None:
    config = next(c for row, c in _rows() if row["model_type"] == model_type)
    shape = read_model(dict(config)).shape
    towers = [stack for stack in shape.stacks if not stack.is_text]
    assert towers
    assert all(stack.tokens == 0 for stack in towers)


def test_a_stored_head_is_in_the_total_and_not_in_what_the_class_runs() -> None:
    fields = {"model_type": "t5", "d_model": 512, "num_layers": 6, "vocab_size": 32128, "tie_word_embeddings": False}
    untied, tied = read_model(fields), read_model(fields | {"tie_word_embeddings": True})
    assert count_params(untied.shape).total - count_params(tied.shape).total == 32128 * 512
    assert count_params(untied.shape).active == count_params(tied.shape).active
    assert any("tie_word_embeddings" in sentence for sentence in untied.assumptions)


def test_layers_that_share_weights_are_counted_once() -> None:
    fields = {"model_type": "albert", "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
    fields |= {"num_hidden_layers": 12, "vocab_size": 30000, "embedding_size": 128}
    twelve, six = read_model(fields), read_model(fields | {"num_hidden_layers": 6})
    assert count_params(twelve.shape).total == count_params(six.shape).total
    assert forward_matmul_flops(twelve.shape, 1, 128).attention == 2 * forward_matmul_flops(six.shape, 1, 128).attention
