"""check_python_imports.py finds circles, imports from higher rooms and other readers of the environment, wherever they stand."""

import tempfile
import unittest
from pathlib import Path

from check_python_imports import FACES, PACKAGES, RANKS, READERS, broken_ranks, circle_of, other_readers


def in_package(check, files):
    """Runs a check on a package of these files."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "package"
        for name, text in {"__init__": "", **files}.items():
            file = package / f"{name.replace('__in__', '/')}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return check(package)


class Circles(unittest.TestCase):
    def circle(self, **files):
        return in_package(circle_of, files)

    def test_modules_that_look_down_are_right(self):
        self.assertEqual(self.circle(a="from . import b\nfrom .c import x", b="import package.c", c="x = 1"), [])

    def test_a_circle_is_named(self):
        self.assertEqual(len(self.circle(a="from . import b", b="from package.c import x", c="import package.a")), 4)

    def test_imports_within_functions_count(self):
        self.assertTrue(self.circle(a="from . import b", b="def f():\n    from .a import x\n"))

    def test_imports_for_types_do_not(self):
        text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .a import x\n"
        self.assertEqual(self.circle(a="from . import b", b=text), [])

    def test_folders_are_parts_of_names(self):
        inner = {"room__in____init__": "", "room__in__b": "from ..a import x"}
        self.assertTrue(self.circle(a="from .room import b", **inner))
        self.assertEqual(self.circle(a="from .room import c", **inner), [])


class Ranks(unittest.TestCase):
    CLEAN = {"low__in____init__": "", "low__in__a": "from . import b", "low__in__b": "import os", "high__in__c": "from ..low.a import x",
             "high__in__within__in__d": "from ...low import a\nfrom ..c import x", "e": "from .high import c\nfrom package.low import b"}

    def broken(self, **files):
        def check(package):
            return broken_ranks(package, ["low", "high", "."], {"__init__", "e"}) + other_readers(package, "low/a.py")

        return in_package(check, {**self.CLEAN, **files})

    def assert_caught(self, text, **files):
        lines = self.broken(**files)
        self.assertEqual(len(lines), 1, lines)
        self.assertTrue(lines[0].startswith(text), lines)

    def test_rooms_that_look_down_are_right(self):
        self.assertEqual(self.broken(), [])

    def test_an_import_from_a_higher_room_is_named(self):
        line = "low/b.py (room low) imports high/c.py (room high): a module imports from its own room and from lower ones"
        for text in ("from ..high import c", "from ..high.c import x", "from package.high import c", "import package.high.c"):
            with self.subTest(text):
                self.assert_caught(line, low__in__b=text)
        self.assert_caught("high/within/d.py (room high) imports e.py (room .)", high__in__within__in__d="from ... import e")

    def test_imports_within_functions_count_and_those_for_types_do_not(self):
        self.assert_caught("low/b.py (room low) imports high/c.py", low__in__b="def f():\n    from ..high.c import x\n")
        text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..high.c import x\n"
        self.assertEqual(self.broken(low__in__b=text), [])

    def test_names_of_the_package_itself_are_above_all_rooms(self):
        for text in ("import package", "from package import name", "from .. import name"):
            with self.subTest(text):
                self.assert_caught("low/b.py (room low) imports __init__.py (room .)", low__in__b=text)

    def test_one_room_may_have_several_folders(self):
        files = {"low__in__a": "from ..high import c", "high__in__c": "from .. import e", "e": ""}
        self.assertEqual(in_package(lambda package: broken_ranks(package, ["low high ."]), files), [])

    def test_a_folder_without_a_room_is_named(self):
        self.assert_caught("new/f.py lies in no room", new__in__f="")

    def test_a_module_in_the_root_that_is_not_of_the_face_is_named(self):
        self.assert_caught("f.py lies in the root, which has the package's face alone (__init__, e)", f="")

    def test_a_second_reader_of_the_environment_is_named(self):
        for text in ("import os\nos.environ['A'] = ''", "from os import getenv as get", "import os\ndef f():\n    os.putenv('A', '')"):
            self.assertEqual(self.broken(low__in__a=text), [])
            self.assert_caught("low/b.py names ", low__in__b=text)

    def test_each_package_has_rooms_that_exist(self):
        for package in PACKAGES:
            folders = " ".join(RANKS[package.name]).split()
            self.assertEqual([folder for folder in folders if not (package / folder).is_dir()], [])
            self.assertTrue((package / READERS.get(package.name, "__init__.py")).is_file())
        self.assertTrue(FACES.keys() <= RANKS.keys())


if __name__ == "__main__":
    unittest.main()
