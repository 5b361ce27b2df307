"""Asks cuDNN, without a GPU and without the simulator, which workspaces convolutions need on a GPU of given properties.

usage: ask_cudnn.py LIBRARY GPU < convolutions.json > workspaces.json

A convolution: pass (forward, data or filter), input and weight (shapes), stride, padding, type (float or half), and
whether channels come last. The workspace of each is that of the first engine of the heuristics.
"""

from __future__ import annotations

import ctypes
import json
import sys

# Limits that NVIDIA publishes, written out here a second time: the simulator's own table is under test.
COMMON = {
    "maxGridSize": [2**31 - 1, 65535, 65535],
    "maxBlockSize": [1024, 1024, 64],
    "regsPerBlock": 65536,
    "warpSize": 32,
    "maxSharedMemoryPerBlock": 49152,
    "maxRegistersPerSM": 65536,
    "maxThreadsPerBlock": 1024,
    "pciDeviceId": 0,
    "isTccDriver": 0,
    "supportCoopLaunch": 1,
    "cudaDeviceId": 0,
    "driverVer": 13000,
}
GPUS = {
    "a100": {
        "multiProcessorCount": 108,
        "maxSharedMemoryPerBlockOptin": 166912,
        "reservedSharedMemoryPerBlock": 1024,
        "maxCtasPerSM": 32,
        "maxThreadsPerSM": 2048,
        "totalGlobalMem": 40339 << 20,
        "smClockRateKHz": 1410000,
        "memClockRateKHz": 1215000,
        "l2CacheSize": 40 << 20,
        "deviceVer": 800,
        "deviceName": "NVIDIA A100-SXM4-40GB",
    },
    "h100": {
        "multiProcessorCount": 132,
        "maxSharedMemoryPerBlockOptin": 232448,
        "reservedSharedMemoryPerBlock": 1024,
        "maxCtasPerSM": 32,
        "maxThreadsPerSM": 2048,
        "totalGlobalMem": 81004 << 20,
        "smClockRateKHz": 1980000,
        "memClockRateKHz": 2619000,
        "l2CacheSize": 50 << 20,
        "deviceVer": 900,
        "deviceName": "NVIDIA H100 80GB HBM3",
    },
}

# cudnn_graph.h: descriptors, attributes, types of attributes
CONVOLUTION, ENGINE, CONFIGURATION, HEURISTICS, PLAN, GRAPH, TENSOR, DEVICE = 1, 2, 3, 4, 5, 15, 17, 38
PASSES = {  # descriptor; alpha, beta, convolution, w, x and y
    "forward": (10, [700, 701, 702, 703, 704, 705]),
    "data": (12, [706, 707, 708, 709, 710, 711]),
    "filter": (11, [712, 713, 714, 715, 716, 717]),
}
TYPES = {"float": 0, "half": 2}
DATA_TYPE, INT64, FLOAT, MODE, HEURISTIC_MODE, DESCRIPTOR, CHAR = 1, 3, 4, 7, 8, 15, 24


class Cudnn:
    def __init__(self, library: str, gpu: str) -> None:
        self.library = ctypes.CDLL(library)
        self.device = self.create(DEVICE)
        properties = json.dumps(COMMON | GPUS[gpu]).encode()
        self.set(self.device, 2702, CHAR, (ctypes.c_char * len(properties))(*properties))
        self.finalize(self.device)

    def call(self, name: str, *arguments: object) -> None:
        status = getattr(self.library, "cudnnBackend" + name)(*arguments)
        assert status == 0, f"{name}: status {status}"

    def create(self, kind: int) -> ctypes.c_void_p:
        descriptor = ctypes.c_void_p()
        self.call("CreateDescriptor", kind, ctypes.byref(descriptor))
        return descriptor

    def set(self, descriptor: ctypes.c_void_p, name: int, kind: int, values: ctypes.Array) -> None:
        self.call("SetAttribute", descriptor, name, kind, ctypes.c_int64(len(values)), values)

    def set_numbers(self, descriptor: ctypes.c_void_p, attributes: dict[int, list[int]]) -> None:
        for name, values in attributes.items():
            self.set(descriptor, name, INT64, (ctypes.c_int64 * len(values))(*values))

    def set_descriptors(self, descriptor: ctypes.c_void_p, attributes: dict[int, ctypes.c_void_p]) -> None:
        for name, value in attributes.items():
            self.set(descriptor, name, DESCRIPTOR, (ctypes.c_void_p * 1)(value.value))

    def finalize(self, descriptor: ctypes.c_void_p) -> None:
        self.call("Finalize", descriptor)

    def tensor(self, name: str, shape: list[int], kind: str, channels_last: bool) -> ctypes.c_void_p:
        _, c, h, w = shape
        tensor = self.create(TENSOR)
        strides = [c * h * w, 1, w * c, c] if channels_last else [c * h * w, h * w, w, 1]
        self.set(tensor, 901, DATA_TYPE, (ctypes.c_int * 1)(TYPES[kind]))
        self.set_numbers(tensor, {902: shape, 903: strides, 906: [ord(name)], 900: [16]})
        self.finalize(tensor)
        return tensor

    def graph(self, asked: dict) -> ctypes.c_void_p:
        (n, _, *sizes), (k, _, *window) = asked["input"], asked["weight"]
        padding, stride = asked["padding"], asked["stride"]
        output = [(size + 2 * padding - span) // stride + 1 for size, span in zip(sizes, window)]
        convolution = self.create(CONVOLUTION)
        self.set(convolution, 100, DATA_TYPE, (ctypes.c_int * 1)(TYPES["float"]))
        self.set(convolution, 101, MODE, (ctypes.c_int * 1)(1))
        spatial = {106: [2], 102: [1, 1], 103: [stride] * 2, 104: [padding] * 2, 105: [padding] * 2}
        self.set_numbers(convolution, spatial)
        self.finalize(convolution)
        kind, (alpha, beta, *attributes) = PASSES[asked["pass"]]
        operation = self.create(kind)
        shapes = {"w": asked["weight"], "x": asked["input"], "y": [n, k, *output]}
        tensors = [self.tensor(name, shape, asked["type"], asked["channels_last"]) for name, shape in shapes.items()]
        self.set_descriptors(operation, dict(zip(attributes, [convolution, *tensors])))
        for name, value in ((alpha, 1), (beta, 0)):
            self.set(operation, name, FLOAT, (ctypes.c_float * 1)(value))
        self.finalize(operation)
        graph = self.create(GRAPH)
        self.set_descriptors(graph, {801: operation})
        self.finalize(graph)
        return graph

    def workspace(self, asked: dict) -> int:
        heuristics = self.create(HEURISTICS)
        self.set_descriptors(heuristics, {201: self.graph(asked), 204: self.device})
        self.set(heuristics, 200, HEURISTIC_MODE, (ctypes.c_int * 1)(0))
        self.finalize(heuristics)
        count, configuration = ctypes.c_int64(), self.create(CONFIGURATION)
        results = (ctypes.c_void_p * 1)(configuration.value)
        one = ctypes.c_int64(1)
        self.call("GetAttribute", heuristics, 202, DESCRIPTOR, one, ctypes.byref(count), results)
        plan, workspace = self.create(PLAN), ctypes.c_int64()
        self.set_descriptors(plan, {401: configuration, 407: self.device})
        self.finalize(plan)
        self.call("GetAttribute", plan, 402, INT64, one, ctypes.byref(count), ctypes.byref(workspace))
        return workspace.value


if __name__ == "__main__":
    cudnn = Cudnn(sys.argv[1], sys.argv[2])
    print(json.dumps([cudnn.workspace(asked) for asked in json.load(sys.stdin)]))
