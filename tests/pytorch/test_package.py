"""Tests without a GPU: the package's names, the cost of importing it, and the tables of supported versions."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest
from world import MODE, run, succeeds

pytestmark = pytest.mark.skipif(MODE != "full", reason="is about the package, whatever the mode")

ROOT = Path(__file__).resolve().parents[2]


def test_every_name_is_there_and_none_is_missing_from_the_list():
    import cachalot

    assert sorted(cachalot._MODULE_OF) == [name for name in cachalot.__all__ if name != "__version__"]
    assert all(getattr(cachalot, name) is not None for name in cachalot.__all__)
    assert dir(cachalot) == sorted(cachalot.__all__)
    with pytest.raises(AttributeError, match="no attribute 'enabel'"):
        cachalot.enabel  # noqa: B018


def test_importing_it_imports_next_to_nothing():
    code = "import sys; before = set(sys.modules); import cachalot; print(*sorted(set(sys.modules) - before))"
    new = set(succeeds(run([sys.executable, "-I", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"])).split())
    assert new <= {"cachalot", "cachalot._version", "typing", "__future__"} | set(_parts_of("typing", "importlib")), new


def _parts_of(*modules):
    """Returns the modules that importing modules of the standard library brings along."""
    code = f"import sys; before = set(sys.modules); import {', '.join(modules)}; print(*set(sys.modules) - before)"
    return succeeds(run([sys.executable, "-I", "-c", code])).split()


def test_the_version_is_cmakes():
    import cachalot

    (version,) = re.findall(r"^project\(cachalot VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE)
    assert cachalot.__version__ == version


# ---- docs/support_matrix.md --------------------------------------------------------------------------------------------


def table(heading):
    """The rows of the table under a heading of docs/support_matrix.md."""
    text = (ROOT / "docs" / "support_matrix.md").read_text()
    part = text.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = [[cell.strip() for cell in line.strip("|\n ").split("|")] for line in part.splitlines() if line.startswith("|")]
    return rows[2:]


def pyproject():
    try:
        import tomllib
    except ImportError:  # before 3.11
        pytest.skip("this Python does not read TOML")
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_matrix_has_the_pythons_of_the_package():
    project = pyproject()["project"]
    classified = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    listed = [row[0] for row in table("Python")]
    assert listed == classified
    assert project["requires-python"] == f">={listed[0]}"


def test_the_matrix_has_the_pytorchs_that_adapters_are_made_for():
    import ast

    from cachalot._bindings import adapter

    rows = table("PyTorch")
    assert [row[0] for row in rows] == adapter.served_versions()
    tree = ast.parse((ROOT / "packaging" / "adapters.py").read_text())
    (versions,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and node.targets[0].id == "VERSIONS"
    )
    assert [version for row in rows for version in row[1].split(", ")] == list(versions)


def test_the_matrix_has_the_pytorchs_whose_wheel_for_arm_has_no_cuda(adapters):
    without = [version for row in table("PyTorch") if row[3] == "none" for version in row[1].split(", ")]
    assert without == [version for version in adapters.VERSIONS if version not in adapters.versions_for("aarch64")]
    assert without, "then nothing of this is needed"
    with pytest.raises(SystemExit, match=f"--torch is {without[0]}, whose wheel for aarch64 on PyPI has no CUDA; with CUDA are 2.11.0, "):
        adapters.require_cuda(without[0], "aarch64")
    adapters.require_cuda(without[0], "x86_64")


def test_a_wheel_for_an_unknown_processor_is_refused():
    process = run([str(ROOT / "packaging" / "wheels.sh"), "--arch", "riscv64"])
    assert process.returncode == 2
    assert "wheels.sh: --arch is 'riscv64'; it must be x86_64 or aarch64" in process.stderr


def test_the_matrix_has_the_wheels_policy():
    script = (ROOT / "packaging" / "wheels.sh").read_text()
    (major, minor) = re.search(r"readonly policy=manylinux_(\d+)_(\d+)", script).groups()
    cells = {row[0]: row[1] for row in table("Systems")}
    assert cells["glibc, for wheels"].startswith(f"{major}.{minor}")
    needed = re.search(r"cmake_minimum_required\(VERSION ([\d.]+)\)", (ROOT / "CMakeLists.txt").read_text())[1]
    assert cells["CMake, to build"].startswith(needed)


def test_the_types_are_marked_as_such():
    import cachalot

    assert (Path(cachalot.__file__).parent / "py.typed").is_file()


# ---- packaging/adapters.py --torch, which packaging/wheels.sh is told --------------------------------------------------


@pytest.fixture(name="adapters")
def packaging_adapters():
    spec = importlib.util.spec_from_file_location("packaging_adapters", ROOT / "packaging" / "adapters.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_wheel_for_the_pytorch_of_a_python_takes_the_headers_from_there(adapters):
    import torch

    found = adapters.find_installed(sys.executable)
    assert Path(found.folder) == Path(torch.__file__).parent and torch.version.git_version in found.build
    for wanted in ("installed", found.version):
        version = adapters.require_version(wanted, sys.executable, found)
        assert torch.__version__.startswith(version) and adapters.is_usable(found, version)
    assert not adapters.is_usable(found, "2.10.9") and not adapters.is_usable(None, found.version)
    assert not adapters.is_usable(found._replace(cuda=None), found.version)  # its wheel is fetched


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("installed", "--torch is installed, but /bin/false has no torch"),
        ("2.11", "--torch is '2.11'; it must be installed, or a version such as"),
        ("2.9.0", "there is no adapter for PyTorch 2.9.0; there is for 2.10, "),
    ],
)
def test_a_wheel_for_no_pytorch_is_refused(adapters, wanted, message):
    with pytest.raises(SystemExit, match=re.escape(message)):
        adapters.require_version(wanted, "/bin/false", adapters.find_installed("/bin/false"))


def test_a_wheel_for_a_pytorch_without_cuda_is_refused(adapters):
    found = adapters.Installed("2.11.0", "2.11.0+cpu", None, "/nowhere")
    with pytest.raises(SystemExit, match="the torch 2.11.0 of python3 is built without CUDA"):
        adapters.require_version("installed", "python3", found)
