"""The full allocator's adapter: one thin C++ file for each minor version of PyTorch.

PyTorch's allocator classes have no stable binary interface: an adapter serves a PyTorch whose headers say what those said
that it was compiled with. Ready ones come with the package (native/prebuilt); their headers are compared with those of the
PyTorch found before they are loaded. Where none fits, the system's compiler makes one for this very PyTorch, in seconds,
and it is kept in $CACHALOT_CACHE_DIR (~/.cache/cachalot).
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from .._base import environment
from .._base.errors import EnableError
from .plug import LIBRARY, NATIVE, out_of_memory_error

SOURCES = NATIVE / "adapter"
PREBUILT = NATIVE / "prebuilt"

COMPILE_FLAGS = ("-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-D_GLIBCXX_USE_CXX11_ABI=1")
# By name alone: when an adapter is loaded, all of these are in the process already.
TORCH_LIBRARIES = ("c10", "c10_cuda", "torch_cpu", "torch_cuda")
_ERROR_BYTES = 4096
_OUT_OF_MEMORY = 2  # kOutOfMemory of exports.h


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
            self._install_pinned = self._library.cachalot_adapter_install_pinned
            self._newest_pool = self._library.cachalot_adapter_newest_pool
            self._make_plain = self._library.cachalot_adapter_make_plain
        except (OSError, AttributeError) as error:
            raise AdapterError(f"{path} cannot be loaded as an adapter: {error}") from None
        version.restype = ctypes.c_char_p
        self._install.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t]
        self._set_out_of_memory.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
        self._install_pinned.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
        self._make_plain.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t), ctypes.c_char_p, ctypes.c_size_t]
        made_for = version().decode()
        if _minor(made_for) != _minor(_base_version()):
            raise AdapterError(f"{path} was made for PyTorch {made_for}; this is PyTorch {_base_version()}")

    def install(self, late: bool) -> None:
        """Makes cachalot PyTorch's current allocator; EnableError says why not."""
        self._call(self._install, int(late))

    def set_out_of_memory(self) -> None:
        """Makes the function-pointer plug raise torch.OutOfMemoryError; EnableError says why not."""
        self._call(self._set_out_of_memory)

    def install_pinned(self) -> None:
        """Makes cachalot PyTorch's allocator of pinned memory; EnableError says why not."""
        self._call(self._install_pinned)

    def newest_pool(self) -> tuple[int, int]:
        """Returns the id of the memory pool that this thread began last."""
        pool = (ctypes.c_ulonglong * 2)()
        self._newest_pool(pool)
        return pool[0], pool[1]

    def make_plain(self, storage: int) -> int:
        """Copies a storage, given by its `_cdata`, to plain memory of the same stream and pool; its tensors move with it.

        Returns the bytes copied; 0 if it is plain already, was sent or received, or borrows its memory. Waits for the device.
        No other thread may use the storage meanwhile; its addresses that were taken before are invalid afterwards.

        Raises:
            RuntimeError: a graph is being captured, the memory is asleep, or a CUDA call failed; the storage is as before.
            torch.OutOfMemoryError: there is no memory for the copy; the storage is as before.
        """
        copied = ctypes.c_size_t()
        self._call(self._make_plain, storage, copied, error_type=RuntimeError)
        return copied.value

    def _call(self, function: Any, *arguments: Any, error_type: type[Exception] = EnableError) -> None:
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        code = function(*arguments, error, _ERROR_BYTES)
        if code:
            raise (out_of_memory_error() if code == _OUT_OF_MEMORY else error_type)(error.value.decode(errors="replace"))


class Fit(NamedTuple):
    """Versions and headers of PyTorch that an adapter was compiled with, and so serves. Kept in a file beside it, as JSON."""

    versions: list[str]  # of PyTorch: "2.12.0"
    headers: list[str]  # of PyTorch, that its source includes: "c10/core/Allocator.h"
    digests: list[str]  # the contents of these versions' headers; most often one

    @staticmethod
    def read(adapter: Path) -> Fit:
        """AdapterError when there is none, or no good one."""
        path = adapter.with_suffix(".json")
        try:
            return Fit(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise AdapterError(f"{path} does not say what {adapter.name} serves: {error}") from None

    def write(self, adapter: Path) -> None:
        adapter.with_suffix(".json").write_text(json.dumps(self._asdict(), indent=1) + "\n")


def load() -> Adapter:
    """The adapter for the PyTorch found: prebuilt, from the cache, or compiled now. AdapterError when there is none."""
    source = _source()
    prebuilt = PREBUILT / f"{source.stem}.so"
    misfit = _misfit(prebuilt)
    if misfit is None:
        return Adapter(prebuilt)
    cached = _cache_folder() / _file_name(source)
    if cached.is_file():
        _require_nobody_else_writes(cached)
    else:
        try:
            _compile(source, cached)
        except AdapterError as error:
            raise AdapterError(f"{misfit}, and none could be compiled: {error}") from None
    return Adapter(cached)


def prebuild(folder: Path) -> Path:
    """Compiles the adapter for the PyTorch found into `folder`, with what it serves; returns the file."""
    source = _source()
    target = folder / f"{source.stem}.so"
    with tempfile.TemporaryDirectory() as scratch:
        dependencies = Path(scratch) / "dependencies"
        _compile(source, target, dependencies)
        headers = included_headers(dependencies.read_text(), _torch_headers())
    Fit([_base_version()], headers, [_required_digest(_torch_headers(), headers)]).write(target)
    return target


def included_headers(dependencies: str, folder: Path) -> list[str]:
    """Returns the headers in `folder` that a compiler's list of dependencies names, except the one that has the version alone."""
    paths = (word.replace("\\ ", " ") for word in re.split(r"(?<!\\)\s+", dependencies.replace("\\\n", " ")))
    # A compiler, or its cache, may name a folder by another path than Python does, behind a link.
    real = os.path.realpath(folder)
    found = {os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path)) for path in paths}
    inside = {os.path.relpath(path, real) for path in found if path.startswith(f"{real}{os.sep}")}
    return sorted(name for name in inside if Path(name).name != "version.h")


def digest_of(folder: Path, headers: Iterable[str]) -> str | None:
    """Returns a digest of the headers; None where one is missing."""
    digest = hashlib.sha256()
    for name in headers:
        try:
            text = (folder / name).read_bytes()
        except OSError:
            return None
        digest.update(f"\0{name}\0{len(text)}\0".encode())
        digest.update(text)
    return digest.hexdigest()


def _required_digest(folder: Path, headers: Iterable[str]) -> str:
    digest = digest_of(folder, headers)
    if digest is None:
        raise AdapterError(f"headers that were compiled have gone from {folder}")
    return digest


def _misfit(prebuilt: Path) -> str | None:
    """Why a ready adapter does not serve this PyTorch; None: it does."""
    import torch

    if not prebuilt.is_file():
        return "there is no ready adapter for this PyTorch in this installation of cachalot"
    if not torch._C._GLIBCXX_USE_CXX11_ABI:
        return "the ready adapter needs a PyTorch built with _GLIBCXX_USE_CXX11_ABI=1"
    fit = Fit.read(prebuilt)
    digest = digest_of(_torch_headers(), fit.headers)
    if digest in fit.digests:
        return None
    made_for = " and ".join(fit.versions)
    if digest is not None:
        return f"the headers of this PyTorch ({torch.__version__}) are not those of the ready adapter ({made_for})"
    if _is_a_release() and _base_version() in fit.versions:
        return None
    return f"this PyTorch ({torch.__version__}) has no headers to compare, and is not the ready adapter's ({made_for})"


def _is_a_release() -> bool:
    """Returns whether PyTorch's version is that of a release, with the variant of CUDA at most."""
    import torch

    return re.fullmatch(r"\d+\.\d+\.\d+(\+cu\d+)?", torch.__version__) is not None


def _base_version() -> str:
    """Returns the version in PyTorch's headers: "2.11.0", without a0, .dev20260101, +cu130 and other additions of builds."""
    import torch

    version = re.match(r"\d+\.\d+\.\d+", torch.__version__)
    if version is None:
        raise AdapterError(f"PyTorch's version, {str(torch.__version__)!r}, does not begin with major.minor.patch")
    return version[0]


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _source() -> Path:
    minor = _minor(_base_version())
    source = SOURCES / f"torch_{minor.replace('.', '_')}.cpp"
    if not source.is_file():
        served = served_versions()
        too_old = f"; PyTorch {served[0]} is the oldest" if _numbers(minor) < _numbers(served[0]) else ""
        raise AdapterError(f"there is no adapter for PyTorch {minor} (there is for {', '.join(served)}){too_old}")
    return source


def served_versions() -> list[str]:
    """Returns the minor versions of PyTorch that have adapters: ["2.10", "2.11", …]."""
    names = (path.stem.removeprefix("torch_").replace("_", ".") for path in SOURCES.glob("torch_*_*.cpp"))
    return sorted(names, key=_numbers)


def _numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".")]


def _cache_folder() -> Path:
    folder = environment.text("CACHALOT_CACHE_DIR")
    try:
        return Path(folder) if folder else Path.home() / ".cache" / "cachalot"
    except RuntimeError:
        raise AdapterError("there is no home folder for the adapter, and CACHALOT_CACHE_DIR is not set") from None


def _require_nobody_else_writes(cached: Path) -> None:
    """The adapter's name can be guessed: a user that may write to it, or to its folder, could run code in this process."""
    for path in (cached.parent, cached):
        status = path.stat()
        if status.st_uid not in (os.geteuid(), 0) or status.st_mode & 0o022:
            raise AdapterError(
                f"{path} is not loaded from: it must belong to this user or to root, and nobody else may write to it "
                f"(its owner is {status.st_uid}, its mode {status.st_mode & 0o7777:o}); set CACHALOT_CACHE_DIR to a folder "
                f"of your own, or correct it: chmod go-w {shlex.quote(str(path))}"
            )


def _file_name(source: Path) -> str:
    """Names all that the compiled file depends on; another PyTorch or another cachalot looks for another file."""
    import torch

    digest = hashlib.sha256("\0".join((torch.__version__, str(torch.version.git_version), *COMPILE_FLAGS)).encode())
    # All of its interface with libcachalot_torch.so is in headers.
    folders = (NATIVE, NATIVE / "include" / "cachalot", SOURCES)
    for path in sorted(path for folder in folders for path in folder.iterdir() if path.suffix in (".h", ".cpp")):
        digest.update(f"\0{path.name}\0".encode())
        digest.update(path.read_bytes())
    return f"{source.stem}-{digest.hexdigest()[:16]}.so"


def compile_for_libtorch(target: Path, libtorch: Path | None, *, preload: bool) -> None:
    """Compiles the library of cachalot::enable_torch for C++ programs, or one to preload, into `target`.

    Args:
        libtorch: the folder of libtorch, with include and lib; None: that of the PyTorch found.
    """
    if libtorch is None:
        headers, libraries, cuda = _torch_headers(), _torch_headers().parent / "lib", cuda_headers()
    else:
        headers, libraries, cuda = libtorch / "include", libtorch / "lib", _toolkit_headers()
    version = headers / "torch/csrc/api/include/torch/version.h"
    if not version.is_file():
        raise AdapterError(f"{headers.parent} is not libtorch's folder: there is no {version}")
    flags = [f"-Wl,-rpath,{folder}" for folder in (LIBRARY.parent, libraries.resolve())]
    command = [*COMPILE_FLAGS, *include_flags(headers, cuda), *(["-DCACHALOT_PRELOAD"] if preload else [])]
    command += [str(SOURCES / "enable_torch.cpp"), *link_flags(libraries, LIBRARY.parent), *flags]
    _run_compiler(command, target)


def _compile(source: Path, target: Path, dependencies: Path | None = None) -> None:
    command = [*COMPILE_FLAGS, *include_flags(_torch_headers(), cuda_headers())]
    command += ["-MD", "-MF", str(dependencies)] if dependencies else []
    _run_compiler([*command, str(source), *_link_flags()], target)


def _run_compiler(arguments: list[str], target: Path) -> None:
    """Writes `target`, a library, in one step: another process may be compiling it, too, or already use it."""
    command = [*_compiler(), "-shared", *arguments]
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            output = Path(scratch) / target.name
            # Libraries preloaded into this process (a profiler, a simulated CUDA) are not for the compiler.
            child = environment.copied("LD_PRELOAD")
            run = subprocess.run([*command, "-o", str(output)], capture_output=True, text=True, env=child)
            if run.returncode:
                raise AdapterError(f"'{command[0]}' could not compile {target.name}: {_first_error(run.stderr)}")
            output.chmod(0o755)
            os.replace(output, target)
    except OSError as error:
        raise AdapterError(f"the adapter for PyTorch could not be compiled into {target.parent}: {error}") from None


def _compiler() -> list[str]:
    chosen = shlex.split(environment.text("CXX"))
    candidates = [chosen] if chosen else [["g++"], ["c++"], ["clang++"]]
    for command in candidates:
        if shutil.which(command[0]):
            return command
    names = " or ".join(command[0] for command in candidates)
    raise AdapterError(f"the adapter for PyTorch needs a C++ compiler, and there is no {names} on PATH")


def _torch_headers() -> Path:
    import torch

    return Path(torch.__file__).parent / "include"


def include_flags(torch_headers: Path, cuda: Path) -> list[str]:
    """For the compiler: where an adapter's source finds cachalot's headers and those of a PyTorch and a CUDA."""
    own = (NATIVE, NATIVE / "include")
    foreign = (torch_headers, torch_headers / "torch" / "csrc" / "api" / "include", cuda)
    return [f"-I{folder}" for folder in own] + [flag for folder in foreign for flag in ("-isystem", str(folder))]


def _link_flags() -> list[str]:
    import torch

    return link_flags(Path(torch.__file__).parent / "lib", LIBRARY.parent)


def link_flags(*folders: Path) -> list[str]:
    """For the compiler: the libraries that an adapter is linked with, which lie in `folders`."""
    names = [f"-l{name}" for name in TORCH_LIBRARIES] + [f"-l:{LIBRARY.name}"]
    return [*(f"-L{folder}" for folder in folders), "-Wl,--no-as-needed", *names]


def cuda_headers() -> Path:
    """The folder of cuda_runtime_api.h of PyTorch's CUDA version: from its wheels, or from a toolkit."""
    import torch

    major = str(torch.version.cuda).partition(".")[0]
    packages = Path(torch.__file__).parent.parent
    wheels = [packages / "nvidia" / f"cu{major}", packages / "nvidia" / "cuda_runtime", packages / "triton" / "backends" / "nvidia"]
    candidates = [*(wheel / "include" for wheel in wheels), *_toolkits()]  # Triton's are whole, and often of the same version
    for folder in candidates:
        if _cuda_major(folder) == major and (folder / "crt" / "host_config.h").is_file():
            return folder
    wheel = "" if major == "12" else "nvidia-cuda-crt with pip, or "  # puts them beside those of PyTorch's wheels
    raise AdapterError(
        f"the headers of CUDA {major}, with crt/host_config.h among them, were not found (looked in "
        f"{', '.join(map(str, candidates))}): install {wheel}the CUDA toolkit, or set CUDA_HOME"
    )


def _toolkits() -> list[Path]:
    """Returns the folders where headers of a CUDA toolkit may be."""
    folders = [Path(home) / "include" for home in environment.given(("CUDA_HOME", "CUDA_PATH")).values()]
    nvcc = shutil.which("nvcc")
    folders += [Path(nvcc).resolve().parent.parent / "include"] if nvcc else []
    return [*folders, Path("/usr/local/cuda/include")]


def _toolkit_headers() -> Path:
    """The folder of cuda_runtime_api.h of the toolkit that is found first."""
    for folder in _toolkits():
        if _cuda_major(folder) is not None:
            return folder
    raise AdapterError("no CUDA toolkit was found, whose headers libtorch's need: set CUDA_HOME to its folder")


def _cuda_major(folder: Path) -> str | None:
    header = folder / "cuda_runtime_api.h"
    if not header.is_file():
        return None
    version = re.search(r"#define\s+CUDART_VERSION\s+(\d+)", header.read_text(errors="replace"))
    return str(int(version[1]) // 1000) if version else None


def _first_error(messages: str) -> str:
    lines = [line.strip() for line in messages.splitlines()] or ["no message"]
    return next((line for line in lines if "error:" in line), lines[-1])
