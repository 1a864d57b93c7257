"""Whatever can be read can be lowered and priced: every model type of the golden set, in every phase it has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sartor.cost.price import price
from sartor.hardware.catalog import load_gpu
from sartor.model.lower import lower
from sartor.model.workload import Phase, Workload
from sartor.read.huggingface import read_model

CONFIGS = Path(__file__).resolve().parents[1] / "golden" / "configs.jsonl"


@pytest.mark.slow
def test_every_model_type_of_the_golden_set_has_a_plausible_time_in_every_phase() -> None:
    gpu = load_gpu("h100")
    seen = set()
    for line in CONFIGS.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        config = row.get("config", row)
        if config.get("model_type") in seen:
            continue
        seen.add(config.get("model_type"))
        shape = read_model(config).shape
        for phase in Phase:
            if phase is Phase.DECODE and shape.encoder_only:
                continue
            context = 512 if phase is Phase.DECODE else 0
            workload = Workload(shape=shape, phase=phase, microbatch_size=2, seq_len=512, context_len=context)
            found = price(lower(workload), gpu)
            assert found.time_s > 0, config.get("model_type")
            assert 0 <= found.mfu < 1, config.get("model_type")
    assert len(seen) > 250
