#!/usr/bin/env python3
"""Runs the tests of Python packages that use CUDA, and compares what fails with what is expected to.

    run.py --setup forwarded-software                   # everything, through gpupool to the software GPU
    run.py --setup forwarded --suite numba-cuda         # one suite, through gpupool to a GPU of this machine, which the
                                                        # tests cannot see if run.py is root; --transport tcp
    run.py --setup native --results native.json         # a GPU of this machine by its own driver
    run.py --setup forwarded --as native.json           # compares with that run as well
    run.py --setup forwarded-software 'cudapy/test_a*'  # some files
    run.py --setup forwarded-software --slice 1/4       # the first of four runs that share the files

The suites: `numba-cuda`, whose package contains its tests; `cuda-bindings` and `cuda-core`, if --cuda-python names a
checkout of NVIDIA's repository at the versions that scripts/install-dependencies installs (PyPI has no sources of it).

Each file of tests runs in a process of its own, with its own session. A test that ends the process or takes too long
has failed; the file's other tests run in a further process. expected-failures.txt lists what may fail, with the reason.

Exit status: 0 if exactly what is expected failed, 1 otherwise, 2 if the tests cannot run.
"""

import argparse
import concurrent.futures
import contextlib
import fnmatch
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOP = HERE.parents[2]
sys.path.insert(0, str(TOP / "scripts"))
from two_ways import Server, can_hide_gpu, through_gpupool, without_gpu

SETUPS = ("native", "software", "forwarded", "forwarded-software")
# A part that takes less than a minute: calls of every kind rather than many kernels.
PART = {
    "numba-cuda": (
        "cudadrv/test_context_stack.py",
        "cudadrv/test_cuda_memory.py",
        "cudadrv/test_deallocations.py",
        "cudadrv/test_emm_plugins.py",
        "cudadrv/test_events.py",
        "cudadrv/test_host_alloc.py",
        "cudadrv/test_inline_ptx.py",
        "cudadrv/test_pinned.py",
        "cudadrv/test_profiler.py",
        "cudadrv/test_reset_device.py",
        "cudadrv/test_select_device.py",
    ),
    "cuda-bindings": (),
    "cuda-core": (),
}
ENVIRONMENT = {
    "NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
}


class Suite:
    def __init__(self, name, tests):
        self.name = name
        self.tests = tests

    def files(self):
        names = sorted(path.relative_to(self.tests).as_posix() for path in self.tests.rglob("test_*.py"))
        # These measure, with a package of their own.
        return [name for name in names if not name.startswith("benchmarks/")]


class Expected:
    """What expected-failures.txt says of a suite and a setup: `reason(test)` is None for a test that must pass."""

    def __init__(self, path, suite, setup):
        self.rules = []
        heading = None
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if not line.strip() or line.startswith("#"):
                continue
            if match := re.fullmatch(r"\[([\w, -]+)\] (.+)", line):
                setups = [word.strip() for word in match[1].split(",")]
                if unknown := [word for word in setups if word not in SETUPS]:
                    sys.exit(f"{path}:{number}: no setup is called {unknown[0]}")
                heading = (setups, match[2])
                continue
            named, pattern = line.split(None, 1)
            if heading is None:
                sys.exit(f"{path}:{number}: a test without a reason above it")
            if named == suite and setup in heading[0]:
                regex = re.compile(".*".join(re.escape(part) for part in pattern.split("*")))
                self.rules.append([regex, pattern, heading[1], False])

    def reason(self, test):
        for rule in self.rules:
            if rule[0].fullmatch(test):
                rule[3] = True
                return rule[2]
        return None

    def unused(self, run, known):
        """The rules that match no test: of the files that were run, and of files that do not exist."""
        return [
            rule[1]
            for rule in self.rules
            if not rule[3] and (rule[1].split("::")[0] in run or rule[1].split("::")[0] not in known)
        ]


class Runner:
    def __init__(self, options, suite):
        self.options = options
        self.suite = suite
        self.software = options.setup in ("software", "forwarded-software")
        self.folder = Path(options.scratch)

    def environment(self, results):
        environment = dict(os.environ, **ENVIRONMENT)
        environment["GPUPOOL_TEST_PACKAGES"] = str(self.options.packages)
        environment["GPUPOOL_SUITE_RESULTS"] = str(results)
        if self.software:
            environment["GPUPOOL_SUITE_HIDE_NVJITLINK"] = "1"
        if self.options.transport:
            environment["GPUPOOL_TRANSPORT"] = self.options.transport
        environment["PYTHONPATH"] = os.pathsep.join(str(path) for path in (HERE / "site", HERE, self.options.pytest))
        if self.options.setup == "software" and not self.options.inherit:
            link = self.folder / "libcuda.so.1"
            link.unlink(missing_ok=True)
            link.symlink_to(self.options.build / "lib/libgpupool-softgpu.so")
            paths = [str(self.folder), environment.get("LD_LIBRARY_PATH", "")]
            environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, paths))
        return environment

    def command(self, file, finished):
        arguments = ["-p", "suite_plugin", "-p", "no:cacheprovider", "-q", "--rootdir", str(self.suite.tests)]
        # The modules get the names by which they import each other.
        arguments += ["-o", "consider_namespace_packages=true", str(self.suite.tests / file)]
        # Where a test hangs, the stacks of its threads say why.
        arguments += ["-o", f"faulthandler_timeout={max(1, self.options.limit - 5)}"]
        for test in finished:
            arguments += ["--deselect", test]
        command = [sys.executable, "-m", "pytest", *arguments]
        if self.options.server:
            command = through_gpupool(self.options.build, self.options.server, command)
        return without_gpu(command) if self.options.hides_gpu else command

    def wait(self, process, results):
        """Waits until the process ends, and kills it if a test takes longer than the limit.

        Returns what it wrote, and whether it ended by itself.
        """
        size, since = -1, time.monotonic()
        while True:
            try:
                return process.communicate(timeout=1)[0], True
            except subprocess.TimeoutExpired:
                # The results grow as each test begins and ends.
                if results.stat().st_size != size:
                    size, since = results.stat().st_size, time.monotonic()
                elif time.monotonic() - since > self.options.limit:
                    os.killpg(process.pid, signal.SIGKILL)
                    return process.communicate()[0], False

    def once(self, file, finished):
        """Runs the tests of a file but those that have finished. Returns the outcomes, and how the process ended."""
        with tempfile.NamedTemporaryFile(dir=self.folder, suffix=".jsonl") as results:
            process = subprocess.Popen(
                self.command(file, finished),
                env=self.environment(results.name),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            output, ended = self.wait(process, Path(results.name))
            end = f"ended with status {process.returncode}" if ended else "did not end"
            lines = Path(results.name).read_text(encoding="utf-8").splitlines()
        outcomes = {}
        for line in lines:
            entry = json.loads(line)
            if outcomes.get(entry["test"], {}).get("outcome") != "failed":
                outcomes[entry["test"]] = entry
        complete = ended and process.returncode in (0, 1, 5)
        return outcomes, complete, end + "\n" + output.decode(errors="replace")[-4000:]

    def run(self, file):
        begin = time.monotonic()
        outcomes = {}
        while True:
            some, complete, end = self.once(file, list(outcomes))
            progress = some.keys() - outcomes.keys()
            for entry in some.values():
                if entry["outcome"] == "begun":
                    entry.update(outcome="failed", text=f"the process {end}")
            outcomes.update(some)
            if complete or not progress:
                break
        if not complete and not progress:
            outcomes[file] = {"outcome": "failed", "text": f"the process {end}"}
        return file, outcomes, time.monotonic() - begin


def run_suite(options, suite):
    runner = Runner(options, suite)
    patterns = options.files or (PART[suite.name] if options.part else ["*"])
    files = [file for file in suite.files() if any(fnmatch.fnmatch(file, pattern) for pattern in patterns)]
    # Neighbours often test the same and take the same time, so each slice takes some of them.
    files = files[options.slice[0] - 1 :: options.slice[1]]
    outcomes = {}
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for done in concurrent.futures.as_completed([pool.submit(runner.run, file) for file in files]):
            file, some, seconds = done.result()
            outcomes.update(some)
            counts = {}
            for entry in some.values():
                counts[entry["outcome"]] = counts.get(entry["outcome"], 0) + 1
            shown = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())) or "no tests"
            print(f"{suite.name} {file}: {shown}  ({seconds:.1f} s)", flush=True)
    return files, outcomes


def compare(options, suite, files, outcomes, other):
    """Prints what differs from what is expected, and returns how many tests do."""
    expected = Expected(HERE / "expected-failures.txt", suite.name, options.setup)
    failed = {test: entry for test, entry in outcomes.items() if entry["outcome"] == "failed"}
    differences, reasons = 0, {}
    for test, entry in outcomes.items():
        reason = expected.reason(test)
        if reason is None and other.get(test, {}).get("outcome") == "failed":
            reason = "fails in the run that this one is compared with, too"
        if test in failed and reason is None:
            differences += 1
            lines = entry["text"].splitlines()[-options.lines :]
            print(f"\nFAILED {suite.name} {test}\n" + "\n".join("    " + line for line in lines))
        elif test in failed:
            reasons.setdefault(reason, []).append(test)
        elif reason is not None and entry["outcome"] == "passed" and test not in other:
            differences += 1
            print(f"\nPASSED {suite.name} {test}, which was expected to fail: {reason}")
    for reason, tests in reasons.items():
        print(f"\n{len(tests)} expected failures: {reason}")
        for test in tests:
            print(f"    {test}")
    for pattern in expected.unused(files, suite.files()):
        differences += 1
        print(f"\nexpected-failures.txt names {pattern}, which is no test of {suite.name}")
    passed = sum(entry["outcome"] == "passed" for entry in outcomes.values())
    skipped = sum(entry["outcome"] == "skipped" for entry in outcomes.values())
    print(
        f"\n{suite.name}, {options.setup}: {passed} passed, {len(failed)} failed, {skipped} skipped, "
        f"{differences} not as expected"
    )
    return differences


def suites(options):
    found = [Suite("numba-cuda", options.packages / "numba_cuda/numba/cuda/tests")]
    if options.cuda_python:
        found.append(Suite("cuda-bindings", options.cuda_python / "cuda_bindings/tests"))
        found.append(Suite("cuda-core", options.cuda_python / "cuda_core/tests"))
    chosen = [suite for suite in found if not options.suite or suite.name in options.suite]
    for suite in chosen:
        if not suite.tests.is_dir():
            print(f"{suite.name}: there is no {suite.tests}", file=sys.stderr)
            sys.exit(2)
    if not chosen:
        print("no such suite, or it needs --cuda-python", file=sys.stderr)
        sys.exit(2)
    return chosen


def fraction(text):
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError("not like 1/4")
    return int(match[1]), int(match[2])


def parse_options():
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setup", choices=SETUPS, required=True)
    parser.add_argument(
        "--inherit", action="store_true", help="use the driver that this process finds, which --setup only names"
    )
    parser.add_argument("--suite", action="append", help="numba-cuda, cuda-bindings or cuda-core; default: all")
    parser.add_argument("--transport", choices=("shm", "tcp"), help="default: what gpupool chooses")
    parser.add_argument("--part", action="store_true", help="the part that the tests of the build run")
    parser.add_argument(
        "--slice", type=fraction, default=(1, 1), metavar="K/N", help="each Nth file, beginning with the Kth"
    )
    parser.add_argument("--build", type=Path, default=TOP / "build/release", help="default: build/release")
    parser.add_argument("--packages", type=Path, default=TOP / ".deps" / version, help="default: .deps/pythonX.Y")
    parser.add_argument("--pytest", type=Path, default=TOP / ".deps/pytest", help="a folder with pytest and filecheck")
    parser.add_argument("--cuda-python", type=Path, metavar="CHECKOUT")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--limit", type=float, default=120, help="seconds for a test (default: 120)")
    parser.add_argument("--lines", type=int, default=30, help="of a failure's text (default: 30)")
    parser.add_argument("--results", type=Path, help="writes the outcome of each test to this file")
    parser.add_argument("--as", type=Path, dest="other", help="results of a run whose failures are expected here too")
    parser.add_argument("files", nargs="*", help="patterns of files, such as 'cudapy/test_a*'; default: all")
    options = parser.parse_args()
    for name in ("build", "packages", "pytest", "cuda_python"):
        if getattr(options, name):
            setattr(options, name, getattr(options, name).resolve())
    return options


def main():
    options = parse_options()
    other = json.loads(options.other.read_text(encoding="utf-8")) if options.other else {}
    differences, results = 0, {}
    starts_server = options.setup.startswith("forwarded") and not options.inherit
    options.hides_gpu = starts_server and options.setup == "forwarded" and can_hide_gpu()
    with contextlib.ExitStack() as stack:
        options.scratch = stack.enter_context(tempfile.TemporaryDirectory())
        options.server = None
        if starts_server:
            driver = "software" if options.setup == "forwarded-software" else "auto"
            options.server = stack.enter_context(Server(options.build, driver, f"{options.scratch}/gpupoold.log"))
        for suite in suites(options):
            files, results[suite.name] = run_suite(options, suite)
            differences += compare(options, suite, files, results[suite.name], other.get(suite.name, {}))
    if options.results:
        options.results.write_text(json.dumps(results, indent=1), encoding="utf-8")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
