"""One rank of a job by itself: torch.distributed for a program whose other ranks do not exist.

`cachalot simulate --world-size` sets absent_ranks:1 of CACHALOT_SIM. The rendezvous gives a store that never waits for another rank.
Absent ranks count as ranks with this one's data: the simulated NCCL completes collectives so, and groups of gloo are torch's
fake ones. Data that only an absent rank could give, such as the objects of its broadcast, stays as it was.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

from cachalot_simulator.after_import import after_import
from cachalot_simulator.settings import setting

ABSENT_ID = bytes(128)  # an ncclUniqueId that no rank made: with absent ranks it is not looked at
# Threads of torch's that watch other ranks by the store, and ask Python for it while that ends.
WATCH_OTHERS = ("TORCH_NCCL_ENABLE_MONITORING", "TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_PROPAGATE_ERROR")
FROM_ONE_RANK = {"broadcast_object_list": ("src", 1), "scatter_object_list": ("src", 2), "recv_object_list": ("src", 1)}


def are_absent() -> bool:
    return setting("absent_ranks") == "1"


def store_class(torch: Any) -> type:
    class StoreOfOneRank(torch.distributed.Store):
        """Answers at once: with what this rank has set, otherwise for the absent ones."""

        def __init__(self) -> None:
            super().__init__()
            self._values: dict[str, bytes] = {}

        def set(self, key: str, value: Any) -> None:
            self._values[key] = value.encode() if isinstance(value, str) else bytes(value)

        def get(self, key: str) -> bytes:
            return self._values.get(key, ABSENT_ID)

        def add(self, key: str, value: int) -> int:
            total = int(self._values.get(key, b"0")) + value
            self._values[key] = str(total).encode()
            return total

        def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
            if self._values.get(key, b"") == (expected.encode() if isinstance(expected, str) else bytes(expected)):
                self.set(key, desired)
            return self.get(key)

        def append(self, key: str, value: Any) -> None:
            before = self._values.get(key, b"")
            self.set(key, value)
            self._values[key] = before + self._values[key]

        def multi_get(self, keys: list[str]) -> list[bytes]:
            return [self.get(key) for key in keys]

        def multi_set(self, keys: list[str], values: list[Any]) -> None:
            for key, value in zip(keys, values):
                self.set(key, value)

        def wait(self, *_: Any) -> None:
            pass

        def check(self, keys: list[str]) -> bool:
            return all(key in self._values for key in keys)

        def delete_key(self, key: str) -> bool:
            return self._values.pop(key, None) is not None

        def num_keys(self) -> int:
            return len(self._values)

        def has_extended_api(self) -> bool:
            return True

        def clone(self) -> Any:
            return self

    return StoreOfOneRank


def rendezvous_of(store_type: type) -> Callable[..., Iterator[tuple[Any, int, int]]]:
    stores = []  # torch keeps the C++ half of them alone

    def rendezvous(url: str, **_: Any) -> Iterator[tuple[Any, int, int]]:
        """The rank and the size that the program gives are in the URL; otherwise the command's are in the environment."""
        from urllib.parse import parse_qs, urlparse

        query = parse_qs(urlparse(url).query)
        rank, world_size = (int(query.get(name, [os.environ[name.upper()]])[0]) for name in ("rank", "world_size"))
        stores.append(store_type())
        yield stores[-1], rank, world_size

    return rendezvous


def unless_absent(function: Any, peer: str, position: int, c10d: Any) -> Any:
    """The function does nothing if the rank that it gets objects from is another one."""

    @functools.wraps(function)
    def called(*arguments: Any, **options: Any) -> Any:
        group_rank = options.get(f"group_{peer}")
        source = options.get(peer, arguments[position] if len(arguments) > position else 0)
        if group_rank is not None:
            source = c10d.get_global_rank(options.get("group") or c10d._get_default_group(), group_rank)
        return function(*arguments, **options) if source == c10d.get_rank() else source

    return called


def without_gloo(device_backends: Callable[[Any], dict[str, str]]) -> Callable[[Any], dict[str, str]]:
    """Gloo would connect to all ranks; torch's fake process group repeats this rank's data, or does nothing."""

    @functools.wraps(device_backends)
    def called(config: Any) -> dict[str, str]:
        return {device: "fake" if backend == "gloo" else backend for device, backend in device_backends(config).items()}

    return called


def refuse_unknown_shapes(stage: Any) -> None:
    """A stage of a pipeline asks the absent stage in front of it for the shapes that it receives."""
    infer = stage.PipelineStage._shape_inference

    def called(self: Any, *arguments: Any, **options: Any) -> Any:
        if not self.is_first:
            raise RuntimeError(f"stage {self.stage_index} of the pipeline receives shapes from a rank that does not exist "
                               "(cachalot simulate --world-size): give input_args and output_args to PipelineStage")
        return infer(self, *arguments, **options)

    stage.PipelineStage._shape_inference = called


def install(torch: Any) -> None:
    if not are_absent() or not torch.distributed.is_available():
        return
    for variable in WATCH_OTHERS:
        os.environ.setdefault(variable, "0")
    c10d = torch.distributed.distributed_c10d
    rendezvous = rendezvous_of(store_class(torch))
    handlers = c10d.rendezvous.__globals__["_rendezvous_handlers"]
    handlers.update(dict.fromkeys(("env", "tcp", "file"), rendezvous))
    import torch.testing._internal.distributed.fake_pg  # noqa: F401 (registers the backend)

    after_import("torch.distributed.pipelining.stage", refuse_unknown_shapes)
    # A split asks all ranks; without one each communicator has a unique id, whose size the rank says.
    c10d._get_split_source = lambda _: None
    c10d.BackendConfig.get_device_backend_map = without_gloo(c10d.BackendConfig.get_device_backend_map)
    for name, (peer, position) in FROM_ONE_RANK.items():
        replaced = unless_absent(getattr(c10d, name), peer, position, c10d)
        setattr(c10d, name, replaced)
        setattr(torch.distributed, name, replaced)
