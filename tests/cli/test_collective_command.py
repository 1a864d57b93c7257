"""``sartor collective``: one collective priced as plan and validate price it."""

from __future__ import annotations

import pytest

from sartor.cost.collective.collective import collective_cost
from sartor.cost.correction.calibration import load_calibration
from sartor.hardware.cluster_catalog import load_cluster
from sartor.operators import Collective, CollectiveKind


def test_it_answers_what_a_plan_pays(sartor) -> None:
    body = sartor("collective", "all_gather", 64e6, 32, "--cluster", "dgx-h100", "--stride", 8, "--json").body
    cluster = load_cluster("dgx-h100")
    op = Collective(name="c", kind=CollectiveKind.ALL_GATHER, group_size=32, message_bytes=64e6, stride=8)
    cost = collective_cost(op, cluster.gpu, load_calibration(cluster.gpu), cluster)
    assert body["schema"] == "sartor/collective/1"
    assert (body["time_s"], body["low_s"], body["high_s"]) == (cost.time_s, cost.low_s, cost.high_s)
    assert body["busbw_bytes_per_s"] == pytest.approx(31 / 32 * 64e6 / cost.time_s)
    assert [each["members"] for each in body["tiers"]] == [1, 32]


def test_without_a_cluster_it_stays_on_the_devices_own_links(sartor) -> None:
    near = sartor("collective", "all_reduce", 1e6, 8, "--gpu", "h200", "--json").body
    same = sartor("collective", "all_reduce", 1e6, 8, "--cluster", "dgx-h200", "--json").body
    assert near["time_s"] == pytest.approx(same["time_s"])
    assert near["source"] == "calibrated"


def test_more_gpus_than_a_link_joins_are_an_assumption(sartor) -> None:
    words = ("collective", "all_reduce", 1e9)
    (said,) = sartor(*words, 16, "--gpu", "h100", "--json").body["assumptions"]
    assert said.startswith("one scale-up link joins all 16 devices; that of h100_sxm joins 8 in dgx-h100")
    assert "one scale-up link joins" in sartor(*words, 16, "--gpu", "h100").out
    for fits in ((8, "--gpu", "h100"), (16, "--gpu", "gb200"), (16, "--cluster", "dgx-h100"), (16, "--gpu", "tpu_v5p")):
        assert sartor(*words, *fits, "--json").body["assumptions"] == []


def test_an_engines_own_all_reduce_is_faster_where_it_is_small(sartor) -> None:
    words = ("collective", "all_reduce", 65536, 8, "--gpu", "h200")
    ring, own = (sartor(*words, *more, "--json").body["time_s"] for more in ((), ("--library", "custom")))
    assert own < ring / 2


def test_the_terminal_says_which_links_it_crosses(sartor) -> None:
    ran = sartor("collective", "all_reduce", 1e9, 64, "--cluster", "dgx-h100")
    assert ran.code == 0
    assert ["NVLink", "450", "GB/s", "8"] in [line.split() for line in ran.out.splitlines()]
    assert "GB/s bus bandwidth" in ran.out


@pytest.mark.parametrize(("words", "size"), [("64MB", 64e6), ("1gb", 1e9), ("256MiB", 2**28), ("512 kib", 2**19)])
def test_a_size_takes_a_unit(sartor, words: str, size: float) -> None:
    said, plain = (sartor("collective", "all_reduce", each, 8, "--json").body for each in (words, size))
    assert said == plain


@pytest.mark.parametrize(
    ("words", "must_name"),
    [
        (("all_sum", 1e6, 8), ["kind", "all_sum", "all_reduce"]),
        (("all_reduce", 0, 8), ["message_bytes", "0"]),
        (("all_reduce", "nan", 8), ["message_bytes", "nan"]),
        (("all_reduce", "64Mx", 8), ["BYTES", "'64Mx' must be a number of bytes", "64MB"]),
        (("all_reduce", 1e30, 8), ["message_bytes", "2^50; nearest: 1.125e15"]),
        (("all_reduce", 1e6, 8, "--cluster", "dgx-h100", "--gpu", "a100"), ["--gpu=a100_sxm", "dgx-h100", "h100_sxm"]),
        (("all_reduce", 1e6, 0), ["group_size", "0"]),
        (("all_reduce", 1e6, 8, "--stride", 2**30), ["group_size", "stride"]),
        (("all_gather", 1e6, 8, "--library", "custom"), ["library", "custom", "nccl"]),
        (("all_reduce", 1e6, 8, "--cluster", "dgx-h1000"), ["cluster", "dgx-h1000", "dgx-h100"]),
        (("all_reduce", 1e6, 99999, "--cluster", "selene"), ["group_size", "4480"]),
    ],
)
def test_what_cannot_be_is_said_in_one_sentence(sartor, words, must_name) -> None:
    ran = sartor("collective", *words)
    assert ran.code == 2
    assert "Traceback" not in ran.err
    for name in must_name:
        assert str(name) in ran.err


def test_a_group_over_several_pools_is_refused_with_the_pool_that_is_priced(sartor, tmp_path) -> None:
    tiers = (
        '[[{0}tiers]]\nkind = "nvswitch"\nspan = 8\n[[{0}tiers]]\nkind = "infiniband"\nspan = "all"\ngbit_per_s = 400\n'
    )
    pool = 'gpu = "h100"\ndevices_per_node = 8\nnum_devices = 16\n'
    file = tmp_path / "mixed.toml"
    file.write_text('name = "mixed"\n' + pool + tiers.format("") + "[[others]]\n" + pool + tiers.format("others."))
    ran = sartor("collective", "all_reduce", 1e9, 32, "--cluster", file)
    assert ran.code == 2
    assert "must be at most 16, the devices of the first pool of mixed; nearest: 16" in ran.err
