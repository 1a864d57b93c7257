"""An operator has one price: `sartor validate` asks the same function as `estimate`, `gemm` and `operators`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sartor.cost.correction.calibration import Clock, load_calibration
from sartor.cost.price import operator_costs, price
from sartor.hardware.catalog import load_gpu
from sartor.operators import OperatorGraph
from sartor.records.rows import work_of
from sartor.records.tables import read_tables
from sartor.records.targets import model_work, targets_of
from sartor.validate.predictions import _cost_of, predict

KEYS = np.array([64, 1024, 65536, 524288])
DECODE = {"batch": 1, "heads": 8, "kv_heads": 1, "head_dim": 128, "window": 0, "seq_q": 1, "seq_kv": KEYS}
LAYER = {"rows": KEYS, "cols": 8192, "bytes": KEYS * 8192 * 4}
ROWS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("attention", {"dtype": "bfloat16", "phase": "generation"}, DECODE),
    ("attention", {"dtype": "bfloat16", "phase": "context"}, DECODE | {"seq_q": KEYS}),
    ("gemm", {"dtype": "bfloat16"}, {"m": KEYS, "n": 4096, "k": 4096, "batch": 1}),
    ("memory_bound", {"dtype": "bfloat16", "op": "rmsnorm"}, LAYER),
]


@pytest.mark.parametrize("device", ["a100_sxm", "rtx_5090", "h200_sxm"])
@pytest.mark.parametrize(("kind", "words", "sizes"), ROWS)
def test_a_row_has_the_price_of_its_operator(kind: str, words: Any, sizes: Any, device: str) -> None:
    gpu = load_gpu(device)
    known, work = load_calibration(gpu), work_of(kind, words, sizes, gpu)
    row = _cost_of(work.operators[0], work, gpu, known, Clock.BOOST)
    asked = operator_costs(work.operators, gpu, known, clock=Clock.BOOST)[0]
    for name in ("time_s", "low_s", "high_s", "compute_s", "memory_s"):
        assert np.array_equal(getattr(row, name), getattr(asked, name)), name


def test_a_row_of_a_model_has_the_price_of_an_eager_pass(tmp_path: Path) -> None:
    """Its kernels wait for the host, and its operators, the terms of the worst rows among them, are those of a model:
    weights that stay in L2 when a benchmark repeats a kernel come from memory."""
    gpu, words = load_gpu("a100_pcie_40gb"), {"model": "gpt2_large", "phase": "forward", "dtype": "float32"}
    file = tmp_path / "rows.csv"
    file.write_text(
        "gpu,model,phase,part,dtype,batch,seq,latency_us\na100_pcie_40gb,gpt2_large,forward,total,float32,4,512,1e5\n"
    )
    row = predict(targets_of(read_tables(file).tables))
    work = model_work({**words, "part": "total"}, {"batch": np.array([4]), "seq": np.array([512])})
    known = replace(load_calibration(gpu), host_launches=True)
    graph = OperatorGraph(operators=work.operators, tokens=work.tokens)
    whole = price(graph, gpu, known, clock=Clock.BOOST, eager=True)
    assert row.time_s[0] == pytest.approx(float(whole.time_s), rel=1e-12)
    for op, inside in zip(work.operators, whole.costs, strict=True):
        assert _cost_of(op, work, gpu, known, Clock.BOOST).time_s == inside.time_s, op.name
