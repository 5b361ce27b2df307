"""torch_memory_saver's interface over regions: its tags are regions, and what it pauses sleeps.

In torch_memory_saver a region has a tag and says whether its content is kept; here each tag sleeps as a whole, so a region of another
way to keep has a tag of its own, such as "weights:pinned". Graphs that cuda_graph() captures sleep by their pool.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import weakref
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, Literal, Union

from .._base import environment
from .._bindings.plug import ALL_DEVICES
from .._heap.enabled import is_enabled, require_enabled
from .._heap.limits import set_limit
from .._heap.regions import pools, read_saved, region, regions, release_physical, restore_physical
from .pages import enable_pages

if TYPE_CHECKING:
    import torch

DEFAULT_TAG = "default"

_Keep = Literal["nothing", "pinned", "file"]
_Member = Union[str, tuple[int, int]]


@dataclasses.dataclass(frozen=True)
class _Group:
    """Memory of one tag whose content is kept in one way."""

    tag: str
    keep: _Keep

    @property
    def name(self) -> str:
        """Returns the tag of the regions."""
        return self.tag if self.keep == "nothing" else f"{self.tag}:{self.keep}"


class TorchMemorySaver:
    """A TorchMemorySaver is what `from torch_memory_saver import torch_memory_saver` gives: memory of a tag that can be paused and
    resumed at the same addresses.

    It enables cachalot with the page heap when it is first used, unless the program did. Different threads may be in regions, as
    torch_memory_saver allows; only one may pause or resume at a time.
    """

    def __init__(self) -> None:
        self._groups: dict[_Group, None] = {}  # in the order in which they came
        self._graphs: list[tuple[_Group, weakref.ref[Any]]] = []
        self._folder: str | None = None
        self._thread = _Thread()

    @contextlib.contextmanager
    def region(
        self,
        tag: str = DEFAULT_TAG,
        enable_cpu_backup: bool = False,
        enable_disk_backup: bool = False,
        cpu_backup_backend: str | None = None,
    ) -> Generator[None, None, None]:
        """Gives the tag what this thread allocates within the block.

        Args:
            tag: the name for pause and resume.
            enable_cpu_backup: a pause keeps the content in pinned host memory; otherwise it is lost.
            enable_disk_backup: a pause keeps the content in a file in the folder of set_disk_backup_dir.
            cpu_backup_backend: "pinned" or "mmap", which are the same here: the copy is freed when the tag resumes.

        Raises:
            ValueError: both backups are asked for, or the backend is neither of its values.
            EnableError: cachalot cannot be enabled.
        """
        group = _Group(tag, _keep_of(enable_cpu_backup, enable_disk_backup, cpu_backup_backend))
        enable_pages()
        with region(group.name), self._thread.inside(group.name):
            if not self._groups:
                restore_physical(group.name)  # it is awake: this refuses a heap that cannot sleep, before the first pause does
            self._groups[group] = None
            yield

    @contextlib.contextmanager
    def cuda_graph(
        self,
        cuda_graph: Any,
        pool: Any = None,
        stream: Any = None,
        capture_error_mode: str = "global",
        tag: str = DEFAULT_TAG,
        enable_cpu_backup: bool = False,
        cpu_backup_backend: str | None = None,
    ) -> Generator[None, None, None]:
        """Captures a graph, as torch.cuda.graph does, whose memory pauses with the tag.

        Other graphs of the same pool pause with it. Arguments and errors are those of torch.cuda.graph and of region().
        """
        import torch

        group = _Group(tag, _keep_of(enable_cpu_backup, False, cpu_backup_backend))
        enable_pages()
        with torch.cuda.graph(cuda_graph, pool=pool, stream=stream, capture_error_mode=capture_error_mode):
            yield
        self._graphs.append((group, weakref.ref(cuda_graph)))

    @contextlib.contextmanager
    def disable(self) -> Generator[None, None, None]:
        """Takes this thread out of its regions within the block."""
        with self._thread.outside():
            yield

    def pause(self, tag: str | None = None) -> None:
        """Gives the memory of the tag back to the device, or that of all tags. A tag that is paused, or unknown, stays as it is.

        Raises:
            torch.OutOfMemoryError: there is no room for content that is to be kept. Tags that were paused before it stay paused.
            ValueError: content is to be kept in a file, and set_disk_backup_dir has not been called.
            RuntimeError: as cachalot.release_physical.
        """
        members = sorted(self._members(tag), key=lambda member: member[0].keep == "nothing")  # first what can fail
        for group, member in members:
            if group.keep == "file":
                release_physical([member], save="file", folder=self._folder or environment.text("TMS_DISK_BACKUP_DIR") or None)
            else:
                release_physical([member], save=group.keep == "pinned")

    def resume(self, tag: str | None = None) -> None:
        """Gives the tag its memory again, with the kept content; or all tags.

        Raises:
            torch.OutOfMemoryError: the device has too little memory for a tag. It and those behind it stay paused.
            RuntimeError: as cachalot.restore_physical.
        """
        restore_physical([member for _, member in self._members(tag)])

    def set_disk_backup_dir(self, path: str) -> None:
        """Sets the folder for content that is kept in files, in place of TMS_DISK_BACKUP_DIR, and makes it."""
        os.makedirs(path, exist_ok=True)
        self._folder = path

    @property
    def enabled(self) -> bool:
        """Returns True, as torch_memory_saver does."""
        return True

    @property
    def hook_mode(self) -> str:
        """Returns "cachalot". Setting it has no effect: there is one way to take memory, and it needs no LD_PRELOAD."""
        return "cachalot"

    @hook_mode.setter
    def hook_mode(self, mode: str) -> None:
        if mode not in ("preload", "torch", "cachalot"):
            raise ValueError(f"hook_mode is {mode!r}; it must be 'preload', 'torch' or 'cachalot'")

    @property
    def memory_margin_bytes(self) -> int:
        """Is what cachalot leaves of the current device: setting it is set_limit("free-…")."""
        raise NotImplementedError("memory_margin_bytes can be set alone; cachalot.limits() tells the limit")

    @memory_margin_bytes.setter
    def memory_margin_bytes(self, margin: int) -> None:
        enable_pages()
        set_limit(f"free-{margin}")

    @property
    def retain_cpu_backup(self) -> bool:
        """Returns False: the copy is freed when the memory resumes. Setting it to True raises NotImplementedError."""
        return False

    @retain_cpu_backup.setter
    def retain_cpu_backup(self, retain: bool) -> None:
        if retain:
            raise NotImplementedError("retain_cpu_backup is True; cachalot frees the copy when the memory resumes")

    def get_cpu_backup(self, x: torch.Tensor, zero_copy: bool = False) -> torch.Tensor | None:
        """Returns a copy of the content that a paused tensor keeps, on the host; None if it is not paused, or its content is not kept.

        Args:
            x: a contiguous tensor on a GPU.
            zero_copy: has no effect: the result is a copy, which stays valid when the tensor resumes.

        Raises:
            ValueError: `x` is not contiguous, or not on a GPU.
        """
        import torch

        if not x.is_cuda or not x.is_contiguous():
            raise ValueError(f"x is on {x.device}, with strides {x.stride()}; it must be contiguous and on a GPU")
        copy = torch.empty(x.shape, dtype=x.dtype)
        return copy if is_enabled() and read_saved(x.data_ptr(), copy.data_ptr(), x.nbytes) else None

    def _members(self, tag: str | None) -> Iterator[tuple[_Group, _Member]]:
        """Yields what has memory, awake or asleep, with what release_physical takes."""
        if not self._groups and not self._graphs:
            return
        names = {each.tag for each in regions()}
        for group in self._groups:
            if group.name in names and tag in (None, group.tag):
                yield group, group.name
        yield from self._graph_members(tag)

    def _graph_members(self, tag: str | None) -> Iterator[tuple[_Group, _Member]]:
        self._graphs = [(group, graph) for group, graph in self._graphs if graph() is not None]
        existing: set[tuple[int, int]] = {(pool["first"], pool["second"]) for pool in pools()}
        for group, reference in self._graphs:
            graph = reference()
            if graph is None or tag not in (None, group.tag):
                continue
            first, second = graph.pool()
            if (first, second) in existing:
                existing.discard((first, second))  # another graph may have it, too
                yield group, (first, second)


class _Thread(threading.local):
    """The regions in which the calling thread is, outermost first."""

    def __init__(self) -> None:
        self.names: list[str] = []

    @contextlib.contextmanager
    def inside(self, name: str) -> Generator[None, None, None]:
        self.names.append(name)
        try:
            yield
        finally:
            self.names.pop()

    @contextlib.contextmanager
    def outside(self) -> Generator[None, None, None]:
        call, names = require_enabled().plug.call, list(self.names)
        for name in reversed(names):
            call("end_tagged", name.encode(), ALL_DEVICES)
        try:
            yield
        finally:
            for name in names:
                call("begin_tagged", name.encode(), ALL_DEVICES)


def _keep_of(cpu: bool, disk: bool, backend: str | None) -> _Keep:
    if cpu and disk:
        raise ValueError("enable_cpu_backup and enable_disk_backup are both True; content is kept in one place")
    if backend is not None and (backend not in ("pinned", "mmap") or not cpu):
        raise ValueError(f"cpu_backup_backend is {backend!r}; it must be 'pinned' or 'mmap', with enable_cpu_backup=True")
    return "pinned" if cpu else "file" if disk else "nothing"
