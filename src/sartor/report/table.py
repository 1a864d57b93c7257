"""Answers for the terminal, as rich renderables that fit 100 columns and are never cut.

All text goes through :func:`~sartor.report.words.printable` into ``Text``, because names come from files of unknown
authors and must not contain markup or control characters. The command line prints.
"""

from sartor.report.table_advice import advice_view, candidates_table, findings_view, per_gpu_table
from sartor.report.table_estimate import estimate_view, operators_table, times_table, totals_line
from sartor.report.table_gemm import gemm_view, tiles_table

__all__ = [
    "advice_view",
    "candidates_table",
    "estimate_view",
    "findings_view",
    "gemm_view",
    "operators_table",
    "per_gpu_table",
    "tiles_table",
    "times_table",
    "totals_line",
]
