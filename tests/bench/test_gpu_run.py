"""bench/gpu/run and bench/gpu/pack without a GPU: arguments, verdicts, and what commands can do wrong."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench/gpu"))

import commands  # noqa: E402
import reporting  # noqa: E402
import stages  # noqa: E402


def call(program, *arguments, **variables):
    return subprocess.run([sys.executable, "-B", ROOT / "bench/gpu" / program, *arguments], capture_output=True, text=True,
                          env=os.environ | variables)


def run_shell(text, kind, seconds=20):
    """The outcome of a stage whose command is a program with this text."""
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder) / "program"
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
        machine = commands.Machine(pathlib.Path(folder), is_rehearsal=False)
        stage = stages.Stage("name", "title", seconds, [stages.Command(["program"], kind)], [])
        return commands.run_stage(machine, stage, seconds)


CHECK = '{"check": "a", "verdict": "%s", "why": "because"}'


class Arguments(unittest.TestCase):
    def refuse(self, part_of_message, *arguments, program="run", **variables):
        done = call(program, *arguments, **variables)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertIn(part_of_message, done.stderr)

    def test_bad_arguments_are_one_line_that_names_them(self):
        self.refuse("there is no stage 'nothing'; there are device,", "--stage", "nothing")
        self.refuse("--minutes 0", "--minutes", "0")
        self.refuse("has no simulated runtime", "--rehearse", "--build", "/nowhere")
        self.refuse("CACHALOT_DEPS=/nowhere", CACHALOT_DEPS="/nowhere")
        self.refuse("is not a folder", "--out", __file__)
        self.refuse("unrecognized arguments", "--nothing")

    def test_the_list_names_each_stage(self):
        done = call("run", "--list")
        self.assertEqual([line.split()[0] for line in done.stdout.splitlines()], [stage.name for stage in stages.STAGES])

    def test_pack_leaves_folders_of_others_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            self.refuse("not all is under", f"{folder}/new", "--from", folder, program="pack")
            (pathlib.Path(folder) / "mine").write_text("")
            if pathlib.Path("/usr/src/googletest/googletest/src").exists():
                self.refuse("not of an earlier pack", folder, program="pack")
            self.assertTrue((pathlib.Path(folder) / "mine").exists())


class Packing(unittest.TestCase):
    @unittest.skipUnless(pathlib.Path("/usr/src/googletest/googletest/src").exists(), "Debian's package googletest is missing")
    def test_cmake_takes_everything_from_the_packed_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            packed, build = f"{folder}/packed", f"{folder}/build"
            self.assertEqual(call("pack", packed).returncode, 0)
            cmake = ["cmake", "-S", ROOT, "-B", build, f"-DCACHALOT_DEPS={packed}", "-DCACHALOT_CUDA=OFF", "-DCMAKE_BUILD_TYPE=Release"]
            done = subprocess.run(cmake, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            cache = (pathlib.Path(build) / "CMakeCache.txt").read_text()
            for found in ("fmt_DIR", "CLI11_DIR", "nlohmann_json_DIR", "GTest_DIR", "ZLIB_LIBRARY_RELEASE"):
                self.assertRegex(cache, f"{found}:[A-Z]+={packed}/")

    def test_cmake_refuses_another_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(["cmake", "-S", ROOT, "-B", folder, "-DCACHALOT_DEPS=/nowhere"], capture_output=True, text=True)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("CACHALOT_DEPS is '/nowhere'", done.stderr)


class Verdicts(unittest.TestCase):
    def verdict(self, text, kind=stages.LINES, seconds=20):
        return run_shell(text, kind, seconds).verdict()

    def test_one_failed_check_is_a_failed_stage(self):
        verdict, why = self.verdict(f"echo '{CHECK % 'passed'}'\necho '{CHECK % 'failed'}'")
        self.assertEqual(verdict, "failed")
        self.assertIn("1 of 2: a: because", why)

    def test_a_stage_without_a_passed_check_has_not_passed(self):
        self.assertEqual(self.verdict(f"echo '{CHECK % 'not applicable'}'"), ("not applicable", "because"))
        self.assertEqual(self.verdict("true")[0], "failed")
        self.assertEqual(self.verdict("echo '{\"fact\": \"a\", \"value\": 1, \"unit\": \"\"}'")[0], "failed")

    def test_a_crash_costs_the_stage_and_keeps_what_was_said_before(self):
        outcome = run_shell(f"echo '{CHECK % 'passed'}'\nkill -SEGV $$", stages.LINES)
        self.assertEqual(outcome.verdict()[0], "failed")
        self.assertEqual(len(outcome.checks), 2)

    def test_what_takes_too_long_is_stopped_with_its_children(self):
        start = time.monotonic()
        verdict, why = self.verdict(f"echo '{CHECK % 'passed'}'\nsleep 60 &\nsleep 60", seconds=2)
        self.assertLess(time.monotonic() - start, 20)
        self.assertEqual(verdict, "failed")
        self.assertIn("more than 2 s", why)

    def test_what_the_whole_runs_time_cut_short_was_not_run(self):
        outcome = run_shell("sleep 60", stages.LINES, seconds=2)
        outcome.is_cut_short = True
        self.assertEqual(outcome.verdict()[0], "not run")
        outcome.check("another", "failed", "it is wrong")
        self.assertEqual(outcome.verdict()[0], "failed")

    def test_tests_must_have_run(self):
        self.assertEqual(self.verdict("echo '[  PASSED  ] 3 tests.'", stages.GTEST)[0], "passed")
        self.assertEqual(self.verdict("echo '[  PASSED  ] 0 tests.'", stages.GTEST)[0], "failed")
        self.assertEqual(self.verdict("echo '[  PASSED  ] 3 tests.'\nexit 1", stages.GTEST)[0], "failed")
        self.assertEqual(self.verdict("echo '[  PASSED  ] 0 tests.'\necho '[  SKIPPED ] 2 tests'", stages.GTEST)[0], "not applicable")
        self.assertEqual(self.verdict("echo '100% tests passed, 0 tests failed out of 4'", stages.CTEST)[0], "passed")
        self.assertEqual(self.verdict("echo 'No tests were found'", stages.CTEST)[0], "failed")

    def test_a_table_must_not_be_empty(self):
        self.assertEqual(self.verdict("echo table", stages.TABLE)[0], "passed")
        self.assertEqual(self.verdict("true", stages.TABLE)[0], "failed")

    def test_a_program_that_is_not_there_is_a_failure(self):
        machine = commands.Machine(pathlib.Path("/nowhere"), is_rehearsal=False)
        verdict, why = commands.run_stage(machine, stages.find("load"), 10).verdict()
        self.assertEqual(verdict, "failed")
        self.assertIn("not built: bench/gpu/heap", why)


class Reports(unittest.TestCase):
    ABOUT = {"gpu": "NVIDIA H200", "date": "2026-01-02", "commit": "abc", "driver": "13.0", "cores": 16, "is_simulated": False}
    FACTS = [{"fact": "latency/map/us", "value": 2.5, "unit": "us"}, {"fact": "latency/map/us_per_mib", "value": 0.0, "unit": "us"},
             {"fact": "latency/malloc/us", "value": 100.0, "unit": "us"},
             {"fact": "latency/malloc/us_per_mib", "value": 0.25, "unit": "us"}]

    def write(self, folder, name, check):
        report = reporting.Report(pathlib.Path(folder), dict(self.ABOUT), ["costs", "load"])
        outcome = commands.Outcome()
        outcome.check("a | b", check, "it `says` so")
        outcome.facts = self.FACTS if name == "costs" else []
        report.add(name, name.title(), outcome, 1)
        return report

    def test_several_calls_of_a_day_fill_one_report(self):
        with tempfile.TemporaryDirectory() as folder:
            self.write(folder, "load", "passed")
            report = self.write(folder, "costs", "failed")
            self.assertEqual(report.path("md").name, "nvidia-h200-2026-01-02.md")
            whole = json.loads(report.path("json").read_text())
            verdicts = [(stage["name"], stage["verdict"]) for stage in whole["stages"]]
            self.assertEqual(verdicts, [("costs", "failed"), ("load", "passed")])

    def test_what_was_not_run_is_left_for_the_next_call(self):
        with tempfile.TemporaryDirectory() as folder:
            report = self.write(folder, "load", "passed")
            report.add_not_run("costs", "Costs", "the time was over")
            again = reporting.Report(pathlib.Path(folder), dict(self.ABOUT), ["costs", "load"])
            self.assertTrue(again.has("load"))
            self.assertFalse(again.has("costs"))
            other_commit = reporting.Report(pathlib.Path(folder), self.ABOUT | {"commit": "def"}, ["costs", "load"])
            self.assertFalse(other_commit.has("load"))

    def test_costs_become_a_latency_model(self):
        self.assertEqual(reporting.profile_name("NVIDIA H100 80GB HBM3"), "h100")
        model = reporting.latency_model("NVIDIA H200", self.FACTS)
        self.assertEqual(model["profile"], "h200")
        self.assertEqual(reporting.model_lines(model), ["set(DeviceCall::map, 2.5);", "set(DeviceCall::malloc, 100, 0.25);"])
        self.assertIsNone(reporting.latency_model("NVIDIA H200", []))

    def test_pages_keep_the_rules_of_the_documentation(self):
        with tempfile.TemporaryDirectory() as folder:
            path = self.write(folder, "costs", "failed").path("md")
            checker = ROOT / "tests/language/check_language.py"
            done = subprocess.run([sys.executable, "-B", checker, path], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout)


if __name__ == "__main__":
    unittest.main()
