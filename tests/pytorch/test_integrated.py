"""An integrated GPU, whose memory is the machine's: its free memory, growth, and the cache while the machine is short of memory."""

import pytest
from world import not_native, run_python, simulated, succeeds

pytestmark = not_native

PROGRAM = """
import os, time
def machine(available, stalled="0.00"):
    for name, text in (("meminfo", f"MemTotal: 1 kB\\nMemAvailable: {available >> 10} kB\\n"),
                       ("pressure/memory", f"some avg10={stalled} avg60=0.00 avg300=0.00 total=0\\n")):
        path = os.path.join(os.environ["CACHALOT_PROC"], name)
        with open(path + ".next", "w") as file:
            file.write(text)
        os.replace(path + ".next", path)
def soon(true):
    until = time.monotonic() + 30
    while not true():
        assert time.monotonic() < until
        time.sleep(0.02)
def take(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")
GiB, MiB = 1 << 30, 1 << 20
reserved, allocated = torch.cuda.memory_reserved, torch.cuda.memory_allocated
"""


@pytest.fixture
def on_gb10(tmp_path):
    (tmp_path / "pressure").mkdir()

    def run(code, **environment):
        return run_python(PROGRAM + code, **simulated(gpu="gb10", memory="119GiB") | {"CACHALOT_PROC": tmp_path} | environment)

    return run


def test_free_memory_is_what_the_machine_has_less_a_part_for_the_system(on_gb10):
    succeeds(on_gb10("""
machine(31 * GiB)
assert torch.cuda.mem_get_info() == torch.cuda.memory.mem_get_info(0) == (30 * GiB, 119 * GiB), torch.cuda.mem_get_info()
if hasattr(torch.accelerator, "get_memory_info"):
    assert torch.accelerator.get_memory_info() == (30 * GiB, 119 * GiB), torch.accelerator.get_memory_info()
machine(512 * MiB)
assert torch.cuda.mem_get_info()[0] == 0
"""))


def test_an_allocation_beyond_it_fails_at_once_and_returns_the_cache(on_gb10):
    succeeds(on_gb10("""
machine(31 * GiB)
try:
    take(400 * GiB)
    raise AssertionError("400 GiB")
except RuntimeError as error:
    assert "out of memory" in str(error) or "OutOfMemory" in str(error), error
kept = take(GiB)
take(2 * GiB)
assert reserved() >= 3 * GiB
machine(GiB + MiB)
try:
    take(6 * GiB)
    raise AssertionError("6 GiB")
except RuntimeError:
    assert allocated() == GiB and reserved() < GiB + 64 * MiB, reserved()
machine(8 * GiB)
assert take(6 * GiB).numel() == 6 * GiB
"""))


@pytest.mark.parametrize("state", ["512 * MiB", "14 * GiB, '25.00'"], ids=["little", "stalled"])
def test_the_cache_goes_back_by_itself_while_the_machine_is_short_of_memory(on_gb10, state):
    succeeds(on_gb10(f"""
machine(100 * GiB)
kept = take(GiB)
take(20 * GiB)
held = reserved()
assert held >= 20 * GiB
machine({state})
soon(lambda: reserved() < held)
assert allocated() == GiB and kept.numel() == GiB
machine(100 * GiB)
again = take(20 * GiB)
assert allocated() == 21 * GiB
"""))


def test_a_simulated_machine_is_not_the_one_that_simulates(on_gb10):
    succeeds(on_gb10("""
free, total = torch.cuda.mem_get_info()
assert total == 119 * GiB and 100 * GiB < free <= total, free
assert take(100 * GiB).numel() == 100 * GiB
""", CACHALOT_PROC=""))


def test_other_gpus_are_asked_as_before(on_gb10):
    succeeds(on_gb10("""
machine(2 * GiB)
assert torch.cuda.mem_get_info()[0] > 3 * GiB
assert take(3 * GiB).numel() == 3 * GiB
""", **simulated(gpu="l4", memory="22GiB")))
