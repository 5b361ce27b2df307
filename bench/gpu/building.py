"""Builds what the stages need, with what the machine has: nothing is downloaded."""

from __future__ import annotations

import os
import re
import shutil
import time

import commands

PACKAGES = "fmt, CLI11, nlohmann-json, zlib and GoogleTest"


def configure_words(build, python, with_packages):
    words = ["cmake", "-S", str(commands.ROOT), "-B", str(build), "-DCMAKE_BUILD_TYPE=Release", "-DCACHALOT_CUDA=ON",
             "-DCACHALOT_CUDA_ARCHITECTURES=native", "-DCACHALOT_BUILD_GPU_CHECKS=ON",
             f"-DCACHALOT_PYTHON={python}"]
    if shutil.which("ninja") and not (build / "Makefile").exists():
        words += ["-G", "Ninja"]
    for part in ("TESTS", "TOOLS", "BENCHMARKS", "EXAMPLES"):
        words.append(f"-DCACHALOT_BUILD_{part}={'ON' if with_packages else 'OFF'}")
    return words


def missing_package(text):
    """The first one that CMake did not find."""
    found = re.search(r'configuration file provided by "(\w+)"|Could NOT find (\w+)', text)
    return (found[1] or found[2]) if found else "something else"


def configure(build, python, seconds, outcome):
    """Returns whether there are the libraries that tests, benchmarks and examples need; None where nothing can be built."""
    lack = ""
    for with_packages in (True, False):
        status, text = commands.run_process(configure_words(build, python, with_packages), dict(os.environ), seconds)
        if status == 0:
            outcome.check("configure", "passed", "with everything" if with_packages else "the library and bench/gpu alone")
            if not with_packages:
                outcome.check("packages", "not applicable",
                              f"CMake does not find {lack}, and all of {PACKAGES} are needed: set CACHALOT_DEPS (bench/gpu/pack)")
            return with_packages
        lack = missing_package(text)
        outcome.tails.append("\n".join(text.splitlines()[-commands.TAIL_LINES:]))
    outcome.check("configure", "failed", "CMake fails")
    return None


def keep_going(build):
    return ["-k", "0"] if (build / "build.ninja").exists() else ["-k"]


def build_targets(build, targets, seconds, outcome):
    """Builds as many targets as possible: a target that fails costs only the stages that need it."""
    words = ["cmake", "--build", str(build), "-j", str(os.cpu_count()), "--target", *targets, "--", *keep_going(build)]
    status, text = commands.run_process(words, dict(os.environ), seconds)
    if status == 0:
        return outcome.check("build", "passed", f"{len(targets)} targets")
    why = f"more than {seconds:.0f} s" if status is None else f"exit status {status}"
    outcome.tails.append("\n".join(text.splitlines()[-commands.TAIL_LINES:]))
    return outcome.check("build", "failed", why)


def known_targets(build, targets):
    """Returns the targets that this build has: it may lack some, such as allocators that are not installed."""
    status, text = commands.run_process(["cmake", "--build", str(build), "--target", "help"], dict(os.environ), 60)
    names = {word.rstrip(":") for line in text.splitlines() for word in line.split()}
    return [target for target in targets if target in names] if status == 0 else targets


def build(folder, python, chosen, seconds):
    """(outcome, whether there are the packages)"""
    outcome = commands.Outcome()
    end = time.monotonic() + seconds
    folder.mkdir(parents=True, exist_ok=True)
    with_packages = configure(folder, python, seconds, outcome)
    if with_packages is None:
        return outcome, False
    # Targets that need only the library come first: most stages need them.
    for needs_packages in (False, True) if with_packages else (False,):
        wanted = [target for stage in chosen if stage.needs_packages == needs_packages for target in stage.targets]
        targets = known_targets(folder, list(dict.fromkeys(wanted)))
        if targets:
            build_targets(folder, targets, max(1, end - time.monotonic()), outcome)
    return outcome, with_packages
