"""torch.distributed's collectives of Python objects, over NCCL.

torch puts the pickled bytes into tensors on the GPU and joins them there, which the simulated GPU does for small tensors at
most. Here they stay on the host, and what is sent goes over the device and the simulated NCCL in parts that it moves.
"""

from __future__ import annotations

import functools
import inspect
import threading
from typing import Any

OBJECT_COLLECTIVES = ("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list",
                      "send_object_list", "recv_object_list")
COLLECTIVES = ("all_gather", "gather", "broadcast", "scatter", "send", "recv")
DEVICE_CHOOSERS = ("_get_object_coll_device", "_get_pg_default_device")  # the latter before PyTorch 2.6
MOVED_BYTES = 1 << 20  # by one collective, of all ranks: the default of `copy_bytes` of CACHALOT_SIM


class ObjectCollectives:
    """Replaces the functions of torch.distributed."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._c10d = torch.distributed.distributed_c10d
        self._chooser = next(name for name in DEVICE_CHOOSERS if hasattr(self._c10d, name))
        self._device_of = getattr(self._c10d, self._chooser)
        self._underway = threading.local()  # in a collective of objects that is this class's

    def install(self) -> None:
        setattr(self._c10d, self._chooser, self._device_for_objects)
        for name in OBJECT_COLLECTIVES:
            replaced = self._on_the_host(getattr(self._c10d, name))
            setattr(self._c10d, name, replaced)
            setattr(self._torch.distributed, name, replaced)
        for name in COLLECTIVES:  # for the functions of objects alone: the program's are torch.distributed's own
            setattr(self._c10d, name, self._over_the_device(getattr(self._c10d, name)))

    def _is_underway(self) -> bool:
        return getattr(self._underway, "yes", False)

    def _device_for_objects(self, group: Any = None) -> str:
        return "cpu" if self._is_underway() else self._device_of(group)

    def _on_the_host(self, function: Any) -> Any:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def called(*arguments: Any, **options: Any) -> Any:
            given = signature.bind(*arguments, **options).arguments
            if given.get("use_batch") or self._device_of(given.get("group")) != "cuda":
                return function(*arguments, **options)
            given.pop("device", None)
            self._underway.yes = True
            try:
                return function(**given)
            finally:
                self._underway.yes = False

        return called

    def _over_the_device(self, function: Any) -> Any:
        @functools.wraps(function)
        def called(*arguments: Any, **options: Any) -> Any:
            if not self._is_underway():
                return function(*arguments, **options)
            return self._in_parts(function, arguments, options)

        return called

    def _in_parts(self, function: Any, arguments: tuple, options: dict[str, Any]) -> Any:
        """All tensors of such a call have the same size, and so have the parts of them that one call moves."""
        most = max(1, MOVED_BYTES // self._c10d.get_world_size(options.get("group")))
        first = arguments[0][0] if isinstance(arguments[0], list) else arguments[0]
        step = max(1, most // first.element_size())
        result = None
        for start in range(0, max(1, first.numel()), step):
            copies: list[tuple[Any, Any]] = []
            part = functools.partial(self._part, start=start, end=start + step, copies=copies)
            result = function(*map(part, arguments), **{name: part(value) for name, value in options.items()})
            for on_the_host, on_the_device in copies:
                on_the_host.copy_(on_the_device)
        return result

    def _part(self, value: Any, start: int, end: int, copies: list[tuple[Any, Any]]) -> Any:
        if isinstance(value, list):
            return [self._part(each, start, end, copies) for each in value]
        if not isinstance(value, self._torch.Tensor):
            return value
        on_the_host = value.view(-1)[start:end]
        on_the_device = on_the_host.cuda()
        copies.append((on_the_host, on_the_device))
        return on_the_device


def install(torch: Any) -> None:
    if torch.distributed.is_available():
        ObjectCollectives(torch).install()
