"""The tools of the MCP server: subcommands of the `cachalot` command as it declares them, and their calls."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

# Those that read files alone, and those that run a program.
_TOOLS = ("explain", "advise", "diff", "check", "snapshot", "compare", "replay", "convert")
_PROGRAM_TOOLS = ("simulate", "fit")

# What agents do not need, or must not do: connect to a cluster, or go on for ever.
_NOT_OFFERED = {"--help", "--color", "--json", "--scheduler", "--record", "--watch"}
_OUTPUTS = {"--output", "--html", "--steps"}  # files that a tool writes
_PATHS = {"FILE", "OUT", "DIR", "FOLDER"}
_FAILED = 2  # exit code of the command
_LONGEST_REASON = 2000  # characters
_LONGEST_SHOWN = 200  # of a wrong argument
_POLL_SECONDS = 0.02


class CallError(Exception):
    """A call of a tool that failed, in words for the one who called it."""


def object_of(value: Any) -> dict[str, Any] | None:
    """Returns an object of JSON as such; None for anything else."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def list_of(value: Any) -> list[Any] | None:
    """Returns a list of JSON as such; None for anything else."""
    return [*cast("Iterable[Any]", value)] if isinstance(value, list) else None


def _is_encodable(text: str) -> bool:
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True)
class Argument:
    """An argument of a tool: an option of the command, or what stands without one."""

    name: str
    option: str  # "" for what stands without one
    kind: str  # "boolean", "integer" or "string"
    description: str
    choices: tuple[str, ...]
    is_repeated: bool
    is_required: bool
    is_path: bool

    def schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": self.kind}
        if self.choices:
            schema["enum"] = list(self.choices)
        if self.is_repeated:
            schema = {"type": "array", "items": schema, "minItems": 1}
        return {**schema, "description": self.description}

    def values(self, given: Any) -> list[str | int | bool]:
        """Returns the values of an argument. CallError where one is not of its kind."""
        values = list_of(given) if self.is_repeated else None
        if values is None:
            values = [given]
        if not values:
            raise CallError(f"{self.name}: the list is empty; at least one value is needed")
        expected = {"boolean": bool, "integer": int, "string": str}[self.kind]
        for value in values:
            if type(value) is not expected:
                raise CallError(f"{self.name}: {json.dumps(value)[:100]} is not of the type {self.kind}")
            if self.choices and value not in self.choices:
                raise CallError(f"{self.name}: {_shown(repr(value))} is not one of {', '.join(self.choices)}")
            if isinstance(value, str) and ("\0" in value or not _is_encodable(value)):
                raise CallError(f"{self.name}: a value has a character 0 or half of a surrogate pair")
        return values


@dataclass(frozen=True)
class Tool:
    """A subcommand, as a tool."""

    name: str
    summary: str
    details: str
    arguments: dict[str, Argument]
    json_is_file: bool  # --json has a file's name
    prints_json: bool
    runs_program: bool

    def description(self) -> dict[str, Any]:
        """Returns the tool as tools/list shows it."""
        writes = self.runs_program or any(argument.option in _OUTPUTS for argument in self.arguments.values())
        return {
            "name": self.name,
            "title": f"cachalot {self.name}",
            "description": f"{self.summary}.\n\n{self.details}".strip(),
            "inputSchema": {
                "type": "object",
                "properties": {name: argument.schema() for name, argument in self.arguments.items()},
                "required": [name for name, argument in self.arguments.items() if argument.is_required],
                "additionalProperties": False,
            },
            "annotations": {"readOnlyHint": not writes, "destructiveHint": self.runs_program, "openWorldHint": False},
        }


def tools_of(command: Path, *, allow_programs: bool) -> dict[str, Tool]:
    """Returns the tools that this version of the command has, by name. Those that run programs only where that is allowed.

    Raises:
        OSError: the command cannot be started.
        CallError: it does not tell its options.
    """
    names = _TOOLS + (_PROGRAM_TOOLS if allow_programs else ())
    told = subprocess.run([command, "help", "--json"], stdin=subprocess.DEVNULL, capture_output=True, check=False).stdout
    try:
        commands = {each["name"]: each for each in map(json.loads, told.splitlines())}
        tools = {name: _tool_of(commands[name], allow_programs) for name in names if name in commands}
    except (ValueError, KeyError, TypeError):
        tools = {}
    if not tools:
        raise CallError(f"{command}: does not tell its options")
    return tools


def _tool_of(declared: dict[str, Any], allow_programs: bool) -> Tool:
    options = declared["options"]
    json_option = next((option for option in options if "--json" in option["names"]), None)
    arguments = [_argument_of(option) for option in options if not _NOT_OFFERED.intersection(option["names"])]
    runs_program = declared["name"] in _PROGRAM_TOOLS
    if declared["takes_program"] and allow_programs:
        text = "The program and its arguments"
        arguments.append(Argument("program", "", "string", text, (), is_repeated=True, is_required=runs_program, is_path=False))
    return Tool(
        name=declared["name"],
        summary=declared["summary"],
        details=declared["details"],
        arguments={argument.name: argument for argument in arguments},
        json_is_file=json_option is not None and bool(json_option["value"]),
        prints_json=json_option is not None and not json_option["value"],
        runs_program=runs_program,
    )


def _argument_of(option: dict[str, Any]) -> Argument:
    value, is_positional = option["value"], option["is_positional"]
    option_name = "" if is_positional else max(option["names"], key=len)
    name = value.lower() + ("s" if option["is_repeated"] else "")
    if not is_positional:
        name = option_name.lstrip("-").replace("-", "_")
    default = f" (default: {option['default']})" if option["default"] else ""
    return Argument(
        name=name,
        option=option_name,
        kind="boolean" if not value else "integer" if value == "N" else "string",
        description=option["description"] + default,
        choices=tuple(option["choices"]),
        is_repeated=option["is_repeated"],
        is_required=option["is_required"],
        is_path=option["is_file"] or value in _PATHS,
    )


class Calls:
    """Runs the command for tools, with files below a folder alone.

    Thread safety: every method may be called from any thread at any time.
    """

    def __init__(self, command: Path, root: Path, *, timeout: float, most_bytes: int) -> None:
        self._command = command
        self._root = root.resolve()
        self._timeout = timeout
        self._most_bytes = most_bytes
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Ends the calls that run, and lets none begin."""
        self._stopped.set()

    def run(self, tool: Tool, arguments: Any, cancelled: threading.Event) -> dict[str, Any]:
        """Returns the tool's answer. CallError where there is none."""
        given = object_of(arguments)
        if given is None:
            raise CallError("the arguments are not an object")
        with tempfile.TemporaryDirectory(prefix="cachalot-mcp-") as folder:
            json_file = Path(folder, "answer.json")
            words = self._words_of(tool, given, json_file)
            with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
                code = self._execute(words, out, errors, cancelled)
                told = _end_of(errors, _LONGEST_REASON).strip()
                if code == _FAILED or code < 0:
                    raise CallError(told or f"the command ended with {code}")
                if tool.json_is_file and json_file.exists():
                    with json_file.open("rb") as answer:
                        text = self._whole(answer)
                else:
                    text = self._whole(out)
        return self._answer_of(tool, given, text, told)

    def _answer_of(self, tool: Tool, arguments: dict[str, Any], text: str, told: str) -> dict[str, Any]:
        if not (tool.prints_json or tool.json_is_file):
            return {"output": arguments.get("output"), "notes": told}
        try:
            answers: list[Any] = [json.loads(line) for line in text.splitlines() if line.strip()]
        except ValueError:
            raise CallError(told or "the command printed no JSON") from None
        only = object_of(answers[0]) if len(answers) == 1 else None
        return {"results": answers} if only is None else only

    def _words_of(self, tool: Tool, given: dict[str, Any], json_file: Path) -> list[str]:
        unknown = [name for name in given if name not in tool.arguments]
        if unknown:
            raise CallError(f"{tool.name} has no argument {unknown[0][:100]!r}; it has {', '.join(tool.arguments)}")
        missing = [name for name, argument in tool.arguments.items() if argument.is_required and name not in given]
        if missing:
            raise CallError(f"{tool.name} needs the argument {missing[0]!r}")
        options: list[str] = []
        positionals: list[str] = []
        program: list[str] = []
        for name, argument in tool.arguments.items():
            for value in argument.values(given[name]) if name in given else []:
                if name == "program":
                    program.append(str(value))
                elif argument.is_path:
                    path = self._path(argument, str(value))
                    (options if argument.option else positionals).append(_word(argument.option, path))
                elif argument.kind != "boolean":
                    (options if argument.option else positionals).append(_word(argument.option, str(value)))
                elif value:
                    options.append(argument.option)
        if tool.prints_json:
            options.append("--json")
        if tool.json_is_file:
            options.append(f"--json={json_file}")
        return [tool.name, *options, *positionals, *(["--", *program] if program else [])]

    def _path(self, argument: Argument, value: str) -> str:
        shown = _shown(value)
        try:
            path = Path(self._root, value).resolve()  # links are followed
            if not path.is_relative_to(self._root):
                raise CallError(f"{argument.name}: {shown} is outside of the root {self._root}")
            if argument.option in _OUTPUTS:
                if path.exists() or not path.parent.is_dir():
                    raise CallError(f"{argument.name}: {shown} must be a new file in a folder that exists")
            elif not path.exists():
                raise CallError(f"{argument.name}: there is no file {shown} below the root {self._root}")
            elif not (path.is_file() or path.is_dir()):
                raise CallError(f"{argument.name}: {shown} is not a file")
        except OSError as error:  # a name that is too long, a folder that this user cannot read
            raise CallError(f"{argument.name}: {shown}: {error.strerror or error}") from None
        except RuntimeError:  # of pathlib
            raise CallError(f"{argument.name}: {shown}: links lead to each other") from None
        return str(path)

    def _execute(self, words: list[str], out: IO[bytes], errors: IO[bytes], cancelled: threading.Event) -> int:
        process = subprocess.Popen(
            [str(self._command), *words],
            cwd=self._root,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            start_new_session=True,
        )
        end = time.monotonic() + self._timeout
        try:
            while process.poll() is None:
                time.sleep(_POLL_SECONDS)
                if cancelled.is_set() or self._stopped.is_set():
                    raise CallError("the call was cancelled")
                if time.monotonic() > end:
                    raise CallError(f"the call took more than {self._timeout:g} seconds")
                self._require_short(os.fstat(out.fileno()).st_size)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return process.returncode

    def _whole(self, file: IO[bytes]) -> str:
        self._require_short(os.fstat(file.fileno()).st_size)
        file.seek(0)
        return file.read().decode(errors="replace")

    def _require_short(self, size: int) -> None:
        if size > self._most_bytes:
            raise CallError(f"the answer has more than {self._most_bytes} bytes: ask for less, with `top` for example")


def _shown(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "…"


def _word(option: str, value: str) -> str:
    return f"{option}={value}" if option else value


def _end_of(file: IO[bytes], most: int) -> str:
    file.seek(max(0, os.fstat(file.fileno()).st_size - most))
    return file.read().decode(errors="replace")
