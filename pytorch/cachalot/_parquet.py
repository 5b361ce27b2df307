"""`python -m cachalot convert FILE -o OUT.parquet`: the table of the allocations as Parquet, for pandas, polars and DuckDB.

The command writes the table as CSV, and pyarrow makes Parquet of it, a part at a time.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from . import _command

_COMMAND_FAILED = 2  # exit code after an error that a line has told
_DESCRIPTORS = ("/dev/fd/", "/dev/stdout", "/dev/stderr", "/proc/")  # files in use: another must not take their place


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        _fail(f"{message} (python -m cachalot convert --help tells more)")


def is_asked_for(words: list[str]) -> bool:
    """Whether the words behind `convert` name a file of Parquet to write, or the format."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("-o", "--output", default="")
    parser.add_argument("--to")
    try:
        known, _ = parser.parse_known_args(words)
    except argparse.ArgumentError:  # the command tells what is wrong
        return False
    return known.to == "parquet" or (known.to is None and str(known.output).endswith(".parquet"))


def main(words: list[str]) -> None:
    """Converts; SystemExit with a message where that fails."""
    parser = _Parser(
        prog="python -m cachalot convert", description="Writes the allocations of FILE as Parquet.", allow_abbrev=False
    )
    parser.add_argument("file", metavar="FILE", help="a memory snapshot, a trace, or a log of allocations")
    parser.add_argument("-o", "--output", required=True, metavar="OUT", help="the file to write")
    parser.add_argument("--to", choices=["parquet"], default="parquet", help="the format; others are the command's own")
    parser.add_argument("--device", type=int, metavar="N", help="write this device alone")
    arguments = parser.parse_args(words)
    try:
        pyarrow: Any = importlib.import_module("pyarrow")
        for module in ("csv", "parquet"):
            importlib.import_module(f"pyarrow.{module}")
    except ImportError:
        _fail("Parquet needs the package pyarrow (pip install pyarrow); `--to csv` writes the same table without it")
    output = _checked_output(arguments.output, arguments.file)
    device = [] if arguments.device is None else [f"--device={arguments.device}"]
    command = [str(_command.find_or_exit()), "convert", *device, "--to=csv", "--output=-", os.path.abspath(arguments.file)]
    whole = output.with_name(f"{output.name}.{os.getpid()}.part")  # takes the file's place when it is whole
    try:
        with whole.open("wb") as part:
            _write_table(pyarrow, command, part)
        whole.replace(output)
    except OSError as error:
        _fail(f"-o {arguments.output}: cannot write the file: {error.strerror or error}")
    finally:
        with contextlib.suppress(OSError):
            whole.unlink(missing_ok=True)


def _checked_output(name: str, source: str) -> Path:
    """Returns the file that a name means, behind links. SystemExit where it is not one that may be written."""
    if name == "-":
        _fail("-o -: Parquet is written to a file, and not to standard output")
    path = Path(os.path.realpath(name))
    try:
        if name == source or (path.exists() and os.path.exists(source) and path.samefile(source)):
            _fail(f"-o {name}: another argument names this file, which would be lost")
        if not name or name.startswith(_DESCRIPTORS) or (path.exists() and not path.is_file()):
            _fail(f"-o {name}: there is something else than a file")
    except OSError as error:  # a name that is too long
        _fail(f"-o {name}: cannot write the file: {error.strerror or error}")
    return path


def _write_table(pyarrow: Any, command: list[str], part: BinaryIO) -> None:
    """Writes what the command prints. SystemExit where it fails, or prints no table; OSError where the part cannot be written."""
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
    except OSError as error:
        _fail(_command.not_started(command[0], error))
    reason = ""
    with process:
        try:
            _write(pyarrow, process.stdout, part)
        except (ValueError, pyarrow.ArrowException) as error:
            reason = f"the table of the allocations cannot be read: {' '.join(str(error).split())}"
    if process.returncode == _COMMAND_FAILED:
        sys.exit(_COMMAND_FAILED)  # it has told the reason
    if process.returncode not in (0, -signal.SIGPIPE):  # the signal: the table was not read to its end
        _fail(f"the command ended with {_name_of(process.returncode)}")
    if reason:
        _fail(reason)


def _name_of(returncode: int) -> str:
    return f"signal {-returncode}" if returncode < 0 else f"the exit code {returncode}"


def _write(pyarrow: Any, table: Any, part: BinaryIO) -> None:
    types = {
        "device": pyarrow.int32(),
        "address": pyarrow.uint64(),
        "bytes": pyarrow.uint64(),
        "begin_event": pyarrow.uint32(),
        "end_event": pyarrow.uint32(),
        "begin_us": pyarrow.int64(),
        "end_us": pyarrow.int64(),
        "stream": pyarrow.uint64(),
        "pool": pyarrow.string(),
        "category": pyarrow.string(),
        "place": pyarrow.string(),
    }
    options = pyarrow.csv.ConvertOptions(column_types=types, strings_can_be_null=True)
    with pyarrow.csv.open_csv(table, convert_options=options) as reader:
        with pyarrow.parquet.ParquetWriter(part, reader.schema, compression="zstd") as writer:
            for batch in reader:
                writer.write_batch(batch)


def _fail(message: str) -> NoReturn:
    print(f"cachalot: {message}", file=sys.stderr)
    sys.exit(_COMMAND_FAILED)
