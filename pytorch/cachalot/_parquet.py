"""`python -m cachalot convert FILE -o OUT.parquet`: the table of the allocations as Parquet, for pandas, polars and DuckDB.

The command writes the table as CSV, and pyarrow makes Parquet of it, a part at a time.
"""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

from . import _command

_COMMAND_FAILED = 2  # exit code after an error that a line has told


def is_asked_for(words: list[str]) -> bool:
    """Whether the words of `convert` name a file of Parquet, or the format."""
    return any(word.endswith(".parquet") for word in words) or "parquet" in words or "--to=parquet" in words


def main(words: list[str]) -> None:
    """Converts; SystemExit with a message where that fails."""
    parser = argparse.ArgumentParser(
        prog="python -m cachalot convert", description="Writes the allocations of FILE as Parquet."
    )
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
    device = [] if arguments.device is None else [f"--device={arguments.device}"]
    command = [_command.find_or_exit(), "convert", *device, "--to=csv", "--output=-", os.path.abspath(arguments.file)]
    output = Path(arguments.output)
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
        _fail(f"-o {output}: cannot write the file: {error.strerror}")
    finally:
        whole.unlink(missing_ok=True)


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
