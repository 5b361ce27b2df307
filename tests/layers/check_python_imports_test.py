"""check_python_imports.py finds circles, wherever the imports stand."""

import tempfile
import unittest
from pathlib import Path

from check_python_imports import circle_of


class Circles(unittest.TestCase):
    def circle(self, **files):
        with tempfile.TemporaryDirectory() as folder:
            package = Path(folder) / "package"
            for name, text in {"__init__": "", **files}.items():
                file = package / f"{name.replace('__in__', '/')}.py"
                file.parent.mkdir(exist_ok=True)
                file.write_text(text)
            return circle_of(package)

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


if __name__ == "__main__":
    unittest.main()
