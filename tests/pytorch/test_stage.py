"""cachalot.stage: from memory-mapped arrays and safetensors files to the GPU, byte by byte the same."""

import gc
import json
import math
from pathlib import Path

import numpy
import pytest
import torch
import world
from world import MiB

import cachalot

pytestmark = world.not_pages


def write_safetensors(path, tensors, extra=None):
    """`tensors` has of each name its dtype's name in the file, shape and bytes."""
    header, data = dict(extra or {}), b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def mapped(path, array):
    numpy.save(path, array)
    return numpy.load(path, mmap_mode="r")


def random_array(shape, dtype="float32"):
    return numpy.random.default_rng(7).integers(0, 200, shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64", "int8", "uint8", "uint16", "bool", "complex64"])
def test_an_array_has_its_content_dtype_and_shape(tmp_path, dtype):
    array = random_array((37, 3, 11), dtype)
    tensor = cachalot.stage(mapped(tmp_path / "a.npy", array), chunk_bytes=4096, slots=2)
    assert tensor.device == torch.device("cuda:0") and tensor.shape == array.shape
    assert tensor.dtype == torch.from_numpy(array).dtype
    assert numpy.array_equal(tensor.cpu().numpy(), array)


def test_a_part_of_an_array_is_read_from_where_it_lies(tmp_path):
    array = random_array((5000, 3))
    array.tofile(tmp_path / "raw")
    with_offset = numpy.memmap(tmp_path / "raw", "float32", "r", offset=12 * 1000, shape=(4000, 3))
    part = with_offset[500:1700][3:]
    assert numpy.array_equal(cachalot.stage(part, chunk_bytes=4096).cpu().numpy(), array[1503:2700])


@pytest.mark.parametrize("shape", [(), (0, 4), (1,)])
def test_small_shapes(tmp_path, shape):
    array = random_array(shape)
    tensor = cachalot.stage(numpy.load(mapped(tmp_path / "a.npy", array).filename, mmap_mode="r")) if array.size else None
    if array.size:
        assert tensor.shape == shape and numpy.array_equal(tensor.cpu().numpy(), array)
    else:
        path = write_safetensors(tmp_path / "e.safetensors", {"empty": ("F32", list(shape), b"")})
        assert cachalot.stage(path)["empty"].shape == shape


def test_another_device_and_another_stream(tmp_path):
    array = random_array((1000, 100))
    with torch.cuda.stream(torch.cuda.Stream("cuda:1")):
        tensor = cachalot.stage(mapped(tmp_path / "a.npy", array), "cuda:1", chunk_bytes=65536) + 1
    torch.cuda.synchronize(1)
    assert tensor.device == torch.device("cuda:1")
    assert torch.cuda.current_device() == 0


def tensors_of_all_dtypes():
    generator = torch.Generator().manual_seed(3)
    names = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "F64": torch.float64, "I64": torch.int64,
             "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "F8_E4M3": torch.float8_e4m3fn}
    found = {"flag": ("BOOL", [3], b"\1\0\1")}  # the next tensor is not aligned
    for number, (name, dtype) in enumerate(names.items()):
        shape = [number * 13 + 1, 7]
        content = torch.randint(0, 100, (math.prod(shape) * dtype.itemsize,), generator=generator, dtype=torch.uint8)
        found[name] = (name, shape, content.numpy().tobytes())
    return found, names


def test_a_safetensors_file_has_all_of_its_tensors(tmp_path):
    given, dtypes = tensors_of_all_dtypes()
    path = write_safetensors(tmp_path / "m.safetensors", given, {"__metadata__": {"format": "pt"}})
    for chunk_bytes in (4096, 1 << 20):
        found = cachalot.stage(path, chunk_bytes=chunk_bytes)
        assert list(found) == list(given)
        for name, (_, shape, content) in given.items():
            assert found[name].dtype == dtypes.get(name, torch.bool) and list(found[name].shape) == shape
            assert found[name].cpu().view(-1).view(torch.uint8).numpy().tobytes() == content


def test_names_select_tensors(tmp_path):
    given, _ = tensors_of_all_dtypes()
    path = write_safetensors(tmp_path / "m.safetensors", given)
    before = torch.cuda.memory_allocated()
    found = cachalot.stage(path, names=["I16", "F32"])
    assert list(found) == ["I16", "F32"]
    assert torch.cuda.memory_allocated() - before <= 2048
    assert found["F32"].cpu().view(torch.uint8).numpy().tobytes() == given["F32"][2]


def test_chunks_are_the_rows_of_the_array(tmp_path):
    array = random_array((1000, 64))
    parts = list(cachalot.stage_chunks(mapped(tmp_path / "a.npy", array), 300, chunk_bytes=16384))
    assert [len(part) for part in parts] == [300, 300, 300, 100]
    assert numpy.array_equal(numpy.concatenate([part.cpu().numpy() for part in parts]), array)


def test_chunks_hold_two_parts_on_the_device(tmp_path):
    array = random_array((64, 1 << 18), "uint8")  # 16 MiB
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    total = 0
    for part in cachalot.stage_chunks(mapped(tmp_path / "a.npy", array), 8):
        total += int(part.sum(dtype=torch.int64)) if part.numel() < 1 << 16 else len(part)
    assert total == 64
    assert torch.cuda.max_memory_allocated() - before <= 3 * 2 * MiB + 4096


def test_chunks_that_nobody_wants_any_more_end(tmp_path):
    parts = cachalot.stage_chunks(mapped(tmp_path / "a.npy", random_array((1000, 64))), 10)
    next(parts)
    parts.close()
    assert torch.cuda.memory_allocated() == 0


def test_the_copies_wait_for_what_had_the_memory_before(tmp_path):
    array = random_array((MiB,), "uint8")
    array_of_file = mapped(tmp_path / "a.npy", array)
    stream = torch.cuda.current_stream()
    old = torch.empty(MiB, dtype=torch.uint8, device="cuda")
    world.keep_busy(stream, 0.05)
    old.zero_()
    address = old.data_ptr()
    del old
    tensor = cachalot.stage(array_of_file)
    assert tensor.data_ptr() == address, "the test needs the same memory"
    assert numpy.array_equal(tensor.cpu().numpy(), array)


def peak_of_host():
    """The most memory that the process has had at a time, in bytes."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) << 10


def test_the_host_needs_the_ring_alone(tmp_path):
    size = 256 * MiB
    with (tmp_path / "large").open("wb") as file:
        file.truncate(size)
    array = numpy.memmap(tmp_path / "large", "uint8", "r")
    cachalot.stage(array[: 8 * MiB], chunk_bytes=MiB)  # threads and pinned memory are there
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = peak_of_host()
    tensor = cachalot.stage(array, chunk_bytes=MiB, drop_cached=True)
    assert tensor.numel() == size
    grown = peak_of_host() - before
    print(grown)
    assert grown <= 24 * MiB


def good(path):
    return write_safetensors(path, {"w": ("F32", [4], bytes(16))})


def broken(path, change):
    data = bytearray(good(path).read_bytes())
    path.write_bytes(change(data))
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:-1], "is truncated: the tensor 'w' ends at byte"),
        (lambda data: data[:20], "is truncated: its header has"),
        (lambda data: data[:4], "is no safetensors file: its first 8 bytes"),
        (lambda data: bytes([255] * 8) + data[8:], "is no safetensors file: its first 8 bytes"),
        (lambda data: data.replace(b'{"w"', b'["w"'), "is no safetensors file: its header is no JSON"),
        (lambda data: data.replace(b"F32", b"F99"), "the tensor 'w' has the dtype 'F99', which this torch does not have"),
        (lambda data: data.replace(b"[4]", b"[5]"), "the tensor 'w' of shape [5] and F32 has the offsets 0 to 16"),
        (lambda data: data.replace(b"dtype", b"dtypo"), "the header does not describe the tensor 'w'"),
    ],
)
def test_a_broken_file_is_refused_in_one_line(tmp_path, change, message):
    with pytest.raises(ValueError) as caught:
        cachalot.stage(broken(tmp_path / "m.safetensors", change))
    assert message in str(caught.value) and "m.safetensors" in str(caught.value) and "\n" not in str(caught.value)
    assert torch.cuda.memory_allocated() == 0


def test_a_file_that_shrinks_after_it_was_mapped_is_truncated(tmp_path):
    array = mapped(tmp_path / "a.npy", random_array((100_000,)))
    with (tmp_path / "a.npy").open("r+b") as file:
        file.truncate(200_000)
    message = ""
    try:
        cachalot.stage(array, chunk_bytes=4096)
    except ValueError as error:  # its traceback has the tensor
        message = str(error)
    assert "a.npy is truncated: it ends at byte 200000" in message
    gc.collect()
    assert torch.cuda.memory_allocated() == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"device": "cpu"}, "device is 'cpu'; stage copies to CUDA devices"),
        ({"device": "cuda:9"}, "device is 'cuda:9', and there are 2 CUDA devices"),
        ({"device": "gpu"}, "device is 'gpu'; it must be a CUDA device"),
        ({"chunk_bytes": 100}, "chunk_bytes is 100; it must be at least 4096"),
        ({"slots": 1}, "slots is 1; it must be at least 2"),
        ({"names": ["w"]}, "names is given with an array"),
    ],
)
def test_a_bad_argument_is_refused(tmp_path, arguments, message):
    with pytest.raises(ValueError) as caught:
        cachalot.stage(mapped(tmp_path / "a.npy", random_array((4,))), **arguments)
    assert message in str(caught.value)


def test_a_bad_source_is_refused(tmp_path):
    array = mapped(tmp_path / "a.npy", random_array((40, 40)))
    with pytest.raises(ValueError, match="that is not mapped from a file"):
        cachalot.stage(numpy.zeros(4))
    with pytest.raises(ValueError, match="is not C-contiguous"):
        cachalot.stage(array[:, ::2])
    with pytest.raises(ValueError, match="elements of the numpy type >f4, which torch does not have"):
        cachalot.stage(mapped(tmp_path / "big.npy", numpy.zeros(4, ">f4")))
    with pytest.raises(ValueError, match=r"has no tensor 'v'; it has 1 tensors, such as w"):
        cachalot.stage(good(tmp_path / "m.safetensors"), names=["v"])
    with pytest.raises(FileNotFoundError):
        cachalot.stage(tmp_path / "absent.safetensors")
    with pytest.raises(ValueError, match="rows is 0"):
        cachalot.stage_chunks(array, 0)
