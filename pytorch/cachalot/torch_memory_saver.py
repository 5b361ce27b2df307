"""torch_memory_saver on cachalot, for programs that are written for it, such as SGLang with enable_memory_saver.

    import cachalot.torch_memory_saver

    cachalot.torch_memory_saver.install()      # before torch_memory_saver is imported; `import torch_memory_saver` is this module then

    from torch_memory_saver import torch_memory_saver
    with torch_memory_saver.region("weights", enable_cpu_backup=True):
        ...

Call it at the top of the program's file, outside of `if __name__ == "__main__"`: processes that multiprocessing spawns run this part
again, and so have cachalot, too. Programs that do not import torch_memory_saver can use `torch_memory_saver` of this module.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Generator
from typing import Any

from ._start.memory_saver import TorchMemorySaver

__all__ = ["TorchMemorySaver", "configure_subprocess", "install", "torch_memory_saver"]

torch_memory_saver = TorchMemorySaver()

_PACKAGE = "torch_memory_saver"


@contextlib.contextmanager
def configure_subprocess() -> Generator[None, None, None]:
    """Does nothing within the block: no library has to be preloaded into child processes."""
    yield


def install() -> None:
    """Makes programs that use torch_memory_saver use cachalot. A further call does nothing.

    An installed torch_memory_saver that has register_hook_mode gets the mode "cachalot", which is selected. Of another one, or without
    one, this module takes the place. Call it while no other thread imports torch_memory_saver.

    Raises:
        RuntimeError: torch_memory_saver has been imported already, and cannot be told of another mode.
    """
    was_imported = _PACKAGE in sys.modules
    if was_imported and sys.modules[_PACKAGE] is sys.modules[__name__]:
        return
    if was_imported or importlib.util.find_spec(_PACKAGE) is not None:
        package: Any = importlib.import_module(_PACKAGE)
        if hasattr(package, "register_hook_mode"):
            with contextlib.suppress(ValueError):  # it is registered already
                package.register_hook_mode("cachalot", lambda: torch_memory_saver, uses_preload=False)
            package.torch_memory_saver.hook_mode = "cachalot"
            return
    if was_imported:
        raise RuntimeError(
            "torch_memory_saver has been imported already, and this version cannot be told of another mode: call "
            "cachalot.torch_memory_saver.install() before it is imported"
        )
    sys.modules[_PACKAGE] = sys.modules[__name__]
