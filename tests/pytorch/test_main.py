"""python -m cachalot: programs run as Python itself would run them, and what is told at their end."""

import os
import re
import subprocess
import sys

import pytest
import world
from world import full_only, not_native, run, run_quickly, succeeds

pytestmark = [not_native, world.not_pages]

SCRIPT = """
import sys, __main__, torch
import neighbour
kept: torch.Tensor = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
print(torch.cuda.memory.get_allocator_backend() != "native")
print(sys.argv[0], sys.argv[1:])
print(sys.path[0], neighbour.__name__)
print(__name__, __file__, __main__ is sys.modules["__main__"], __main__.kept is kept)
print(sorted(name for name in globals() if not name.startswith("__")))
print(__main__.__annotations__)
print(__spec__, __package__, __doc__)
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "neighbour.py").write_text("")
    (tmp_path / "script.py").write_text(SCRIPT)
    return tmp_path


def lines_of(command, folder):
    return succeeds(
        run(command, PYTHONPATH=os.pathsep.join((os.environ["PYTHONPATH"], "")).rstrip(os.pathsep))
    ).splitlines()


@full_only
def test_a_script_runs_as_python_itself_would_run_it(folder):
    script = folder / "script.py"
    arguments = [script, "--config", "mine", "-m", "x"]
    with_cachalot = lines_of([sys.executable, "-m", "cachalot", *arguments], folder)
    alone = lines_of([sys.executable, *arguments], folder)
    assert with_cachalot[0] == "True" and alone[0] == "False"
    assert with_cachalot[1:] == alone[1:]


@full_only
def test_a_module_runs_as_python_itself_would_run_it(folder):
    code = (
        f"import os, runpy, sys\nos.chdir({str(folder)!r})\nos.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    starter = [sys.executable, "-c", code]
    module = ["-m", "script", "--flag", "a"]
    with_cachalot = lines_of([*starter, "-m", "cachalot", *module], folder)
    alone = lines_of([*starter, *module], folder)
    assert with_cachalot[0] == "True" and alone[0] == "False"
    assert with_cachalot[1:-1] == alone[1:-1]


@full_only
def test_its_own_options_come_first(folder):
    script = folder / "options.py"
    script.write_text(
        "import torch; torch.cuda.init()\n"
        "print(torch.cuda.memory._snapshot()['allocator_settings']['max_split_size'] >> 20)"
    )
    assert lines_of([sys.executable, "-m", "cachalot", "--config", "max_split_size_mb:64", script], folder) == ["64"]


@full_only
@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--config", "max_split_size_mb:1", "script.py"], "cachalot: "),
        (["no_such_script.py"], "no_such_script.py"),
        (["-m", "no_such_module"], "no_such_module"),
        (["run", "--config"], "expected one argument (python -m cachalot --help tells more)"),
        (["run"], "the following arguments are required: program"),
    ],
)
def test_its_mistakes_are_told_in_words(arguments, message):
    process = run_quickly([sys.executable, "-m", "cachalot", *arguments])
    assert process.returncode != 0
    assert message in process.stderr and "Traceback" not in process.stderr


@full_only
def test_a_scripts_exit_status_is_the_processs(folder):
    script = folder / "fails.py"
    script.write_text("import sys; sys.exit(7)")
    assert run_quickly([sys.executable, "-m", "cachalot", script]).returncode == 7


# ---- the name of a program ----

HELD = "import torch; kept = torch.empty(3 << 20, dtype=torch.uint8, device='cuda'); "


def cachalot(*arguments, fresh=False, **environment):
    """python -m cachalot, without the report at its end unless it is asked for."""
    how = run if fresh else run_quickly
    return how([sys.executable, "-m", "cachalot", *arguments], **{"CACHALOT_STATS": "0"} | environment)


@full_only
def test_run_is_the_same_as_without_it(folder):
    script = folder / "script.py"
    for arguments in ([script, "a"], ["-c", SCRIPT.replace("__file__", "0"), "a", "-b"]):
        by_run = cachalot("run", *arguments, PYTHONPATH=f"{folder}{os.pathsep}{os.environ['PYTHONPATH']}")
        without = cachalot(*arguments, PYTHONPATH=f"{folder}{os.pathsep}{os.environ['PYTHONPATH']}")
        assert succeeds(by_run) == succeeds(without) != ""


@full_only
def test_code_runs_as_python_itself_would_run_it(folder):
    path = f"{folder}{os.pathsep}{os.environ['PYTHONPATH']}"
    code = ["-c", SCRIPT.replace("__file__", "'none'"), "--config", "mine", "-m"]
    with_cachalot = succeeds(cachalot(*code, fresh=True, PYTHONPATH=path)).splitlines()
    alone = succeeds(run([sys.executable, *code], PYTHONPATH=path)).splitlines()
    assert with_cachalot[0] == "True" and alone[0] == "False"
    assert with_cachalot[1:] == alone[1:]


@full_only
def test_the_version_is_one_everywhere():
    import cachalot as package

    assert succeeds(cachalot("--version")).split() == ["cachalot", package.__version__]
    assert re.fullmatch(r"\d+\.\d+\.\d+", package.__version__)


@full_only
def test_without_words_it_says_what_it_can_do():
    text = succeeds(cachalot())
    assert text.startswith("usage: python -m cachalot") and "snapshot" in text and "--config" in text


# ---- the command ----

COMMAND = os.environ.get("CACHALOT_COMMAND")
needs_command = pytest.mark.skipif(not COMMAND, reason="needs the cachalot command")


@full_only
@needs_command
@pytest.mark.parametrize("arguments", [["replay", "--help"], ["snapshot", "no such file"], ["simulate", "/bin/true"]])
def test_subcommands_are_the_commands(arguments):
    ours, its_own = cachalot(*arguments), run([COMMAND, *arguments])
    assert (ours.returncode, ours.stdout) == (its_own.returncode, its_own.stdout)
    assert ours.stderr == its_own.stderr


@full_only
@needs_command
def test_a_word_that_names_no_file_is_the_commands_and_one_that_does_is_a_script(tmp_path):
    assert "replai" in cachalot("replai").stderr
    (tmp_path / "train").write_text("print('a script')")
    words = [sys.executable, "-m", "cachalot", "train"]
    code = f"import os, sys; os.chdir({str(tmp_path)!r}); os.execv(sys.executable, sys.argv[1:])"
    assert succeeds(run([sys.executable, "-c", code, *words], CACHALOT_STATS="0")) == "a script\n"


@full_only
def test_an_installation_without_the_command_says_so(monkeypatch, tmp_path, capsys):
    from cachalot._programs import command as _command

    monkeypatch.setattr(_command, "_candidates", lambda: iter([tmp_path / "cachalot", tmp_path]))
    (tmp_path / "cachalot").write_text("#!/bin/sh\n")  # a script of Python's installers is not taken for it
    with pytest.raises(SystemExit) as ended:
        _command.run(["replay"])
    assert ended.value.code == 2
    assert re.search("has no `cachalot` command.*CACHALOT_BUILD_TOOLS=ON", capsys.readouterr().err)


@full_only
def test_without_the_command_the_exit_code_is_2(tmp_path):
    none = "import sys; from cachalot import __main__; __main__.command._candidates = lambda: iter(()); __main__.main()"
    ended = subprocess.run([sys.executable, "-c", none, "snapshot", "x.pickle"], capture_output=True, text=True, cwd=tmp_path)
    assert ended.returncode == 2 and "this installation has no `cachalot` command" in ended.stderr
    assert ended.stdout == "" and ended.stderr.count("\n") == 1


@full_only
def test_a_command_that_cannot_be_started_is_told_in_words(tmp_path):
    command = tmp_path / "cachalot"
    command.write_bytes(b"\x7fELF of another machine")
    command.chmod(0o755)
    environment = {**os.environ, "CACHALOT_COMMAND": str(command)}
    words = [sys.executable, "-m", "cachalot", "snapshot", "x.pickle"]
    ended = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert ended.returncode == 2 and ended.stderr == f"cachalot: {command}: cannot be started: Exec format error\n"


# ---- the output at the end ----


@full_only
def test_a_program_ends_with_a_line_on_what_it_took():
    process = cachalot("-c", HELD + "kept = None; torch.cuda.empty_cache()", CACHALOT_STATS="")
    assert succeeds(process) == ""
    assert process.stderr == (
        "cachalot: peak reserved 20.00 MiB for 3.00 MiB requested (85.0 % overhead), 1 device allocation\n"
    )


@full_only
def test_the_line_names_each_device_and_what_went_wrong():
    code = HELD + (
        "other = torch.empty(1 << 20, dtype=torch.uint8, device='cuda:1')\n"
        "try: torch.empty(1 << 50, dtype=torch.uint8, device='cuda')\n"
        "except torch.OutOfMemoryError: pass\n"
    )
    process = cachalot("-c", code, CACHALOT_STATS="")
    succeeds(process)
    first, second = process.stderr.removeprefix("cachalot: ").split("; ")
    assert first.startswith("cuda:0: peak reserved 20.00 MiB") and "1 times out of memory" in first
    assert second.startswith("cuda:1: peak reserved 2.00 MiB for 1.00 MiB requested (50.0 % overhead)")


@full_only
def test_a_program_without_gpu_memory_is_told_as_that():
    assert cachalot("-c", "pass", CACHALOT_STATS="").stderr == "cachalot: the program allocated no GPU memory\n"


@full_only
def test_a_child_that_took_memory_is_not_denied():
    code = "import os\nif os.fork(): os.wait()\nelse:\n    import torch; torch.ones(9, device='cuda'); os._exit(0)"
    process = cachalot("-c", code, CACHALOT_STATS="")
    assert succeeds(process) == ""
    assert process.stderr == (
        "cachalot: this process allocated no GPU memory; the memory of its child processes is not counted here\n"
    )


@full_only
@pytest.mark.parametrize("by_main", [True, False])
def test_stats_1_is_a_table_and_0_is_silence(by_main):
    def told(value):
        if by_main:
            return cachalot("-c", HELD, CACHALOT_STATS=value).stderr
        program = "import cachalot; cachalot.enable(); " + HELD
        return run_quickly([sys.executable, "-c", program], CACHALOT_STATS=value).stderr

    assert told("0") == ""
    rows = dict(re.split(r"\s{2,}", line.strip()) for line in told("1").splitlines()[1:])
    assert rows["peak reserved"] == "20.00 MiB" and rows["live at exit"] == "3.00 MiB"
    assert rows["allocations"] == rows["device allocations"] == "1" and rows["out of memory"] == "0"
    if not by_main:
        assert told("") == ""


@full_only
def test_a_bad_value_of_stats_is_one_clear_error():
    process = cachalot("-c", "pass", CACHALOT_STATS="yes")
    assert process.returncode == 1
    assert process.stderr == "cachalot: environment variable CACHALOT_STATS is 'yes'; it must be 0 or 1\n"


@full_only
def test_forked_children_tell_nothing_and_the_exit_status_stays():
    code = HELD + "import os, sys; os.wait() if os.fork() else None; sys.exit(3)"
    process = cachalot("-c", code, CACHALOT_STATS="")
    assert process.returncode == 3
    assert process.stderr.count("peak reserved") == 1


@full_only
def test_what_goes_wrong_at_the_end_is_not_the_programs_failure():
    code = HELD + "import cachalot; cachalot._bindings.plug.Plug.json = None; import sys; sys.exit(0)"
    process = cachalot("-c", code, CACHALOT_STATS="1")
    assert (process.returncode, process.stderr) == (0, "")


# ---- stacks ----


@full_only
@pytest.mark.parametrize("how", ["script", "module", "code"])
def test_stacks_begin_in_the_program(tmp_path, how):
    program = (
        "import torch, cachalot\n"
        "def make():\n"
        "    return torch.empty(1000, device='cuda')\n"
        "kept = torch.cuda.caching_allocator_alloc(4096)\n"
        "torch.cuda.caching_allocator_delete(kept)\n"
        "try: torch.cuda.caching_allocator_delete(kept)\n"
        "except (RuntimeError, ValueError): pass\n"
        "print(*cachalot.check_memory()[0].mistake.stack, sep='\\n')\n"
    )
    (tmp_path / "program.py").write_text(program)
    arguments = {"script": [tmp_path / "program.py"], "module": ["-m", "program"], "code": ["-c", program]}[how]
    path = f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}"
    frames = succeeds(cachalot(*arguments, fresh=True, PYTHONPATH=path, CACHALOT_DEBUG="1")).splitlines()
    python = [frame for frame in frames if ".py:" in frame or "<string>" in frame]
    assert python[-1].startswith("<module> at "), frames
    assert not any("runpy" in frame or "__main__.py" in frame for frame in frames), frames
    assert not any("libcachalot_torch.so" in frame or "torch_2_" in frame for frame in frames), frames


@full_only
def test_share_is_that_of_enable():
    code = "import torch; print(hasattr(torch.UntypedStorage._share_cuda_, '__wrapped__'))"
    runs = [run_quickly([sys.executable, "-m", "cachalot", *share, "-c", code]) for share in ([], ["--share", "copy"])]
    assert [succeeds(process) for process in runs] == ["False\n", "True\n"]
    refused = run_quickly([sys.executable, "-m", "cachalot", "--share", "pages", "-c", code])
    assert refused.returncode == 1 and refused.stderr == "cachalot: share is 'pages'; it must be one of 'handles', 'copy'\n"
