"""Shared by the tests in this folder: the build, the environments of its processes, and how to run one.

Each test writes below STATE, a folder of the build. A sanitizer report is written to a file in STATE/reports whose name
gives its origin: server.* for gpupoold and its workers, TEST.* for the processes of one test. Any report is a failure.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

SILENT = ("GPUPOOL_", "CUDA_", "ASAN_", "LSAN_", "UBSAN_", "TSAN_", "LD_")


@dataclass
class Outcome:
    status: int | None  # the exit status, negative for a signal; None: exceeded the time limit
    output: str
    errors: str
    seconds: float

    def end(self):
        if self.status is None:
            return "the time limit"
        return f"exit status {self.status}" if self.status >= 0 else f"signal {-self.status}"


class Setting:
    def __init__(self, arguments):
        self.build = Path(arguments.build)
        self.state = Path(arguments.state)
        self.sanitizer_runtime = arguments.sanitizer_runtime
        self.libraries = [str(self.build / "lib/gpupool"), *arguments.libraries]
        self.reports = self.state / "reports"
        self.transport = arguments.transport
        self.software_driver = Path(arguments.software_driver)  # a folder where libcuda.so.1 is the software GPU

    def address(self):
        try:
            return (self.state / "address").read_text().strip()
        except OSError:
            sys.exit("the server of these tests does not run: run them through ctest, or `server.py start` first")

    def sanitizer_options(self, name, leaks):
        """Options for a process whose reports have `name`."""
        if not self.sanitizer_runtime:
            return {}
        log = f"log_path={self.reports / name}"
        return {
            "ASAN_OPTIONS": f"{log}:detect_leaks={int(leaks)}",
            "LSAN_OPTIONS": log,
            "UBSAN_OPTIONS": f"{log}:print_stacktrace=1",
            "TSAN_OPTIONS": f"{log}:exitcode=66:suppressions={Path(__file__).parents[2] / 'tsan.supp'}",
        }

    def plain(self, name, leaks=True):
        """The environment of one of gpupool's programs."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith(SILENT)}
        # Settings of the user or the machine must not apply.
        environment["GPUPOOL_CONFIG"] = str(self.state / "client.toml")
        return environment | self.sanitizer_options(name, leaks)

    def client(self, name, server=None):
        """The environment of a CUDA program that uses the build's client as the driver.

        It is not built with the client's sanitizer, so the sanitizer's runtime is preloaded. Leaks are not reported:
        the program and cudart may have some.
        """
        environment = self.plain(name, leaks=False)
        environment["LD_LIBRARY_PATH"] = ":".join(self.libraries)
        environment["GPUPOOL_SERVER"] = server or self.address()
        environment["GPUPOOL_TRANSPORT"] = self.transport
        if self.sanitizer_runtime:
            environment["LD_PRELOAD"] = self.sanitizer_runtime
        return environment

    def direct(self, name):
        """The environment of a CUDA program that uses the software GPU directly as the driver."""
        environment = self.client(name, server="no-such-host")
        del environment["GPUPOOL_SERVER"]
        environment["LD_LIBRARY_PATH"] = ":".join([str(self.software_driver), *self.libraries[1:]])
        self.reports.mkdir(parents=True, exist_ok=True)
        return environment

    def written_reports(self, name):
        return sorted(self.reports.glob(f"{name}.[0-9]*"))

    def check_reports(self, name, but=()):
        """Prints the sanitizer reports with `name`, except those in `but`; True when there are none."""
        found = [report for report in self.written_reports(name) if report not in but]
        for report in found:
            print(f"a sanitizer reports ({report}):\n{report.read_text(errors='replace')}")
        return not found


def run(command, environment, limit_s):
    """Runs a command in its own process group, which is killed at its end. Its standard input is empty."""
    if not shutil.which(command[0]):
        sys.exit(f"{command[0]} is not there: build its target, or test_programs and gpu_programs")
    started = time.monotonic()
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            env=environment,
            start_new_session=True,
        )
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
        seconds = time.monotonic() - started
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        texts = []
        for file in (output, errors):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return Outcome(status, *texts, seconds)


def indent(text):
    return "".join(f"    {line}\n" for line in text.splitlines())


def parse(description, add=None):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--build", required=True, help="the build folder: bin/, lib/, cuda/, gpu/")
    parser.add_argument("--state", required=True, help="a folder for the server's address, logs and reports")
    parser.add_argument("--sanitizer-runtime", default="", help="the sanitizer's library, where the build has one")
    parser.add_argument("--libraries", action="append", default=[], help="a folder of shared libraries of CUDA's")
    parser.add_argument(
        "--transport", default="tcp", choices=["auto", "tcp", "shm"], help="how programs reach the server"
    )
    parser.add_argument("--software-driver", default="", help="a folder where libcuda.so.1 is the software GPU")
    if add:
        add(parser)
    arguments = parser.parse_args()
    return Setting(arguments), arguments
