"""``sartor catalog clusters``: entries, one entry, a file of one's own, and one sentence for what cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from sartor.hardware.cluster_catalog import CLUSTERS


def test_every_cluster_is_listed_with_its_tiers_and_sources(sartor) -> None:
    ran = sartor("catalog", "clusters", "--json")
    assert ran.code == 0
    assert ran.body["schema"] == "sartor/catalog/1"
    assert [entry["name"] for entry in ran.body["entries"]] == list(CLUSTERS.names())
    assert all(entry["sources"] and entry["tiers"][-1]["span"] == 0 for entry in ran.body["entries"])


def test_people_get_a_line_each_and_one_entry_whole(sartor) -> None:
    assert "NVLink 450 among 8" in sartor("catalog", "clusters").out
    whole = sartor("catalog", "clusters", "gb200-nvl72").out
    assert "tiers.0.bytes_per_s" in whole
    assert "sources.all" in whole


def test_a_file_of_ones_own_is_shown_the_same_way(sartor, tmp_path: Path) -> None:
    path = tmp_path / "ours.toml"
    path.write_text(CLUSTERS.text("dgx-h100").replace('"dgx-h100"', '"ours"'), encoding="utf-8")
    assert sartor("catalog", "clusters", path, "--json").body["entries"][0]["name"] == "ours"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("span = 8", "span = 7.5", "tiers.0.span=7.5"),
        ("gbit_per_s = 400", "gbit_per_s = 0", "tiers.1.gbit_per_s=0"),
        ('span = "all"', "span = 12", "tiers.InfiniBand.span=12|tiers.span=12"),
        ('"h100_sxm"', '"h1000"', "gpu=h1000"),
        ("devices_per_node", "devices_a_node", "devices_a_node=8"),
    ],
)
def test_a_file_that_cannot_be_is_one_sentence(sartor, tmp_path: Path, old: str, new: str, said: str) -> None:
    path = tmp_path / "ours.toml"
    text = CLUSTERS.text("dgx-h100")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    ran = sartor("catalog", "clusters", path)
    assert ran.code == 2
    assert any(each in ran.err for each in said.split("|"))
    assert ran.err.count("\n") == 1
    assert "Traceback" not in ran.err
