#!/usr/bin/env python3
"""Lists the functions of CUDA's libraries that installed packages use, and says which of them the simulator lacks.

usage: list_missing.py [--check] [--all] --simulator build/release/simulator/libcachalot_simulator.so FOLDER...

A folder is one of packages, such as an environment's site-packages. A package uses a function if one of its shared libraries or
programs imports the name or has it as a string, as for dlsym and cuGetProcAddress, or if one of its sources has it: Python, or C++
and CUDA that are compiled when they are needed. A string or a name in a source counts if the simulator has the function, or a
header or a library of CUDA in one of the folders declares it: other names are the packages' own. CUDA's own libraries use
nothing here: the simulator stands for them, and those that it leaves alone find no GPU.

Prints for each family how many functions are simulated, answer "not supported" and are missing, and the missing ones
with the packages that use them; with --all every function. With --check it fails if one is missing that KNOWN does not explain.
"""
import argparse
import collections
import os
import pathlib
import re
import subprocess
import sys

FAMILIES = {
    "NVML": "nvml[A-Z]",
    "driver": "cu(?!File)[A-Z]",  # cuFile is a library of its own
    "runtime": "(?:__)?cuda[A-Z]",
    "cuBLAS": "cublas(?:Lt|Xt)?[A-Z]",
    "cuDNN": "cudnn[A-Z]",
    "cuFFT": "cufft[A-Z]",
    "cuSOLVER": "cusolver[A-Z]",
    "cuSPARSE": "cusparse[A-Z]",
    "cuRAND": "curand[A-Z]",
    "NCCL": "p?nccl[A-Z]",
    "NVRTC": "nvrtc[A-Z]",
}
NAME = rf"(?:{'|'.join(FAMILIES.values())})\w+".encode()
STRING = re.compile(rb"\0(" + NAME + rb")(?=\0)", re.ASCII)
WORD = re.compile(rb"\b" + NAME, re.ASCII)
# The driver and NVML come with no package, the other families' libraries do.
DECLARATION = re.compile(rb"\b(?:CUresult|CUDAAPI|nvmlReturn_t|DECLDIR)\s+((?:cu|nvml)[A-Z]\w+)\s*\(", re.ASCII)
# Names that are looked up whatever any header says: pynvml asks for functions of an NVML whose header no package has.
LOOKUP = re.compile(rb"""(?:_nvmlGetFunctionPointer|\bFunction|\bdlsym)\(\s*["'](""" + NAME + rb""")["']""", re.ASCII)

# CUDA's own libraries, with NVSHMEM, which the simulator leaves alone.
OF_CUDA = re.compile(r"lib(cuda|cudart|nvidia-ml|cublas|cublasLt|cufftw?|curand|cusolver|cusolverMg|cusparse|cusparseLt|cudnn\w*|"
                     r"nccl|cupti|nvblas|nvperf\w*|nvJitLink|nvrtc[\w-]*|nvvm|checkpoint|cufile\w*|pcsamplingutil|nvshmem\w*)"
                     r"(-\w+)?\.(so|\w+\.so)|nvshmem_")
# Headers of CUDA itself, which declare and do not use.
HEADER = re.compile(r"(cuda(GL|EGL|VDPAU|\w*Typedefs)?|cuda_runtime\w*|cuda_profiler_api|cuda_\w+_interop|driver_types|nvml|cublas\w*|"
                    r"cudnn\w*|cufft\w*|cusolver\w*|cusparse\w*|curand\w*|nccl|nvrtc)\.h|\w+\.pxd")
SOURCES = {".py", ".pyx", ".pxi", ".c", ".cc", ".cpp", ".cxx", ".cu", ".cuh", ".h", ".hpp", ".inl", ".jinja"}
# Tables of all names that there ever were, from which programs are translated for other GPUs.
TABLES_OF_NAMES = re.compile(r"/hipify/")

# The functions that may be missing, with the reason. The whole name matches.
KNOWN = {
    r"nvrtc\w+": "the real compiler, which needs no GPU, is used",
    r"cu(CheckpointOperationComplete|Coredump(Der|R)egister\w+|DevSmResourceSplit|DeviceGetClique\w+|DeviceGetFabricClusterUuid|"
    r"Fabric\w+|(Func|Kernel)GetParamCount|Graph(AddNode_v3|NodeSetParams_v2|GetId|ExecGetId|NodeGet(ContainingGraph|LocalId|Params|"
    r"ToolsId))|LaunchHostFunc_v2|LogicalEndpoint\w+|MemGetLocationInfo|Memcpy(3D)?WithAttributesAsync|MulticastBind(Addr|Mem)_v2|"
    r"Stream((Begin|End)CaptureToCig|BeginRecaptureToGraph|GetDevResource)|TensorMapSetAllocationClass)(_ptsz)?":
        "of a driver newer than 13.0, the simulated one",
}

TABLES = ("driver/not_simulated.inc", "driver/nvml_unsupported.inc", "libraries/functions.inc", "nccl/nccl_unsupported.inc")
SIMULATOR = pathlib.Path(__file__).resolve().parents[2] / "simulator"


def family_of(name):
    return next((family for family, pattern in FAMILIES.items() if re.match(pattern, name)), None)


def output_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False, errors="replace").stdout


def symbols(library, which):
    """Returns the names of the families in a file's dynamic symbol table; which: --undefined-only or --defined-only."""
    lines = output_of("nm", "-D", "--format=posix", which, str(library)).splitlines()
    return {name for line in lines if line and family_of(name := line.split()[0].split("@")[0])}


def strings(path):
    """Returns the names among the strings of an ELF file, in sections that hold neither code nor code for a GPU."""
    found = set()
    with open(path, "rb") as file:
        for line in output_of("readelf", "-SW", str(path)).splitlines():
            section = re.match(r"\s*\[ *\d+\] (\S+) +PROGBITS +\w+ (\w+) (\w+) \w+ +(\w+)", line)
            if section and "A" in section[4] and "X" not in section[4] and not re.match(r"\.(nv|eh_frame|gcc)", section[1]):
                file.seek(int(section[2], 16))
                found |= set(STRING.findall(b"\0" + file.read(int(section[3], 16))))
    return {name.decode() for name in found}


def words(path, pattern=WORD):
    return {name.decode() for name in pattern.findall(path.read_bytes())}


class Simulator:
    """The functions that the simulator exports, and those of them that its tables refuse."""

    def __init__(self, library):
        self.exported = symbols(library, "--defined-only")
        if len(self.exported) < 1000:
            sys.exit(f"list_missing.py: {library} exports {len(self.exported)} functions: it is not the simulator")
        self.refused = set()
        for table in TABLES:
            for macro, name in re.findall(r"\b([A-Z_]+)\((\w+)\)", (SIMULATOR / table).read_text(encoding="utf-8")):
                if macro == "TWIN_FUNCTIONS":
                    self.refused |= {"cuda" + name, "cu" + name}
                elif macro in ("RUNTIME_FUNCTION", "DRIVER_FUNCTION", "NVML_UNSUPPORTED", "NCCL_FUNCTION", "REFUSED"):
                    self.refused.add(name)

    def answer(self, name, imported):
        """Returns what a use gets: the symbol itself if a library imports it; cuGetProcAddress finds any form of the driver's."""
        forms = [name] if imported or family_of(name) != "driver" else [name, *(f"{name}_v{form}" for form in range(2, 5))]
        exported = [form for form in forms if form in self.exported]
        if not exported:
            return "missing"
        return "not supported" if all(form in self.refused for form in exported) else "simulated"


class Uses:
    """The names in the packages of some folders: each with the packages that import it, look it up, or have it as a word."""

    def __init__(self, folders, known):
        self.declared = set(known)
        self.imported = collections.defaultdict(set)
        self.looked_up = collections.defaultdict(set)
        self.words = collections.defaultdict(set)
        self._own = collections.defaultdict(set)  # functions with such names that packages define themselves
        for folder in folders:
            for directory, _, files in os.walk(folder):
                for file in files:
                    self._read(pathlib.Path(directory, file), package_of(directory, folder))

    def of_family(self, family):
        """Returns {name: the packages that use it}, in order."""
        names = (self.imported.keys() | self.looked_up.keys()) - (self._own.keys() - self.declared)
        names |= self.words.keys() & self.declared
        uses = {name: self.imported[name] | self.looked_up[name] | self.words[name] for name in names}
        return {name: uses[name] for name in sorted(uses) if family_of(name) == family}

    def _read(self, path, package):
        if path.is_symlink() or not path.is_file():
            return
        if HEADER.fullmatch(path.name):
            self.declared |= words(path, DECLARATION)
        elif path.suffix in SOURCES:
            if not TABLES_OF_NAMES.search(path.as_posix()):
                self._add(self.words, words(path), package)
                self._add(self.looked_up, words(path, LOOKUP), package)
        elif is_elf(path):
            if OF_CUDA.match(path.name):
                self.declared |= symbols(path, "--defined-only")
                return
            self._add(self._own, symbols(path, "--defined-only"), package)
            self._add(self.imported, symbols(path, "--undefined-only"), package)
            self._add(self.words, strings(path), package)

    @staticmethod
    def _add(uses, names, package):
        for name in names:
            uses[name].add(package)


def package_of(directory, folder):
    inside = pathlib.Path(directory).relative_to(folder).parts
    return inside[0] if inside else pathlib.Path(folder).name


def is_elf(path):
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def reason(name):
    return next((why for pattern, why in KNOWN.items() if re.fullmatch(pattern, name)), None)


def print_report(uses, simulator, everything):
    """Prints the table and the names below it. Returns how many names there are, and the missing ones that no reason explains."""
    count, unexplained, lines = 0, [], []
    print(f"{'family':10}{'used':>7}{'simulated':>11}{'not supported':>15}{'missing':>9}  of them explained")
    for family in FAMILIES:
        names = uses.of_family(family)
        answers = {name: simulator.answer(name, bool(uses.imported.get(name))) for name in names}
        missing = [name for name in names if answers[name] == "missing"]
        unexplained += (open_ones := [name for name in missing if not reason(name)])
        count += len(names)
        of = collections.Counter(answers.values())
        print(f"{family:10}{len(names):7}{of['simulated']:11}{of['not supported']:15}{len(missing):9}{len(missing) - len(open_ones):11}")
        for name in names if everything else open_ones:
            why = f" ({reason(name)})" if name in missing and reason(name) else ""
            lines.append(f"{family}: {name}: {answers[name]}{why}, used by {', '.join(sorted(names[name]))}")
    print(*lines, sep="\n")
    return count, unexplained


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--simulator", required=True, help="libcachalot_simulator.so")
    parser.add_argument("--check", action="store_true", help="fail if a function is missing")
    parser.add_argument("--all", action="store_true", help="list every function, not the missing ones alone")
    parser.add_argument("folders", nargs="+", metavar="FOLDER")
    options = parser.parse_args()
    simulator = Simulator(options.simulator)
    count, missing = print_report(Uses(options.folders, simulator.exported), simulator, options.all)
    if count == 0:
        sys.exit(f"list_missing.py: no package in {' '.join(options.folders)} uses CUDA: nothing was checked")
    if options.check and missing:
        sys.exit(f"list_missing.py: the simulator lacks {len(missing)} functions: {' '.join(missing)}")


if __name__ == "__main__":
    main()
