"""A server of the Model Context Protocol: agents ask the `cachalot` command, and get its JSON.

    python -m cachalot mcp [--root FOLDER] [--allow-programs]

The server speaks JSON-RPC on standard input and output, one message on each line. Its tools are subcommands of the command, with
the options that the command itself declares (`cachalot help --json`). A tool reads and writes files below the root alone.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn, TextIO

from . import _command
from ._mcp_tools import CallError, Calls, Tool, list_of, object_of, tools_of

# Of the protocol, the newest first. 2025-03-26 alone has batches; structured results came with 2025-06-18.
VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
_WITH_BATCHES = "2025-03-26"
_FIRST_WITH_STRUCTURE = "2025-06-18"
_MOST_CALLS = 4  # at once; further ones wait
_LONGEST_MESSAGE = 1 << 20  # characters
_LONGEST_CALL_SECONDS = 1_000_000

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR = -32700, -32600, -32601, -32602, -32603

Message = dict[str, Any]
_ABSENT: Any = object()


class RpcError(Exception):
    """An answer of JSON-RPC that says what is wrong with a request."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Server:
    """A session with one client.

    Thread safety: `serve` is called once; the calls of tools run beside it, in threads of its own.
    """

    def __init__(self, tools: dict[str, Tool], calls: Calls, out: TextIO) -> None:
        self._tools = tools
        self._calls = calls
        self._out = out
        self._out_lock = threading.Lock()
        self._version: str | None = None  # until initialize
        self._running: dict[Any, threading.Event] = {}  # calls by the id of their requests: set when they are cancelled
        self._running_lock = threading.Lock()  # while one is taken out
        self._pool = ThreadPoolExecutor(_MOST_CALLS)

    def serve(self, lines: TextIO) -> None:
        """Answers until the client closes its end, and finishes the calls that run then. KeyboardInterrupt ends them."""
        with self._pool:
            try:
                self._serve(lines)
            except KeyboardInterrupt:
                self._calls.stop()
                raise

    def _serve(self, lines: TextIO) -> None:
        while line := lines.readline(_LONGEST_MESSAGE + 1):
            if len(line) > _LONGEST_MESSAGE:
                self._send(_error(None, INVALID_REQUEST, f"a message has more than {_LONGEST_MESSAGE} characters"))
                while line and not line.endswith("\n"):
                    line = lines.readline(_LONGEST_MESSAGE)
            elif line.strip():
                self._receive(line)

    def _receive(self, line: str) -> None:
        try:
            line.encode()  # ValueError where it has bytes that are not UTF-8
            message = json.loads(line)
        except (ValueError, RecursionError):
            self._send(_error(None, PARSE_ERROR, "the message is not JSON"))
            return
        batch = list_of(message)
        if batch is None:
            self._answer(message, self._send)
        elif self._version != _WITH_BATCHES or not batch:
            self._send(_error(None, INVALID_REQUEST, "batches belong to the protocol 2025-03-26, and are not empty"))
        else:
            _Batch(len(batch), self._send).answer(batch, self._answer)

    def _answer(self, asked: Any, send: Callable[[Message | None], None]) -> None:
        """Sends the answer now or, of a tool, later; None for what has no answer."""
        message = object_of(asked)
        if message is None or message.get("jsonrpc") != "2.0":
            send(_error(None, INVALID_REQUEST, "the message is not one of JSON-RPC 2.0"))
            return
        number, method, params = message.get("id", _ABSENT), message.get("method"), object_of(message.get("params", {}))
        if number is _ABSENT or not isinstance(method, str):  # a notification, or an answer: the server asks nothing
            if method == "notifications/cancelled" and params is not None:
                self._cancel(params.get("requestId"))
            send(None)
            return
        if not isinstance(number, (str, int)) or isinstance(number, bool):
            send(_error(None, INVALID_REQUEST, "the id of a request is a string or a whole number"))
            return
        try:
            if params is None:
                raise RpcError(INVALID_PARAMS, "params is not an object")
            if method == "tools/call":
                self._begin_call(number, params, send)
            else:
                send(_result(number, self._result_of(method, params)))
        except RpcError as error:
            send(_error(number, error.code, str(error)))
        except Exception as error:
            send(_internal_error(number, error))

    def _result_of(self, method: str, params: Message) -> Message:
        if method == "ping":
            return {}
        if method == "initialize":
            return self._initialize(params)
        if method != "tools/list":
            raise RpcError(METHOD_NOT_FOUND, f"there is no method {method[:100]!r}")
        self._require_session()
        if params.get("cursor") is not None:
            raise RpcError(INVALID_PARAMS, "there is one page of tools, and no cursor")
        return {"tools": [tool.description() for tool in self._tools.values()]}

    def _initialize(self, params: Message) -> Message:
        asked = params.get("protocolVersion")
        if not isinstance(asked, str):
            raise RpcError(INVALID_PARAMS, "initialize has no protocolVersion")
        self._version = asked if asked in VERSIONS else VERSIONS[0]
        import cachalot

        return {
            "protocolVersion": self._version,
            "capabilities": {"tools": {"listChanged": False}},
            "serverInfo": {"name": "cachalot", "title": "cachalot", "version": cachalot.__version__},
            "instructions": "Tools for GPU memory: why a program ran out of it, what holds it, what grew between two runs, and "
            "what other allocator settings would need. They take memory snapshots of PyTorch "
            "(torch.cuda.memory._dump_snapshot) and logs of allocations. Sizes are bytes.",
        }

    def _require_session(self) -> None:
        if self._version is None:
            raise RpcError(INVALID_REQUEST, "the session begins with initialize")

    def _begin_call(self, number: str | int, params: Message, send: Callable[[Message | None], None]) -> None:
        self._require_session()
        name, arguments = params.get("name"), params.get("arguments", {})
        tool = self._tools.get(name) if isinstance(name, str) else None
        if tool is None:
            raise RpcError(INVALID_PARAMS, f"there is no tool {str(name)[:100]!r}")
        if number in self._running:
            raise RpcError(INVALID_REQUEST, f"a request with the id {number!r} is running")
        cancelled = threading.Event()
        self._running[number] = cancelled

        def call() -> None:
            try:
                answer = _result(number, self._call(tool, arguments, cancelled))
            except Exception as error:
                answer = _internal_error(number, error)
            if self._has_ended(number, cancelled):
                send(None if cancelled.is_set() else answer)  # who cancels waits for no answer

        try:
            self._pool.submit(call)
        except RuntimeError:  # no thread can be started; the call stays in the queue of the others
            if self._has_ended(number, cancelled):
                cancelled.set()
                raise

    def _has_ended(self, number: str | int, call: threading.Event) -> bool:
        """Whether the call had not ended before: it is answered then, and its id is free."""
        with self._running_lock:
            if self._running.get(number) is not call:
                return False
            del self._running[number]
            return True

    def _call(self, tool: Tool, arguments: Any, cancelled: threading.Event) -> Message:
        try:
            answer = self._calls.run(tool, arguments, cancelled)
        except (CallError, OSError) as error:  # for the model, which can ask again
            return {"content": [{"type": "text", "text": str(error)}], "isError": True}
        result: Message = {"content": [{"type": "text", "text": json.dumps(answer)}], "isError": False}
        if self._version is not None and self._version >= _FIRST_WITH_STRUCTURE:
            result["structuredContent"] = answer
        return result

    def _cancel(self, number: Any) -> None:
        cancelled = self._running.get(number) if isinstance(number, (str, int)) and not isinstance(number, bool) else None
        if cancelled is not None:
            cancelled.set()

    def _send(self, message: Message | list[Message] | None) -> None:
        if message is None:
            return
        try:
            with self._out_lock:
                self._out.write(json.dumps(message) + "\n")
                self._out.flush()
        except OSError:  # the client is gone
            self._calls.stop()


class _Batch:
    """Collects the answers to the messages of a batch, and sends them together."""

    def __init__(self, size: int, send: Callable[[list[Message]], None]) -> None:
        self._missing = size
        self._send = send
        self._answers: list[Message] = []
        self._lock = threading.Lock()

    def answer(self, messages: list[Any], answer: Callable[[Any, Callable[[Message | None], None]], None]) -> None:
        for message in messages:
            answer(message, self._take)

    def _take(self, answer: Message | None) -> None:
        with self._lock:
            self._missing -= 1
            if answer is not None:
                self._answers.append(answer)
            is_last = self._missing == 0
        if is_last and self._answers:
            self._send(self._answers)


def _result(number: str | int, result: Message) -> Message:
    return {"jsonrpc": "2.0", "id": number, "result": result}


def _internal_error(number: str | int, error: Exception) -> Message:
    """Returns the answer where the fault is ours: the client waits for one, and the session goes on."""
    return _error(number, INTERNAL_ERROR, f"{type(error).__name__}: {error}")


def _error(number: str | int | None, code: int, message: str) -> Message:
    return {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message}}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"cachalot: {message} (python -m cachalot mcp --help tells more)\n")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _LONGEST_CALL_SECONDS:
        raise argparse.ArgumentTypeError(f"{text[:100]!r} is not a time above 0 of at most {_LONGEST_CALL_SECONDS} seconds")
    return seconds


def _byte_count(text: str) -> int:
    try:
        count = int(text)
    except ValueError:
        count = 0
    if count <= 0:
        raise argparse.ArgumentTypeError(f"{text[:100]!r} is not a number above 0")
    return count


def main(words: list[str]) -> None:
    """Serves a client on standard input and output."""
    parser = _Parser(
        prog="python -m cachalot mcp",
        description="A server of the Model Context Protocol on standard input and output, through which agents ask the command.",
    )
    root_help = "tools see files below it alone (default: the working directory)"
    parser.add_argument("--root", type=Path, default=Path(), metavar="FOLDER", help=root_help)
    parser.add_argument(
        "--allow-programs", action="store_true", help="also offer the tools that run Python programs: simulate and fit"
    )
    parser.add_argument("--timeout", type=_seconds, default=600, metavar="SECONDS", help="for each call (default: 600)")
    parser.add_argument(
        "--most-bytes", type=_byte_count, default=200_000, metavar="N", help="an answer may be as long as this (default: 200000)"
    )
    arguments = parser.parse_args(words)
    if not os.path.isdir(arguments.root):
        parser.error(f"--root {arguments.root} is not a folder")
    if sys.stdin is None or sys.stdout is None:  # closed by who started us
        parser.error("the server needs standard input and output")
    command = _command.find_or_exit()
    try:
        tools = tools_of(command, allow_programs=arguments.allow_programs)
    except OSError as error:
        parser.exit(2, f"cachalot: {_command.not_started(command, error)}\n")
    except CallError as error:
        parser.exit(2, f"cachalot: {error}\n")
    calls = Calls(command, arguments.root, timeout=arguments.timeout, most_bytes=arguments.most_bytes)
    for stream in (sys.stdin, sys.stdout):  # UTF-8 in every locale; other bytes are kept, for the server to refuse
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")
    with contextlib.suppress(KeyboardInterrupt):
        Server(tools, calls, sys.stdout).serve(sys.stdin)
