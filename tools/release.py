"""Check what `make release` built: ``python tools/release.py dist [cyclonedx-py]``.

One version everywhere, a wheel of at most 6 MB, an sdist without lab/ and recorded rows, licences inside, metadata that
names them, and a fresh environment in which the wheel answers; with cyclonedx-py, the packages in it are listed with
their licences in dist/sartor-VERSION.cdx.json (CycloneDX).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
MOST_BYTES = 6_000_000
"""Of the wheel."""


def faults(dist: Path, sbom: str = "") -> list[str]:
    """What is wrong with the files of a release, one sentence each."""
    version = re.search(r'^version = "(.+)"', (REPO / "pyproject.toml").read_text(), re.MULTILINE)[1]  # type: ignore[index]
    wheel, sdist = dist / f"sartor-{version}-py3-none-any.whl", dist / f"sartor-{version}.tar.gz"
    missing = [f"{path.name} was not built" for path in (wheel, sdist) if not path.exists()]
    if missing:
        return missing
    says = []
    if f'"{version}"' not in (REPO / "src" / "sartor" / "version.py").read_text():
        says.append(f"src/sartor/version.py does not say {version}")
    if not re.search(rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)$", (REPO / "CHANGELOG.md").read_text(), re.M):
        says.append(f"CHANGELOG.md has no heading for {version} with its date (while it says unreleased, none is cut)")
    if f"version: {version}" not in (REPO / "CITATION.cff").read_text():
        says.append(f"CITATION.cff does not say {version}")
    if wheel.stat().st_size > MOST_BYTES:
        says.append(f"the wheel has {wheel.stat().st_size} bytes; at most {MOST_BYTES} are allowed")
    inside = zipfile.ZipFile(wheel).namelist()
    licences = ("LICENSE", "THIRD_PARTY.md", "d3.LICENSE")
    says += [f"the wheel lacks {name}" for name in licences if not any(path.endswith(name) for path in inside)]
    says += [f"the wheel has {path}" for path in inside if not path.startswith(("sartor/", "sartor-"))]
    unwanted = re.compile(r"^[^/]+/(lab|tests)/|\.parquet$")
    with tarfile.open(sdist) as archive:
        says += [f"the sdist has {path}" for path in archive.getnames() if unwanted.search(path)]
    return says or _installed(wheel, version, sbom)


def _installed(wheel: Path, version: str, sbom: str) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="sartor-release-") as folder:
        venv.create(folder, with_pip=True)
        python = str(Path(folder) / "bin" / "python")
        subprocess.run([python, "-m", "pip", "install", "--quiet", str(wheel.resolve())], check=True)
        for words, expected in (
            (["--version"], f"sartor {version}"),
            (["lint", "gpt2", "--gpu", "h100"], "vocab_size"),
        ):
            ran = subprocess.run([python, "-m", "sartor", *words], cwd=folder, capture_output=True, text=True)
            if expected not in ran.stdout:
                return [f"the installed wheel does not answer sartor {' '.join(words)}: {ran.stderr or ran.stdout}"]
        if not sbom:
            return []
        subprocess.run([python, "-m", "pip", "uninstall", "--quiet", "--yes", "pip", "setuptools"], check=True)
        listed = wheel.parent / f"sartor-{version}.cdx.json"
        words = ["environment", "--pyproject", "pyproject.toml", "--mc-type", "library", "--output-reproducible"]
        subprocess.run([sbom, *words, "-o", str(listed), python], check=True, cwd=REPO)
        bill = json.loads(listed.read_text())
        components = bill["components"] = bill["components"] + _of_the_page(zipfile.ZipFile(wheel))
        listed.write_text(json.dumps(bill, indent=2) + "\n")
        unlicensed = [part["name"] for part in components if not part.get("licenses")]
    missing = {"numpy", "pydantic", "typer", "rich", "PyYAML", "d3-scale", "d3-zoom"} - {
        part["name"] for part in components
    }
    return [f"the SBOM lacks {name}" for name in missing] + [f"{name} states no licence" for name in unlicensed]


def _of_the_page(wheel: zipfile.ZipFile) -> list[dict[str, object]]:
    """The parts of d3 that the page ships, by the headings in their code."""
    code = "".join(wheel.read(path).decode() for path in wheel.namelist() if re.search(r"/d3-\w+\.js$", path))
    return [
        {"type": "library", "name": name, "version": version, "purl": f"pkg:npm/{name}@{version}"}
        | {"licenses": [{"license": {"id": "BSD-3-Clause" if name == "d3-ease" else "ISC"}}]}
        for name, version in sorted(re.findall(r"https://d3js\.org/([\w-]+)/ v([\d.]+)", code))
    ]


if __name__ == "__main__":
    found = faults(Path(sys.argv[1] if len(sys.argv) > 1 else "dist").resolve(), "".join(sys.argv[2:3]))
    print("\n".join(found) or "the release is whole")
    sys.exit(bool(found))
