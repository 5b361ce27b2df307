#!/usr/bin/env python3
"""Tests of units: a planted breach of each rule, and what comes closest to one."""

import pathlib
import tempfile
import unittest

import units

LONG = "\n" * units.LINES_WITH_ONE_USER


def folder_of(count, folder="pool"):
    """Returns `count` units: each is a source, and every second one has a header."""
    files = {f"{folder}/unit{number}.cpp": "" for number in range(count)}
    return files | {f"{folder}/unit{number}.h": LONG for number in range(0, count, 2)}


class UnitsTest(unittest.TestCase):
    def findings(self, files, allowed=(), known=None, kind=None):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for path, text in files.items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(text)
            if kind is not None:
                return [breach.finding() for breach in units.breaches_of(root) if breach.kind == kind]
            return units.findings_of(root, allowed, known or {})

    def test_folders_have_5_to_25_units(self):
        self.assertEqual(self.findings(folder_of(5)), [])
        self.assertEqual(self.findings(folder_of(25)), [])
        self.assertEqual(self.findings(folder_of(4)), ["pool:1: folder, 4 units, at least 5"])
        self.assertEqual(self.findings(folder_of(26)), ["pool:1: folder, 26 units, at most 25"])

    def test_modules_and_scripts_are_units_and_the_face_of_a_package_is_none(self):
        modules = {f"pytorch/cachalot/_room/module{number}.py": "" for number in range(4)}
        few = ["pytorch/cachalot/_room:1: folder, 4 units, at least 5"]
        self.assertEqual(self.findings(modules | {"pytorch/cachalot/_room/__init__.py": ""}), few)
        self.assertEqual(self.findings(modules | {"pytorch/cachalot/_room/script.js": ""}), [])

    def test_public_headers_may_be_few_and_what_is_not_ours_does_not_count(self):
        self.assertEqual(self.findings({"pool/include/cachalot/pool_set.h": "", "tools/html/vendor/plot.js": "", "tests/a/b.cpp": "",
                                        "simulator/data/table.inc": "", "tools/html/report.css": ""}), [])

    def test_a_small_header_needs_two_users_beside_its_source(self):
        header = {"pool/room/small.h": "", "pool/room/small.cpp": '#include "small.h"\n', "pool/room/user.cpp": '#include "room/small.h"\n',
                  "pool/room/user.h": '#  include "pool/room/small.h"  // again\n' + LONG}
        one = ["pool/room/small.h:1: header of 0 lines with one user, pool/room/user, at least 80 lines"]
        self.assertEqual(self.findings(header, kind="header"), one)
        self.assertEqual(self.findings(header | {"tests/pool/small_test.cpp": '#include "room/small.h"\n'}, kind="header"), [])
        self.assertEqual(self.findings(header | {"pool/room/small.h": LONG}, kind="header"), [])
        self.assertEqual(self.findings({"pool/room/small.h": ""}, kind="header"),
                         ["pool/room/small.h:1: header of 0 lines with no user, at least 80 lines"])

    def test_an_include_means_the_file_beside_it_or_the_end_of_a_path(self):
        files = {"pool/a/same.h": "", "pool/b/same.h": "", "pool/a/user.cpp": '#include "same.h"\n',
                 "pool/b/user.cpp": '#include "a/same.h"\n// #include "b/same.h"\n', "pool/a/not_same.h": LONG}
        self.assertEqual(self.findings(files, kind="header"),
                         ["pool/b/same.h:1: header of 0 lines with no user, at least 80 lines"])

    def test_a_name_occurs_once(self):
        files = {"pool/a/process.h": LONG, "tools/process.h": LONG, "tools/process.py": "", "tests/process.h": "",
                 "pytorch/a/__init__.py": "", "pytorch/b/__init__.py": "", "pool/targets.cmake": "", "tools/targets.cmake": ""}
        self.assertEqual(self.findings(files, kind="name"), ["tools/process.h:1: name process.h, 2 files, at most 1: pool/a/process.h"])

    def test_a_class_is_in_one_source(self):
        files = {"pool/heap.cpp": "Heap::Heap() {}\nvoid Heap::take() {}\nint Heap::Part<int>::get() const {}\n",
                 "pool/more.cpp": "namespace tools { void free() {} }\nvoid tools::run() {}\nHeap::~Heap() {}\n",
                 "pool/part.cpp": "bool Heap::Other::get() {}\n", "tools/heap.cpp": "int Heap::give() { return 1; }\n",
                 "pool/run.cpp": "void tools::run() {}\n"}
        self.assertEqual(self.findings(files, kind="class"), ["pool/more.cpp:1: class Heap, 2 sources, at most 1: pool/heap.cpp"])

    def test_an_exception_hides_its_breach_and_what_is_known_may_not_grow(self):
        key = ("folder", "pool", "")
        self.assertEqual(self.findings(folder_of(3), allowed={key: "a reason"}), [])
        self.assertEqual(self.findings(folder_of(3), known={key: 2}), [])
        self.assertEqual(self.findings(folder_of(2), known={key: 2}), ["pool:1: folder, 2 units, at least 5"])

    def test_exceptions_that_nothing_needs_are_findings(self):
        expected = ["pool:1: folder follows its rule, or is gone: its exception goes, too"]
        self.assertEqual(self.findings(folder_of(5), allowed={("folder", "pool", ""): "a reason"}), expected)
        self.assertEqual(self.findings({}, known={("folder", "pool", ""): 2}), expected)


if __name__ == "__main__":
    unittest.main()
