"""The backend that vLLM makes for `--sleep-mode-backend cachalot`. Importing this imports vLLM."""

from __future__ import annotations

from typing import Any

from .._report.awake import awake_report
from ..integrations import required
from .vllm_sleep import GRAPHS, TaggedMemory, tagged_memory

_interface: Any = required("vllm.device_allocator.sleep_mode_backend", "vllm")
# Under vLLM's own loggers, whose handlers print it.
_logger: Any = required("vllm.logger", "vllm").init_logger("vllm.cachalot")

# Their content is kept at every level; that of the weights at level 1.
_ALWAYS_KEPT = ("runtime", GRAPHS)


class CachalotBackend(_interface.SleepModeBackend):  # type: ignore[misc]
    """A CachalotBackend puts a worker's tags to sleep and wakes them, as vLLM's CuMemBackend does.

    After each sleep it logs what stays on the device, and what would free it. vLLM calls it from one thread at a time.
    """

    _state: str

    def suspend(self, level: int = 1) -> None:
        """Puts all tags to sleep. Level 1 keeps the weights' content, level 2 does not; no level keeps that of the KV cache.

        Raises:
            torch.OutOfMemoryError: there is no room for the content. All tags are awake with theirs, and the state is as before.
            RuntimeError: as cachalot.release_physical.
        """
        self._memory().sleep((*(("weights",) if level == 1 else ()), *_ALWAYS_KEPT))
        self._state = "SUSPENDED"
        _logger.info("cachalot: %s", awake_report())

    def resume(self, tags: list[str] | None = None) -> None:
        """Wakes `tags`, or all; tags but "weights" and "kv_cache" always wake. The state is RUNNING once all are awake.

        Raises:
            torch.OutOfMemoryError: the device has too little memory. A further call goes on.
        """
        self._state = "RESUMING"
        try:
            self._memory().wake_up(tags)
        finally:
            self._state = "SUSPENDED" if self._memory().is_asleep() else "RUNNING"

    def discard(self, tags: tuple[str, ...]) -> None:
        """Puts `tags` to sleep without their content."""
        self._memory().discard(tags)
        self._state = "SUSPENDED"
        _logger.info("cachalot: %s", awake_report())

    @classmethod
    def is_supported(cls) -> bool:
        """Returns whether this PyTorch is one for CUDA."""
        import torch

        return torch.version.cuda is not None

    @classmethod
    def preserves_communicators(cls) -> bool:
        """Returns True: only memory of tags is given back."""
        return True

    @classmethod
    def preserves_compiled_artifacts(cls) -> bool:
        """Returns True: the CUDA context stays, and with it all compiled code."""
        return True

    @classmethod
    def preserves_graphs_with_communicators(cls) -> bool:
        """Returns True: addresses and communicators are the same after a sleep."""
        return True

    @classmethod
    def supports_durable_storage(cls) -> bool:
        """Returns False: the saved content ends with the process."""
        return False

    @staticmethod
    def _memory() -> TaggedMemory:
        return tagged_memory()
