"""The definition of a planted bug."""

from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[3]

# The libraries of the files of a folder, as the build system names them.
LIBRARIES = {
    "c_api/": "libcachalot.so",
    "allocator/": "libcachalot_core.a",
    "diagnostics/": "libcachalot_diagnostics.a",
    "pool/": "libcachalot_pool.a",
    "kernels/": "libcachalot_kernels.a",
    "tools/": "libcachalot_replay.a",
    "pytorch/": "pytorch/libcachalot_torch.so",
    "simulator/device/": "libcachalot_simulated_device.a",
    "simulator/": "simulator/libcachalot_simulator.so",
}


@dataclass(frozen=True)
class Bug:
    """Text of one source file, and what stands there instead."""

    name: str
    file: str
    right: str
    wrong: str
    found_by: tuple[str, ...]  # "pages Sleep*:Saving*": of test_pages the cases of a filter; the nearest tests first

    @property
    def library(self) -> str:
        return next((library for prefix, library in LIBRARIES.items() if self.file.startswith(prefix)), "")

    def complaint(self) -> str:
        """Why it cannot be planted; empty when it can."""
        path = SOURCE / self.file
        if not path.is_file():
            return f"{self.name}: there is no {self.file}"
        if not self.library:
            return f"{self.name}: no library of LIBRARIES has {self.file}"
        count = path.read_text().count(self.right)
        return "" if count == 1 else f"{self.name}: {count} places, not one, of {self.file} are\n{self.right}"

    def planted(self) -> str:
        """The file with the bug in it."""
        return (SOURCE / self.file).read_text().replace(self.right, self.wrong)
