#!/usr/bin/env python3
"""Tests which arguments benchmarks/run refuses before it measures, and how results are joined, compared and drawn."""

import importlib.machinery
import importlib.util
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
GOAL = {"at_most": 1, "at_least": None, "of_native": True}
BOTH_WAYS = {"native": [[10.0, "us"]], "forwarded": [[12.0, "us"]]}


def result(section="TCP", device="H100", goals=None, ways=None):
    """A result with one row in one section."""
    return {
        "title": "",
        "made": [],
        "software": False,
        "driver": "",
        "device": device,
        "sections": [
            {
                "name": section,
                "transport": "tcp",
                "network": None,
                "goals": goals or {},
                "rows": {"add_": ways or BOTH_WAYS},
            }
        ],
    }


def load(program):
    loader = importlib.machinery.SourceFileLoader(f"benchmarks_{program}", str(BENCHMARKS / program))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    sys.path.insert(0, str(BENCHMARKS))
    loader.exec_module(module)
    return module


class Results(unittest.TestCase):
    def setUp(self):
        self.kept = tempfile.TemporaryDirectory()
        self.folder = Path(self.kept.name)

    def tearDown(self):
        self.kept.cleanup()

    def write(self, name, content):
        path = self.folder / name
        path.write_text(json.dumps(content))
        return path

    def call(self, program, *arguments):
        return subprocess.run([sys.executable, "-B", BENCHMARKS / program, *arguments], capture_output=True, text=True)

    def refused(self, *arguments):
        """The error message of a run that measures nothing."""
        done = self.call("run", self.folder, *arguments)
        self.assertEqual(done.returncode, 2, done.stderr)
        return done.stderr.splitlines()[-1]

    def test_run_checks_first_that_the_results_can_be_written(self):
        for option in ("--output", "--json"):
            self.assertIn("nowhere/x cannot be written", self.refused(option, self.folder / "nowhere/x"))
            self.assertIn("cannot be written", self.refused(option, self.folder))
        self.assertIn("the figures go there", self.refused("--output", self.folder / "x.json"))

    def test_run_checks_first_the_result_to_compare_with(self):
        for against in (self.folder / "nothing", self.write("list", []), self.write("other", {"sections": [1]})):
            self.assertIn("is no result", self.refused("--software", "--against", against))

    def join(self, *results):
        files = [self.write(f"{i}.json", one) for i, one in enumerate(results)]
        return self.call("join", *files, "--output", self.folder / "joined.json")

    def joined(self, *results):
        """The joined table's line, and its sections."""
        done = self.join(*results)
        self.assertEqual(done.returncode, 0, done.stderr)
        line = next(line for line in done.stdout.splitlines() if line.startswith("| add_"))
        return line, json.loads((self.folder / "joined.json").read_text())["sections"]

    def test_join_refuses_other_devices(self):
        done = self.join(result(), result(device="gpupool software GPU"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("these are not of one device", done.stderr)
        self.assertFalse((self.folder / "joined.json").exists())

    def test_join_keeps_the_rounds_of_all_results(self):
        line, sections = self.joined(result(), result(ways={"native": [[20.0, "us"]], "forwarded": [[36.0, "us"]]}))
        self.assertEqual(line, "| add_ | us | 15 | 24 | 1.60 |  |")
        self.assertEqual(len(sections), 1)

    def test_join_shows_sections_beside_each_other(self):
        line, sections = self.joined(
            result("shared memory", goals={"add_": {**GOAL, "at_most": 1.2}}),
            result("TCP", goals={"add_": GOAL}, ways={"forwarded": [[13.0, "us"]]}),
        )
        self.assertEqual(line, "| add_ | us | 10 | 12 | 1.20 | <= 1.2 x native | 13 | 1.30 | <= 1 x native, missed |")
        self.assertEqual([section["name"] for section in sections], ["shared memory", "TCP"])

    def test_a_goal_may_be_some_units_above_native(self):
        for plus, cell in ((2, "<= 1 x native + 2"), (1, "<= 1 x native + 1, missed")):
            line, _ = self.joined(result(goals={"add_": {**GOAL, "plus": plus}}))
            self.assertEqual(line, f"| add_ | us | 10 | 12 | 1.20 | {cell} |")
        goal_of = load("plot").goal_of
        self.assertEqual([goal_of({**GOAL, "plus": plus}, 10.0, "us") for plus in (0, 10)], [1, 0.5])

    def test_compare_finds_rows_that_differ_and_a_machine_that_changed(self):
        def write(name, native, forwarded):
            return self.write(name, result(ways={"native": [[native, "us"]], "forwarded": [[forwarded, "us"]]}))

        before = [write(f"before{i}", 10.0 + i, 20.0 + i) for i in range(3)]
        for native, forwarded, status, lines in (
            (11.5, 21.5, 0, ["0 of 1 rows differ; chance explains 0.1", "natively 0 of 1 rows differ"]),
            (13.0, 21.5, 0, ["0 of 1 rows differ", "natively 1 of 1 rows differ"]),
            (11.5, 23.0, 1, ["1 of 1 rows differ", "natively 0 of 1 rows differ"]),
        ):
            after = [write(f"after{i}", native + i / 10, forwarded + i / 10) for i in range(3)]
            done = self.call("compare", "--before", *before, "--after", *after)
            self.assertEqual(done.returncode, status, done.stdout + done.stderr)
            for line in lines:
                self.assertIn(line, done.stdout)

    def test_plot_draws_the_goals_of_each_section(self):
        for goals in ({"add_": GOAL}, {}):
            done = self.call("plot", self.write("result.json", result(goals=goals)), self.folder / "plot.svg")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual((self.folder / "plot.svg").read_text().count('class="goal"'), len(goals))

    def test_goals_apply_to_gpus_at_a_short_distance(self):
        run = load("run")
        for transport, rtt, device, goal in (
            ("shm", None, "H100", 16),
            ("tcp", None, "H100", 30),
            ("tcp", "100us", "H100", None),
            ("tcp", None, run.SOFTWARE_GPU, None),
        ):
            section = run.Section("", transport, rtt and run.Network(rtt, "10gbit"), None, {})
            found = run.goals_of(section, device).get("item")
            self.assertEqual(found and found.at_most, goal, section)
        for rtt, known in (("100us", True), ("10ms", False)):
            section = run.Section("", "tcp", run.Network(rtt, "10gbit"), None, {})
            self.assertEqual("add_" in run.goals_of(section, "H100"), known, rtt)


if __name__ == "__main__":
    unittest.main()
