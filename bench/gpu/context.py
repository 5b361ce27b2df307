#!/usr/bin/env python3
"""Measures what a process takes of this GPU beside PyTorch's memory: the CUDA context, cuBLAS, kernels, cuDNN.

    python bench/gpu/context.py [--device 0] [--json]

The last lines are options of `cachalot simulate`. The GPU should have no other work meanwhile. Needs PyTorch. The
memory before the context is NVML's figure; without NVML, as on the simulated GPU, it is taken for 0. On the simulated
GPU the figures are those of `context` of CACHALOT_SIM.
"""

from __future__ import annotations

import argparse
import ctypes
import json
from typing import Any

MIB = 1 << 20


class NvmlMemory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


def used_by_nvml(pci_bus_id: str) -> int | None:
    """Used bytes of the GPU, without making a context there; None without NVML."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    device, memory = ctypes.c_void_p(), NvmlMemory()
    failed = nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByPciBusId_v2(pci_bus_id.encode(), ctypes.byref(device))
    if failed or nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)):
        return None
    return memory.used


def pci_bus_id(torch: Any, device: int) -> str:
    found = torch.cuda.get_device_properties(device)  # this makes no context
    return f"{found.pci_domain_id:08x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"


def used_beside_tensors(torch: Any, device: int) -> int:
    torch.cuda.synchronize(device)
    free, total = torch.cuda.mem_get_info(device)
    return total - free - torch.cuda.memory_reserved(device)


def train(torch: Any, layer: Any, batch: Any) -> None:
    optimizer = torch.optim.AdamW(layer.parameters())
    labels = torch.zeros(len(batch), dtype=torch.long, device="cuda")
    torch.nn.functional.cross_entropy(layer(batch).flatten(1), labels).backward()
    optimizer.step()


def measure(torch: Any, device: int) -> dict[str, int]:
    """The bytes that each step adds."""
    before = used_by_nvml(pci_bus_id(torch, device))
    figures = {"before": before or 0}
    torch.cuda.set_device(device)

    def add(name: str) -> None:
        figures[name] = used_beside_tensors(torch, device) - sum(figures.values())

    add("context")
    torch.cuda.current_blas_handle()
    add("cublas")
    train(torch, torch.nn.Linear(64, 64).cuda(), torch.randn(32, 64, device="cuda"))
    add("kernels")
    train(torch, torch.nn.Conv2d(3, 8, 3).cuda(), torch.randn(4, 3, 32, 32, device="cuda"))
    add("cudnn")
    return figures


def option(figures: dict[str, int], *names: str) -> str:
    return f"--context {-(-sum(figures[name] for name in names) // MIB)}MiB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print the bytes as JSON, and nothing else")
    options = parser.parse_args()
    import torch

    figures = measure(torch, options.device)
    if options.json:
        print(json.dumps(figures))
        return
    simulated = hasattr(ctypes.CDLL(None), "cachalot_sim_clock_ns")
    gpu = torch.cuda.get_device_name(options.device)
    print(f"{gpu}, CUDA {torch.version.cuda}, PyTorch {torch.__version__}{' (simulated)' if simulated else ''}")
    for name, size in figures.items():
        print(f"{name:8} {size / MIB:8.0f} MiB")
    print(option(figures, "context", "cublas", "kernels"))
    print(option(figures, "context", "cublas", "kernels", "cudnn") + "  # with convolutions")


if __name__ == "__main__":
    main()
