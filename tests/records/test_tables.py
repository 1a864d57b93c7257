"""Reading measurements: kinds told from columns, unusable rows counted, unusable files said, nothing lost silently."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from records.made_tables import gemm_rows, write_csv, write_parquet
from sartor.errors import InputError, MissingExtraError
from sartor.records.tables import KINDS, kind_of, read_tables


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_table_is_known_by_its_columns(kind: Any) -> None:
    assert kind_of([*kind.required, "source", "license"], "x.parquet") is kind


def test_missing_columns_are_named_with_the_nearest_there_is(tmp_path: Path) -> None:
    rows = [{("time_us" if k == "latency_us" else k): v for k, v in row.items()} for row in gemm_rows()]
    with pytest.raises(InputError, match="a gemm table must have latency_us"):
        read_tables(write_parquet(tmp_path / "x.parquet", rows))


def test_foreign_columns_are_no_table(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no kind of table of measurements"):
        read_tables(write_csv(tmp_path / "x.csv", [{"name": "a", "price": 3}]))


def test_a_header_alone_is_said(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(",".join(gemm_rows()[0]) + "\n", encoding="utf-8")
    with pytest.raises(InputError, match="a gemm table must have a row"):
        read_tables(tmp_path / "x.csv")


def test_csv_and_parquet_read_alike(tmp_path: Path) -> None:
    a = read_tables(write_parquet(tmp_path / "a.parquet", gemm_rows())).tables[0]
    b = read_tables(write_csv(tmp_path / "b.csv", gemm_rows())).tables[0]
    assert a.kind is b.kind
    assert a.measured == pytest.approx(b.measured)
    assert a.coded["gpu"].plain() == b.coded["gpu"].plain()


@pytest.mark.parametrize("value", ["fast", "", "nan", "-3", "0", "inf", "1e400"])
def test_rows_without_a_time_are_counted_and_the_rest_kept(tmp_path: Path, value: str) -> None:
    rows = gemm_rows()
    rows[0]["latency_us"] = value
    table = read_tables(write_csv(tmp_path / "x.csv", rows)).tables[0]
    assert table.left_out == {"latency_us is not a number above 0": 1}
    assert table.measured.size == len(rows) - 1


@pytest.mark.parametrize("value", ["0", "-1", "2.5", "1e15", "many", "", str(10**18), str(10**19)])
def test_rows_without_a_size_are_counted_and_the_rest_kept(tmp_path: Path, value: str) -> None:
    rows = gemm_rows()
    rows[3]["n"] = value
    table = read_tables(write_csv(tmp_path / "x.csv", rows)).tables[0]
    assert table.left_out == {"n is not a whole number from 1 to 2^40": 1}


def test_flagged_rows_are_left_out(tmp_path: Path) -> None:
    rows = [{**row, "flag": 8 if i == 0 else 0} for i, row in enumerate(gemm_rows())]
    table = read_tables(write_parquet(tmp_path / "x.parquet", rows)).tables[0]
    assert table.measured.size == len(rows) - 1
    assert list(table.left_out.values()) == [1]


def test_a_table_whose_rows_are_all_unusable_says_why(tmp_path: Path) -> None:
    rows = [{**row, "latency_us": -1.0} for row in gemm_rows()]
    with pytest.raises(InputError, match="12 rows: latency_us is not a number above 0"):
        read_tables(write_parquet(tmp_path / "x.parquet", rows))


@pytest.mark.parametrize("content", [b"", b"PAR1", b"not parquet at all" * 50, b"\x00\xff" * 4000])
@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_a_corrupt_file_is_one_sentence(tmp_path: Path, content: bytes, suffix: str) -> None:
    path = tmp_path / f"broken{suffix}"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_tables(path)
    assert str(caught.value).startswith(f"data=broken{suffix}")
    assert "\n" not in str(caught.value)


def test_a_truncated_parquet_beside_a_good_one_is_remarked(tmp_path: Path) -> None:
    good = write_parquet(tmp_path / "good.parquet", gemm_rows())
    (tmp_path / "half.parquet").write_bytes(good.read_bytes()[: good.stat().st_size // 2])
    found = read_tables(tmp_path)
    assert [table.file for table in found.tables] == ["good.parquet"]
    assert len(found.remarks) == 1
    assert "half.parquet" in found.remarks[0]


def test_another_encoding_is_said_in_plain_words(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "x.csv", gemm_rows())
    path.write_text(path.read_text(encoding="utf-8"), encoding="utf-16")
    with pytest.raises(InputError, match=r"x.csv: must be CSV in UTF-8 \(it is UTF-16\)$"):
        read_tables(path)


def test_kinds_have_the_right_article(tmp_path: Path) -> None:
    rows = [{"gpu": "a", "dtype": "bf16", "phase": "context", "batch": 1, "heads": 1, "head_dim": 1, "seq_q": 1}]
    with pytest.raises(InputError, match="an attention table must have"):
        read_tables(write_csv(tmp_path / "x.csv", rows))


def test_columns_of_lists_are_refused(tmp_path: Path) -> None:
    table = pa.Table.from_pylist([{**row, "gpu": ["a", "b"]} for row in gemm_rows()])
    pq.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(InputError, match="must be readable as parquet"):
        read_tables(tmp_path / "x.parquet")


@pytest.mark.parametrize("name", ["nowhere.parquet", "folder", "file.txt", "a\0b"])
def test_a_path_without_tables_is_one_sentence(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file.txt").write_text("x")
    with pytest.raises(InputError, match="data="):
        read_tables(f"{tmp_path}/{name}")


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_csv(tmp_path / "x.csv", gemm_rows())
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"\[data\]"):
        read_tables(path)


def test_an_unknown_column_to_group_by_offers_the_nearest(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "x.parquet", [{**row, "holdout_kind": "gpu"} for row in gemm_rows()])
    with pytest.raises(InputError, match="nearest: holdout_kind"):
        read_tables(path, ["holdout_kin"])
    assert read_tables(path, ["holdout_kind"]).tables[0].coded["holdout_kind"].values[0] == "gpu"


@pytest.mark.parametrize("line", ["a100_sxm,bfloat16,64,64", "a100_sxm,bfloat16,64,64,64,1,9,9", '"a100'])
def test_a_line_that_is_no_row_is_counted_and_the_rest_kept(tmp_path: Path, line: str) -> None:
    path = write_csv(tmp_path / "x.csv", gemm_rows())
    path.write_text(path.read_text() + line)
    (table,) = read_tables(path).tables
    assert table.measured.size == len(gemm_rows())
    assert table.left_out == {"not as many fields as the header": 1}
    assert table.num_rows == len(gemm_rows()) + 1


def test_spaces_around_names_of_columns_do_not_matter(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "x.csv", gemm_rows())
    head, _, rest = path.read_text().partition("\n")
    path.write_text(", ".join(head.split(",")) + "\n" + rest)
    assert read_tables(path).tables[0].measured.size == len(gemm_rows())


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (str.upper, "lower case"),
        (lambda text: text.replace(",", ";"), "separated by commas"),
        (lambda text: text.replace(",", "\t"), "separated by commas"),
        (lambda text: "", "it is empty"),
    ],
)
def test_a_header_nearly_right_is_told_what_is_wrong(tmp_path: Path, change: Any, why: str) -> None:
    path = write_csv(tmp_path / "x.csv", gemm_rows())
    path.write_text(change(path.read_text()))
    with pytest.raises(InputError, match=why):
        read_tables(path)


def test_a_file_of_the_other_kind_is_told_its_name(tmp_path: Path) -> None:
    csv = write_csv(tmp_path / "x.csv", gemm_rows()).rename(tmp_path / "y.parquet")
    with pytest.raises(InputError, match=r"must end in \.csv"):
        read_tables(csv)
    parquet = write_parquet(tmp_path / "x.parquet", gemm_rows()).rename(tmp_path / "z.csv")
    with pytest.raises(InputError, match=r"must end in \.parquet"):
        read_tables(parquet)
