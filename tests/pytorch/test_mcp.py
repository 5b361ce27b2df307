"""python -m cachalot mcp: a client that speaks the Model Context Protocol over pipes."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest
import world

pytestmark = [world.not_native, world.not_pages]

SNAPSHOT = pathlib.Path(__file__).resolve().parents[2] / "data" / "snapshots" / "layers.pickle"


class Client:
    """A client that sends requests one after the other."""

    def __init__(self, *options, **variables):
        command = [sys.executable, "-m", "cachalot", "mcp", *options]
        environment = {**os.environ, **variables}
        self.server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        self.next_id = 0

    def send(self, message):
        self.server.stdin.write((message if isinstance(message, str) else json.dumps(message)) + "\n")
        self.server.stdin.flush()

    def receive(self):
        return json.loads(self.server.stdout.readline())

    def request(self, method, **params):
        self.next_id += 1
        self.send({"jsonrpc": "2.0", "id": self.next_id, "method": method, "params": params})
        answer = self.receive()
        assert answer["jsonrpc"] == "2.0" and answer["id"] == self.next_id
        return answer

    def initialize(self, version="2025-06-18"):
        answer = self.request(
            "initialize", protocolVersion=version, capabilities={}, clientInfo={"name": "test", "version": "1"}
        )
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return answer["result"]

    def call(self, name, **arguments):
        return self.request("tools/call", name=name, arguments=arguments)["result"]

    def end(self):
        self.server.stdin.close()
        rest = self.server.stdout.read()
        return self.server.wait(timeout=60), rest


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("root")
    shutil.copy(SNAPSHOT, folder / "layers.pickle")
    (folder / "loop").symlink_to("loop")
    return folder


@pytest.fixture(scope="module")
def client(root):
    client = Client("--root", str(root))
    client.initialize()
    yield client
    assert client.end() == (0, "")


def test_versions_are_negotiated():
    for asked, answered in {
        "2024-11-05": "2024-11-05", "2025-03-26": "2025-03-26", "2025-06-18": "2025-06-18", "1999-01-01": "2025-11-25"
    }.items():  # fmt: skip
        client = Client()
        result = client.initialize(asked)
        assert result["protocolVersion"] == answered
        assert result["serverInfo"]["name"] == "cachalot" and "tools" in result["capabilities"]
        assert client.end()[0] == 0


def test_tools_have_schemas_of_the_commands_options(client):
    tools = {tool["name"]: tool for tool in client.request("tools/list")["result"]["tools"]}
    assert {"explain", "snapshot", "replay", "compare", "convert", "diff", "check"} <= set(tools)
    assert not {"simulate", "fit", "run"} & set(tools)
    schema = tools["check"]["inputSchema"]
    assert schema["required"] == ["files"] and not schema["additionalProperties"]
    assert schema["properties"]["no_oom"]["type"] == "boolean"
    assert schema["properties"]["max_allocations"]["type"] == "integer"
    assert "h100" in schema["properties"]["gpu"]["enum"]
    assert tools["check"]["annotations"]["readOnlyHint"] and not tools["convert"]["annotations"]["readOnlyHint"]


def test_an_answer_is_the_commands_json(client):
    result = client.call("snapshot", snapshots=["layers.pickle"], top=1)
    assert not result["isError"]
    answer = result["structuredContent"]
    assert json.loads(result["content"][0]["text"]) == answer
    assert answer["devices"][0]["reserved_bytes"] == 36 << 20 and len(answer["devices"][0]["sites"]) == 1


def test_a_broken_limit_is_an_answer(client):
    answer = client.call("check", files=["layers.pickle"], max_peak="1MiB")
    assert not answer["isError"] and answer["structuredContent"]["holds"] is False


def test_several_answers_are_a_list(client):
    answer = client.call("snapshot", snapshots=["layers.pickle", "layers.pickle"])
    assert len(answer["structuredContent"]["results"]) == 2


def test_convert_writes_a_new_file_below_the_root(client, root):
    answer = client.call("convert", file="layers.pickle", output="out.json")
    assert answer["structuredContent"]["output"] == "out.json"
    assert json.loads((root / "out.json").read_text())["format"] == "cachalot history"
    assert client.call("convert", file="layers.pickle", output="out.json")["isError"]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"snapshots": ["../layers.pickle"]}, "outside of the root"),
        ({"snapshots": ["/etc/passwd"]}, "outside of the root"),
        ({"snapshots": ["missing.pickle"]}, "no file"),
        ({"snapshots": "layers.pickle", "top": "3"}, "type integer"),
        ({"snapshots": "layers.pickle", "top": True}, "type integer"),
        ({"snapshots": ["layers.pickle"], "color": "never"}, "no argument"),
        ({}, "needs the argument"),
        ({"snapshots": ["layers.pickle"], "top": -1}, "--top"),
        ({"snapshots": []}, "at least one value"),
        ({"snapshots": ["\ud800"]}, "surrogate"),
        ({"snapshots": ["x" * 300_000]}, "File name too long"),
        ({"snapshots": ["../" + "x" * 300_000]}, "outside of the root"),
        ({"snapshots": ["loop/x"]}, "loop/x"),
        ({"\ud800": 1}, "no argument '\\ud800'"),
    ],
)
def test_a_wrong_argument_is_told_to_the_model(client, arguments, message):
    result = client.call("snapshot", **arguments)
    text = result["content"][0]["text"]
    assert result["isError"] and message in text and len(text) < 1000


def test_a_link_does_not_lead_out_of_the_root(client, root):
    (root / "link.pickle").symlink_to(SNAPSHOT)
    assert "outside" in client.call("snapshot", snapshots=["link.pickle"])["content"][0]["text"]


def test_errors_of_the_protocol(client):
    for line, code in {
        "{": -32700, "[]": -32600, "3": -32600, '{"jsonrpc": "1.0", "id": 1, "method": "ping"}': -32600,
        '{"jsonrpc": "2.0", "id": null, "method": "ping"}': -32600, '{"jsonrpc": "2.0", "id": 1, "method": "no"}': -32601,
        '{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": [1]}': -32602,
        '{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "rm"}}': -32602,
        "[" * 100_000: -32700, " " * 2_000_000 + "{}": -32600,
    }.items():  # fmt: skip
        client.send(line)
        assert client.receive()["error"]["code"] == code, line[:100]
    assert client.request("ping")["result"] == {}


def test_the_session_begins_with_initialize():
    client = Client()
    assert client.request("ping")["result"] == {}
    assert client.request("tools/list")["error"]["code"] == -32600
    client.end()


def test_batches_of_the_protocol_that_has_them(root):
    client = Client("--root", str(root))
    client.initialize("2025-03-26")
    client.send([
        {"jsonrpc": "2.0", "id": "a", "method": "ping"},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": "b", "method": "tools/call",
         "params": {"name": "snapshot", "arguments": {"snapshots": ["layers.pickle"]}}},
    ])  # fmt: skip
    answers = {answer["id"]: answer["result"] for answer in client.receive()}
    assert answers["a"] == {} and "content" in answers["b"] and "structuredContent" not in answers["b"]
    client.end()


def test_calls_are_cancelled_and_bounded(root):
    (root / "slow.trace").write_text("".join(f"a,{i},512,0\n" for i in range(1, 100_001)))
    client = Client("--root", str(root), "--timeout", "0.3", "--most-bytes", "1000")
    client.initialize()
    answer = client.call("replay", traces=["slow.trace"], iterations=1000)
    assert answer["isError"] and "0.3 seconds" in answer["content"][0]["text"]
    answer = client.call("snapshot", snapshots=["layers.pickle"])
    assert answer["isError"] and "1000 bytes" in answer["content"][0]["text"]
    client.end()
    client = Client("--root", str(root))
    client.initialize()
    slow = {"name": "replay", "arguments": {"traces": ["slow.trace"], "iterations": 1000}}
    client.send({"jsonrpc": "2.0", "id": "slow", "method": "tools/call", "params": slow})
    assert client.request("ping")["result"] == {}  # meanwhile
    client.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "slow"}})
    assert client.end() == (0, "")


def test_programs_run_only_where_that_is_allowed(root):
    (root / "program.py").write_text("import os\nprint(os.getcwd())\n")
    client = Client("--root", str(root), "--allow-programs")
    client.initialize()
    answer = client.call("simulate", program=["program.py"])
    assert not answer["isError"] and answer["structuredContent"]["exit_code"] == 0
    client.end()


def test_a_wrong_root_is_an_error():
    ended = subprocess.run([sys.executable, "-m", "cachalot", "mcp", "--root", "/nowhere"], capture_output=True, text=True)
    assert ended.returncode == 2 and "/nowhere" in ended.stderr


@pytest.mark.parametrize(
    ("option", "value", "rule"),
    [
        *(("--timeout", value, "is not a time above 0 of at most") for value in ("-1", "0", "nan", "inf", "1e9", "x", "")),
        *(("--most-bytes", value, "is not a number above 0") for value in ("-5", "0", "1.5", "x", "9" * 5000)),
        *(("--root", value, "is not a folder") for value in ("x" * 5000, sys.executable)),
    ],
)
def test_wrong_limits_are_refused(option, value, rule):
    ended = subprocess.run([sys.executable, "-m", "cachalot", "mcp", f"{option}={value}"], capture_output=True, text=True, input="")
    assert ended.returncode == 2 and option in ended.stderr and rule in ended.stderr and ended.stderr.count("\n") == 1
    assert "_seconds" not in ended.stderr and "_byte_count" not in ended.stderr


@pytest.mark.parametrize("command", ["true", "false"])
def test_a_command_without_tools_is_an_error(command):
    environment = {**os.environ, "CACHALOT_COMMAND": shutil.which(command)}
    ended = subprocess.run([sys.executable, "-m", "cachalot", "mcp"], capture_output=True, text=True, input="", env=environment)
    assert ended.returncode == 2 and ended.stderr == f"cachalot: {shutil.which(command)}: does not tell its options\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-"])
def test_a_closed_end_is_an_error(closed):
    ended = subprocess.run(["sh", "-c", f"{sys.executable} -m cachalot mcp {closed}"], capture_output=True, text=True, input="")
    assert ended.returncode == 2 and "standard input" in ended.stderr and ended.stderr.count("\n") == 1


@pytest.mark.parametrize("line", [b"\xff\xfe", b'{"jsonrpc": "2.0", "id": 1, "method": "\xff"}', b'"\xed\xa0\x80"', b"\0"])
def test_bytes_that_are_no_text_are_no_json(root, line):
    messages = line + b"\n" + b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n'
    ended = subprocess.run(
        [sys.executable, "-m", "cachalot", "mcp", "--root", str(root)], input=messages, capture_output=True, timeout=60
    )
    first, second = map(json.loads, ended.stdout.splitlines())
    assert first["error"]["code"] == -32700 and second["result"] == {}


def test_halves_of_surrogate_pairs_are_as_other_characters(client):
    for number, method, expected in (("\ud800", "ping", {}), ("\udfff", "no\ud800", None)):
        client.send({"jsonrpc": "2.0", "id": number, "method": method})
        answer = client.receive()
        assert answer["id"] == number and answer.get("result") == expected
    assert "no tool" in client.request("tools/call", name="snapshot\ud800")["error"]["message"]


FAULTS = {
    "in a call": "_mcp_tools.Calls.run = broken",
    "of a thread": "threading.Thread.start = broken",
    "in an answer": "_mcp.Server._begin_call = broken",
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_of_the_server_is_an_answer(root, fault):
    program = f"""
import threading
from cachalot import _mcp, _mcp_tools

def broken(self, *arguments):
    raise RuntimeError("broken")

{fault}
_mcp.main(["--root", {str(root)!r}])
"""
    call = {"id": 2, "method": "tools/call", "params": {"name": "snapshot", "arguments": {"snapshots": ["layers.pickle"]}}}
    messages = [{"id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18"}}, call]
    server = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for message in (*messages, call):  # the id is free again
        server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        server.stdin.flush()
        answer = json.loads(server.stdout.readline())
        assert answer["id"] == message["id"]
        assert message["id"] == 1 or answer["error"] == {"code": -32603, "message": "RuntimeError: broken"}
    assert server.communicate(timeout=60) == ("", None) and server.returncode == 0


def test_a_folder_for_temporary_files_that_is_gone_is_told_to_the_model(root, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    client = Client("--root", str(root), "--allow-programs", TMPDIR=str(gone))
    client.initialize()
    assert not client.call("snapshot", snapshots=["layers.pickle"])["isError"]
    gone.rmdir()
    answer = client.call("snapshot", snapshots=["layers.pickle"])
    assert answer["isError"] and "No such file or directory" in answer["content"][0]["text"]
    gone.mkdir()
    answer = client.call("simulate", program=["x" * 300_000])
    assert answer["isError"] and "Argument list too long" in answer["content"][0]["text"]
    assert client.end() == (0, "")


def test_a_signal_of_the_keyboard_ends_the_calls(root):
    (root / "long.trace").write_text("".join(f"a,{i},512,0\n" for i in range(1, 100_001)))
    client = Client("--root", str(root))
    client.initialize()
    call = {"name": "replay", "arguments": {"traces": ["long.trace"] * 20, "iterations": 1000}}  # minutes
    client.send({"jsonrpc": "2.0", "id": "long", "method": "tools/call", "params": call})
    assert client.request("ping")["result"] == {}
    client.server.send_signal(signal.SIGINT)
    assert client.server.wait(timeout=30) == 0
    client.end()
