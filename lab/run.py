"""Run one script of the lab on the shared data, or check that all of them load: ``python lab/run.py [NAME [ARGS...]]``.

``make lab`` checks; ``make lab FIT=fit_gemm ARGS=h200_sxm.fp8`` fits one calibration on ../shared/data. A fit writes
its result into src/sartor, where ``git diff`` shows the changes.
"""

from __future__ import annotations

import ast
import os
import runpy
import subprocess
import sys
from pathlib import Path

LAB = Path(__file__).resolve().parent
SHARED = Path(os.environ.get("SARTOR_SHARED", LAB.parent.parent / "shared"))

SCRIPTS: dict[str, tuple[Path | str, ...]] = {
    "fit_gemm": (SHARED,),
    "fit_kernels": (SHARED,),
    "fit_memory": (SHARED,),
    "fit_stream_law": (SHARED,),
    "fit_grouped": (SHARED,),
    "fit_grouped_amd": (SHARED,),
    "fit_collectives": (SHARED,),
    "fit_joint": (SHARED,),
    "fit_fp32_residual": (SHARED,),
    "fit_residual": (SHARED,),
    "fit_moe_residual": (SHARED,),
    "fit_attention_kernels": (SHARED,),
    "fit_torch_attention": (),
    "fit_torch_streams": (SHARED,),
    "fit_gemm_kernels": (SHARED,),
    "fit_off_grid": (),
    "fit_misaligned": (),
    "fit_intervals": (SHARED / "data",),
    "fit_quality": (),
    "scoreboard": (SHARED / "data",),
    "fit_serving": (SHARED / "data" / "end_to_end",),
    "fit_training": (SHARED / "data" / "end_to_end",),
    "fit_silicon": (),
    "chip_steps": (SHARED / "data" / "end_to_end",),
    "kin_docs": (SHARED / "data",),
    "interval_docs": (SHARED / "data",),
    "mix_intervals": (SHARED,),
    "plan_pairs": (SHARED,),
    "calibration_curve": (SHARED,),
    "accuracy_gate": ("--check",),
    "zoo_findings": ("--check",),
    "class_defaults": (),
    "tensor_tables": (),
    "transformers_truth": ("check", SHARED / "data" / "configs"),
    "conformance": ("page",),
}
"""Default arguments of each script, in the order of a whole refit; the last four are about config.json."""
IMPORTED = {"networks", "peers", "published", "teachers", "timed_cases"}
"""Modules that scripts and notebook pages import."""


def main(words: list[str]) -> int:
    """Run the named script with the given or its default arguments; without a name, check all scripts."""
    if not words:
        return check()
    name, *given = words
    if name not in SCRIPTS:
        print(f"no script of the lab is called {name}; there are {', '.join(SCRIPTS)}", file=sys.stderr)
        return 2
    return subprocess.call([sys.executable, str(LAB / f"{name}.py"), *map(str, SCRIPTS[name]), *given])


def check() -> int:
    """Load every script without running it, and print its purpose and whether it could run here."""
    missing = {path.stem for path in LAB.glob("*.py")} - {*SCRIPTS, "run", *IMPORTED}
    assert not missing, f"lab/run.py does not know {sorted(missing)}"
    sys.path.insert(0, str(LAB))
    failed = 0
    for name in SCRIPTS:
        path = LAB / f"{name}.py"
        summary = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0].split())
        try:
            runpy.run_path(str(path), run_name=name)
            state = "loads"
        except ModuleNotFoundError as error:
            state = f"needs {error.name}"
            failed += error.name not in ("torch", "transformers")
        print(f"{name:18} {state:18} {summary}")
    if not SHARED.is_dir():
        print(f"{SHARED} is not there: no fit can run (SARTOR_SHARED names another folder)")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
