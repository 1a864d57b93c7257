"""Collectives over machines whose tiers the catalogue describes, on rows that nothing was fitted on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from accuracy.measured_tables import medians
from sartor.cost.collective.collective import collective_cost
from sartor.cost.correction.calibration import load_calibration
from sartor.cost.cost import Z80
from sartor.hardware.cluster_catalog import load_cluster
from sartor.operators import Collective, CollectiveKind
from sartor.records.tables import read_tables
from sartor.records.targets import targets_of
from sartor.validate.predictions import predict


@pytest.mark.parametrize(
    ("devices", "most"), [(2, 0.2), (4, 0.08)], ids=["bridge, by the A100's NVLink", "PCIe, by the RTX PRO 6000"]
)
def test_bridged_cards_are_priced_by_constants_of_others(shared_dir: Path, devices: int, most: float) -> None:
    wanted = (
        (pc.field("system") == "a100_pairwise_nvlink")
        & (pc.field("op") == "all_reduce")
        & (pc.field("n_gpus") == devices)
    )
    table = pq.read_table(shared_dir / "data" / "measured" / "collectives.parquet", filters=wanted)
    keys = np.stack([table["n_gpus"].to_numpy(), table["bytes"].to_numpy()]).astype(np.int64)
    (group, size), seconds = medians(keys, table["latency_us"].to_numpy() * 1e-6)
    cluster = load_cluster("a100_pairwise_nvlink")
    op = Collective(
        name="c", kind=CollectiveKind.ALL_REDUCE, group_size=group, message_bytes=size.astype(float), alone=True
    )
    cost = collective_cost(op, cluster.gpu, load_calibration(cluster.gpu), cluster)
    assert np.abs(cost.time_s / seconds - 1).mean() <= most
    assert (np.abs(np.log(cost.time_s / seconds)) <= Z80 * cost.log_sigma).mean() >= 0.75


def test_collectives_on_machines_of_the_catalogue_are_priced_and_four_fifths_lie_inside_the_interval(
    shared_dir: Path,
) -> None:
    tables = read_tables(shared_dir / "data" / "measured" / "collectives.parquet").tables
    predicted = predict(targets_of(tables))
    told = predicted.expressed
    assert told.sum() >= 21_000
    why = {predicted.reasons[i] for i in predicted.reason[~told]}
    assert len(why) == 2
    assert all("spans nodes" in reason for reason in why), "two nodes on a network that is published nowhere"
    missed = np.abs(np.log(predicted.time_s / predicted.targets.measured_s))
    inside = missed <= Z80 * predicted.log_sigma
    gpu = predicted.targets.coded["gpu"]
    later = gpu.codes == gpu.values.index("h100_sxm")
    first = told & ~later
    assert np.median(np.expm1(missed[first])) <= 0.1
    assert 0.75 <= inside[first].mean() <= 0.85
    # The H100 came with the tables' second release: its interval holds 59%, less than the 80% it claims.
    assert np.median(np.expm1(missed[told & later])) <= 0.14
    assert inside[told & later].mean() >= 0.55
