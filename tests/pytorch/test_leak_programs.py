"""The leak report is right about the programs of leak_programs.py: it names line, object and cure of those that leak, and is
silent about the others.

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
    code = f"import sys\nsys.path.append({str(Path(__file__).parent)!r})\nimport leak_programs\nleak_programs.main()\n"
    lines = succeeds(run_python(code, timeout=600, LEAK_PROGRAMS="\n".join(names))).splitlines()
    return dict(json.loads(line) for line in lines if line.startswith("["))


def rows(leaking):
    chosen = [row for row in TABLE if row.leaks == leaking]
    return pytest.mark.parametrize("row", chosen, ids=[row.name for row in chosen])


def answer(answers, row):
    assert isinstance(answers.get(row.name), list), f"{row.name}: {answers.get(row.name)}"
    return answers[row.name]


@rows(leaking=True)
def test_a_leak_is_named_with_its_line_object_and_cure(answers, row):
    said = answer(answers, row)
    texts = "\n".join([row.name, *(leak["text"] for leak in said)])
    assert said, texts
    where = row.operation or "# leaks"
    leak = next((leak for leak in said if where in leak["source"]), said[0])
    assert where in leak["source"] and leak["slope"] == said[0]["slope"], f"{texts}\nthe steepest is not at {where}"
    suspect = next(iter(leak["suspects"]), {"kind": "", "name": "", "text": ""})
    kind, _, name = row.suspect.partition(" ")
    assert suspect["kind"] == kind, texts
    assert not name or suspect["name"] == name, texts
    assert row.cure in suspect["text"], texts


@rows(leaking=False)
def test_a_program_that_does_not_leak_is_none(answers, row):
    said = answer(answers, row)
    assert not said, "\n".join([row.name, *(leak["text"] for leak in said)])


def test_the_table_has_many_programs_of_each_shape():
    assert len({row.name for row in TABLE}) == len(TABLE)
    assert sum(row.leaks for row in TABLE) >= 60 and sum(not row.leaks for row in TABLE) >= 30
    for shape in leak_programs.SHAPES:
        assert sum(row.shape == shape for row in TABLE) >= 5, shape
