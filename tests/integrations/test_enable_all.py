"""cachalot.enable_all(), and what each function says where it cannot serve."""

import pytest
from heap import run

import cachalot

FUNCTIONS = {
    "enable_cupy": ("cupy", "pip install cupy-cuda13x", "13.0"),
    "enable_numba": ("numba_cuda", "pip install 'numba-cuda[cu13]'", "0.20"),
    "enable_cuda_core": ("cuda.core", "pip install 'cuda-core[cu13]'", "1.2"),
    "enable_warp": ("warp", "pip install warp-lang", "1.13"),
}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_package_that_is_missing_is_one_line_with_what_to_install(function):
    module, cure, _ = FUNCTIONS[function]
    says = run(f"""
        import sys
        sys.modules[{module!r}] = None
        import cachalot
        try:
            cachalot.{function}()
        except cachalot.EnableError as error:
            print(error)
    """)
    assert says.startswith(f"{module} cannot be imported: ")
    assert says.endswith(f"Install it: {cure}\n") and says.count("\n") == 1


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_version_that_is_too_old_is_one_line_with_what_to_install(function):
    module, cure, oldest = FUNCTIONS[function]
    says = run(f"""
        import sys, types
        sys.modules[{module!r}] = types.ModuleType({module!r})
        sys.modules[{module!r}].__version__ = "0.1.2"
        import cachalot
        try:
            cachalot.{function}()
        except cachalot.EnableError as error:
            print(error)
    """)
    upgrade = cure.replace("install", "install -U")
    assert says == f"{module} 0.1.2 is too old: cachalot serves {oldest} and newer: {upgrade}\n"


@pytest.mark.parametrize("function", FUNCTIONS)
def test_bad_options_are_refused_with_key_and_rule(function):
    says = run(f"""
        import cachalot
        for config in ("foo:1", "max_split_size_mb:64", "max_split_size_mb:65"):
            try:
                cachalot.{function}(config=config)
            except (ValueError, cachalot.EnableError) as error:
                print(type(error).__name__, error)
    """)
    errors = [line for line in says.splitlines() if "Error " in line]  # among what Warp says of itself
    assert errors == [
        "ValueError Unrecognized key 'foo' in CUDA allocator config (value '1')",
        "EnableError cachalot is enabled already, with config 'max_split_size_mb:64', and all libraries share one heap: pass "
        "the same config or none, not 'max_split_size_mb:65'",
    ]


USE_ALL = """
    import cupy, numba.cuda, warp
    from cuda.core import Device
    Device(0).set_current()
    kept = (
        cupy.empty(1000, dtype=cupy.uint8),
        numba.cuda.device_array(1000, dtype="uint8"),
        Device(0).allocate(1000, stream=Device(0).create_stream()),
        warp.empty(1000, dtype=warp.uint8, device="cuda:0"),
    )
    print(*[(row.library, row.live_bytes) for row in cachalot.library_usage()])
"""
ALL_USED = "('cuda.core', 1024) ('cupy', 1024) ('numba', 1024) ('warp', 1024)\n"


def test_libraries_that_are_imported_later_are_enabled_at_their_import():
    program = """
    import cachalot, sys
    before = set(sys.modules)
    result = cachalot.enable_all()
    assert not {"torch", "cupy", "numba", "warp", "numpy"} & set(sys.modules)
    assert result.enabled == () and {"cupy", "numba", "cuda.core", "warp"} <= set(result.at_import)
    """
    assert run(program + USE_ALL).endswith(ALL_USED)


def test_libraries_that_are_imported_already_are_enabled_at_once():
    program = """
    import cupy, numba.cuda, warp, cuda.core
    warp.init()
    import cachalot
    result = cachalot.enable_all()
    assert {"cupy", "numba", "cuda.core", "warp"} <= set(result.enabled)
    """
    assert run(program + USE_ALL).endswith(ALL_USED)


def test_warp_is_not_initialized_before_the_program_wants_it():
    run("""
        import cachalot
        cachalot.enable_all()
        import warp
        from warp._src import context
        assert context.runtime is None
        warp.config.quiet = True
        warp.init()
        assert type(warp.get_device_allocator("cuda:0")).__name__ == "DeviceAllocator"
    """)


def test_what_is_left_out_says_why_and_what_to_do():
    says = run(
        """
        import sys
        sys.modules["cupy"] = None
        import numba.cuda, cachalot
        print(cachalot.enable_all())
        """,
        NUMBA_CUDA_MEMORY_MANAGER="rmm.allocators.numba",
    )
    lines = dict(line.split(": ", 1) for line in says.splitlines())
    assert lines["cupy"] == "is not installed"
    assert lines["numba"].startswith("NUMBA_CUDA_MEMORY_MANAGER=rmm.allocators.numba selects another manager; remove it")
    assert lines["warp"] == "installed; will be enabled when it is imported"


def test_a_library_that_refuses_at_its_import_keeps_its_allocator_with_a_warning():
    says = run(
        """
        import logging, sys
        logging.basicConfig(stream=sys.stdout, format="%(message)s")
        import cachalot
        cachalot.enable_all()
        import numba.cuda
        """,
        NUMBA_CUDA_MEMORY_MANAGER="rmm.allocators.numba",
    )
    assert says.startswith("cachalot: numba keeps its own allocator: NUMBA_CUDA_MEMORY_MANAGER=rmm.allocators.numba selects")


def test_a_second_call_enables_what_came_meanwhile():
    run("""
        import cachalot
        assert "cupy" in cachalot.enable_all().at_import
        import cupy
        assert "cupy" in cachalot.enable_all().enabled
    """)


def test_bad_options_leave_everything_as_it_was():
    with pytest.raises(ValueError, match="foo"):
        cachalot.enable_all("foo:1")
    import sys

    assert not any(type(finder).__name__ == "_AtImport" for finder in sys.meta_path)
