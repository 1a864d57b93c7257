"""Clusters: what the catalogue says, and one sentence for every file that cannot be a cluster."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sartor.bounded import MAX_TOML_BYTES
from sartor.errors import InputError
from sartor.hardware.catalog import load_gpu
from sartor.hardware.cluster import HOP_LATENCY_S, LINK_KINDS, Cluster, LinkTier
from sartor.hardware.cluster_catalog import (
    CLUSTERS,
    TIER_KEYS,
    cluster_entry,
    cluster_from,
    cluster_from_table,
    load_cluster,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "cluster_rates.csv"

MINE: dict[str, Any] = {
    "gpu": "h100_sxm",
    "devices_per_node": 8,
    "tiers": [
        {"name": "NVLink", "kind": "nvswitch", "span": 8},
        {"name": "fabric", "kind": "infiniband", "span": "all", "gbit_per_s": 400},
    ],
}


def tier(**changes: Any) -> LinkTier:
    return LinkTier(**{"name": "link", "span": 0, "bytes_per_s": 1e9, "latency_s": 1e-6, **changes})


def cluster(*tiers: LinkTier, **changes: Any) -> Cluster:
    return Cluster(**{"name": "c", "gpu": load_gpu("h100"), "devices_per_node": 8, "tiers": tiers, **changes})


def write(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


# --------------------------------------------------------------------------------------------------- catalogue


@pytest.mark.parametrize("name", CLUSTERS.names())
def test_every_entry_names_its_sources_and_agrees_with_its_device(name: str) -> None:
    entry, machine = cluster_entry(name), load_cluster(name)
    assert entry["name"] == machine.name == name
    assert entry["sources"]["all"]
    assert entry["confidence"] in ("high", "medium", "low")
    own = max(machine.gpu.link_bytes_per_s, machine.gpu.pcie_bytes_per_s)
    assert machine.tiers[0].bytes_per_s <= own or "tiers.0.gb_per_s" in entry["sources"], "a bridge sold apart"
    assert all(each.kind in HOP_LATENCY_S for each in machine.tiers)
    json.dumps(entry, allow_nan=False)


@pytest.mark.parametrize(
    "row", list(csv.DictReader(GOLDEN.read_text(encoding="utf-8").splitlines())), ids=lambda row: row["cluster"]
)
def test_nominal_rates_are_those_of_the_documents(row: dict[str, str]) -> None:
    machine = load_cluster(row["cluster"])
    assert machine.gpu.name == row["gpu"]
    assert machine.devices_per_node == int(row["devices_per_node"])
    assert machine.tiers[0].span == int(row["inner_span"])
    assert machine.tiers[0].bytes_per_s == pytest.approx(float(row["inner_gb_per_s"]) * 1e9, rel=1e-9)
    assert machine.tiers[-1].bytes_per_s * machine.devices_per_node * 8 == pytest.approx(
        float(row["node_gbit_per_s"]) * 1e9, rel=1e-9
    )


@pytest.mark.parametrize("name", ["dgx-h100", "DGX_H100", "dgx h100", "NVIDIA DGX-H100", "hgx-h100"])
def test_spelling_is_forgiven_and_aliases_are_known(name: str) -> None:
    assert load_cluster(name).name == "dgx-h100"


def test_no_alias_hides_a_name() -> None:
    assert not set(CLUSTERS.aliases()) & set(CLUSTERS.names())


def test_an_unknown_name_offers_what_is_near() -> None:
    with pytest.raises(InputError, match=r"cluster=dgx-h1000: not in the catalogue .* nearest: dgx-h100"):
        load_cluster("dgx-h1000")


def test_the_number_of_devices_is_what_was_asked_for() -> None:
    assert load_cluster("dgx-h100").num_devices == 0
    assert load_cluster("dgx-h100", num_devices=64).num_devices == 64
    assert load_cluster("summit").num_devices == 27648


def test_the_printed_file_of_an_entry_is_an_entry_again(tmp_path: Path) -> None:
    again = load_cluster(write(tmp_path, CLUSTERS.text("gb200-nvl72")))
    assert again == load_cluster("gb200-nvl72")


def test_a_cluster_in_one_call_equals_the_catalogues() -> None:
    ours, theirs = cluster_from("h100", 8), load_cluster("dgx-h100")
    assert [replace(each, name="") for each in ours.tiers] == [replace(each, name="") for each in theirs.tiers]
    assert cluster_from("gb200", 4, domain=72).tiers[0].span == 72
    assert cluster_from("l4", 8, inter_kind="ethernet", inter_gbit_per_s=12.5).tiers[0].kind == "pcie"


# --------------------------------------------------------------------------------------------------- construction


def test_tiers_that_cannot_be_are_refused() -> None:
    for field, value in (
        ("bytes_per_s", 0.0),
        ("bytes_per_s", float("inf")),
        ("bytes_per_s", float("nan")),
        ("bytes_per_s", True),
        ("latency_s", -1e-6),
        ("oversubscription", 0.5),
        ("span", -8),
        ("span", 2.5),
        ("kind", "string and tins"),
        ("torus_axes", 4),
        ("torus_wrap", 0),
    ):
        with pytest.raises(InputError, match=field):
            tier(**{field: value})


def test_spans_grow_by_whole_factors_and_end_with_everything() -> None:
    with pytest.raises(InputError, match="at least one tier"):
        cluster()
    with pytest.raises(InputError, match="outermost tier must join all devices"):
        cluster(tier(span=8))
    with pytest.raises(InputError, match="only the last tier"):
        cluster(tier(name="a"), tier(name="b"))
    with pytest.raises(InputError, match=r"multiple of the tier inside it, a of 8 devices; nearest: 8, 16|16, 24"):
        cluster(tier(name="a", span=8), tier(name="b", span=12), tier())
    with pytest.raises(InputError, match="multiple"):
        cluster(tier(name="a", span=8), tier(name="b", span=8), tier())
    assert cluster(tier(span=4), tier(span=72), tier()).tiers[1].span == 72


def test_rails_lie_between_nodes() -> None:
    with pytest.raises(InputError, match="rails join devices of different nodes"):
        cluster(tier(span=8, rails=True), tier())
    assert cluster(tier(span=8), tier(rails=True)).tiers[1].rails


def test_a_cluster_has_whole_devices() -> None:
    for field, value in (("devices_per_node", 0), ("num_devices", -1), ("num_devices", 1.5), ("confidence", "sure")):
        with pytest.raises(InputError, match=field):
            cluster(tier(), **{field: value})


# --------------------------------------------------------------------------------------------------- files of one's own


def test_units_people_read_become_si() -> None:
    tiers = [*MINE["tiers"][:1], {"span": "all", "node_gbit_per_s": 3200, "latency_us": 5, "oversubscription": 2}]
    mine = cluster_from_table({**MINE, "tiers": tiers})
    assert mine.tiers[0].bytes_per_s == mine.gpu.link_bytes_per_s
    assert mine.tiers[1].bytes_per_s == 50e9
    assert mine.tiers[1].latency_s == pytest.approx(5e-6)
    assert mine.tiers[1].oversubscription == 2


def test_a_device_may_be_written_in_place_or_beside_the_file(tmp_path: Path) -> None:
    from sartor.hardware.catalog import GPUS

    sheet = GPUS.text("h100_sxm").replace('name = "h100_sxm"', 'name = "h800"').replace("450", "200", 1)
    (tmp_path / "h800.toml").write_text(sheet, encoding="utf-8")
    text = CLUSTERS.text("dgx-h100").replace('"h100_sxm"', '"h800.toml"')
    assert load_cluster(write(tmp_path, text)).tiers[0].bytes_per_s == 200e9
    import tomllib

    assert cluster_from_table({**MINE, "gpu": tomllib.loads(sheet)}).gpu.name == "h800"


def test_a_mixed_pool_states_the_devices_of_each() -> None:
    other = {**MINE, "gpu": "a100", "num_devices": 32}
    mixed = cluster_from_table({**MINE, "num_devices": 64, "others": [other]})
    assert [(pool.gpu.name, pool.num_devices) for pool in mixed.pools] == [("h100_sxm", 64), ("a100_sxm", 32)]
    with pytest.raises(InputError, match="every pool's devices"):
        cluster_from_table({**MINE, "others": [other]})
    with pytest.raises(InputError, match=r"others\.0\.num_devices=missing"):
        cluster_from_table({**MINE, "num_devices": 8, "others": [MINE]})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"tiers": []}, r"tiers=\[\]: must be tables from the innermost link out"),
        ({"tiers": [{"span": 8}]}, "outermost tier must join all devices"),
        ({"tiers": "fast"}, "tiers=fast: must be tables"),
        ({"tiers": [{"kind": "pcie"}]}, "tiers.0.span=missing"),
        ({"tiers": [{"span": "all", "gb_per_s": 0}]}, "tiers.0.gb_per_s=0: must be a finite number above 0"),
        ({"tiers": [{"span": "all", "gb_per_s": 1, "gbit_per_s": 8}]}, "states its rate once"),
        ({"tiers": [{"span": 8}, {"span": "all"}]}, "tiers.1.gb_per_s=missing: a tier states its rate once"),
        ({"tiers": [{"span": "all", "gb_per_s": "fast"}]}, "must be a finite number"),
        ({"tiers": [{"span": "all", "bandwidth": 5}]}, "tiers.0.bandwidth=5: is not a key of a cluster file"),
        ({"tiers": [{"span": "most", "gb_per_s": 5}]}, r'tiers.0.span="most" \(a string\): must be a whole number'),
        ({"tiers": [{"span": "all", "in_network_reduction": 1}]}, "must be true or false"),
        ({"tiers": [{"span": "all", "kind": "infinband"}]}, "nearest: infiniband|is not a kind of link"),
        ({"gpu": "h1000"}, "gpu=h1000: not in the catalogue"),
        ({"gpu": 5}, "gpu=5: must be printable text"),
        ({"gpu": {"name": "x"}}, "vendor=missing"),
        ({"devices_per_node": 0}, "devices_per_node=0: must be a whole number not below 1"),
        ({"device_per_node": 8}, "device_per_node=8: is not a key of a cluster file; nearest: devices_per_node"),
        ({"num_devices": -4}, "num_devices=-4"),
        ({"num_devices": 10**9}, "num_devices=1000000000: must be a whole number from 0 to"),
        ({"price": {"usd_per_device_hour": 2}}, "price.source=missing"),
        ({"price": 2}, r"must be a table, written \[price\]"),
        ({"sources": ["a"]}, r"must be a table, written \[sources\]"),
        ({"others": [5]}, r"must be tables, written \[\[others\]\]"),
        ({"confidence": "sure"}, "must be high, medium or low"),
    ],
)
def test_what_a_file_may_not_say(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        cluster_from_table({**MINE, **change})


@pytest.mark.parametrize("key", ["gpu", "devices_per_node", "tiers"])
def test_a_file_that_leaves_out_what_it_must_state_is_told_so(key: str) -> None:
    with pytest.raises(InputError, match=f"{key}=missing: every cluster file must state it"):
        cluster_from_table({name: value for name, value in MINE.items() if name != key})


def test_files_that_cannot_be_read_are_told_so(tmp_path: Path) -> None:
    for text, sentence in (
        ("gpu = ", "readable as TOML"),
        ("\x00", "UTF-8|TOML"),
        ("x = " + "[" * 3000, "readable as TOML"),
        ("#" * (MAX_TOML_BYTES + 1), "must be at most"),
    ):
        with pytest.raises(InputError, match=sentence):
            load_cluster(write(tmp_path, text))
    with pytest.raises(InputError, match="that exists"):
        load_cluster(tmp_path / "none.toml")
    with pytest.raises(InputError, match="that exists"):
        load_cluster(tmp_path)
    (tmp_path / "mine.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="text in UTF-8"):
        load_cluster(tmp_path / "mine.toml")


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["all", "h100", "nvswitch", 0, 8, 400])
)
KEYS = st.sampled_from(
    ["span", "kind", "name", "gb_per_s", "gbit_per_s", "node_gbit_per_s", "latency_us", "oversubscription", "odd",
     "torus_axes", "torus_wrap", "in_network_reduction"]
)  # fmt: skip
VALUES = st.recursive(SCALARS, lambda each: st.lists(each, max_size=3) | st.dictionaries(KEYS, each, max_size=4))


@given(
    st.dictionaries(
        st.sampled_from(["gpu", "devices_per_node", "num_devices", "tiers", "others", "price", "sources", "name"]),
        VALUES | st.lists(st.dictionaries(KEYS, SCALARS, max_size=5), max_size=3),
        max_size=6,
    )
)
def test_any_table_is_a_cluster_or_one_sentence(change: dict[str, Any]) -> None:
    said, made = "", None
    try:
        made = cluster_from_table({**MINE, **change})
    except InputError as error:
        said = str(error)
    assert made is not None or said
    assert "\n" not in said
    assert len(said) < 600
    assert made is None or made.tiers[-1].span == 0


def test_the_files_of_the_howto_are_clusters(repo_dir: Path, tmp_path: Path) -> None:
    page = (repo_dir / "docs" / "howto" / "describe-my-cluster.md").read_text(encoding="utf-8")
    ours, mixed = (load_cluster(write(tmp_path, text)) for text in re.findall(r"```toml\n(.*?)```", page, re.DOTALL))
    assert [each.bytes_per_s for each in ours.tiers] == [450e9, 12.5e9, 12.5e9]
    assert ours.tiers[2].oversubscription == 2
    assert ours.price_usd_per_device_hour == 2.10
    assert [pool.num_devices for pool in mixed.pools] == [64, 128]


def test_every_key_of_a_cluster_file_is_explained(repo_dir: Path) -> None:
    page = (repo_dir / "docs" / "howto" / "describe-my-cluster.md").read_text(encoding="utf-8")
    for kind in LINK_KINDS:
        assert f"`{kind}`" in page
    for key in ("gpu", "devices_per_node", "num_devices", "others", "price", *TIER_KEYS):
        assert key in page


@pytest.mark.parametrize(("per_node", "span", "nearest"), [(6, 4, "2 or 3"), (8, 12, "8 or 16")])
def test_groups_of_a_tier_are_parts_of_a_node_or_whole_nodes(per_node: int, span: int, nearest: str) -> None:
    with pytest.raises(InputError, match=rf"tiers.link.span={span}: must divide devices_per_node={per_node}") as error:
        cluster(tier(span=span), tier(name="out"), devices_per_node=per_node)
    assert str(error.value).endswith(nearest)


def test_devices_are_taken_pool_by_pool() -> None:
    pools = [cluster(tier(), num_devices=n) for n in (8, 16, 4)]
    whole = replace(pools[0], others=tuple(pools[1:]))
    assert whole.total_devices == 28
    assert [len(whole.reached(n).pools) for n in (1, 8, 9, 24, 25, 28)] == [1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("kind", "rate"), [("nvlink", "450 of NVLink (default: the links of"), ("pcie", "64 of NVLink (default: PCIe of")]
)
def test_a_rate_that_an_own_file_leaves_to_the_device_is_kept_with_its_value(
    tmp_path: Path, kind: str, rate: str
) -> None:
    network = '[[tiers]]\nspan = "all"\ngbit_per_s = 200\n'
    inner = f'name = "c"\ngpu = "h100"\ndevices_per_node = 4\n[[tiers]]\nname = "NVLink"\nkind = "{kind}"\nspan = 4\n'
    (words,) = load_cluster(write(tmp_path, inner + network)).unstated
    assert words == f"c: gb_per_s={rate} h100_sxm; its file does not set it)"
    assert not load_cluster(write(tmp_path, f"{inner}gb_per_s = 150\n{network}")).unstated
    assert not load_cluster("dgx-h100").unstated


def test_estimate_plan_and_collective_say_the_rate_that_an_own_cluster_leaves_open(tmp_path: Path) -> None:
    import sartor

    text = 'name = "c"\ngpu = "h100"\ndevices_per_node = 4\n[[tiers]]\nname = "NVLink"\nkind = "nvlink"\nspan = 4\n'
    path = write(tmp_path, f'{text}[[tiers]]\nspan = "all"\ngbit_per_s = 200\n')
    sizes = {"num_devices": 8, "global_batch_size": 16, "tp": 1, "pp": 1, "cp": 1}
    said = (
        sartor.estimate("gpt2", cluster=path, **sizes).question.assumptions,
        sartor.plan("gpt2", path, **sizes).assumptions,
        sartor.collective("all_reduce", 2**20, 8, cluster=path).assumptions,
    )
    words = "c: gb_per_s=450 of NVLink (default: the links of h100_sxm; its file does not set it)"
    assert all(words in assumptions for assumptions in said)
