"""One source per price: entry by entry, whichever rows stand beside it."""

from __future__ import annotations

import numpy as np

from sartor.cost.correction.calibration import load_calibration
from sartor.cost.cost import Source, weakest_source
from sartor.cost.price import operator_costs
from sartor.hardware.catalog import load_gpu
from sartor.hardware.cluster import Cluster
from sartor.hardware.cluster_catalog import load_cluster
from sartor.operators import Attention, Collective, CollectiveKind, Operator, Pass


def sources(op: Operator, gpu: str, kernels: str = "", cluster: Cluster | None = None) -> list[str]:
    device = load_gpu(gpu)
    cost = operator_costs([op], device, load_calibration(device).with_kernels(kernels), cluster=cluster)[0]
    return np.broadcast_to(weakest_source([(cost.fitted, cost.assumed, 1.0)]), np.shape(cost.time_s)).tolist()


def test_backward_kernels_that_were_measured_and_others_in_one_call() -> None:
    widths = np.array([128, 512])
    heads = {"num_heads": 8, "num_kv_heads": 8, "head_dim": widths, "v_head_dim": widths}
    back = Attention(name="a", batch=2, seq_q=2048, seq_kv=2048, pass_=Pass.BACKWARD, **heads)
    assert sources(back, "h200_sxm", "torch") == ["calibrated", "analytic"]
    assert sources(back, "h200_sxm") == ["analytic", "analytic"]


def test_groups_on_measured_links_and_beyond_them_in_one_call() -> None:
    op = Collective(name="c", kind=CollectiveKind.ALL_REDUCE, group_size=np.array([8, 16]), message_bytes=1e6)
    assert sources(op, "h100_sxm", cluster=load_cluster("dgx-h100")) == ["calibrated", "analytic"]


def test_a_total_is_as_weak_as_its_weakest_part_and_assumed_where_assumptions_are_most_of_its_interval() -> None:
    share = np.array([0.4, 0.6])
    assert weakest_source([(True, False, 1 - share), (True, True, share)]).tolist() == ["calibrated", "assumed"]
    assert weakest_source([(True, False, 0.5), (False, False, 0.5)]) == Source.ANALYTIC.value
    assert weakest_source([]) == Source.ANALYTIC.value
