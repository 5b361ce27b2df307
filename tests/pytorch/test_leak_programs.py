"""The leak report is right about the programs of leak_programs.py: it names line, object and cure of those that leak, and is
silent about the others; whether it is told where an iteration ends, or not.

All programs that were selected run in one process, one after the other, each under a detector of its own (leak_programs.py
says how): PyTorch is loaded once. A test looks at what was said of one of them.
"""

import json
from pathlib import Path

import leak_programs
import pytest
from world import full_only, not_pages, run_python, succeeds

pytestmark = [full_only, not_pages]  # as test_leaks.py

TABLE = leak_programs.TABLE


@pytest.fixture(scope="module")
def answers(request):
    """By name, what was said of the programs that were selected."""
    tests = (item for item in request.session.items if item.path == request.path and hasattr(item, "callspec"))
    names = [item.callspec.params["row"].name for item in tests]
    code = f"import sys\nsys.path.append({str(Path(__file__).parent)!r})\nimport leak_programs\nleak_programs.main({names!r})\n"
    lines = succeeds(run_python(code, timeout=600)).splitlines()
    return dict(json.loads(line) for line in lines if line.startswith("["))


@pytest.mark.parametrize("row", TABLE, ids=[row.name for row in TABLE])
def test_a_leak_is_named_with_its_line_object_and_cure_and_nothing_else_is(answers, row):
    trouble = leak_programs.trouble(row, answers.get(row.name))
    assert not trouble, trouble


def test_the_table_has_many_programs_of_each_shape():
    assert len({row.name for row in TABLE}) == len(TABLE)
    assert sum(row.leaks for row in TABLE) >= 60 and sum(not row.leaks for row in TABLE) >= 30
    for shape in leak_programs.SHAPES:
        assert sum(row.shape == shape for row in TABLE) >= 5, shape
