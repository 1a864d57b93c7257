"""Hypothesis strategies for accelerators and products, and the point every example is about."""

from __future__ import annotations

from hypothesis import strategies as st

from sartor.cost.chip.systolic import Product
from sartor.hardware.accelerator import Accelerator, Dataflow

TPU = Accelerator.from_template(num_tensor_cores=8, num_vector_cores=2, width=128, depth=128, global_buffer_mib=128)


def powers(low: int, high: int) -> st.SearchStrategy[int]:
    return st.integers(low, high).map(lambda e: 2**e)


def accelerators() -> st.SearchStrategy[Accelerator]:
    """Points of the template and odd ones between: any counts, sides, buffers and rates."""
    return st.builds(
        Accelerator,
        num_tensor_cores=st.integers(1, 600),
        array_rows=st.sampled_from((2, 8, 12, 16, 64, 128, 256)),
        array_cols=st.sampled_from((2, 8, 14, 32, 128, 256)),
        num_vector_cores=st.integers(1, 200),
        vector_lanes=st.sampled_from((2, 14, 64, 128, 2048)),
        tensor_core_sram_bytes=powers(9, 24),
        vector_core_sram_bytes=powers(9, 20),
        global_buffer_bytes=powers(15, 28),
        clock_hz=st.sampled_from((0.2e9, 1.05e9, 1.83e9)),
        num_stacks=st.integers(1, 8),
        stack_bytes_per_s=st.sampled_from((17e9, 307.2e9, 1200e9)),
        num_dies=st.sampled_from((1, 1, 2, 8)),
        num_io_dies=st.sampled_from((0, 0, 4)),
        die_to_die_bytes_per_s=st.sampled_from((50e9, 5e12)),
        special_cycles=st.sampled_from((0.0, 8.0)),
        load_bytes=st.sampled_from((0.0, 16.0)),
        backward_passes=st.sampled_from((1, 2)),
        buffer_add_share=st.sampled_from((0.0, 0.5)),
        dataflow=st.sampled_from(Dataflow),
    )


def sizes() -> st.SearchStrategy[int]:
    return st.one_of(st.integers(1, 300), powers(0, 14), st.integers(300, 20_000))


def products() -> st.SearchStrategy[Product]:
    return st.builds(
        Product,
        m=sizes(),
        n=sizes(),
        k=sizes(),
        batch=st.one_of(st.just(1), st.integers(1, 200)),
        output_bytes=st.sampled_from((2.0, 8.0)),
        epilogue_cycles=st.sampled_from((0.0, 0.0, 22.0)),
        epilogue_bytes=st.sampled_from((0.0, 2.0)),
    )
