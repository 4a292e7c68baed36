#!/usr/bin/env python3
"""What programs and their users meet besides a program that runs: each scenario is a test of its own."""

import os
import socket
import sys

from setting import indent, parse, run

NO_DEVICE = "CUDA_ERROR_NO_DEVICE (100)"
CONNECT_LIMIT_S = 5
# Whoever was reached has longer to welcome a session: the server's driver may take a while to start.
WELCOME_LIMIT_S = CONNECT_LIMIT_S + 10


class Scenario:
    """Counts what held. `name` is whose sanitizer's reports are whose."""

    def __init__(self, setting, name):
        self.setting = setting
        self.name = name
        self.failed = 0
        self.folder = setting.state / name
        self.folder.mkdir(parents=True, exist_ok=True)

    def check(self, held, what, shown=""):
        print(f"{'ok  ' if held else 'FAIL'} {what}")
        if not held:
            self.failed += 1
            print(indent(str(shown)), end="")

    def run(self, command, environment, limit_s=90):
        outcome = run(command, environment, limit_s)
        print(f"{command[0]}: {outcome.end()} after {outcome.seconds:.1f} s")
        return outcome

    def finish(self):
        clean = all([self.setting.check_reports(self.name), self.setting.check_reports("server")])
        sys.exit(1 if self.failed or not clean else 0)


def ran_well(scenario, outcome):
    scenario.check(outcome.status == 0 and "0 failed" in outcome.output, "the program ran and its checks held",
                   outcome.output + outcome.errors)
    scenario.check(outcome.errors == "", "nothing was written to its standard error", outcome.errors)


def run_command(scenario):
    """gpupool run puts the client in place of the driver."""
    setting = scenario.setting
    environment = setting.client(scenario.name)
    del environment["LD_LIBRARY_PATH"], environment["GPUPOOL_SERVER"]
    ran_well(scenario, scenario.run([setting.build / "bin/gpupool", "run", "--server", setting.address(), "--",
                                     setting.build / "cuda/vector_add"], environment))


def local(scenario):
    """gpupool run --local needs no server but its own, which is gone afterwards."""
    setting = scenario.setting
    environment = setting.client(scenario.name, server="127.0.0.1:1")
    del environment["LD_LIBRARY_PATH"], environment["GPUPOOL_SERVER"]
    # How its server is known among all processes; workers inherit it too.
    environment["GPUPOOL_TEST_MARK"] = mark = f"{scenario.name}-{os.getpid()}"
    outcome = scenario.run([setting.build / "bin/gpupool", "run", "--local", "--", setting.build / "cuda/vector_add"],
                           environment)
    scenario.check(outcome.status == 0 and "0 failed" in outcome.output, "the program ran and its checks held",
                   outcome.output + outcome.errors)
    outcome = scenario.run([setting.build / "bin/gpupool", "run", "--local", "--", "sh", "-c", "exit 42"], environment)
    scenario.check(outcome.status == 42, "the program's exit status is the command's", outcome.end() + outcome.errors)
    left = processes_with(f"GPUPOOL_TEST_MARK={mark}")
    scenario.check(not left, "no process of it is left", left)


def processes_with(variable):
    found = []
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{process}/environ", "rb") as file:
                if variable.encode() in file.read().split(b"\0"):
                    with open(f"/proc/{process}/cmdline", "rb") as command:
                        found.append(f"{process}: {command.read().replace(bytes(1), b' ').decode(errors='replace')}")
        except OSError:
            pass
    return found


def check_no_device(scenario, server, what, limit_s):
    setting = scenario.setting
    # This program's first call is cuInit, and it ends with what that gave.
    outcome = scenario.run([setting.build / "gpu/proc_address"], setting.client(scenario.name, server))
    scenario.check(outcome.status == 1 and NO_DEVICE in outcome.output, f"{what}: cuInit gives {NO_DEVICE}",
                   f"{outcome.end()}\n{outcome.output}{outcome.errors}")
    scenario.check(outcome.seconds < limit_s + 1, f"{what}: within {limit_s} s", outcome.seconds)
    lines = outcome.errors.splitlines()
    scenario.check(len(lines) == 1 and lines[0].startswith("gpupool: ") and server in lines[0],
                   f"{what}: one line on standard error, which names the server", outcome.errors)


def no_server(scenario):
    """Nobody listens, or somebody who says nothing: the program finds no device, soon, and is told why."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # taken, but nobody listens
        check_no_device(scenario, "127.0.0.1:%d" % closed.getsockname()[1], "nobody listens", CONNECT_LIMIT_S)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(8)
        check_no_device(scenario, "127.0.0.1:%d" % silent.getsockname()[1], "a silent listener",
                        WELCOME_LIMIT_S)


def not_fooled(scenario):
    """gpupoold --driver auto does not take gpupool's client for a driver, even one that would find a GPU."""
    setting = scenario.setting
    environment = setting.plain(scenario.name)
    environment["LD_LIBRARY_PATH"] = setting.libraries[0]
    environment["GPUPOOL_SERVER"] = setting.address()
    for driver in ("auto", setting.build / "lib/gpupool/libcuda.so.1"):
        outcome = scenario.run([setting.build / "bin/gpupoold", "--check", "--driver", driver], environment)
        said = outcome.output + outcome.errors
        if driver == "auto":
            scenario.check(outcome.status == 0, "auto: it finds a driver", said)
            scenario.check("gpupool/libcuda.so" not in said, "auto: which is not gpupool's client", said)
            if not os.path.exists("/dev/nvidiactl"):
                scenario.check("libgpupool-softgpu.so" in said, "auto: but the software GPU", said)
        else:
            scenario.check(outcome.status == 1 and "gpupool's own client" in said, "by name: it is refused as such", said)


def trace(scenario):
    """GPUPOOL_TRACE and GPUPOOL_SUMMARY write their files and leave the program's output alone."""
    setting = scenario.setting
    environment = setting.client(scenario.name)
    quiet = scenario.run([setting.build / "cuda/vector_add"], environment)
    ran_well(scenario, quiet)
    files = {name: scenario.folder / name for name in ("trace", "summary")}
    for name, file in files.items():
        file.unlink(missing_ok=True)
        environment[f"GPUPOOL_{name.upper()}"] = str(file)
    traced = scenario.run([setting.build / "cuda/vector_add"], environment)
    ran_well(scenario, traced)
    scenario.check(traced.output == quiet.output, "its output is what it is without them", traced.output)
    texts = {name: file.read_text() if file.exists() else "" for name, file in files.items()}
    launches = [line for line in texts["trace"].splitlines() if " cuLaunchKernel" in line and " -> 0" in line]
    scenario.check(len(launches) == 1, "the trace has a line for the one launch", texts["trace"][-2000:])
    counted = [line.split() for line in texts["summary"].splitlines() if line.startswith("cuLaunchKernel")]
    scenario.check(len(counted) == 1 and counted[0][1:3] == ["1", "0"], "the summary counts it: one call, none failed",
                   texts["summary"])


def transport(scenario):
    """A program whose server is a loopback address gets shared memory without asking, and TCP where it asks for that."""
    setting = scenario.setting
    for asked, expected in ((None, "(shm pid "), ("auto", "(shm pid "), ("tcp", "(tcp 127.0.0.1:")):
        environment = setting.client(scenario.name)
        del environment["GPUPOOL_TRANSPORT"]
        log = scenario.folder / f"log-{asked}"
        log.unlink(missing_ok=True)
        environment["GPUPOOL_LOG"] = str(log)
        if asked:
            environment["GPUPOOL_TRANSPORT"] = asked
        ran_well(scenario, scenario.run([setting.build / "cuda/vector_add"], environment))
        said = log.read_text() if log.exists() else "no log"
        scenario.check(expected in said, f"{asked or 'nothing'} asked for: its log says {expected}", said)


SCENARIOS = {"run": run_command, "local": local, "no_server": no_server, "not_fooled": not_fooled, "trace": trace, "transport": transport}


def main():
    setting, arguments = parse(__doc__, lambda parser: parser.add_argument("scenario", choices=SCENARIOS))
    scenario = Scenario(setting, f"scenario-{arguments.scenario}")
    for report in setting.written_reports(scenario.name):
        report.unlink()
    SCENARIOS[arguments.scenario](scenario)
    scenario.finish()


if __name__ == "__main__":
    main()
