#!/usr/bin/env python3
"""What benchmarks/run refuses before it measures, which results join into one, and which goals are drawn."""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
NETWORK = {"rtt": "100us", "rate": "10gbit"}


def result(goals=None, network=None, **facts):
    """Of one row, in one section."""
    rows = {"add_": {"native": [[10.0, "us"]], "forwarded": [[12.0, "us"]]}}
    return {"title": "", "made": [], "software": False, "goals": goals or {},
            "sections": [{"name": "network" if network else "same host", "network": network, "rows": rows}], **facts}


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
        """The line that says why, of a run in which nothing was measured."""
        done = self.call("run", self.folder, *arguments)
        self.assertEqual(done.returncode, 2, done.stderr)
        return done.stderr.splitlines()[-1]

    def test_run_asks_first_where_the_results_can_be_written(self):
        for option in ("--output", "--json"):
            self.assertIn("nowhere/x cannot be written", self.refused(option, self.folder / "nowhere/x"))
            self.assertIn("cannot be written", self.refused(option, self.folder))
        self.assertIn("the figures go there", self.refused("--output", self.folder / "x.json"))

    def test_run_asks_first_what_it_is_to_compare_with(self):
        for against in (self.folder / "nothing", self.write("list", []), self.write("other", {"sections": [1]})):
            self.assertIn("is no result", self.refused("--software", "--against", against))

    def join(self, *results):
        files = [self.write(f"{i}.json", one) for i, one in enumerate(results)]
        return self.call("join", *files, "--output", self.folder / "joined.json")

    def test_join_refuses_other_transports_and_devices(self):
        tcp = {"transport": "tcp", "device": "H100"}
        for other in ({**tcp, "transport": "shm"}, {**tcp, "device": "gpupool software GPU"}):
            done = self.join(result(**tcp), result(), result(**other))
            self.assertEqual(done.returncode, 1)
            self.assertIn("these are not of one", done.stderr)
        self.assertFalse((self.folder / "joined.json").exists())

    def test_join_takes_those_that_do_not_say(self):
        done = self.join(result(), result(transport="tcp", device="H100"))
        self.assertEqual(done.returncode, 0, done.stderr)
        joined = json.loads((self.folder / "joined.json").read_text())
        self.assertEqual((joined["transport"], joined["device"]), ("tcp", "H100"))
        self.assertEqual(len(joined["sections"][0]["rows"]["add_"]["forwarded"]), 2)

    def goals_drawn(self, content):
        done = self.call("plot", self.write("result.json", content), self.folder / "plot.svg")
        self.assertEqual(done.returncode, 0, done.stderr)
        return (self.folder / "plot.svg").read_text().count('class="goal"')

    def test_plot_draws_the_goals_of_each_section(self):
        goals = {"add_": {"at_most": 1, "at_least": None, "of_native": True}}
        self.assertEqual(self.goals_drawn(result(goals)), 1)
        self.assertEqual(self.goals_drawn(result(goals, NETWORK)), 1)
        self.assertEqual(self.goals_drawn(result(goals, {**NETWORK, "rtt": "10ms"})), 0, "a line that far has no goals")
        self.assertEqual(self.goals_drawn(result({}, NETWORK)), 0, "the software GPU has none")


if __name__ == "__main__":
    unittest.main()
