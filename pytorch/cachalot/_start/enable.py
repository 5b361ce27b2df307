"""cachalot.enable(): how cachalot becomes PyTorch's allocator, and what keeps it from that."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from collections.abc import Callable, Generator
from typing import Literal

from .._base import environment
from .._base.errors import EnableError
from .._base.log import logger
from .._bindings import adapter as _adapter
from .._bindings.plug import Plug, process_plug
from .._heap import options as _options
from .._heap.enabled import Enabled, enabled, set_enabled
from .._leaks import leaks
from .._programs import exit_report as _exit_report
from .._report import out_of_memory, rank_files as _rank_files
from .._tensors import pinned as _pinned
from . import captures, config as _config, fallback, free_memory, shared_copies

Mode = Literal["auto", "full", "plug", "auto-plug"]
_MODES = ("auto", "full", "plug", "auto-plug")


_lock = threading.Lock()


def enable(
    config: str | None = None,
    *,
    late: bool = False,
    mode: Mode = "auto",
    on_oom: str | None = None,
    pinned: bool = False,
    pinned_limit: _pinned.Limit | None = None,
    tell_environment: bool = True,
    gc_on_oom: bool = True,
    share: shared_copies.Share | None = None,
) -> None:
    """Makes cachalot the allocator of this process's PyTorch.

    Call it before the first CUDA tensor. A second call with the same arguments does nothing; with others it is refused.
    CACHALOT_STATS=1 prints a table of statistics when the process ends, CACHALOT_LEAK_REPORT=1 a report of leaks, and with
    CACHALOT_REPORT_DIR=FOLDER each rank leaves a report there, also when it dies.
    Only `pinned` and `pinned_limit` can be added by a later call.

    Args:
        config: options such as "max_split_size_mb:64,garbage_collection_threshold:0.8". They override CACHALOT_CONF, which
            overrides PYTORCH_CUDA_ALLOC_CONF. Only the keys in `config` change.
        late: take over although PyTorch's allocator holds memory. Existing tensors stay with it until they are freed. If it
            holds nothing, cachalot takes over without `late`.
        mode: "auto" and "full" require the whole allocator, with an adapter for the installed PyTorch. "plug" selects two
            functions and eight hooks that work with any PyTorch but support less. "auto-plug" selects the whole allocator, or
            "plug" if there is no adapter and none can be compiled.
        on_oom: what happens before an out-of-memory exception, such as "report,snapshot:/tmp/oom": the `actions` of
            on_out_of_memory(). It overrides CACHALOT_ON_OOM.
        pinned: True: pinned host memory (pin_memory(), DataLoader) is cachalot's, too. Existing pinned tensors stay with
            PyTorch's allocator until they are freed. It needs mode "full".
        pinned_limit: the most pinned memory, in bytes or as a text such as "4GiB"; beyond it torch.OutOfMemoryError is
            raised. None: the option pinned_limit_mb, else no limit.
        tell_environment: True: PYTORCH_CUDA_ALLOC_CONF says expandable_segments:True from then on if the heap is pages, and False
            where it said True and the heap is not. vLLM and SGLang look there for memory that cudaIpcGetMemHandle refuses; child
            processes inherit it.
        gc_on_oom: True: before an out-of-memory exception Python's garbage is collected, and memory searched once more: tensors in
            reference cycles live until a collection.
        share: how tensors are shared with other processes. "handles": by the handles of their pages, which the receiver opens with
            cachalot. "copy": tensor.untyped_storage()._share_cuda_(), and so torch.multiprocessing, first copies a storage to memory
            of cudaMalloc (plain()), unless it lies there, and frees the memory before: any receiver can open it. All tensors of
            the storage move with it; addresses that were taken before, also by a captured graph, are invalid afterwards. The sender
            cannot tell what its receiver has: "copy" copies for each. It needs mode "full". None: as before, at first "handles".

    Raises:
        ValueError: `config`, `on_oom`, CACHALOT_CONF, CACHALOT_DEBUG, CACHALOT_LEAK_REPORT, CACHALOT_ON_OOM,
            CACHALOT_REPORT_DIR, CACHALOT_REPORT_SECONDS, CACHALOT_STATS, `mode`, `pinned_limit` or `share` is invalid; the
            message names key, value and rule.
        EnableError: cachalot cannot be enabled; the message says why and what to do. Nothing was changed.
    """
    if mode not in _MODES:
        raise ValueError(f"mode is {mode!r}; it must be one of {', '.join(map(repr, _MODES))}")
    _pinned.require_good(pinned, pinned_limit, mode)
    shared_copies.require_good(share, mode)
    with _lock:
        before = enabled()
        if before is not None:
            _require_no_change(before, config, mode, share)
            if pinned:
                _pinned.install(_load_adapter("full"), before.plug, pinned_limit)
            if on_oom is not None:
                out_of_memory.install(before.plug, out_of_memory.parse_settings(on_oom))
            return
        _require_torch_can()
        late = _is_late(late, mode)
        report_leaks = environment.switch("CACHALOT_LEAK_REPORT")
        wants_table = environment.switch("CACHALOT_STATS")
        rank_files = _rank_files.asked_by_environment()
        on_failure = out_of_memory.settings_of_environment() if on_oom is None else out_of_memory.parse_settings(on_oom)
        plug = process_plug()
        adapter = _load_adapter(mode)
        _pinned.require_adapter(pinned, adapter)
        shared_copies.require_adapter(share, adapter)
        with _all_or_nothing(plug):
            _config.clean_environment()
            _options.give(plug, config)
            now = Enabled(_install(plug, adapter, mode, late), _options.given(), plug, share or "handles")
            set_enabled(now)
        free_memory.tell_of_integrated_gpus(plug)
        plug.call("plug_collect_garbage", int(gc_on_oom))
        if tell_environment:
            _config.tell_of_heap(_takes_pages(plug))
        if pinned:
            _pinned.install(adapter, plug, pinned_limit)
        if adapter is not None and now.mode == "full":
            captures.give_back_after_failures(adapter)
            if now.share == "copy":
                shared_copies.copy_when_shared(adapter)
    logger().info("cachalot: serves PyTorch's GPU memory in mode '%s'%s", now.mode, f" ({config})" if config else "")
    if wants_table:
        _exit_report.tell_at_exit("table")
    if rank_files is not None:
        _rank_files.start(*rank_files)
    if report_leaks:
        leaks.watch_once_in_use()
    if on_failure is not None:
        out_of_memory.install(plug, on_failure)


def _takes_pages(plug: Plug) -> bool:
    answer = ctypes.c_int()
    plug.call("plug_takes_pages", answer)
    return answer.value != 0


def _require_no_change(enabled: Enabled, config: str | None, mode: Mode, share: shared_copies.Share | None) -> None:
    if config is not None and config != enabled.config:
        raise EnableError(
            f"cachalot is enabled already, with config {enabled.config!r}; it cannot be enabled again with {config!r}"
        )
    if mode not in ("auto", "auto-plug", enabled.mode):
        raise EnableError(f"cachalot is enabled already, in mode {enabled.mode!r}; it cannot change to {mode!r}")
    if share not in (None, enabled.share):
        raise EnableError(f"cachalot is enabled already, with share {enabled.share!r}; it cannot change to {share!r}")


def _require_torch_can() -> None:
    try:
        import torch
    except ImportError as error:
        raise EnableError(f"PyTorch cannot be imported: {error}. Install it: pip install torch") from None
    if torch.version.cuda is None:
        raise EnableError(f"this PyTorch ({torch.__version__}) is built without CUDA: there is nothing to allocate for")
    backend = torch.cuda.memory.get_allocator_backend()
    if backend == "cudaMallocAsync":
        raise EnableError("PYTORCH_CUDA_ALLOC_CONF asks for backend:cudaMallocAsync; remove it to use cachalot")
    if backend != "native":
        raise EnableError(
            f"PyTorch's allocator has been changed already (it is '{backend}'), and PyTorch allows one change"
        )


def _is_late(asked: bool, mode: Mode) -> bool:
    """Returns whether cachalot takes over while CUDA is in use; raises EnableError when it would have to without being asked
    to."""
    import torch

    if not _is_allocator_initialized():
        return False
    if mode == "plug":
        raise EnableError(
            "CUDA is in use already, and mode 'plug' must come before: PyTorch takes a function-pointer plug only until "
            "the first CUDA tensor, stream or device query. Call cachalot.enable(mode='plug') right after 'import torch'"
        )
    if asked:
        return True
    # memory_reserved says 0 until Python has initialized CUDA, and a C++ library or a recorded history may come before.
    held = sum(
        torch._C._cuda_memoryStats(device)["reserved_bytes"]["all"]["current"]
        for device in range(torch.cuda.device_count())
    )
    if held == 0:
        _say_what_begins_anew()
        return True
    raise EnableError(
        f"CUDA is in use already: a CUDA tensor came first, and PyTorch's allocator holds {held} bytes. Call cachalot.enable() right after 'import torch', or enable(late=True) "
        "to take over from here on"
    )


def _is_allocator_initialized() -> bool:
    """Returns whether PyTorch has begun to use CUDA. Asking does not begin it."""
    import torch

    # New in PyTorch 2.9; mode "plug" serves older ones.
    is_initialized = getattr(torch._C, "_accelerator_isAllocatorInitialized", torch.cuda.is_initialized)
    return torch.cuda.is_initialized() or bool(is_initialized())


def _say_what_begins_anew() -> None:
    import torch

    if torch._C._cuda_isHistoryEnabled():
        logger().warning(
            "cachalot: memory history was being recorded by PyTorch's own allocator; call "
            "torch.cuda.memory._record_memory_history() again to record it from here on"
        )


def _load_adapter(mode: Mode) -> _adapter.Adapter | None:
    """The adapter for this PyTorch; None where there is none and the mode does without."""
    try:
        return _adapter.load()
    except _adapter.AdapterError as error:
        if mode in ("auto", "full"):
            raise EnableError(
                f"{error}. Install a C++ compiler (g++), or a PyTorch that this cachalot has an adapter for "
                f"({', '.join(_adapter.served_versions())}); or ask for less: enable(mode='auto-plug')"
            ) from None
        if mode == "auto-plug":
            logger().warning(
                "cachalot: serves PyTorch in mode 'plug', because %s. Not served: %s", error, fallback.MISSING
            )
        return None


@contextlib.contextmanager
def _all_or_nothing(plug: Plug) -> Generator[None, None, None]:
    """Restores the environment and cachalot's options after an error within."""
    variables = environment.given(_config.ENVIRONMENT)
    options = _options.given()
    try:
        yield
    except BaseException:
        environment.change(variables)
        with contextlib.suppress(ValueError):  # of a bad CACHALOT_CONF, with which there was nothing to undo
            _options.restore(plug, options)
        raise


def _install(plug: Plug, adapter: _adapter.Adapter | None, mode: Mode, late: bool) -> Literal["full", "plug"]:
    try:
        if adapter is not None and mode != "plug":
            adapter.install(late)
            _filter_settings()
            return "full"
        if late:
            raise EnableError(
                "CUDA is in use already, and there is no adapter for this PyTorch: the function-pointer plug must come "
                "before the first CUDA tensor, stream or device query. Call cachalot.enable() right after 'import torch'"
            )
        if adapter is not None:
            adapter.set_out_of_memory()
        fallback.install(plug)
        _filter_settings(plug)
        return "plug"
    except (ValueError, RuntimeError):
        if not late:  # PyTorch has long accepted its settings
            _config.give_environment(plug)
        raise


def _filter_settings(plug: Plug | None = None) -> None:
    """Settings that a program changes as it runs lose unknown ones as well; `plug`, if given, takes over what PyTorch accepted.

    The full allocator needs no `plug`: PyTorch tells it.
    """
    import torch

    for name in _config.SETTERS:
        if hasattr(torch._C, name):
            setattr(torch._C, name, _filtered(getattr(torch._C, name), plug))


def _filtered(torch_sets: Callable[[str], None], plug: Plug | None) -> Callable[[str], None]:
    @functools.wraps(torch_sets)
    def set_allocator_settings(text: str) -> None:
        text = _config.without_unknown(text)
        torch_sets(text if plug is None else _config.without_backend(text))
        if plug is not None:
            plug.settings(text)

    return set_allocator_settings
