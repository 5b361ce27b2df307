"""cachalot.enable(): what it refuses, each in one clear exception; and python -m cachalot. Each in its own process."""

import os
import shutil
import sys
from pathlib import Path

import pytest
import world
from world import MODE, VERSION, full_only, not_native, run, run_python, succeeds

pytestmark = [not_native, world.not_pages]  # full_only: where the mode makes no difference

IMPORT = "import torch, cachalot\n"
MAJOR, MINOR = VERSION.split(".")[:2]


def refusal(code, expected, **environment):
    """Runs code in which an exception is expected; `expected` says "Type: text"; returns the message."""
    process = run_python(
        f"""
try:
{_indented(code)}
except Exception as error:
    print(f"{{type(error).__name__}}: {{error}}")
else:
    print("no exception")
print(cachalot.is_enabled())
""",
        preamble=IMPORT,
        **environment,
    )
    message, enabled = succeeds(process).strip().rsplit("\n", 1)
    assert message.startswith(expected) and "\n" not in message, message
    return message, enabled == "True"


def _indented(code):
    return "\n".join("    " + line for line in code.strip().splitlines())


NAME = "PYTORCH_CUDA_ALLOC_CONF"
ENABLE = f"cachalot.enable(mode={MODE!r})"


def test_after_the_first_tensor_it_is_refused_with_the_reason():
    message, enabled = refusal(
        f"kept = torch.empty(1000, device='cuda')\n{ENABLE}", "EnableError: CUDA is in use already"
    )
    assert "import torch" in message
    if MODE == "full":
        assert "late=True" in message and f"holds {2 * world.MiB} bytes" in message
    else:
        assert "mode 'plug' must come before" in message
    assert not enabled


@full_only
def test_after_a_device_query_it_goes_on_as_nothing_is_held():
    process = run_python(
        f"""
        torch.cuda.get_device_name()
        assert torch.cuda.is_initialized()
        stream = torch.cuda.Stream()
        gone = torch.ones(10, device="cuda")
        del gone
        torch.cuda.empty_cache()
        {ENABLE}
        with torch.cuda.stream(stream):
            kept = torch.ones(3 << 20, dtype=torch.uint8, device="cuda")
        assert cachalot.stats()["allocated_bytes.all.current"] == 3 << 20 == torch.cuda.memory_allocated()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = kept + 1
        graph.replay()
        torch.cuda.synchronize()
        assert torch.cuda.memory.get_allocator_backend() == "cachalot"
        """,
        preamble=IMPORT,
    )
    succeeds(process)
    assert process.stderr == ""


@full_only
def test_history_that_was_recorded_before_begins_anew_and_that_is_said():
    process = run_python(
        f"torch.cuda.memory._record_memory_history()\n{ENABLE}\nkept = torch.ones(1, device='cuda')", preamble=IMPORT
    )
    succeeds(process)
    assert "call torch.cuda.memory._record_memory_history() again" in process.stderr


@pytest.mark.skipif(MODE != "plug", reason="the full allocator goes on")
def test_the_plug_must_come_before_a_device_query():
    message, enabled = refusal(f"torch.cuda.get_device_name()\n{ENABLE}", "EnableError: CUDA is in use already")
    assert "right after 'import torch'" in message
    assert not enabled


@full_only
def test_questions_that_do_not_use_cuda_may_come_first():
    code = "print(torch.cuda.is_available(), torch.cuda.device_count())\n" + ENABLE + "\nprint(cachalot.enabled_mode())"
    assert succeeds(run_python(code, preamble=IMPORT)).split()[-1] == MODE


@full_only
def test_late_takes_over_what_comes():
    process = run_python(
        """
        old = torch.ones(5 << 20, dtype=torch.uint8, device="cuda")
        unused = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
        address = torch.cuda.caching_allocator_alloc(3 << 20)
        del unused
        cachalot.enable(late=True)
        new = torch.ones(7 << 20, dtype=torch.uint8, device="cuda")
        assert torch.cuda.memory_allocated() == 7 << 20
        old.record_stream(torch.cuda.Stream())
        both = torch.cat([old, new])
        torch.cuda.caching_allocator_delete(address)
        del old, both
        assert torch.cuda.memory_allocated() == 7 << 20
        free, total = torch.cuda.mem_get_info()
        assert total - free < 60 << 20, "PyTorch's allocator keeps its cache"
        """,
        preamble=IMPORT,
    )
    succeeds(process)


@pytest.mark.skipif(MODE != "plug", reason="the full allocator can be late")
def test_late_is_refused_for_the_plug():
    message, _ = refusal(
        "torch.cuda.init()\ncachalot.enable(mode='plug', late=True)",
        "EnableError: CUDA is in use already, and mode 'plug' must come before",
    )


def test_a_second_call_changes_nothing_or_is_refused():
    process = run_python(
        f"""
        {ENABLE.replace(")", ', config="max_split_size_mb:64")')}
        cachalot.enable()
        cachalot.enable("max_split_size_mb:64", mode={MODE!r})
        for wrong in ({{"config": "max_split_size_mb:65"}}, {{"mode": {"plug" if MODE == "full" else "full"!r}}}):
            try:
                cachalot.enable(**wrong)
            except cachalot.EnableError as error:
                print(error)
        assert torch.cuda.memory._snapshot()["allocator_settings"]["max_split_size"] == 64 << 20
        """,
        preamble=IMPORT,
    )
    config, mode = succeeds(process).strip().splitlines()
    assert "max_split_size_mb:64" in config and "max_split_size_mb:65" in config
    assert "already" in mode


@full_only
def test_a_bad_argument_is_a_value_error_that_names_it():
    bad_calls = {
        "cachalot.enable('max_split_size_mb:1')": ("max_split_size_mb", "1", "20"),
        "cachalot.enable('no_such_key:1')": ("no_such_key",),
        "cachalot.enable('garbage_collection_threshold:2')": ("garbage_collection_threshold", "2"),
        "cachalot.enable('backend:cudaMallocAsync')": ("backend", "cudaMallocAsync"),
        "cachalot.enable('max_split_size_mb')": ("max_split_size_mb",),
        "cachalot.enable(mode='half')": ("mode", "half", "auto"),
    }
    process = run_python(
        f"""
        for call in {list(bad_calls)!r}:
            try:
                exec(call)
            except ValueError as error:
                print(error)
            assert not cachalot.is_enabled()
        {ENABLE}
        """,
        preamble=IMPORT,
    )
    messages = succeeds(process).strip().splitlines()
    for parts, message in zip(bad_calls.values(), messages, strict=True):
        assert all(part in message for part in parts), message


@pytest.mark.parametrize("setting", ["max_split_size_mb:1", "garbage_collection_threshold:2", "no_such_key:1"])
def test_a_bad_PYTORCH_CUDA_ALLOC_CONF_is_a_value_error_that_names_it(setting):
    key, _, value = setting.partition(":")
    message, enabled = refusal(ENABLE, "ValueError: ", PYTORCH_CUDA_ALLOC_CONF=setting)
    assert all(part in message for part in ("PYTORCH_CUDA_ALLOC_CONF", key, value if key != "no_such_key" else key))
    assert not enabled


@pytest.mark.parametrize(
    "failure",
    [
        "config = 'max_split_size_mb:1'",
        "environment['CACHALOT_CONF'] = 'no_such_key:1'",
        "environment['PYTORCH_CUDA_ALLOC_CONF'] += ',max_split_size_mb:1'",
    ],
)
def test_a_call_that_fails_changes_nothing(failure):
    process = run_python(
        f"""
        import os
        environment, config = os.environ, "max_split_size_mb:64"
        {failure}
        before = dict(environment)
        try:
            cachalot.enable(config, mode={MODE!r})
        except ValueError:
            assert dict(environment) == before
        else:
            raise AssertionError("it did not fail")
        environment.pop("CACHALOT_CONF", None)
        environment["PYTORCH_CUDA_ALLOC_CONF"] = "garbage_collection_threshold:0.5"
        {ENABLE}
        kept = torch.empty(1, device="cuda")
        settings = torch.cuda.memory._snapshot()["allocator_settings"]
        print(settings["max_split_size"], settings["garbage_collection_threshold"])
        """,
        preamble=IMPORT,
        PYTORCH_CUDA_ALLOC_CONF="graph_capture_record_stream_reuse:True,garbage_collection_threshold:0.5",
    )
    assert succeeds(process).split() == ["-1", "0.5"]


@full_only
def test_without_an_adapter_nothing_has_changed(tmp_path):
    environment = {"CACHALOT_CACHE_DIR": tmp_path, "CXX": "no-such-compiler"}
    settings = "graph_capture_record_stream_reuse:True"
    code = ENABLE.replace("enable(", "enable('max_split_size_mb:64', ") + "\n"
    code = f"try:\n    {code}\nexcept cachalot.EnableError:\n    pass\nimport os; print(os.environ[{NAME!r}])\n"
    code += "torch.cuda.init(); print(cachalot.is_enabled(), torch.cuda.memory.get_allocator_backend())"
    process = run_python(code, preamble=IMPORT, **environment, **{NAME: settings})
    assert succeeds(process).split() == [settings, "False", "native"]


@full_only
def test_a_bad_CACHALOT_CONF_is_a_value_error_that_names_it():
    message, enabled = refusal(ENABLE, "ValueError: ", CACHALOT_CONF="max_split_size_mb:1")
    assert "CACHALOT_CONF" in message and "max_split_size_mb" in message
    assert not enabled


def test_the_async_backend_is_refused():
    message, enabled = refusal(ENABLE, "EnableError: ", PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")
    assert "backend:cudaMallocAsync" in message
    assert not enabled


@full_only
def test_another_allocator_is_refused():
    message, enabled = refusal(
        "path = str(cachalot.library_path())\n"
        "mine = torch.cuda.memory.CUDAPluggableAllocator(path, 'cachalot_malloc', 'cachalot_free')\n"
        f"torch.cuda.memory.change_current_allocator(mine)\n{ENABLE}",
        "EnableError: PyTorch's allocator has been changed already",
    )
    assert not enabled


@full_only
def test_a_torch_without_cuda_is_refused():
    message, enabled = refusal(f"torch.version.cuda = None\n{ENABLE}", "EnableError: this PyTorch")
    assert "without CUDA" in message
    assert not enabled


@full_only
def test_no_torch_is_refused():
    process = run_python(
        """
        import sys
        sys.modules["torch"] = None
        import cachalot
        try:
            cachalot.enable()
        except cachalot.EnableError as error:
            print(error)
        """,
        preamble="",
    )
    assert succeeds(process).startswith("PyTorch cannot be imported: ")


@pytest.fixture
def package(tmp_path):
    """A copy of the package, to be damaged; put on PYTHONPATH by its user."""
    import cachalot

    shutil.copytree(Path(cachalot.__file__).parent, tmp_path / "cachalot")
    return tmp_path / "cachalot"


@full_only
@pytest.mark.parametrize(
    "damage, expected",
    [
        (lambda library: library.unlink(), "is missing"),
        (lambda library: library.write_text("not a library"), "cannot be loaded"),
        (lambda library: shutil.copy(_some_library(), library), "is not this package's library"),
    ],
    ids=["missing", "no library", "foreign"],
)
def test_a_bad_library_file_is_refused(package, damage, expected):
    library = package / "native" / "libcachalot_torch.so"
    damage(library)
    message, enabled = refusal(ENABLE, f"EnableError: {library}", PYTHONPATH=package.parent)
    assert expected in message
    assert not enabled


@full_only
@pytest.mark.parametrize(
    "error, cure",
    [
        ("libfoo.so.3: cannot open shared object file: No such file or directory", "needs the library libfoo.so.3, which"),
        ("/lib/libc.so.6: version `GLIBC_2.28' not found (required by x)", "GLIBC_2.28 is older than it needs"),
        ("x.so: invalid ELF header", "pip install --force-reinstall WHEEL"),
        ("x.so: something else", ""),
    ],
)
def test_a_library_that_cannot_be_loaded_names_cause_and_cure(error, cure):
    from cachalot._bindings import plug

    assert cure in plug._cure(error)
    assert bool(plug._cure(error)) == bool(cure)


def _some_library():
    import _ctypes

    return _ctypes.__file__


# ---- the adapter ----

FALLS_BACK = """
try:
    cachalot.enable()
except cachalot.EnableError as error:
    assert "mode='auto-plug'" in str(error) and "Install a C++ compiler" in str(error), error
    assert "\\n" not in str(error)
else:
    raise AssertionError("auto asks for the whole allocator")
assert not cachalot.is_enabled()
cachalot.enable(mode="auto-plug")
cachalot.enable(mode="auto-plug")
assert cachalot.enabled_mode() == "plug"
kept = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
assert torch.cuda.memory_allocated() == 3 << 20
"""


def falls_back(before="", **environment):
    """Runs FALLS_BACK; returns the one line that is logged."""
    process = run_python(before + FALLS_BACK, preamble=IMPORT, **environment)
    succeeds(process)
    (line,) = process.stderr.splitlines()
    assert line.startswith("cachalot: serves PyTorch in mode 'plug', because ")
    return line


@full_only
def test_without_an_adapter_source_auto_plug_falls_back_and_says_so(package):
    for source in (package / "native" / "adapter").glob("torch_*.cpp"):
        source.rename(source.with_name("torch_1_0.cpp"))
    warning = falls_back(PYTHONPATH=package.parent)
    assert "there is no adapter for PyTorch" in warning and "MemPool" in warning and "OutOfMemoryError" in warning
    message, _ = refusal(ENABLE, "EnableError: there is no adapter for PyTorch", PYTHONPATH=package.parent)


@full_only
def test_without_a_compiler_auto_plug_falls_back_and_says_so(tmp_path):
    assert "no-such-compiler" in falls_back(CACHALOT_CACHE_DIR=tmp_path, CXX="no-such-compiler")


@full_only
def test_without_a_home_folder_auto_plug_falls_back_and_says_so(package):
    environment = {"CACHALOT_CACHE_DIR": "", "PYTHONPATH": package.parent, "HOME": ""}
    code = "import pathlib\ndef homeless(): raise RuntimeError('Could not determine home directory.')\n"
    code += "pathlib.Path.home = homeless\n"
    assert "CACHALOT_CACHE_DIR is not set" in falls_back(code, **environment)


@full_only
def test_a_compile_error_is_told_in_one_line(package, tmp_path):
    (source,) = (package / "native" / "adapter").glob(f"torch_{MAJOR}_{MINOR}.cpp")
    source.write_text("#error this adapter is broken\n")
    environment = {"CACHALOT_CACHE_DIR": tmp_path / "cache", "PYTHONPATH": package.parent}
    message, enabled = refusal(ENABLE, "EnableError: ", **environment)
    assert "this adapter is broken" in message
    assert not enabled
    assert not any((tmp_path / "cache").iterdir())


@full_only
@pytest.mark.parametrize("addition", ["", "a0+nv25.11", ".dev20260101+cu130", "rc1"])
def test_the_adapter_serves_builds_that_add_to_pytorchs_version(monkeypatch, addition):
    import torch
    from cachalot._bindings import adapter as _adapter

    name = _adapter._file_name(_adapter._source())  # depends on the version; the loaded one is of this version
    monkeypatch.setattr(_adapter, "_file_name", lambda source: name)
    monkeypatch.setattr(torch, "__version__", torch.__version__.partition("+")[0] + addition)
    _adapter.load()


@full_only
@pytest.mark.parametrize("writable", ["folder", "file"])
def test_an_adapter_that_others_may_write_is_not_loaded(tmp_path, monkeypatch, writable):
    from cachalot._bindings import adapter as _adapter

    monkeypatch.setattr(_adapter, "PREBUILT", tmp_path / "none")
    monkeypatch.setattr(_adapter, "Adapter", lambda path: path)
    monkeypatch.setenv("CACHALOT_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir(mode=0o700)
    cached = tmp_path / "cache" / _adapter._file_name(_adapter._source())
    cached.touch(mode=0o644)
    assert _adapter.load() == cached
    path = cached if writable == "file" else cached.parent
    path.chmod(path.stat().st_mode | 0o020)
    with pytest.raises(_adapter.AdapterError, match=f"chmod go-w {path}"):
        _adapter.load()


def test_a_link_beside_a_report_is_not_written_through(tmp_path):
    from cachalot._base.whole_file import write_whole

    victim = tmp_path / "victim"
    victim.write_text("kept")
    (tmp_path / f"report.{os.getpid()}").symlink_to(victim)
    write_whole(tmp_path / "report", b"whole")
    assert victim.read_text() == "kept"
    assert (tmp_path / "report").read_bytes() == b"whole" and not (tmp_path / "report").is_symlink()


@pytest.fixture(scope="session")
def compiled_adapter(tmp_path_factory):
    from cachalot._bindings import adapter as _adapter

    return _adapter.prebuild(tmp_path_factory.mktemp("prebuilt"))


@pytest.fixture
def prebuilt(compiled_adapter, tmp_path, monkeypatch):
    """The adapter for this PyTorch, ready, as a wheel has it; a copy that may be changed."""
    from cachalot._bindings import adapter as _adapter

    folder = tmp_path / "prebuilt"
    shutil.copytree(compiled_adapter.parent, folder)
    adapter = folder / compiled_adapter.name
    monkeypatch.setattr(_adapter, "PREBUILT", folder)
    monkeypatch.setattr(_adapter, "_compile", None)  # no compiler, so to say
    monkeypatch.setenv("CACHALOT_CACHE_DIR", str(tmp_path / "cache"))
    return adapter


@full_only
def test_a_ready_adapter_serves_every_build_with_the_headers_that_it_was_made_for(prebuilt, monkeypatch):
    import torch
    from cachalot._bindings import adapter as _adapter

    fit = _adapter.Fit.read(prebuilt)
    assert len(fit.headers) > 50 and not any(name.endswith("version.h") for name in fit.headers)
    _adapter.load()
    monkeypatch.setattr(torch, "__version__", f"{MAJOR}.{MINOR}.7+cu126")  # another patch, another CUDA
    _adapter.load()
    fit._replace(headers=[*fit.headers, "c10/no_such_header.h"]).write(prebuilt)
    monkeypatch.setattr(torch, "__version__", f"{fit.versions[0]}+cu126")  # without headers the version must do
    _adapter.load()


@full_only
@pytest.mark.parametrize(
    "change, reason",
    [
        (lambda fit: fit._replace(digests=["0"]), "the headers of this PyTorch .* are not those of the ready adapter"),
        (lambda fit: fit._replace(headers=["none.h"], versions=[f"{MAJOR}.{MINOR}.99"]), "has no headers to compare, and is not"),
    ],
)
def test_a_ready_adapter_for_other_headers_is_not_loaded(prebuilt, monkeypatch, change, reason):
    from cachalot._bindings import adapter as _adapter

    def refuse(*arguments):
        raise _adapter.AdapterError("there is no compiler")

    monkeypatch.setattr(_adapter, "_compile", refuse)
    change(_adapter.Fit.read(prebuilt)).write(prebuilt)
    with pytest.raises(_adapter.AdapterError, match=reason + ".*, and none could be compiled: there is no compiler"):
        _adapter.load()
    prebuilt.with_suffix(".json").write_text("{}")
    with pytest.raises(_adapter.AdapterError, match="does not say what"):
        _adapter.load()


@full_only
def test_a_version_of_pytorch_that_says_nothing_has_no_adapter(monkeypatch):
    import torch
    from cachalot._bindings import adapter as _adapter

    monkeypatch.setattr(torch, "__version__", "git-6d828b9")
    with pytest.raises(_adapter.AdapterError, match="version, 'git-6d828b9', does not begin with major.minor.patch"):
        _adapter.load()


@full_only
def test_headers_of_cuda_that_lack_a_part_are_not_taken(monkeypatch, tmp_path):
    import torch
    from cachalot._bindings import adapter as _adapter

    headers = tmp_path / "nvidia" / "cu13" / "include"
    (headers / "crt").mkdir(parents=True)
    (headers / "cuda_runtime_api.h").write_text("#define CUDART_VERSION  13000\n")
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "torch" / "__init__.py"))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(_adapter, "_toolkits", lambda: [])
    with pytest.raises(_adapter.AdapterError, match=r"crt/host_config\.h .*: install nvidia-cuda-crt with pip, or"):
        _adapter.cuda_headers()
    triton = tmp_path / "triton" / "backends" / "nvidia" / "include"
    (triton / "crt").mkdir(parents=True)
    (triton / "cuda_runtime_api.h").write_text("#define CUDART_VERSION  13000\n")
    (triton / "crt" / "host_config.h").touch()
    assert _adapter.cuda_headers() == triton
    (headers / "crt" / "host_config.h").touch()
    assert _adapter.cuda_headers() == headers


@full_only
def test_a_pytorch_that_is_too_old_is_told_the_oldest(monkeypatch):
    import torch
    from cachalot._bindings import adapter as _adapter

    monkeypatch.setattr(torch, "__version__", "2.9.1+cu128")
    with pytest.raises(_adapter.AdapterError, match=r"no adapter for PyTorch 2\.9 .*; PyTorch 2\.10 is the oldest$"):
        _adapter.load()


@full_only
def test_processes_that_start_together_leave_one_adapter_and_later_ones_compile_none(compiled_adapter, tmp_path):
    compiler, cache, calls = tmp_path / "compiler", tmp_path / "cache", tmp_path / "calls"
    compiler.write_text(  # it stands in for one that takes 20 seconds, in which the other process comes
        f"""#!/bin/sh
        echo call >>{calls}
        until [ "$1" = -o ]; do shift; done
        until [ "$(wc -l <{calls})" = 2 ]; do sleep 0.1; done
        cp {compiled_adapter} "$2"
        """
    )
    compiler.chmod(0o755)
    variables = {"CACHALOT_CACHE_DIR": str(cache), "CXX": str(compiler)}
    code = IMPORT + ENABLE + "\ntorch.empty(1, device='cuda')"
    with open(os.devnull, "r+") as nothing:
        programs = [world.start_quickly(code, stdin=nothing, stdout=nothing, **variables) for _ in range(2)]
        ends = [program.wait(120) for program in programs]
    assert [end.returncode for end in ends] == [0, 0], ends
    assert calls.read_text() == 2 * "call\n"
    (adapter,) = cache.iterdir()
    assert adapter.suffix == ".so"
    before = adapter.stat().st_mtime_ns
    succeeds(run_python("", CACHALOT_CACHE_DIR=cache, CXX="no-such-compiler"))
    assert adapter.stat().st_mtime_ns == before


# ---- settings ----


def test_pytorchs_settings_are_taken_over_and_CACHALOT_CONF_is_on_top():
    process = run_python(
        """
        kept = torch.empty(1, device="cuda")
        settings = torch.cuda.memory._snapshot()["allocator_settings"]
        print(settings["max_split_size"] >> 20, settings["garbage_collection_threshold"])
        print(settings["roundup_power2_divisions"]["1"])
        """,
        PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:100,garbage_collection_threshold:0.5,",
        CACHALOT_CONF="garbage_collection_threshold:0.75,roundup_power2_divisions:4",
    )
    assert succeeds(process).split() == ["100", "0.75", "4"]


def test_keys_of_newer_versions_are_ignored_aloud():
    process = run_python(
        f"""
        {ENABLE}
        kept = torch.empty(1, device="cuda")
        assert torch.cuda.memory._snapshot()["allocator_settings"]["max_split_size"] == 100 << 20
        """,
        preamble=IMPORT,
        PYTORCH_CUDA_ALLOC_CONF="throw_on_cudamalloc_oom:True,max_split_size_mb:100,expandable_segments_reserve_by_class:[1:2,>:3]",
    )
    succeeds(process)
    lines = process.stderr.strip().splitlines()
    if VERSION < "2.12":
        assert "throw_on_cudamalloc_oom" in lines[0] and "ignored" in lines.pop(0)
    (line,) = lines
    assert "expandable_segments_reserve_by_class" in line


def test_keys_that_cachalot_does_not_serve_are_ignored_aloud():
    process = run_python(
        """
        kept = torch.empty(1, device="cuda")
        print(torch.cuda.memory._snapshot()["allocator_settings"]["max_split_size"] >> 20)
        """,
        PYTORCH_CUDA_ALLOC_CONF="graph_capture_record_stream_reuse:True,max_split_size_mb:100",
    )
    assert succeeds(process).strip() == "100"
    assert "'graph_capture_record_stream_reuse:True' is ignored: cachalot" in process.stderr


def test_an_option_of_cachalot_without_effect_is_told_once():
    process = run_python(
        "kept = torch.empty(1, device='cuda')",
        CACHALOT_CONF="pinned_num_register_threads:4",
        PYTORCH_CUDA_ALLOC_CONF="pinned_use_background_threads:True",  # PyTorch's pinned memory heeds it
    )
    succeeds(process)
    assert process.stderr.count("cachalot: option pinned_num_register_threads has no effect: ") == 1
    assert "pinned_use_background_threads" not in process.stderr


def test_a_key_that_says_what_cachalot_does_anyhow_is_no_warning():
    process = run_python("", PYTORCH_CUDA_ALLOC_CONF="graph_capture_record_stream_reuse:False")
    succeeds(process)
    assert "ignored" not in process.stderr


@pytest.mark.parametrize(
    "settings", ["backend:native", " backend : native ", "expandable_segments:False,backend:native"]
)
def test_backend_native_harms_nothing(settings):
    process = run_python(
        f"""
        kept = torch.empty(1, device="cuda")
        pinned = torch.empty(1000, pin_memory=True)
        torch._C._accelerator_setAllocatorSettings({settings!r} + ",max_split_size_mb:40,")
        print(torch.cuda.memory._snapshot()["allocator_settings"]["max_split_size"] >> 20)
        """,
        PYTORCH_CUDA_ALLOC_CONF=settings,
    )
    assert succeeds(process).strip() == "40"


def test_settings_that_a_program_changes_replace_the_former():
    process = run_python(
        """
        def changed(text):
            torch._C._accelerator_setAllocatorSettings(text)
            settings = torch.cuda.memory._snapshot()["allocator_settings"]
            return settings["max_split_size"] == 40 << 20, settings["garbage_collection_threshold"]

        kept = torch.empty(1, device="cuda")
        assert changed("max_split_size_mb:40,") == (True, 0.0)
        assert changed("garbage_collection_threshold:0.5") == (False, 0.5)
        try:
            changed("garbage_collection_threshold:2")
        except ValueError:
            pass
        assert changed("max_split_size_mb:40") == (True, 0.0)
        """
    )
    succeeds(process)


@pytest.mark.skipif(MODE != "plug", reason="versions before 2.10 have no full allocator")
def test_the_plug_serves_versions_that_know_fewer_functions():
    process = run_python(
        f"""
        torch_sets = torch._C._accelerator_setAllocatorSettings
        torch._C._cuda_cudaCachingAllocator_set_allocator_settings = torch_sets
        for name in [name for name in dir(torch._C) if name.startswith("_accelerator_")]:
            delattr(torch._C, name)
        {ENABLE}
        kept = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
        assert torch.cuda.memory_allocated() == 3 << 20
        torch._C._cuda_cudaCachingAllocator_set_allocator_settings("backend:native,max_split_size_mb:40,")
        print(torch.cuda.memory._snapshot()["allocator_settings"]["max_split_size"] >> 20)
        """,
        preamble=IMPORT,
        PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:64",
    )
    assert succeeds(process).strip() == "40"
    succeeds(
        run_python(
            f"del torch._C._accelerator_setAllocatorSettings\n{ENABLE}\nkept = torch.empty(1, device='cuda')",
            preamble=IMPORT,
        )
    )


HELD = """
kept = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
print(torch.cuda.memory_reserved() >> 20, torch.cuda.memory_snapshot()[0]["is_expandable"])
"""


@pytest.mark.parametrize(
    "environment, held",
    [
        ({NAME: "expandable_segments:True"}, "4 True"),
        ({"CACHALOT_CONF": "heap:pages"}, "4 True"),
        ({NAME: "expandable_segments:False"}, "20 False"),
        ({NAME: "expandable_segments:True", "CACHALOT_CONF": "expandable_segments:False"}, "20 False"),
    ],
)
def test_the_page_heap_is_chosen_by_the_environment(environment, held):
    process = run_python(HELD, **environment)
    assert succeeds(process).strip() == held
    assert process.stderr == ""


def test_the_page_heap_is_chosen_by_the_argument():
    process = run_python(ENABLE.replace("(", "('heap:pages', ") + HELD, preamble=IMPORT)
    assert succeeds(process).strip() == "4 True"


def test_a_program_may_choose_the_page_heap_before_it_uses_memory():
    process = run_python("torch._C._accelerator_setAllocatorSettings('expandable_segments:True')\n" + HELD)
    assert succeeds(process).strip() == "4 True"
    assert process.stderr == ""


def test_the_heap_of_segments_stays_when_a_program_switches_expandable_segments_on():
    """The other settings are applied; a program that goes to and fro is told once, and not for naming what is so."""
    process = run_python(
        HELD
        + """
def held_after(settings):
    torch._C._accelerator_setAllocatorSettings(settings)
    more = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
    snapshot = torch.cuda.memory._snapshot()
    assert not any(segment["is_expandable"] for segment in snapshot["segments"])
    return snapshot["allocator_settings"]["max_split_size"] >> 20

assert held_after("max_split_size_mb:30,expandable_segments:False") == 30
sys.stderr.write("now\\n")
for _ in range(2):
    assert held_after("expandable_segments:True,max_split_size_mb:40") == 40
    assert held_after("max_split_size_mb:50,expandable_segments:False") == 50
""",
        preamble="import sys\n" + world.PREAMBLE,
        PYTORCH_CUDA_ALLOC_CONF="expandable_segments:False",
    )
    succeeds(process)
    before, after = process.stderr.split("now\n")
    assert before == ""
    assert after.count("\n") == 1 and "'expandable_segments:True' is ignored: the heap is" in after


@pytest.mark.parametrize(
    "chosen", [{"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, {"CACHALOT_CONF": "heap:pages"}], ids=["torch", "cachalot"]
)
def test_new_memory_is_of_the_kind_that_a_program_switches_to(chosen):
    """Memory from before stays, as with PyTorch's own allocator; each answer of PyTorch is that of new memory."""
    succeeds(
        run_python(
            HELD
            + """
import ctypes

runtime = ctypes.CDLL(None)

def kind_of(tensor):
    snapshot = torch.cuda.memory._snapshot()
    at = tensor.data_ptr()
    (segment,) = [s for s in snapshot["segments"] if s["address"] <= at < s["address"] + s["total_size"]]
    assert snapshot["allocator_settings"]["expandable_segments"] == segment["is_expandable"]
    assert segment["is_expandable"] == (runtime.cudaIpcGetMemHandle(ctypes.create_string_buffer(64), ctypes.c_void_p(at)) != 0)
    return segment["is_expandable"]

def new():
    return torch.empty(50 << 20, dtype=torch.uint8, device="cuda")

pages = new()
assert kind_of(pages)
for _ in range(3):
    torch._C._accelerator_setAllocatorSettings("expandable_segments:False")
    plain = new()
    assert not kind_of(plain)
    torch._C._accelerator_setAllocatorSettings("max_split_size_mb:400")
    assert not kind_of(new())
    torch.cuda.empty_cache()
    torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    assert kind_of(new())
assert torch.cuda.memory_stats()["segment.all.current"] == 1
""",
            **chosen,
        )
    )


@full_only
@pytest.mark.parametrize(
    "config, said",
    [("heap:pages", "expandable_segments:False"), ("heap:pages,expandable_segments:False", "max_split_size_mb:40")],
    ids=["by a switch before it", "by the options"],
)
def test_new_memory_may_be_plain_from_the_first_on(config, said):
    """It stays so when other settings change, until the next switch."""
    process = run_python(
        f"""
        cachalot.enable({config!r})
        kept = []
        for said in ({said!r}, "max_split_size_mb:30", "expandable_segments:True"):
            torch._C._accelerator_setAllocatorSettings(said)
            kept.append(torch.empty(50 << 20, dtype=torch.uint8, device="cuda"))
        kinds = {{segment["address"]: segment["is_expandable"] for segment in torch.cuda.memory_snapshot()}}
        print([kinds[tensor.data_ptr()] for tensor in kept])
        """,
        preamble=IMPORT,
    )
    assert succeeds(process).strip() == "[False, False, True]"


@pytest.mark.parametrize(
    "given, said",
    [
        ({"CACHALOT_CONF": "heap:pages"}, "expandable_segments:True"),
        ({"CACHALOT_CONF": "heap:segments", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, "expandable_segments:False"),
        (
            {"CACHALOT_CONF": "heap:pages", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False, max_split_size_mb:40"},
            "max_split_size_mb:40,expandable_segments:True",
        ),
        ({"CACHALOT_CONF": "heap:segments", "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb: 40"}, "max_split_size_mb: 40"),
    ],
    ids=["pages", "segments override", "pages override", "segments"],
)
def test_the_environment_says_whether_the_heap_is_pages(given, said):
    program = "import os\nprint(os.environ.get('PYTORCH_CUDA_ALLOC_CONF', ''))\n"
    assert run_python(program, **given).stdout.splitlines()[-1] == said


def test_expandable_segments_stay_on_when_other_settings_change():
    process = run_python(
        HELD + "torch._C._accelerator_setAllocatorSettings('max_split_size_mb:40')\n",
        PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True",
    )
    succeeds(process)
    assert process.stderr == ""


@pytest.mark.parametrize("value, reserved", [("1", 0), ("0", 20 << 20)])
def test_caching_can_be_switched_off_by_the_environment(value, reserved):
    process = run_python(
        """
        kept = torch.ones(3 << 20, dtype=torch.uint8, device="cuda")
        print(torch.cuda.memory_reserved())
        del kept
        """,
        PYTORCH_NO_CUDA_MEMORY_CACHING=value,
    )
    assert int(succeeds(process)) == reserved


# ---- figures ----


def test_stats_and_fragmentation_say_what_torch_says():
    import cachalot
    import torch

    small, large = world.bytes_on_gpu(1000), world.bytes_on_gpu(5 << 20)
    assert cachalot.is_enabled() and cachalot.enabled_mode() == MODE
    assert cachalot.stats() == cachalot.stats(0) == cachalot.stats("cuda:0")
    assert cachalot.stats() == {name: value for name, value in torch.cuda.memory_stats().items() if name != "num_oom_rejections"}
    assert cachalot.stats("cuda:1")["allocation.all.current"] == 0
    figures = cachalot.fragmentation()
    assert figures.requested_bytes == 1000 + (5 << 20)
    assert figures.allocated_bytes == torch.cuda.memory_allocated()
    assert figures.reserved_bytes == torch.cuda.memory_reserved() == 22 << 20
    assert figures.free_bytes == figures.reserved_bytes - figures.allocated_bytes
    assert (figures.free_blocks, sum(figures.free_block_histogram), figures.largest_free_bytes) == (2, 2, 15 << 20)
    assert figures.internal == pytest.approx(1 - figures.requested_bytes / figures.allocated_bytes)
    assert figures.external == pytest.approx(1 - figures.largest_free_bytes / figures.free_bytes)
    assert figures.reserved_ratio == pytest.approx(figures.reserved_bytes / figures.allocated_bytes)
    with pytest.raises(AttributeError):
        figures.free_blocks = 0
    with pytest.raises((RuntimeError, ValueError), match=str(torch.cuda.device_count())):
        cachalot.stats(torch.cuda.device_count())
    for ask in (cachalot.stats, cachalot.fragmentation):
        with pytest.raises(ValueError, match="cuda device.*cpu"):
            ask("cpu")


def test_before_cuda_is_in_use_there_is_nothing_to_tell():
    process = run_python(
        f"""
        try:
            cachalot.stats()
        except cachalot.EnableError as error:
            print(error)
        {ENABLE}
        assert cachalot.stats() == {{}} and cachalot.fragmentation() == cachalot.Fragmentation()
        assert not torch.cuda.is_initialized()
        """,
        preamble=IMPORT,
    )
    assert "call cachalot.enable() first" in succeeds(process)
