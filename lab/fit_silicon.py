"""Fit the area of real dies: coefficients of `cost/chip/silicon.toml`, and each die predicted without itself.

    python lab/fit_silicon.py > src/sartor/cost/chip/silicon.toml

Blocks that photographs measure are fixed: memory interfaces and links (LLMCompass, ISCA 2024), the share of the network
of a GPU's core (its 44.3 M transistors). The rest has a prior from published blocks and is fitted in logarithms on the
dies of ../shared/reference/silicon.csv whose area and arrays are known; upper bounds count only from above. Logic
scales by the density that whole dies realize, not by the foundry's (technology.csv).
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from sartor.cost.chip.area import LOGIC_MTR_PER_MM2, REALIZED_MTR_PER_MM2, REST_FROM_MM2, SRAM_OVER_7NM

TABLE = Path(__file__).parents[2] / "shared" / "reference" / "silicon.csv"
REALIZED, SRAM = {8: 45.0, **REALIZED_MTR_PER_MM2}, {8: 1.45, **SRAM_OVER_7NM}
"""With GA102's (Samsung 8N), which no chip of a space is made in."""
PRIORS = {
    "mac_mm2": (677e-6, 0.3),  # TPU v4i's matrix unit, an upper bound
    "lane_mm2": (6e-3, 0.6),
    "core_mm2": (0.05, 0.5),
    "gpu_lane_mm2": (15e-3, 0.5),
    "gpu_core_mm2": (2.0, 0.4),  # an SM of A100 without its lanes, arrays and SRAM
    "sram_mm2_per_mib": (0.5, 0.15),  # large scratchpads, real implementations
    "cache_mm2_per_mib": (1.2, 0.4),  # A100's L2 without its slices' logic
    "rest_mm2": (50.0, 0.4),
    "uncore_share": (0.10, 0.4),
}
SPREAD = 0.15
GPUS = ("P100", "V100", "T4", "A100", "A40", "L4 ", "L40S", "H100", "RTX 5090", "MI100", "MI210", "MI300X")
OTHERS = ("NNP-T", "Graphcore", "Groq", "Ascend 910", "MTIA", "Tesla D1", "FuriosaAI", "TPU v4")
SAME = ("A100 SXM 40GB", "Ascend 910B", "Ascend 910C", "H100 PCIe", "MI300A")
"""Dies that the list has already, or whose arrays are not published."""
MACS = {"FuriosaAI RNGD": 128_000, "MTIA v1": 32_000}
"""From peaks and clock, where the table has no count."""


def number(text: str) -> float:
    match = re.match(r"[\d.]+", text)
    return float(match.group()) if match else 0.0


def node_of(process: str) -> int:
    words = {16: ("16FF", "12FFN", "16 nm", "14 nm", "12 nm"), 8: ("8N",), 7: ("N7", "7 nm", "N6"), 5: ("4N", "N5")}
    return next(node for node, names in words.items() if any(name in process for name in names))


def features(row: dict[str, str]) -> dict[str, float]:
    """What a die has, with fixed blocks in mm2."""
    name, node, gpu = row["name"], node_of(row["process_node"]), row["name"].startswith(GPUS)
    chiplet = name.startswith("MI300X")  # one of eight compute dies, with 40 cores
    cores = 40.0 if chiplet else number(row["cores_on_die"]) or 1.0
    built = cores / (number(row["num_cores"]) or 1.0)
    density, sites = LOGIC_MTR_PER_MM2.get(node, 61.2), row["memory_sites_on_die"]
    rate = number(row["hbm_gb_per_s"]) / max(number(row["hbm_stacks"]), 1.0)
    phy = 0.0
    if "bit" in sites or name.startswith("MTIA"):
        phy = (number(sites) / 32 or 8) * (1.45 + 90.4 / density)
    elif sites and not chiplet:
        phy = number(sites) * ((4.6 if node == 16 else 10.45) + 552.7 / density * min(rate / 408, 1.0))
    links = number(row["scale_up_links"]) * number(row["gb_per_s_per_link_each_way"]) / 25 * (1.888 + 74.6 / density)
    links = 576 * 0.45 if name == "Tesla D1" else 0.0 if chiplet or name == "Ascend 910" else links
    private = (number(row["private_rf_kib_per_core"]) + number(row["private_l1_kib_per_core"])) * cores / 1024
    shared = 4.0 if chiplet else number(row["shared_sram_on_die_mib"]) or number(row["shared_sram_mib"])
    return {
        "mm2": number(row["die_area_mm2"]), "bound": "upper" in row["area_kind"], "gpu": gpu, "whole": not chiplet,
        "logic": REALIZED[7] / REALIZED[node], "sram": SRAM[node], "cores": cores,
        "macs": MACS.get(name) or number(row["macs_per_clock_bf16"]) * built,
        "lanes": number(row["vector_lanes"]) * built,
        "private": private if gpu else number(row["sram_total_mib"]), "shared": shared if gpu else 0.0,
        "fixed": phy + links + 16 * (0.48 + 4 / density) + (cores * 44.3 / density if gpu else 0.0),
    }  # fmt: skip


def predicted(die: dict[str, float], logs: np.ndarray) -> float:
    """mm2 of a die."""
    q = dict(zip(PRIORS, np.exp(logs), strict=True))
    kind = "gpu_" if die["gpu"] else ""
    logic = die["macs"] * q["mac_mm2"] + die["lanes"] * q[kind + "lane_mm2"] + die["cores"] * q[kind + "core_mm2"]
    sram = die["private"] * q["sram_mm2_per_mib"] + die["shared"] * q["cache_mm2_per_mib"]
    parts = logic * die["logic"] + sram * die["sram"] + die["fixed"]
    rest = q["rest_mm2"] * die["whole"] * min(parts / REST_FROM_MM2, 1.0)
    return float((parts + rest) * (1 + q["uncore_share"]))


def fitted(dies: list[dict[str, float]]) -> np.ndarray:
    first, spread = np.log([prior for prior, _ in PRIORS.values()]), np.array([sd for _, sd in PRIORS.values()])

    def residuals(logs: np.ndarray) -> np.ndarray:
        errors = np.array([np.log(predicted(die, logs) / die["mm2"]) for die in dies])
        bounded = np.array([die["bound"] for die in dies], dtype=bool)
        return np.concatenate([np.where(bounded, np.maximum(errors, 0.0), errors) / SPREAD, (logs - first) / spread])

    return np.asarray(least_squares(residuals, first).x)


def main() -> None:
    rows = [row for row in csv.DictReader(TABLE.open()) if row["name"].startswith((*GPUS, *OTHERS))]
    rows = [row for row in rows if number(row["die_area_mm2"]) and row["name"] not in SAME]
    dies = {row["name"]: features(row) for row in rows}
    logs, errors = fitted(list(dies.values())), {}
    for name, die in dies.items():
        without = fitted([other for key, other in dies.items() if key != name])
        errors[name] = predicted(die, without) / die["mm2"] - 1
    exact = np.array([error for name, error in errors.items() if not dies[name]["bound"]])
    median, near = np.median(np.abs(exact)), np.mean(np.abs(exact) <= 0.2)
    print("# Area of whole dies at 7 nm, fitted by lab/fit_silicon.py on silicon.csv. A die left out is off by")
    print(
        f"# {median:.0%} (median of {len(exact)}), {near:.0%} are within 20%. Optimistic: six forms were tried on them."
    )
    for name, value in zip(PRIORS, np.exp(logs), strict=True):
        print(f"{name} = {value:.4g}")
    print(f"spread = {np.sqrt(np.mean(np.log1p(exact) ** 2)):.3f} # rms error of ln area, predicted without itself")
    print("\n[densest] # 16-bit peak over compute dies, by node")
    table = [row for row in csv.DictReader(TABLE.open()) if number(row["die_area_mm2"])]
    for node, words in {16: ("12FFN", "16FF", "14 nm"), 7: ("N7", "7 nm"), 5: ("4N", "N5"), 3: ("N3",)}.items():
        made = [
            row
            for row in table
            if any(word in row["process_node"] for word in words) and "weak" not in row["fit_class"]
        ]
        density = {
            row["name"]: max(number(row["peak_bf16_tflops_dense"]), number(row["peak_fp16_tflops_dense"]))
            / (number(row["die_area_mm2"]) * number(row["compute_dies"]))
            for row in made
        }
        name = max(density, key=lambda name: density[name])
        print(f'{node} = {{ name = "{name.partition(" (")[0]}", tflops_per_mm2 = {density[name]:.3g} }}')
    print("\n[left_out] # predicted over real, without itself (upper bounds: TPUs)")
    for name, error in errors.items():
        print(f'"{name}" = {1 + error:.2f}')


if __name__ == "__main__":
    main()
