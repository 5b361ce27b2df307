"""Makes simulated runs and replays on the workers of a Dask scheduler, for `cachalot fit` and `advise` with --scheduler.

The command starts `python -c "from cachalot_simulator.dask_runs import serve; serve(SOCKET, SETTINGS)"`, with the descriptors of a
socket and of a file with JSON: the address of the `scheduler`, and the command's `version`. For each request it sends a byte with
two descriptors: a file with the request as JSON, and a pipe for a line in reply. A request is {"ask": "places"}, with the
reply "places <number>"; or has the `words` of a `cachalot simulate --record`, the working `folder`, and the folder for
`reports`, with the reply "done"; or has the options of a `cachalot advise`, the working `folder`, the `file` and whether it is to
be sent (`sends_file`), with the reply "lines <number>" and as many lines of JSON. Each is answered by "failed <text>" where it
cannot be done.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any


def command_of_worker(version: str) -> str:
    """Returns the `cachalot` command of a worker. Raises RuntimeError where there is none of this version.

    It imports what it needs by itself, as the others that are sent to workers: these have cachalot, and not this module.
    """
    import os
    import shutil
    import subprocess

    try:
        from cachalot._programs.command import find
    except ImportError:
        command = os.environ.get("CACHALOT_COMMAND") or shutil.which("cachalot")
    else:
        command = find()
    if command is None:
        raise RuntimeError("this worker has no `cachalot` command: install a wheel of cachalot there")
    told = subprocess.run([command, "--version"], capture_output=True, text=True, check=False).stdout.split()
    if told[-1:] != [version]:
        raise RuntimeError(f"this worker has cachalot {' '.join(told[-1:]) or '(it does not run)'}, and not {version}")
    return str(command)


def record(words: list[str], folder: str, version: str) -> dict[str, bytes]:
    """Makes a run on a worker. Returns its reports, by the names of their files."""
    import os
    import subprocess
    import sys
    import tempfile
    from pathlib import Path

    command = command_of_worker(version)
    if not os.path.isdir(folder):
        raise RuntimeError(f"this worker has no folder {folder}: the program must have the same path there")
    environment = {"CACHALOT_PYTHON": sys.executable, **os.environ}
    with tempfile.TemporaryDirectory(prefix="cachalot-run-") as reports:
        done = subprocess.run([command, "simulate", "--record", reports, *words], cwd=folder, env=environment,
                              capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip().removeprefix("cachalot: "))
        return {path.name: path.read_bytes() for path in Path(reports).iterdir()}


def advise(options: list[str], file: str, content: bytes | None, folder: str, version: str) -> tuple[list[str], str]:
    """Replays a file on a worker, in one thread: the worker has its others for other files. Returns lines of JSON and "", or no
    lines and what is wrong with the file.

    Without content the worker opens the path, relative to the folder.
    """
    import os
    import subprocess
    import tempfile
    from pathlib import Path

    command = command_of_worker(version)
    with tempfile.TemporaryDirectory(prefix="cachalot-advise-") as own:
        path = file
        if content is not None:
            path = os.path.join(own, "sent")
            Path(path).write_bytes(content)
        done = subprocess.run([command, "advise", "--json", "--jobs=1", *options, path], cwd=folder if os.path.isdir(folder) else own,
                              capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return [], done.stderr.strip().removeprefix("cachalot: ").replace(path, file)
        return done.stdout.splitlines(), ""


class Runs:
    """The runs of one command on the workers of a scheduler."""

    def __init__(self, scheduler: str, version: str) -> None:
        """Raises ImportError or OSError where the scheduler cannot be reached."""
        try:
            import distributed
        except ImportError:
            raise ImportError(f"{sys.executable} does not have the package distributed: pip install distributed") from None
        self._version = version
        try:
            self._client = distributed.Client(scheduler, timeout=20, set_as_default=False)
        except (OSError, ValueError) as error:
            raise OSError(f"the Dask scheduler at {scheduler} does not answer: {error}") from None
        for sent in (command_of_worker, record, advise):
            sent.__module__ = "__main__"  # so that it is sent by value: workers cannot import it

    def places(self) -> int:
        """Returns the number of runs that the workers make concurrently."""
        return sum(worker["nthreads"] for worker in self._client.scheduler_info(n_workers=-1)["workers"].values())

    def begin(self, request: dict[str, Any], replies: int) -> None:
        """Begins a run. Its reports come into the request's folder before the reply."""
        future = self._client.submit(record, request["words"], request["folder"], self._version, pure=False)

        def finish(done: Any) -> None:
            try:
                for name, content in done.result().items():
                    (Path(request["reports"]) / name).write_bytes(content)
            except BaseException as error:
                reply(replies, f"failed {one_line(error)}")
            else:
                reply(replies, "done")

        future.add_done_callback(finish)

    def begin_to_advise(self, request: dict[str, Any], replies: int) -> None:
        """Begins the replay of a file."""
        file, folder = request["file"], request["folder"]
        try:
            content = (Path(folder) / file).read_bytes() if request["sends_file"] else None
        except (OSError, MemoryError) as error:
            reply(replies, f"failed {file}: {one_line(error)}")
            return
        future = self._client.submit(advise, request["advise"], file, content, folder, self._version, pure=False)

        def finish(done: Any) -> None:
            try:
                lines, failure = done.result()
            except BaseException as error:
                lines, failure = [], one_line(error)
            reply(replies, "\n".join([f"lines {len(lines)}", *lines]) if lines else f"failed {in_one_line(failure)}")

        future.add_done_callback(finish)


def one_line(error: BaseException) -> str:
    return in_one_line(str(error)) or type(error).__name__


def in_one_line(text: str) -> str:
    return " ".join(text.split())


def reply(replies: int, text: str) -> None:
    with open(replies, "wb", buffering=0) as pipe:
        try:
            pipe.write(f"{text}\n".encode())
        except BrokenPipeError:  # the command does not wait any more
            pass


def serve(clients: int, settings: int) -> None:
    """Answers requests until the socket ends."""
    with open(settings, encoding="utf-8") as file:
        of_command = json.load(file)
    runs, failure = None, ""
    try:
        runs = Runs(of_command["scheduler"], of_command["version"])
    except (ImportError, OSError) as error:
        failure = one_line(error)
    requests = socket.socket(fileno=clients)
    while True:
        text, files, _, _ = socket.recv_fds(requests, 1, 2)
        if not text:
            os._exit(0)  # runs that are under way are not waited for
        with open(files[0], "rb") as file:
            request = json.load(file)
        if runs is None:
            reply(files[1], f"failed {failure}")
        elif "ask" in request:
            places = runs.places()
            reply(files[1], f"places {places}" if places else "failed the Dask scheduler has no workers")
        elif "advise" in request:
            runs.begin_to_advise(request, files[1])
        else:
            runs.begin(request, files[1])
