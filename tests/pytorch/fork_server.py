"""Runs programs in processes that have imported torch already: importing it takes seconds, forking who did hundredths.

`python fork_server.py <socket's descriptor>` is the server. It imports torch and what torch imports when it is used, and uses
no CUDA, so that a program finds the world as Python would after `import torch`; its variables, arguments, folder and output
are its own. What is read when Python starts or torch is imported is the server's, but for PYTHONPATH.
"""

import atexit
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile

_MOST_BYTES = 1 << 20  # of a request


class ForkServer:
    """The server as its client sees it. Started when first needed; goes with its client."""

    def __init__(self):
        self._socket = None

    def run(self, arguments, environment, timeout, search_at_end=False):
        """As subprocess.run of `python arguments…` with captured output, where the arguments begin with `-c <code>`, `-m <module>`
        or the path of a script. Python searches for garbage at its end only where that is asked for: that reads all that was
        imported, and copies it from the server. Not thread-safe.
        """
        if self._socket is None:
            self._start()
        request = {
            "arguments": arguments,
            "environment": environment,
            "folder": os.getcwd(),
            "search_at_end": search_at_end,
        }
        text = json.dumps(request).encode()
        assert len(text) < _MOST_BYTES
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            socket.send_fds(self._socket, [text], [output.fileno(), errors.fileno()])
            self._socket.settimeout(60)
            process = int(self._socket.recv(100))
            self._socket.settimeout(timeout)
            try:
                status = int(self._socket.recv(100))
            except TimeoutError:
                os.kill(process, signal.SIGKILL)
                self._socket.settimeout(60)
                self._socket.recv(100)
                raise subprocess.TimeoutExpired(arguments, timeout) from None
            return subprocess.CompletedProcess(
                arguments, os.waitstatus_to_exitcode(status), _content(output), _content(errors)
            )

    def _start(self):
        self._socket, server = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _MOST_BYTES)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST_BYTES)
            command = [sys.executable, __file__, str(server.fileno())]
            subprocess.Popen(command, pass_fds=[server.fileno()], stdin=subprocess.DEVNULL)


def _content(file):
    file.seek(0)
    return file.read().decode()


def _serve(clients):
    """Returns a request, in a process that was forked for it."""
    while True:
        text, outputs, _, _ = socket.recv_fds(clients, _MOST_BYTES, 2)
        if not text:
            os._exit(0)  # the client has gone
        process = os.fork()
        if process == 0:
            clients.close()
            for descriptor, output in enumerate(outputs, start=1):
                os.dup2(output, descriptor)
                os.close(output)
            return json.loads(text)
        for output in outputs:
            os.close(output)
        clients.send(b"%d" % process)
        clients.send(b"%d" % os.waitpid(process, 0)[1])


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
        return compile(rest[0], "<string>", "exec"), {}
    if first == "-m":
        sys.argv, sys.path[0] = ["-m", *rest[1:]], os.getcwd()
        return compile(f"__import__('runpy')._run_module_as_main({rest[0]!r})", "<frozen>", "exec"), {}
    sys.argv, sys.path[0] = [first, *rest], os.path.dirname(os.path.realpath(first))
    with open(first, "rb") as script:
        return compile(script.read(), first, "exec"), {"__file__": first}


if __name__ == "__main__":
    import torch._dynamo  # noqa: F401

    exec(*_become(_serve(socket.socket(fileno=int(sys.argv[1])))))
