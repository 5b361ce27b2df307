"""The full allocator's adapter: one thin C++ file for each minor version of PyTorch, compiled for the PyTorch found.

PyTorch's allocator classes have no stable binary interface, so an adapter serves the very build of PyTorch it was
compiled for. It comes with the package when PyTorch was there at the package's build; otherwise the system's compiler
makes it at first use, in seconds, and it is kept in $CACHALOT_CACHE_DIR (~/.cache/cachalot).
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from ._errors import EnableError
from ._plug import LIBRARY, NATIVE

SOURCES = NATIVE / "adapter"
PREBUILT = NATIVE / "prebuilt"

_FLAGS = ("-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-D_GLIBCXX_USE_CXX11_ABI=1")
_TORCH_LIBRARIES = ("c10", "c10_cuda", "torch_cpu", "torch_cuda")
_ERROR_BYTES = 4096


class AdapterError(Exception):
    """There is no adapter for this PyTorch and none can be made here; the function-pointer plug still works."""


class Adapter:
    """A loaded adapter."""

    def __init__(self, path: Path) -> None:
        """Loads it; AdapterError when it is not one for this PyTorch. libcachalot_torch.so must be loaded already."""
        try:
            self._library = ctypes.CDLL(str(path))
            version = self._library.cachalot_adapter_torch_version
            self._install = self._library.cachalot_adapter_install
            self._set_out_of_memory = self._library.cachalot_adapter_set_out_of_memory
        except (OSError, AttributeError) as error:
            raise AdapterError(f"{path} cannot be loaded as an adapter: {error}") from None
        version.restype = ctypes.c_char_p
        self._install.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t]
        self._set_out_of_memory.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
        if version().decode() != _base_version():
            raise AdapterError(f"{path} was made for PyTorch {version().decode()}; this is PyTorch {_base_version()}")

    def install(self, late: bool) -> None:
        """Makes cachalot PyTorch's current allocator; EnableError says why not."""
        self._call(self._install, int(late))

    def set_out_of_memory(self) -> None:
        """Makes the function-pointer plug raise torch.OutOfMemoryError; EnableError says why not."""
        self._call(self._set_out_of_memory)

    def _call(self, function: Any, *arguments: Any) -> None:
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        if function(*arguments, error, _ERROR_BYTES):
            raise EnableError(error.value.decode(errors="replace"))


def load() -> Adapter:
    """The adapter for the PyTorch found: prebuilt, from the cache, or compiled now. AdapterError when there is none."""
    source = _source()
    name = _file_name(source)
    for folder in (PREBUILT, _cache_folder()):
        if (folder / name).is_file():
            return Adapter(folder / name)
    return Adapter(_compile(source, _cache_folder() / name))


def prebuild(folder: Path) -> Path:
    """Compiles the adapter for the PyTorch found into `folder`; returns the file."""
    source = _source()
    return _compile(source, folder / _file_name(source))


def _base_version() -> str:
    """As PyTorch's headers say it: "2.11.0", without a0, .dev20260101, +cu130 and what else builds add."""
    import torch

    version = re.match(r"\d+\.\d+\.\d+", torch.__version__)
    if version is None:
        raise AdapterError(f"PyTorch's version, {str(torch.__version__)!r}, does not begin with major.minor.patch")
    return version[0]


def _source() -> Path:
    major, minor = _base_version().split(".")[:2]
    source = SOURCES / f"torch_{major}_{minor}.cpp"
    if not source.is_file():
        served = sorted(
            (path.stem.removeprefix("torch_").replace("_", ".") for path in SOURCES.glob("torch_*.cpp")),
            key=lambda version: [int(number) for number in version.split(".")],
        )
        raise AdapterError(f"there is no adapter for PyTorch {major}.{minor} (there is for {', '.join(served)})")
    return source


def _cache_folder() -> Path:
    folder = os.environ.get("CACHALOT_CACHE_DIR")
    try:
        return Path(folder) if folder else Path.home() / ".cache" / "cachalot"
    except RuntimeError:
        raise AdapterError("there is no home folder for the adapter, and CACHALOT_CACHE_DIR is not set") from None


def _file_name(source: Path) -> str:
    """Names all that the compiled file depends on; another PyTorch or another cachalot looks for another file."""
    import torch

    digest = hashlib.sha256("\0".join((torch.__version__, str(torch.version.git_version), *_FLAGS)).encode())
    # All of its interface with libcachalot_torch.so is in headers.
    folders = (NATIVE, NATIVE / "include" / "cachalot", SOURCES)
    for path in sorted(path for folder in folders for path in folder.iterdir() if path.suffix in (".h", ".cpp")):
        digest.update(f"\0{path.name}\0".encode())
        digest.update(path.read_bytes())
    return f"{source.stem}-{digest.hexdigest()[:16]}.so"


def _compile(source: Path, target: Path) -> Path:
    """Writes `target` in one step: another process may be compiling it, too, or already use it."""
    command = [*_compiler(), *_FLAGS, *_include_flags(), str(source), *_link_flags()]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            output = Path(scratch) / target.name
            run = subprocess.run([*command, "-o", str(output)], capture_output=True, text=True, env=_environment())
            if run.returncode:
                raise AdapterError(f"'{command[0]}' could not compile {source}: {_first_error(run.stderr)}")
            os.replace(output, target)
    except OSError as error:
        raise AdapterError(f"the adapter for PyTorch could not be compiled into {target.parent}: {error}") from None
    return target


def _compiler() -> list[str]:
    chosen = shlex.split(os.environ.get("CXX", ""))
    candidates = [chosen] if chosen else [["g++"], ["c++"], ["clang++"]]
    for command in candidates:
        if shutil.which(command[0]):
            return command
    names = " or ".join(command[0] for command in candidates)
    raise AdapterError(f"the adapter for PyTorch needs a C++ compiler, and there is no {names} on PATH")


def _environment() -> dict[str, str]:
    """What is preloaded into this process (a profiler, a simulated CUDA) is not for the compiler."""
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


def _include_flags() -> list[str]:
    import torch

    torch_headers = Path(torch.__file__).parent / "include"
    own = (NATIVE, NATIVE / "include")
    foreign = (torch_headers, torch_headers / "torch" / "csrc" / "api" / "include", cuda_headers())
    return [f"-I{folder}" for folder in own] + [flag for folder in foreign for flag in ("-isystem", str(folder))]


def _link_flags() -> list[str]:
    """By name alone: when an adapter is loaded, all of these are in the process already."""
    import torch

    folders = (Path(torch.__file__).parent / "lib", LIBRARY.parent)
    return [
        *(f"-L{folder}" for folder in folders),
        "-Wl,--no-as-needed",
        *(f"-l{name}" for name in _TORCH_LIBRARIES),
        f"-l:{LIBRARY.name}",
    ]


def cuda_headers() -> Path:
    """The folder of cuda_runtime_api.h of PyTorch's CUDA version: from its wheels, or from a toolkit."""
    import torch

    major = str(torch.version.cuda).partition(".")[0]
    wheels = Path(torch.__file__).parent.parent / "nvidia"
    candidates = [wheels / f"cu{major}" / "include", wheels / "cuda_runtime" / "include"]
    candidates += [Path(os.environ[name]) / "include" for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ]
    nvcc = shutil.which("nvcc")
    candidates += [Path(nvcc).resolve().parent.parent / "include"] if nvcc else []
    candidates += [Path("/usr/local/cuda/include")]
    for folder in candidates:
        if _cuda_major(folder) == major:
            return folder
    raise AdapterError(
        f"the headers of CUDA {major} were not found (looked in {', '.join(map(str, candidates))}): "
        f"install the CUDA toolkit, or nvidia-cuda-runtime with pip, or set CUDA_HOME"
    )


def _cuda_major(folder: Path) -> str | None:
    header = folder / "cuda_runtime_api.h"
    if not header.is_file():
        return None
    version = re.search(r"#define\s+CUDART_VERSION\s+(\d+)", header.read_text(errors="replace"))
    return str(int(version[1]) // 1000) if version else None


def _first_error(messages: str) -> str:
    lines = [line.strip() for line in messages.splitlines()] or ["no message"]
    return next((line for line in lines if "error:" in line), lines[-1])
