"""Runs programs in processes that have imported torch already: importing it takes seconds, forking who did hundredths.

`python fork_server.py <socket's descriptor>` is the server. It imports torch and what torch imports when it is used, and uses
no CUDA, so that a program finds the world as Python would after `import torch`; its variables, arguments, folder and output
are its own. What is read when Python starts or torch is imported is the server's, but for PYTHONPATH.
"""

import atexit
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time

_MOST_BYTES = 1 << 20  # of a request


class ForkServer:
    """The server as its client sees it. Started when first needed; goes with its client. Not thread-safe."""

    def __init__(self):
        self._socket = None
        self._ended = {}  # exit statuses that nobody has asked for, by process

    def run(self, arguments, environment, timeout, search_at_end=False):
        """As subprocess.run of `python arguments…` with captured output, where the arguments are those of start."""
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
        text = json.dumps(request).encode()
        assert len(text) < _MOST_BYTES
        output = tempfile.TemporaryFile() if stdout is None else None
        errors = tempfile.TemporaryFile()
        with open(os.devnull, "rb") as nothing:
            streams = [each.fileno() for each in (stdin or nothing, stdout or output, errors)]
            socket.send_fds(self._socket, [text], streams)
        return Program(self, arguments, self._receive("started", 60), output, errors)

    def _wait(self, process, timeout):
        """The exit status of a process that was started; TimeoutError."""
        end = time.monotonic() + timeout
        while process not in self._ended:
            self._receive("ended", max(0.0, end - time.monotonic()))
        return self._ended.pop(process)

    def _receive(self, awaited, timeout):
        """The process that was started or has ended, whichever is awaited. Keeps statuses that come before."""
        while True:
            self._socket.settimeout(timeout or 1e-3)
            what, process, status = json.loads(self._socket.recv(100))
            if what == "ended":
                self._ended[process] = status
            if what == awaited:
                return process

    def _start_server(self):
        self._socket, server = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _MOST_BYTES)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST_BYTES)
            command = [sys.executable, __file__, str(server.fileno())]
            subprocess.Popen(command, pass_fds=[server.fileno()], stdin=subprocess.DEVNULL)


class Program:
    """A program that was started. Whoever starts it waits for it."""

    def __init__(self, server, arguments, process, output, errors):
        self._server, self._arguments, self._process = server, arguments, process
        self._output, self._errors = output, errors

    def wait(self, timeout):
        """As subprocess.run's result; kills the program where it does not end in time, and raises subprocess.TimeoutExpired."""
        try:
            status = self._server._wait(self._process, timeout)
        except TimeoutError:
            os.kill(self._process, signal.SIGKILL)
            self._server._wait(self._process, 60)
            raise subprocess.TimeoutExpired(self._arguments, timeout) from None
        return subprocess.CompletedProcess(
            self._arguments, os.waitstatus_to_exitcode(status), _content(self._output), _content(self._errors)
        )


def _content(file):
    if file is None:
        return None
    with file:
        file.seek(0)
        return file.read().decode()


def _serve(clients):
    """Returns a request, in a process that was forked for it."""
    programs = {}  # by a descriptor that can be read when the program has ended
    while True:
        ready = select.select([clients, *programs], [], [])[0]
        for ended in programs.keys() & ready:
            process = programs.pop(ended)
            os.close(ended)
            clients.send(json.dumps(["ended", process, os.waitpid(process, 0)[1]]).encode())
        if clients in ready:
            text, streams, _, _ = socket.recv_fds(clients, _MOST_BYTES, 3)
            if not text:
                os._exit(0)  # the client has gone
            process = os.fork()
            if process == 0:
                return _request(text, streams, [clients.detach(), *programs])
            for stream in streams:
                os.close(stream)
            programs[os.pidfd_open(process)] = process
            clients.send(json.dumps(["started", process, None]).encode())


def _request(text, streams, of_the_server):
    """The request, in a process with these standard streams and none of the server's files."""
    for descriptor in of_the_server:
        os.close(descriptor)
    for descriptor, stream in enumerate(streams):
        os.dup2(stream, descriptor)
        os.close(stream)
    return json.loads(text)


def _become(request):
    """The process is as one that was started for the request; returns its program and its variables."""
    inherited = _module_folders(os.environ)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.path[1:] = _module_folders(os.environ) + [folder for folder in sys.path[1:] if folder not in inherited]
    program, its_variables = _program(*request["arguments"])
    if not request["search_at_end"]:
        atexit.register(gc.freeze)  # called after what the program registers
    variables = sys.modules["__main__"].__dict__  # alive until the process's end, as a program's are
    for name in [name for name in variables if name not in ("__name__", "__builtins__")]:
        del variables[name]
    variables.update(its_variables)
    return program, variables


def _module_folders(environment):
    return [os.path.abspath(folder) for folder in environment.get("PYTHONPATH", "").split(os.pathsep) if folder]


def _program(first, *rest):
    """What `python first rest…` executes, and the variables that it begins with. Sets sys.argv and where modules are found."""
    if first == "-c":
        sys.argv, sys.path[0] = ["-c", *rest[1:]], ""
        return compile(rest[0], "<string>", "exec"), {"__spec__": None}
    if first == "-m":
        sys.argv, sys.path[0] = ["-m", *rest[1:]], os.getcwd()
        return compile(f"__import__('runpy')._run_module_as_main({rest[0]!r})", "<frozen>", "exec"), {}
    sys.argv, sys.path[0] = [first, *rest], os.path.dirname(os.path.realpath(first))
    with open(first, "rb") as script:
        return compile(script.read(), first, "exec"), {"__file__": first, "__spec__": None}


if __name__ == "__main__":
    import torch._dynamo  # noqa: F401

    exec(*_become(_serve(socket.socket(fileno=int(sys.argv[1])))))
