#!/usr/bin/env python3
"""Compares the interfaces to CachingAllocator: its C++ functions, the plug, the C API, and the hooks of the plug-in beside that.

    check_interface.py [--self-test]

TABLE says how each function is spelled in each interface, or why an interface does not have it. Each difference between the
table and the headers is a line; the exit status is 1 if there is one. --self-test plants differences and expects each to be found.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

# A name; "=" is the name of the first column, and a word with a dash is a reason of REASONS. In the C API and the hooks,
# cachalot_ in front of each name is left out.
# A line without the last column: the plug-in has the functions of the C API, of which it exports all, and no hook.
TABLE = """
CachingAllocator            Plug                C API                                 hooks

allocate                    =                   malloc malloc_with_flags malloc_aligned  plug_place
allocate_at                 =                   -torch                                -adapter
allocate_plain_beside       =                   -torch                                -adapter
deallocate                  =                   free
deallocate_when_possible    -destructors        -destructors                          -destructors
record_stream               =                   =                                     record_stream_hook
stream_ends                 -immortal           =
empty_cache                 =                   =                                     reset
drain_thread_caches         -implied            =
base_allocation             allocation          -known                                base_alloc
requested_size              -known              -known                                -known
allocated_size              allocation          -known                                -known
device_of                   =                   -known                                -known
is_inherited                -throws             -throws                               -throws
device_count                -cuda               -cuda                                 -cuda
device                      -cuda               -cuda                                 -cuda
life                        -for_good           -for_good                             -for_good

memory_allocated            =                   =
memory_reserved             =                   =
max_memory_allocated        -stats              =
max_memory_reserved         -stats              =
memory_stats                =                   memory_stats_json
added_stats                 =                   -torch                                -adapter
fragmentation               -ctypes             =
device_usage                -page               -page                                 -page
snapshot                    =                   snapshot_json
reset_peak_stats            =                   reset_peak_memory_stats
reset_accumulated_stats     =                   reset_accumulated_memory_stats
largest_available           =                   -torch                                -adapter
validate                    -tests              -tests                                -tests
metadata_bytes              -tests              -tests                                -tests

configure                   =                   =                                     plug_give_options plug_settings
options                     has_virtual_memory takes_virtual_memory  -known                                plug_takes_pages
set_memory_fraction         =                   =                                     set_memory_fraction_hook
memory_fraction             =                   -known                                plug_memory_fraction
set_caching_enabled         =                   -torch                                -adapter
caching_enabled             =                   -torch                                -adapter

set_limit                   -ctypes             =
set_soft_limit              -ctypes             =                                     plug_on_soft_limit
limit_figures               -ctypes             =                                     plug_limits_json
trim                        -ctypes             =
reserve                     -ctypes             =

add_out_of_memory_observer  =                   -functions                            -adapter
add_refusal_observer        =                   -functions                            -adapter
add_free_memory_callback    =                   -functions                            -adapter
add_change_tracker          =                   -functions                            -adapter
add_last_resort             -ctypes             -functions                            plug_collect_garbage
add_watcher                 -ctypes             -functions                            -leaks
remove_watcher              -ctypes             -functions                            -leaks
add_segment_tracker         -ctypes             add_segment_callback
remove_segment_tracker      -ctypes             remove_segment_callback
set_slow_work_observer      -nvtx               -functions                            -nvtx
record_history              =                   -functions                            plug_record_history
history_enabled             =                   -functions                            -adapter
annotate                    =                   -functions                            -adapter
context_of                  =                   -functions                            -adapter

create_or_retain_pool       =                   -tags                                 -adapter
begin_allocate_to_pool      =                   -tags                                 =
end_allocate_to_pool        =                   -tags                                 =
begin_capture               =                   -tags                                 -adapter
end_capture                 =                   -tags                                 -adapter
release_pool                =                   -tags                                 =
pool_use_count              =                   -tags                                 -adapter
set_use_on_oom              =                   -tags                                 -adapter
set_no_split                =                   -tags                                 -adapter
set_plain                   -ctypes             -tags                                 plug_set_plain
pool_has_exactly            =                   -tags                                 -adapter
checkpoint_pool             =                   -tags                                 -adapter
restore_pool                =                   -tags                                 -adapter

begin_tagged                -ctypes             =
end_tagged                  -ctypes             =
release_physical            -ctypes             =                                     plug_release_physical
restore_physical            -ctypes             =                                     plug_restore_pool_physical
read_saved                  -ctypes             =
make_evictable              -ctypes             =
make_resident               -ctypes             =
ensure                      -ctypes             =
let_go                      -ctypes             =
give_way                    -ctypes             =
release_tags                -ctypes             =
restore_tags                -ctypes             =
tags                        -ctypes             tags_json

handle_count                -handles            share
share                       =                   share
share_contiguous            -handles            share
open_shared                 open_sent           =
close_shared                =                   =
enable_peer_access          =                   =
"""

REASONS = {
    "-adapter": "torch.cuda calls it through the adapter, which has the Plug",
    "-ctypes": "not PyTorch but the Python package calls it, through the C API or a hook",
    "-cuda": "CUDA itself tells",
    "-destructors": "it is for destructors in C++",
    "-for_good": "the allocator of the process is never destroyed",
    "-functions": "it takes functions or objects of C++",
    "-handles": "share tells: all handles are in what it returns",
    "-immortal": "PyTorch's streams live as long as the process",
    "-implied": "empty_cache does so, too",
    "-known": "the caller knows: it allocated or set this itself",
    "-leaks": "leak_hooks.cpp has leak detectors and tracks, which are watchers",
    "-nvtx": "cachalot/nvtx.h, for programs in C++, calls it",
    "-page": "it is on the statistics page, which cachalot_publish makes",
    "-stats": "it is in memory_stats",
    "-tags": "tags are the pools of the C API",
    "-tests": "it is for tests and benchmarks",
    "-throws": "every other call throws in a forked child",
    "-torch": "it is what only PyTorch asks for",
}

# The functions that do not belong to CachingAllocator.
OTHERS = {
    "Plug": ["start", "descriptor_socket", "record_pooled", "hide_code", "set_out_of_memory_thrower"],
    "C API": ["version", "last_error", "last_error_code", "string_free", "onnxruntime_bind", "onnxruntime_alloc", "onnxruntime_free",
              "onnxruntime_empty_cache", "publish", "stop_publishing", "check_guard_json", "join_budget", "leave_budget", "budget_json"],
    "hooks": ["init", "plug_hide_launcher", "plug_bytes", "plug_memory_info"],
}

HEADERS = {
    "CachingAllocator": ["allocator/include/cachalot/caching_allocator.h", "allocator/include/cachalot/allocator_groups.h"],
    "Plug": ["pytorch/plug/plug.h"],
    "C API": ["c_api/include/cachalot/*.h"],
    "hooks": ["pytorch/plug/hooks.h", "pytorch/plug/limit_hooks.cpp"],
}


def without_comments(text):
    return re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)


def public_functions(text):
    """The functions of the classes named CachingAllocator or Allocator…, except for constructors."""
    found = set()
    for name, body in re.findall(r"^class (CachingAllocator|Allocator\w+) [^;{]*\{(.*?)^\};", text, re.DOTALL | re.MULTILINE):
        public = re.split(r"^ (?:protected|private):", body, flags=re.MULTILINE)[0]
        found |= set(re.findall(r"^  (?! )[^(\n;]*?\b(\w+)\(", public, re.MULTILINE)) - {name, "operator"}
    return found - {"AllocatorGroup"}


def plug_functions(text):
    body = re.search(r"^class Plug \{(.*?)^ protected:", text, re.DOTALL | re.MULTILINE)[1]
    forwarded = re.findall(r"Forwarded<&\w+::(\w+)> (\w+);", body)
    assert all(function == member for function, member in forwarded), forwarded
    return {member for _, member in forwarded} | set(re.findall(r"virtual [^;]*?\b(\w+)\(", body))


def exported_functions(mark):
    return lambda text: set(re.findall(mark + r"\s[^;(]*?\bcachalot_(\w+)\(", text))


READERS = {"CachingAllocator": public_functions, "Plug": plug_functions, "C API": exported_functions("CACHALOT_API"),
           "hooks": exported_functions("CACHALOT_EXPORT")}


def read(root=ROOT):
    """The text of each interface's headers, without comments."""
    return {interface: "\n".join(without_comments(file.read_text()) for pattern in patterns for file in sorted(root.glob(pattern)))
            for interface, patterns in HEADERS.items()}


def rows_of(table):
    """Yields {interface: words} for each line."""
    lines = [re.split(r"  +", line.strip()) for line in table.split("\n") if line.strip()]
    for line in lines[1:]:
        cells = [cell.split() for cell in line]
        if len(cells) == len(HEADERS) - 1 and not cells[-1][0].startswith("-"):
            cells.append([])
        yield dict(zip(lines[0], cells, strict=True))


def differences(texts, table=TABLE):
    spelled = {interface: set(OTHERS.get(interface, [])) for interface in HEADERS}
    for row in rows_of(table):
        name = row["CachingAllocator"][0]
        for interface, words in row.items():
            for word in words:
                if not word.startswith("-"):
                    spelled[interface].add(name if word == "=" else word)
                elif word not in REASONS:
                    yield f"{name}: '{word}' is not one of REASONS"
    for interface, reader in READERS.items():
        declared = reader(texts[interface])
        for name in sorted(declared - spelled[interface]):
            yield f"{interface} declares {name}, which is in no line of the table (tests/interface/check_interface.py)"
        for name in sorted(spelled[interface] - declared):
            yield f"{interface} does not declare {name}, which the table names"


def self_test():
    texts = read()
    planted = {
        "CachingAllocator": ("  std::string validate() const;", "  std::string validate() const;\n  int planted(int x) const;"),
        "Plug": ("virtual void start() = 0;", "virtual void start() = 0;\n  Forwarded<&AllocatorPools::planted> planted;"),
        "C API": ("CACHALOT_API int cachalot_configure(", "CACHALOT_API\nint cachalot_planted(void); CACHALOT_API int cachalot_configure("),
        "hooks": ("CACHALOT_EXPORT void cachalot_reset(", "CACHALOT_EXPORT void* cachalot_planted(); CACHALOT_EXPORT void cachalot_reset("),
    }
    assert not list(differences(texts))
    for interface, (line, instead) in planted.items():
        assert line in texts[interface], (interface, line)
        found = list(differences({**texts, interface: texts[interface].replace(line, instead)}))
        assert len(found) == 1 and found[0].startswith(f"{interface} declares planted,"), found
        gone = list(differences({**texts, interface: texts[interface].replace(line, "")}))
        assert any(each.startswith(f"{interface} does not declare") for each in gone), gone
    assert any("no line" in each for each in differences(texts, re.sub(r"\nshare .*", "", TABLE)))
    assert any("not one of REASONS" in each for each in differences(texts, TABLE.replace("-stats", "-planted", 1)))
    print("all planted differences are found")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    found = list(differences(read()))
    print("\n".join(found) or "all interfaces are as the table says")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
