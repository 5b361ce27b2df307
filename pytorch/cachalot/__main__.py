"""python -m cachalot [--config OPTIONS] script.py args…, or -m module args…: runs a program with cachalot enabled.

The program finds sys.argv, sys.path and __main__ as if Python itself had started it. Processes that it starts are
programs of their own: they run on PyTorch's allocator unless started this way, too.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import io
import os
import runpy
import sys
import types

import cachalot


def main() -> None:
    arguments = _parse()
    try:
        cachalot.enable(arguments.config)
    except (cachalot.EnableError, ValueError) as error:
        sys.exit(f"cachalot: {error}")
    if arguments.module:
        _run_module(arguments.program, arguments.arguments)
    else:
        _run_script(arguments.program, arguments.arguments)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m cachalot", description="Runs a Python program with cachalot as PyTorch's GPU memory allocator."
    )
    parser.add_argument("--config", metavar="OPTIONS", help="as for CACHALOT_CONF, say max_split_size_mb:64")
    parser.add_argument("-m", dest="module", action="store_true", help="the program is a module, as for python -m")
    parser.add_argument("program", help="a script, or with -m a module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the program's own arguments")
    return parser.parse_args()


def _run_script(path: str, arguments: list[str]) -> None:
    sys.argv = [path, *arguments]
    file_name = os.path.abspath(path)
    try:
        with io.open_code(file_name) as file:
            code = compile(file.read(), file_name, "exec")
    except OSError as error:
        sys.exit(f"cachalot: can't open file {path!r}: {error.strerror}")
    sys.path[0] = os.path.dirname(os.path.realpath(path))
    module = _new_main()
    module.__dict__.update(
        __file__=file_name, __cached__=None, __loader__=importlib.machinery.SourceFileLoader("__main__", file_name)
    )
    exec(code, module.__dict__)


def _run_module(name: str, arguments: list[str]) -> None:
    sys.argv = ["-m", *arguments]
    _new_main()
    runpy._run_module_as_main(name)  # type: ignore[attr-defined]  # what `python -m` itself calls


def _new_main() -> types.ModuleType:
    """A __main__ without our names, in the place of ours, for as long as the process lives."""
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = sys.modules["builtins"]
    module.__dict__["__annotations__"] = {}
    sys.modules["__main__"] = module
    return module


if __name__ == "__main__":
    main()
