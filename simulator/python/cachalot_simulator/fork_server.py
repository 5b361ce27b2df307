"""Runs Python programs in processes that have imported what they import: importing takes seconds, a fork hundredths.

A server is started as `python -c "from cachalot_simulator.fork_server import serve; exec(*serve(SOCKET, MODULES))"`, with the
descriptors of a socket of type SOCK_STREAM and of a file: a JSON list of the modules that it imports. For each program its client
sends a byte with five descriptors: a file with the request, standard input, output and error of the program, and a pipe for
replies: a line "started <process>", and when the program has ended a line "ended <status>", as waitpid has it. The request is
JSON: `arguments` behind `python`, the `environment`, the working `folder`, and whether Python should `search_at_end` for garbage:
that reads all that was imported, and copies it from the server.

The program finds the world as Python would after importing the modules; its variables, arguments, folder and output are its own.
Values read when Python starts or the modules are imported are the server's, except PYTHONPATH. When the client has gone, the
server ends the programs that are still there.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import threading
from types import CodeType
from typing import Any, NoReturn

START = "from cachalot_simulator.fork_server import serve; exec(*serve({}, {}))"

def serve(clients: int, modules: int) -> tuple[CodeType, dict[str, Any]]:
    """Imports the modules and serves the socket. Returns, in a process that was forked for it, a program and its variables."""
    with open(modules, "r+", encoding="utf-8") as file:
        names = json.load(file)
        usable = import_all(names)
        if usable < len(names):
            file.seek(0)
            file.truncate()
            json.dump(names[:usable], file)
            file.flush()
            os.lseek(modules, 0, os.SEEK_SET)
            start_again(clients, modules)
    return become(wait_for_request(socket.socket(fileno=clients)))


def import_all(modules: list[str]) -> int:
    """Imports modules. Returns how many of them there are before one that a process must not import which forks."""
    for i, name in enumerate(modules):
        if name not in sys.modules:
            try:
                importlib.import_module(name)
            except BaseException:  # as a program would do that imports it in another order
                return i
            if is_spoiled():
                return i
    return len(modules)


def is_spoiled() -> bool:
    """Returns whether forks of this process cannot be programs: a forked process has no threads and, as with CUDA, no device."""
    uses_device = getattr(ctypes.CDLL(None), "cachalot_sim_is_used", lambda: False)
    return threading.active_count() > 1 or bool(uses_device())


def start_again(*descriptors: int) -> NoReturn:
    """Becomes a server with these descriptors that has imported nothing yet."""
    for descriptor in descriptors:
        os.set_inheritable(descriptor, True)
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:-1], START.format(*descriptors)])


def wait_for_request(clients: socket.socket) -> dict[str, Any]:
    """Returns a request, in a process that was forked for it."""
    programs: dict[int, tuple[int, int]] = {}  # process and pipe, by a descriptor that can be read when the program has ended
    while True:
        ready = select.select([clients, *programs], [], [])[0]
        for ended in programs.keys() & set(ready):
            process, replies = programs.pop(ended)
            os.close(ended)
            reply(replies, f"ended {os.waitpid(process, 0)[1]}")
            os.close(replies)
        if clients not in ready:
            continue
        text, files, _, _ = socket.recv_fds(clients, 1, 5)
        if not text:
            end_all([process for process, _ in programs.values()])
        process = os.fork()
        if process == 0:
            of_the_server = [clients.detach(), *programs, *(replies for _, replies in programs.values())]
            return read_request(files, of_the_server)
        for file in files[:-1]:
            os.close(file)
        programs[os.pidfd_open(process)] = process, files[-1]
        reply(files[-1], f"started {process}")


def reply(replies: int, text: str) -> None:
    try:
        os.write(replies, f"{text}\n".encode())
    except BrokenPipeError:  # the program is no longer waited for
        pass


def end_all(processes: list[int]) -> NoReturn:
    for process in processes:
        os.kill(process, signal.SIGTERM)
    os._exit(0)


def read_request(files: list[int], of_the_server: list[int]) -> dict[str, Any]:
    """The request, in a process with these standard streams and none of the server's files."""
    for descriptor in of_the_server:
        os.close(descriptor)
    request, *streams, replies = files
    for descriptor, stream in enumerate(streams):
        os.dup2(stream, descriptor)
        os.close(stream)
    os.close(replies)
    with open(request, "rb") as file:
        return json.load(file)


def become(request: dict[str, Any]) -> tuple[CodeType, dict[str, Any]]:
    """Makes this process as one that was started for the request. Returns its program and its variables."""
    inherited = module_folders(os.environ)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.path[1:] = module_folders(os.environ) + [folder for folder in sys.path[1:] if folder not in inherited]
    program, its_variables = program_of(*request["arguments"])
    if not request["search_at_end"]:
        atexit.register(gc.freeze)  # called after what the program registers
    from cachalot_simulator import is_observed, watch_program  # as sitecustomize does when Python starts

    if is_observed():
        watch_program()
    variables = sys.modules["__main__"].__dict__  # alive until the process's end, as a program's are
    for name in [name for name in variables if not name.startswith("__")]:
        del variables[name]
    variables.update(its_variables)
    return program, variables


def module_folders(environment: Any) -> list[str]:
    return [os.path.abspath(folder) for folder in environment.get("PYTHONPATH", "").split(os.pathsep) if folder]


def program_of(first: str, *rest: str) -> tuple[CodeType, dict[str, Any]]:
    """Returns the code that `python first rest…` executes, and its first variables. Sets sys.argv and the path of modules."""
    if first == "-c":
        sys.argv, sys.path[0] = ["-c", *rest[1:]], ""
        return compile(rest[0], "<string>", "exec", dont_inherit=True), {}
    if first == "-m":
        sys.argv, sys.path[0] = ["-m", *rest[1:]], os.getcwd()
        return compile(f"__import__('runpy')._run_module_as_main({rest[0]!r})", "<frozen>", "exec"), {}
    sys.argv, sys.path[0] = [first, *rest], os.path.dirname(os.path.realpath(first))
    path = os.path.abspath(first)
    with open(path, "rb") as script:
        return compile(script.read(), path, "exec", dont_inherit=True), {"__file__": path, "__cached__": None}
