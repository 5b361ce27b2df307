"""Virtual environments with the packages of the time in which a source measured: environments/NAME.txt."""

from __future__ import annotations

import pathlib
import subprocess
import venv

from data import ROOT

REQUIREMENTS = pathlib.Path(__file__).resolve().parent / "environments"
FOLDER = ROOT / "build/accuracy"
# The oldest cuDNN that plans without a GPU, in place of the 9.1 that these versions of PyTorch require.
CUDNN = "nvidia-cudnn-cu12==9.8.0.87"


def python_of(name: str) -> str:
    """The interpreter of an environment, which is made if it is not there. Takes 6 GB of disk."""
    folder = FOLDER / name
    python = folder / "bin/python"
    if (folder / "is-complete").exists():
        return str(python)
    print(f"making {folder.relative_to(ROOT)}", flush=True)
    venv.create(folder, clear=True, with_pip=True)
    install(python, "uv")
    install(python, "-r", str(REQUIREMENTS / f"{name}.txt"), using=[str(folder / "bin/uv"), "pip", "install", "--python", str(python)])
    install(python, "--no-deps", CUDNN)
    (folder / "is-complete").touch()
    return str(python)


def install(python: pathlib.Path, *packages: str, using: list[str] | None = None) -> None:
    command = using or [str(python), "-m", "pip", "install", "--disable-pip-version-check"]
    subprocess.run([*command, "--quiet", *packages], check=True)
