"""Runs programs in processes that have imported torch already: importing it takes seconds, forking such a process hundredths.

The server is cachalot_simulator.fork_server, which `cachalot fit` uses as well. It imports torch and what torch imports when it is
used, and uses no CUDA.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

MODULES = ["torch", "torch._dynamo"]
_FOLDER = Path(__file__).resolve().parents[2] / "simulator" / "python"
_START = f"""
import sys
sys.path.append({str(_FOLDER)!r})
from cachalot_simulator.fork_server import serve
sys.path.remove({str(_FOLDER)!r})
exec(*serve({{}}, {{}}))
"""


class ForkServer:
    """The server as its client sees it. Started when first needed; goes with its client. Not thread-safe."""

    def __init__(self):
        self._socket = None

    def run(self, arguments, environment, timeout, search_at_end=False):
        """Runs `python arguments…` as subprocess.run with captured output, where the arguments are those of start."""
        return self.start(arguments, environment, search_at_end=search_at_end).wait(timeout)

    def start(self, arguments, environment, stdin=None, stdout=None, search_at_end=False):
        """Starts `python arguments…`, which begin with `-c <code>`, `-m <module>` or the path of a script; returns a Program.

        Its streams are open files of the caller's. Without them it has no input, and its output is in its result. Python searches
        for garbage at its end only where that is asked for: that reads all that was imported, and copies it from the server.
        """
        if self._socket is None:
            self._start_server()
        request = {
            "arguments": arguments,
            "environment": environment,
            "folder": os.getcwd(),
            "search_at_end": search_at_end,
        }
        output = tempfile.TemporaryFile() if stdout is None else None
        errors = tempfile.TemporaryFile()
        replies, of_the_server = os.pipe()
        with open(os.devnull, "rb") as nothing, _file_with(request) as file:
            files = [each.fileno() for each in (file, stdin or nothing, stdout or output, errors)]
            socket.send_fds(self._socket, [b"r"], [*files, of_the_server])
        os.close(of_the_server)
        return Program(arguments, open(replies, "rb", buffering=0), output, errors)

    def descriptor(self):
        """Returns the descriptor of the socket, which other processes may inherit to start programs, as forked_python.py does."""
        if self._socket is None:
            self._start_server()
        return self._socket.fileno()

    def _start_server(self):
        self._socket, server = socket.socketpair()
        with server, _file_with(MODULES) as modules:
            code = _START.format(server.fileno(), modules.fileno())
            descriptors = [server.fileno(), modules.fileno()]
            subprocess.Popen([sys.executable, "-c", code], pass_fds=descriptors, stdin=subprocess.DEVNULL)


class Program:
    """A program that was started. Its starter waits for it."""

    def __init__(self, arguments, replies, output, errors):
        self._arguments, self._replies = arguments, replies
        self._output, self._errors = output, errors
        self._process = self._told("started", 120)

    def wait(self, timeout):
        """Returns the result as subprocess.run does; kills the program if it does not end in time, and raises
        subprocess.TimeoutExpired."""
        with self._replies:
            try:
                status = self._told("ended", timeout)
            except TimeoutError:
                os.kill(self._process, signal.SIGKILL)
                self._told("ended", 60)
                raise subprocess.TimeoutExpired(self._arguments, timeout) from None
        return subprocess.CompletedProcess(
            self._arguments, os.waitstatus_to_exitcode(status), _content(self._output), _content(self._errors)
        )

    def _told(self, what, timeout):
        """The number that the server tells with a word; TimeoutError."""
        if not select.select([self._replies], [], [], timeout)[0]:
            raise TimeoutError
        line = self._replies.readline()
        assert line.startswith(f"{what} ".encode()), f"{line!r} instead of '{what} …': the server has gone"
        return int(line.split()[1])


def _file_with(value):
    """A file in memory, at its beginning, with a value as JSON."""
    file = open(os.memfd_create("cachalot"), "w+b")
    file.write(json.dumps(value).encode())
    file.seek(0)
    return file


def _content(file):
    if file is None:
        return None
    with file:
        file.seek(0)
        return file.read().decode()
