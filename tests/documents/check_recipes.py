#!/usr/bin/env python3
"""Checks that the recipes for conda, vcpkg and Spack, pyproject.toml and CITATION.cff agree with the tree: the version, the CMake
options, which parts are built, and the libraries of the command with their versions."""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PACKAGING = ROOT / "packaging"
CMAKE_FILES = (ROOT / "cmake" / "CachalotOptions.cmake", ROOT / "cmake" / "CachalotCuda.cmake", ROOT / "simulator" / "targets.cmake")
# The names of the command's libraries, which CMake knows by its own, in each kind of package.
NAMES = {
    "conda": {"fmt": "fmt", "CLI11": "cli11", "nlohmann_json": "nlohmann_json", "ZLIB": "zlib"},
    "vcpkg": {"fmt": "fmt", "CLI11": "cli11", "nlohmann_json": "nlohmann-json", "ZLIB": "zlib"},
    "spack": {"fmt": "fmt", "CLI11": "cli11", "nlohmann_json": "nlohmann-json", "ZLIB": "zlib-api"},
}


class Tree(NamedTuple):
    version: str
    cmake: str
    options: set[str]
    libraries: dict[str, str]  # of the command, each with its least version or ""


def tree() -> Tree:
    top = (ROOT / "CMakeLists.txt").read_text()
    options = set(re.findall(r"(?:option|set)\((CACHALOT_\w+) ", "\n".join(path.read_text() for path in CMAKE_FILES)))
    targets = (ROOT / "cmake" / "CachalotTargets.cmake").read_text()
    (listed,) = re.findall(r"foreach\(library IN ITEMS (.*?)\)", targets)
    return Tree(
        re.search(r"^project\(cachalot VERSION ([\d.]+)", top, re.MULTILINE)[1],
        re.search(r"cmake_minimum_required\(VERSION ([\d.]+)\)", top)[1],
        options,
        {name: version for name, version, _ in (words.split(";") for words in re.findall(r'"([^"]+)"', listed))},
    )


def check_options(name: str, given: set[str], real: set[str]) -> list[str]:
    """Every option exists, and each part of the tree is said to be built or not: a new part is not built unnoticed."""
    parts = {option for option in real if option.startswith("CACHALOT_BUILD_") and option != "CACHALOT_BUILD_FUZZERS"}
    return [f"{name}: there is no option {option}" for option in sorted(given - real)] + [
        f"{name}: does not say whether {option}" for option in sorted(parts - given)]


def check_libraries(name: str, given: dict[str, str], names: dict[str, str], real: dict[str, str]) -> list[str]:
    wanted = {names[library]: version for library, version in real.items()}
    return [] if given == wanted else [f"{name}: the libraries of the command are {given}, not {wanted}"]


def same(name: str, what: str, said: str | None, real: str) -> list[str]:
    return [] if said == real else [f"{name}: the {what} is {said}, not {real}"]


def found(pattern: str, text: str) -> str | None:
    one = re.search(pattern, text, re.MULTILINE)
    return one[1] if one else None


def check_conda(real: Tree) -> list[str]:
    text = (PACKAGING / "conda" / "recipe.yaml").read_text()
    library, _, package = text.partition("name: cachalot\n      version")
    (host,) = re.findall(r"^      host:\n(.*?)^      run:", library, re.MULTILINE | re.DOTALL)
    needs = {name: version for name, version in re.findall(r"^ +- (\S+)(?: >=(\S+))?$", host, re.MULTILINE) if not name.startswith("cuda-")}
    python = re.search(r'requires-python = ">=([\d.]+)"', (ROOT / "pyproject.toml").read_text())[1]
    return (
        same("recipe.yaml", "version", found(r'^  version: "(.*)"$', text), real.version)
        + same("recipe.yaml", "CMake", found(r"cmake >=(\S+)", library), real.cmake)
        + same("recipe.yaml", "Python", found(r"^ +- python >=(\S+)", package), python)
        + check_options("recipe.yaml", set(re.findall(r"-D(CACHALOT_\w+)=", library)), real.options)
        + [problem for problem in check_options("recipe.yaml", set(re.findall(r"define\.(CACHALOT_\w+)=", package)), real.options) if "no option" in problem]
        + check_libraries("recipe.yaml", needs, NAMES["conda"], real.libraries)
    )


def check_vcpkg(real: Tree) -> list[str]:
    port = json.loads((PACKAGING / "vcpkg" / "vcpkg.json").read_text())
    text = (PACKAGING / "vcpkg" / "portfile.cmake").read_text()
    (features,) = re.findall(r"vcpkg_check_features\(.*? FEATURES (.*?)\)", text, re.DOTALL)
    of_feature = dict(zip(features.split()[::2], features.split()[1::2]))
    needs = [each if isinstance(each, dict) else {"name": each} for each in port["features"]["tools"]["dependencies"]]
    versions = {each["name"]: re.sub(r"\.0$", "", each.get("version>=", "")) for each in needs}
    usage = (PACKAGING / "vcpkg" / "usage").read_text()
    config = (ROOT / "cmake" / "cachalotConfig.cmake.in").read_text()
    targets = set(re.findall(r"cachalot::\w+", usage))
    return (
        same("vcpkg.json", "version", port["version"], real.version)
        + [f"portfile.cmake: the feature {name} does nothing" for name in sorted(port["features"].keys() - of_feature.keys())]
        + [f"portfile.cmake: vcpkg.json has no feature {name}" for name in sorted(of_feature.keys() - port["features"].keys())]
        + check_options("portfile.cmake", set(re.findall(r"-D(CACHALOT_\w+)=", text)) | set(of_feature.values()), real.options)
        + check_libraries("vcpkg.json", versions, NAMES["vcpkg"], real.libraries)
        + [f"usage: there is no target {target}" for target in sorted(targets) if target not in config]
    )


def check_spack(real: Tree) -> list[str]:
    text = (PACKAGING / "spack" / "packages" / "cachalot" / "package.py").read_text()
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]

    def first_words(*functions: str) -> list[str]:
        named = [call for call in calls if getattr(call.func, "id", getattr(call.func, "attr", "")) in functions]
        return [ast.literal_eval(call.args[0]) for call in named if call.args and isinstance(call.args[0], ast.Constant)]

    needs = dict((spec.rstrip(":").split("@") + [""])[:2] for spec in first_words("depends_on"))
    cmake = needs.pop("cmake", None)
    libraries = {name: version for name, version in needs.items() if name not in ("c", "cxx", "cuda")}
    given = {option for option in first_words("define", "define_from_variant") if option.startswith("CACHALOT_")}
    return (
        same("package.py", "version", next(iter(first_words("version")), None), real.version)
        + same("package.py", "version of its comment", found(r"dev-build .*cachalot@(\S+)$", text), real.version)
        + same("package.py", "CMake", cmake, real.cmake)
        + check_options("package.py", given, real.options)
        + check_libraries("package.py", libraries, NAMES["spack"], real.libraries)
    )


def check_citation(real: Tree) -> list[str]:
    text = (ROOT / "CITATION.cff").read_text()
    project = (ROOT / "pyproject.toml").read_text()
    date = found(r"^## \[\d.*\] - (.*)$", (ROOT / "CHANGELOG.md").read_text())
    return (
        same("CITATION.cff", "version", found(r"^version: (.*)$", text), real.version)
        + same("CITATION.cff", "date", found(r'^date-released: "(.*)"$', text), date)
        + same("CITATION.cff", "licence", found(r"^license: (.*)$", text), found(r'^license = "(.*)"$', project))
        + same("CITATION.cff", "author", found(r"^  - name: (.*)$", text), found(r'^authors = \[\{ name = "(.*)" \}\]$', project))
    )


def check_python(real: Tree) -> list[str]:
    text = (ROOT / "pyproject.toml").read_text()
    given = set(re.findall(r"^(CACHALOT_\w+) = ", text, re.MULTILINE))
    without_default = real.options - {"CACHALOT_BUILD_PYTORCH"}  # ON by default, and what pip builds
    return same("pyproject.toml", "CMake", found(r'^cmake\.version = ">=(.*)"$', text), real.cmake) + check_options(
        "pyproject.toml", given, without_default)


def main() -> int:
    real = tree()
    problems = [problem for check in (check_conda, check_vcpkg, check_spack, check_citation, check_python) for problem in check(real)]
    for problem in problems:
        print(problem)
    print(f"check_recipes.py: {len(problems)} mistakes")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
