"""C++ programs over libtorch: cachalot::enable_torch, and the library that is preloaded."""

import os
import subprocess
import sys
from pathlib import Path

import torch
from world import simulated

from cachalot._bindings import adapter

PROGRAM = Path(__file__).parent / "libtorch_program.cpp"
LIBTORCH = Path(torch.__file__).parent


def compiled(folder, name, *flags):
    """Returns the program, compiled with libtorch and the flags."""
    own = [] if flags else [f"-L{adapter.LIBRARY.parent}"]
    target = folder / name
    command = [*adapter._compiler(), "-std=c++20", *adapter.include_flags(LIBTORCH / "include", adapter.cuda_headers()), str(PROGRAM)]
    libraries = [f"-L{LIBTORCH / 'lib'}", "-Wl,--no-as-needed", *(f"-l{library}" for library in adapter.TORCH_LIBRARIES), *own]
    command += [*libraries, *flags, f"-Wl,-rpath,{LIBTORCH / 'lib'}", "-o", str(target)]
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    subprocess.run(command, check=True, env=environment)
    return target


def library(folder, *flags):
    target = folder / f"libcachalot_libtorch{len(flags)}.so"
    made = main("libtorch", "-o", str(target), *flags)
    assert made.returncode == 0, made.stderr
    return target


def main(*words):
    return subprocess.run([sys.executable, "-m", "cachalot", *words], capture_output=True, text=True)


def run(*command, **variables):
    environment = {**os.environ, **simulated(), **variables}
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment)


def test_a_program_makes_cachalot_its_allocator_by_one_call(tmp_path):
    target = library(tmp_path)
    program = compiled(tmp_path, "program", "-DENABLES", str(target), f"-Wl,-rpath,{tmp_path}")
    told = run(program, "heap:pages", LD_LIBRARY_PATH=f"{os.environ['LD_LIBRARY_PATH']}:{adapter.LIBRARY.parent}")
    assert told.stdout == "cachalot, pages, out of memory\n", told.stderr
    assert run(program).stdout == "cachalot, segments, out of memory\n"
    refused = run(program, "heap:paper")
    assert refused.returncode == 1 and "enable_torch" in refused.stdout and "Unknown heap" in refused.stdout
    twice = run(program, "", "again")
    assert twice.returncode == 1 and "cachalot is torch's allocator already" in twice.stdout


def test_a_program_that_cannot_be_changed_has_the_library_preloaded(tmp_path):
    target = library(tmp_path, "--preload")
    program = compiled(tmp_path, "program")
    assert run(program).stdout == "native, segments, out of memory\n"
    preload = f"{os.environ['LD_PRELOAD']}:{target}"
    told = run(program, LD_PRELOAD=preload, CACHALOT_CONF="heap:pages")
    assert told.stdout == "cachalot, pages, out of memory\n", told.stderr
    refused = run(program, LD_PRELOAD=preload, CACHALOT_CONF="heap:paper")
    assert refused.stdout == "native, segments, out of memory\n"
    assert "Unknown heap" in refused.stderr and "libtorch's own allocator serves" in refused.stderr


def test_a_folder_that_is_not_libtorchs_is_refused(tmp_path):
    refused = main("libtorch", "-o", str(tmp_path / "x.so"), "--libtorch", str(tmp_path))
    assert refused.returncode == 1
    assert f"{tmp_path} is not libtorch's folder: there is no {tmp_path / 'include/torch/csrc/api/include/torch/version.h'}" in refused.stderr
    assert not (tmp_path / "x.so").exists()
    assert main("libtorch").returncode == 2
