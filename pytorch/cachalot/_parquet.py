"""`python -m cachalot convert FILE -o OUT.parquet`: the table of the allocations as Parquet, for pandas, polars and DuckDB.

The command writes the table as CSV, and pyarrow makes Parquet of it, a part at a time.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

from . import _command

_COMMAND_FAILED = 2  # exit code after an error that a line has told


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
    parser = _Parser(prog="python -m cachalot convert", description="Writes the allocations of FILE as Parquet.")
    parser.add_argument("file", metavar="FILE", help="a memory snapshot, a trace, or a log of allocations")
    parser.add_argument("-o", "--output", required=True, metavar="OUT", help="the file to write")
    parser.add_argument("--to", choices=["parquet"], default="parquet", help="the format; others are the command's own")
    parser.add_argument("--device", type=int, metavar="N", help="write this device alone")
    arguments = parser.parse_args(words)
    try:
        pyarrow: Any = importlib.import_module("pyarrow")
        for part in ("csv", "parquet"):
            importlib.import_module(f"pyarrow.{part}")
    except ImportError:
        _fail("Parquet needs the package pyarrow (pip install pyarrow); `--to csv` writes the same table without it")
    output = _checked_output(arguments.output, arguments.file)
    device = [] if arguments.device is None else [f"--device={arguments.device}"]
    command = [_command.find_or_exit(), "convert", *device, "--to=csv", "--output=-", os.path.abspath(arguments.file)]
    whole = output.with_name(f"{output.name}.{os.getpid()}.part")  # takes the file's place when it is whole
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            try:
                _write(pyarrow, process.stdout, whole)
            except ValueError as error:  # pyarrow.ArrowInvalid is one
                if process.stdout is not None:
                    process.stdout.close()
                _fail("" if process.wait() == _COMMAND_FAILED else str(error))  # the command tells its own errors
        if process.returncode != 0:
            sys.exit(process.returncode)
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
    try:
        path = Path(os.path.realpath(name))
        if path.exists() and os.path.exists(source) and path.samefile(source):
            _fail(f"-o {name}: another argument names this file, which would be lost")
        if not path.name or (path.exists() and not path.is_file()):
            _fail(f"-o {name}: there is something else than a file")
    except (OSError, ValueError) as error:  # a name that is too long, or has a character 0
        _fail(f"-o {name}: {error}")
    return path


def _write(pyarrow: Any, table: Any, part: Path) -> None:
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
    if message:
        print(f"cachalot: {message}", file=sys.stderr)
    sys.exit(_COMMAND_FAILED)
