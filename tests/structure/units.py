"""Reports how the product's files are laid out where a reader would search in vain or open too many of them.

A unit is the files of one name in a folder, such as heap.h and heap.cpp, or a module of Python. The rules:

    folder   a folder has 5 to 25 units; the public headers of a wing may be fewer
    header   a header of fewer than 80 lines has two users besides its own source: tests, benchmarks and examples are users
    name     a file's name occurs once in the product
    class    the functions of a class are in one source file

Each exception has its reason in ALLOWED.
"""

import collections
import pathlib
import re
import typing

import cpp_scanner

FOLDERS = ["allocator", "c_api", "diagnostics", "pool", "kernels", "adapters", "pytorch", "simulator", "tools"]
USERS = [*FOLDERS, "tests", "bench", "examples"]
NOT_OURS = {"vendor", "__pycache__"}
HEADERS = {".h", ".cuh"}
SOURCES = {".cpp", ".cu", ".c"}
UNITS = HEADERS | SOURCES | {".py", ".js"}
PUBLIC = "include/cachalot"  # headers that users of the library include
# Python and CMake want these names.
NAMED_BY_OTHERS = {"__init__.py", "__main__.py", "targets.cmake", "CMakeLists.txt", "README.md", ".clang-format"}

FEWEST_UNITS, MOST_UNITS = 5, 25
LINES_WITH_ONE_USER = 80

# The exceptions that stay, with the reason: kind, path, and the name of a class.
ALLOWED = {
    ("folder", "allocator/caches", ""): "thread caches, of which nothing else is a part",
    ("header", "allocator/api/inspection.h", ""): "a part of DeviceAllocator: each has its header",
    ("header", "allocator/growth/evictable_pools.h", ""): "a part of DeviceAllocator: each has its header",
    ("header", "allocator/growth/checkpoints.h", ""): "a part of DeviceAllocator: each has its header",
    ("header", "allocator/device/cuda_completion_words.h", ""): "a part of CudaDevice, which would have 900 lines with it",
    ("header", "allocator/device/cuda_handle_form.h", ""): "a part of CudaDevice, which would have 900 lines with it",
    ("class", "allocator/growth/page_search.cpp", "PageGrowth"): "PageGrowth::Search, the search of one request, and obtain, which begins it",
    ("header", "simulator/device/simulated_devices.h", ""): "the seam of the C library: the devices of its environment",
    ("header", "allocator/pages/slots.h", ""): "the arithmetic of slots, which tests look at without a page heap",
    ("folder", "pytorch/cachalot", ""): "the package's public names; its modules are in rooms",
    ("folder", "simulator/python", ""): "a folder of PYTHONPATH, from which Python imports sitecustomize",
    ("folder", "tools/live", ""): "the only part of the tools that reads running processes; the others read files",
    ("header", "simulator/libraries/functions.h", ""): "the face of a folder of C functions, which have no header of ours",
    ("header", "pytorch/plug/host_plug.h", ""): "the seam of two libraries, as plug.h: the other side is an adapter's",
    ("header", "pytorch/adapter/ipc.h", ""): "a part of TorchAllocator, which is at its limit of lines without it",
    ("name", "pytorch/cachalot/numba.py", ""): "users import it; integrations/numba.py is the part of the package that knows Numba",
}

# The breaches of today, with their figures, which may not grow. The list is to be emptied.
KNOWN: dict[tuple[str, str, str], int] = {}


class Breach(typing.NamedTuple):
    kind: str
    path: str
    name: str  # of a class; otherwise ""
    figure: int  # distance from the rule
    text: str

    def key(self):
        return (self.kind, self.path, self.name)

    def finding(self):
        return f"{self.path}:1: {self.text}"


def files_of(root, folders):
    """Returns the files of the folders that are ours, as paths relative to the root, with their text's file."""
    found = {}
    for folder in folders:
        for file in sorted((root / folder).rglob("*")):
            path = file.relative_to(root)
            if file.is_file() and not NOT_OURS.intersection(path.parts):
                found[path] = file
    return found


def unit_of(path):
    return path.with_suffix("").as_posix()


def folder_breaches(product):
    units = collections.defaultdict(set)
    for path in product:
        if path.suffix in UNITS and path.name not in NAMED_BY_OTHERS:
            units[path.parent.as_posix()].add(path.stem)
    for folder, names in sorted(units.items()):
        count = len(names)
        if count > MOST_UNITS:
            yield Breach("folder", folder, "", count - MOST_UNITS, f"folder, {count} units, at most {MOST_UNITS}")
        elif count < FEWEST_UNITS and not folder.endswith(PUBLIC):
            yield Breach("folder", folder, "", FEWEST_UNITS - count, f"folder, {count} units, at least {FEWEST_UNITS}")


INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)


def users_of(headers, files):
    """Returns the units that include each of the headers: by its path from the user's folder, else by the end of its path."""
    by_name = collections.defaultdict(list)
    for header in headers:
        by_name[header.name].append(header)
    users = collections.defaultdict(set)
    for path, file in files.items():
        if path.suffix not in HEADERS | SOURCES:
            continue
        for name in INCLUDE.findall(file.read_text(encoding="utf-8")):
            meant = [header for header in by_name[name.rsplit("/", 1)[-1]] if f"/{header.as_posix()}".endswith(f"/{name}")]
            beside = path.parent / name
            for header in [beside] if beside in meant else meant:
                users[header].add(unit_of(path))
    return users


def header_breaches(product, files):
    headers = [path for path in product if path.suffix in HEADERS and PUBLIC not in path.as_posix()]
    users = users_of(headers, files)
    for header in headers:
        lines = product[header].read_text(encoding="utf-8").count("\n")
        others = users[header] - {unit_of(header)}
        if lines < LINES_WITH_ONE_USER and len(others) < 2:
            user = f"one user, {min(others)}" if others else "no user"
            yield Breach("header", header.as_posix(), "", 1, f"header of {lines} lines with {user}, at least {LINES_WITH_ONE_USER} lines")


def name_breaches(product):
    paths = collections.defaultdict(list)
    for path in product:
        if path.name not in NAMED_BY_OTHERS:
            paths[path.name].append(path.as_posix())
    for name, same in sorted(paths.items()):
        if len(same) > 1:
            # The path that is nearest to the root stands for all.
            first, *others = sorted(same, key=lambda path: (path.count("/"), path))
            yield Breach("name", first, "", len(others), f"name {name}, {len(same)} files, at most 1: {', '.join(others)}")


TEMPLATE_ARGUMENTS = re.compile(r"<[^<>]*>")


def class_of(function):
    """Returns the class that a function's name begins with; "" for a function of none, or of a namespace."""
    name = TEMPLATE_ARGUMENTS.sub("", function).rpartition("::")[0]
    return name if name.rpartition("::")[2][:1].isupper() else ""


def class_breaches(product):
    """Wings may have classes of the same name: a class is looked for in its own one."""
    sources = collections.defaultdict(collections.Counter)
    for path, file in product.items():
        if path.suffix not in SOURCES:
            continue
        try:
            functions, _ = cpp_scanner.scan(file.read_text(encoding="utf-8"))
        except cpp_scanner.ScanError:
            continue  # check_structure reports it
        for function in functions:
            if class_of(function.name):
                sources[path.parts[0], class_of(function.name)][path.as_posix()] += 1
    for (_, name), counts in sorted(sources.items()):
        if len(counts) > 1:
            # The source with the fewest of its functions has them in the wrong place.
            (most, _), *others = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
            yield Breach("class", others[-1][0], name, len(others), f"class {name}, {len(counts)} sources, at most 1: {most}")


def breaches_of(root):
    product = files_of(root, FOLDERS)
    yield from folder_breaches(product)
    yield from header_breaches(product, files_of(root, USERS))
    yield from name_breaches(product)
    yield from class_breaches(product)


def findings_of(root, allowed, known):
    breaches = list(breaches_of(root))
    findings = [breach.finding() for breach in breaches
                if breach.key() not in allowed and breach.figure > known.get(breach.key(), 0)]
    needed = {breach.key() for breach in breaches}
    for kind, path, name in [*allowed, *known]:
        if (kind, path, name) not in needed:
            findings.append(f"{path}:1: {kind} {name}".rstrip() + " follows its rule, or is gone: its exception goes, too")
    return findings
