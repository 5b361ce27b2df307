"""python -m cachalot: the `cachalot` command, and programs that run with cachalot enabled.

    python -m cachalot run [--config OPTIONS] script.py …     a script; also -m MODULE … and -c CODE …
    python -m cachalot snapshot|replay|simulate|…             the command in C++, with all of its options
    python -m cachalot ranks FOLDER [--json]                  the reports that CACHALOT_REPORT_DIR left in a folder
    python -m cachalot libtorch [--preload] -o FILE           a library for C++ programs that use libtorch

`run` may be left out. The program finds sys.argv, sys.path and __main__ as if Python itself had started it. Processes that it
starts are programs of their own: they run on PyTorch's allocator unless started this way, too.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import io
import os
import pathlib
import sys
import types
from typing import NoReturn

import cachalot

from ._base import environment
from ._bindings import adapter
from ._programs import command


def main() -> None:
    words = sys.argv[1:] or ["--help"]
    own = {"ranks": _tell_ranks, "libtorch": _compile_for_libtorch}.get(words[0])
    if own is not None:
        own(words[1:])
        return
    if _is_for_the_command(words):
        command.run(words)
    _run(_parse(words[1:] if words[:1] == ["run"] else words))


def _is_for_the_command(words: list[str]) -> bool:
    """Returns whether the first word is a subcommand, known here or not; a script's name has a dot or a slash, or is a file's."""
    if not words or words[0] == "run" or words[0].startswith("-"):
        return False
    first = words[0]
    return first in command.SUBCOMMANDS or not ("." in first or os.sep in first or os.path.isfile(first))


def _tell_ranks(words: list[str]) -> None:
    parser = _Parser(prog="python -m cachalot ranks", description="Prints the memory of the ranks that left reports.")
    parser.add_argument("folder", help="the folder that CACHALOT_REPORT_DIR named")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    arguments = parser.parse_args(words)
    try:
        report = cachalot.distributed_report(folder=arguments.folder)
    except (OSError, ValueError) as error:
        print(f"cachalot: {error}", file=sys.stderr)
        sys.exit(2)
    print(report.to_json() if arguments.json else report)


def _compile_for_libtorch(words: list[str]) -> None:
    parser = _Parser(
        prog="python -m cachalot libtorch",
        description="Compiles a library that makes cachalot the GPU memory allocator of C++ programs that use libtorch: programs "
        "link it and call cachalot::enable_torch() of cachalot/enable_torch.h, or have it in LD_PRELOAD.",
    )
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help="the library, such as libcachalot_libtorch.so")
    parser.add_argument("--preload", action="store_true", help="a library for LD_PRELOAD, for programs that cannot be changed")
    parser.add_argument("--libtorch", metavar="FOLDER", help="the libtorch of the program; without it that of the installed PyTorch")
    arguments = parser.parse_args(words)
    folder = pathlib.Path(arguments.libtorch) if arguments.libtorch else None
    try:
        adapter.compile_for_libtorch(pathlib.Path(arguments.output).resolve(), folder, preload=arguments.preload)
    except (adapter.AdapterError, ImportError) as error:
        sys.exit(f"cachalot: {error}")
    print(f"g++ program.cpp -I{cachalot.include_path()} {arguments.output} …" if not arguments.preload else f"LD_PRELOAD={arguments.output} program …")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"cachalot: {message} (python -m cachalot --help tells more)\n")


def _parse(words: list[str]) -> argparse.Namespace:
    parser = _Parser(
        prog="python -m cachalot",
        usage="python -m cachalot [run] [--config OPTIONS] [--pinned] [--share HOW] SCRIPT|-m MODULE|-c CODE [ARGUMENTS ...]\n"
        "       python -m cachalot ranks FOLDER [--json]\n"
        "       python -m cachalot libtorch [--preload] -o FILE [--libtorch FOLDER]\n"
        f"       python -m cachalot {{{','.join(command.SUBCOMMANDS)}}} ...",
        description="Runs a Python program with cachalot as PyTorch's GPU memory allocator; at its end a line on stderr "
        "says what memory it took (CACHALOT_STATS=0: none, CACHALOT_STATS=1: a table). The other subcommands are the "
        "`cachalot` command's.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"cachalot {cachalot.__version__}")
    parser.add_argument("--config", metavar="OPTIONS", help="as for CACHALOT_CONF, say heap:pages")
    parser.add_argument("--pinned", action="store_true", help="pinned host memory is cachalot's, too")
    parser.add_argument("--share", metavar="HOW", help="handles or copy: how tensors are shared with other processes")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("-m", dest="module", action="store_true", help="the program is a module, as for python -m")
    how.add_argument("-c", dest="code", action="store_true", help="the program is given as text, as for python -c")
    parser.add_argument("program", help="a script, or with -m a module, or with -c its text")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the program's own arguments")
    return parser.parse_args(words)


def _run(arguments: argparse.Namespace) -> None:
    from ._programs import exit_report

    try:
        cachalot.enable(arguments.config, pinned=arguments.pinned, share=arguments.share)
        if environment.switch("CACHALOT_STATS") is None:  # 1 asks for a table, which enable() prints, 0 for nothing
            exit_report.tell_at_exit("line")
    except (cachalot.EnableError, ValueError) as error:
        sys.exit(f"cachalot: {error}")
    _hide_from_stacks(__file__)
    if arguments.module:
        _run_module(arguments.program, arguments.arguments)
    elif arguments.code:
        _run_code(arguments.program, arguments.arguments)
    else:
        _run_script(arguments.program, arguments.arguments)


def _hide_from_stacks(file: str) -> None:
    """Call stacks that the allocator takes end where the program begins."""
    from ._heap.enabled import require_enabled

    require_enabled().plug.call("plug_hide_launcher", file.encode())


def _run_script(path: str, arguments: list[str]) -> None:
    sys.argv = [path, *arguments]
    file_name = os.path.abspath(path)
    try:
        with io.open_code(file_name) as file:
            code = compile(file.read(), file_name, "exec", dont_inherit=True)  # nothing of our __future__
    except OSError as error:
        sys.exit(f"cachalot: can't open file {path!r}: {error.strerror}")
    sys.path[0] = os.path.dirname(os.path.realpath(path))
    module = _new_main()
    module.__dict__.update(
        __file__=file_name, __cached__=None, __loader__=importlib.machinery.SourceFileLoader("__main__", file_name)
    )
    exec(code, module.__dict__)


def _run_code(text: str, arguments: list[str]) -> None:
    sys.argv = ["-c", *arguments]
    sys.path[0] = ""
    exec(compile(text, "<string>", "exec", dont_inherit=True), _new_main().__dict__)


def _run_module(name: str, arguments: list[str]) -> None:
    import runpy

    sys.argv = ["-m", *arguments]
    _new_main()
    runpy._run_module_as_main(name)  # type: ignore[attr-defined]  # what `python -m` itself calls


def _new_main() -> types.ModuleType:
    """Makes a __main__ without this module's names, in its place, for as long as the process lives."""
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = sys.modules["builtins"]
    sys.modules["__main__"] = module
    return module


if __name__ == "__main__":
    main()
