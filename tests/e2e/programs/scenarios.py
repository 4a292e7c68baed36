#!/usr/bin/env python3
"""Situations besides a program that simply runs. Each scenario is a test."""

import json
import os
import socket
import sys

from setting import indent, parse, run

NO_DEVICE = "CUDA_ERROR_NO_DEVICE (100)"
CONNECT_LIMIT_S = 5
# A server that was reached has longer to welcome a session, since its driver may take a while to start.
WELCOME_LIMIT_S = CONNECT_LIMIT_S + 10


class Scenario:
    """Counts failed checks. `name` identifies the sanitizer reports of this scenario's processes."""

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
    scenario.check(
        outcome.status == 0 and "0 failed" in outcome.output,
        "the program ran and its checks passed",
        outcome.output + outcome.errors,
    )
    scenario.check(outcome.errors == "", "nothing was written to its standard error", outcome.errors)


def run_command(scenario):
    """gpupool run makes the program use the client library."""
    setting = scenario.setting
    environment = setting.client(scenario.name)
    del environment["LD_LIBRARY_PATH"], environment["GPUPOOL_SERVER"]
    ran_well(
        scenario,
        scenario.run(
            [
                setting.build / "bin/gpupool",
                "run",
                "--server",
                setting.address(),
                "--",
                setting.build / "cuda/vector_add",
            ],
            environment,
        ),
    )


def local(scenario):
    """gpupool run --local uses a private server, which has ended afterwards."""
    setting = scenario.setting
    environment = setting.client(scenario.name, server="127.0.0.1:1")
    del environment["LD_LIBRARY_PATH"], environment["GPUPOOL_SERVER"]
    # Identifies the private server's processes; workers inherit it.
    environment["GPUPOOL_TEST_MARK"] = mark = f"{scenario.name}-{os.getpid()}"
    outcome = scenario.run(
        [setting.build / "bin/gpupool", "run", "--local", "--", setting.build / "cuda/vector_add"], environment
    )
    scenario.check(
        outcome.status == 0 and "0 failed" in outcome.output,
        "the program ran and its checks passed",
        outcome.output + outcome.errors,
    )
    outcome = scenario.run([setting.build / "bin/gpupool", "run", "--local", "--", "sh", "-c", "exit 42"], environment)
    scenario.check(
        outcome.status == 42, "gpupool run returns the program's exit status", outcome.end() + outcome.errors
    )
    left = processes_with(f"GPUPOOL_TEST_MARK={mark}")
    scenario.check(not left, "no process of its server is left", left)


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
    # This program's first call is cuInit, and it ends with that call's result.
    outcome = scenario.run([setting.build / "gpu/proc_address"], setting.client(scenario.name, server))
    scenario.check(
        outcome.status == 1 and NO_DEVICE in outcome.output,
        f"{what}: cuInit gives {NO_DEVICE}",
        f"{outcome.end()}\n{outcome.output}{outcome.errors}",
    )
    scenario.check(outcome.seconds < limit_s + 1, f"{what}: within {limit_s} s", outcome.seconds)
    lines = outcome.errors.splitlines()
    scenario.check(
        len(lines) == 1 and lines[0].startswith("gpupool: ") and server in lines[0],
        f"{what}: one line on standard error, which names the server",
        outcome.errors,
    )


def no_server(scenario):
    """No listener, or one that never answers: the program soon gets an error and the reason is printed."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # the port is taken, but not listened at
        check_no_device(scenario, "127.0.0.1:%d" % closed.getsockname()[1], "no listener", CONNECT_LIMIT_S)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(8)
        check_no_device(scenario, "127.0.0.1:%d" % silent.getsockname()[1], "a silent listener", WELCOME_LIMIT_S)


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
            scenario.check("gpupool/libcuda.so" not in said, "auto: it is not gpupool's client", said)
            if not os.path.exists("/dev/nvidiactl"):
                scenario.check("libgpupool-softgpu.so" in said, "auto: it is the software GPU", said)
        else:
            scenario.check(outcome.status == 1 and "gpupool's own client" in said, "by path: refused", said)


def events_of(text):
    """A timeline's events. Its array may lack the end, as after a crash."""
    text = text.strip()
    return json.loads(text if text.endswith("]") else text.removesuffix(",") + "]")


def trace(scenario):
    """GPUPOOL_TRACE and GPUPOOL_SUMMARY write their files and do not change the program's output."""
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
    scenario.check(traced.output == quiet.output, "tracing does not change its output", traced.output)
    texts = {name: file.read_text() if file.exists() else "" for name, file in files.items()}
    check_timeline(scenario, texts["trace"])
    counted = [line.split() for line in texts["summary"].splitlines() if line.startswith("cuLaunchKernel")]
    scenario.check(
        len(counted) == 1 and counted[0][1:3] == ["1", "0"],
        "the summary counts one launch, none failed",
        texts["summary"],
    )
    # An unwritable summary affects nothing else.
    files["trace"].unlink()
    environment["GPUPOOL_SUMMARY"] = str(scenario.folder / "nowhere/summary")
    outcome = scenario.run([setting.build / "cuda/vector_add"], environment)
    scenario.check(
        outcome.status == 0 and "gpupool: no summary: " in outcome.errors,
        "an unwritable summary is reported",
        outcome.end() + outcome.errors,
    )
    check_timeline(scenario, files["trace"].read_text() if files["trace"].exists() else "[]")
    del environment["GPUPOOL_SUMMARY"]
    environment["GPUPOOL_TRACE"] = "-"
    lines = scenario.run([setting.build / "cuda/vector_add"], environment).errors.splitlines()
    launches = [line for line in lines if " cuLaunchKernel" in line and " -> 0" in line]
    scenario.check(len(launches) == 1, "standard error has one line for the launch", lines[-20:])


def check_timeline(scenario, text):
    """Checks the one launch of vector_add: call, command and kernel, in this order and linked."""
    events = events_of(text)
    slices = [event for event in events if event["ph"] == "X"]

    def named(category, name):
        return [event for event in slices if event["cat"] == category and name in event["name"]]

    calls, commands = named("call", "cuLaunchKernel"), named("dispatcher", "gpLaunch")
    issued = [event for event in commands if event["args"]["queued"] != "now"]
    kernels = [event for event in slices if event["cat"] == "gpu" and event["args"]["call"] == "gpLaunch"]
    scenario.check(
        (len(calls), len(issued), len(kernels)) == (1, 1, 1),
        "one launch: a call, a command, a kernel",
        [calls, commands, kernels],
    )
    if calls and issued and kernels:
        scenario.check(
            calls[0]["ts"] <= issued[0]["ts"] <= kernels[0]["ts"] + 50,
            "in that order on the client's clock",
            [calls, issued, kernels],
        )
        scenario.check(
            "vector_add" in kernels[0]["name"] or "add" in kernels[0]["name"], "the kernel has its name", kernels
        )
        number = issued[0]["args"]["command"]
        links = {
            event["ph"] for event in events if event["ph"] in "stf" and int(event["id"], 16) & (1 << 40) - 1 == number
        }
        scenario.check(links == {"s", "t", "f"}, "a flow links them", links)
    copies = [event for event in slices if event["cat"] == "gpu" and "copy" in event["name"]]
    scenario.check(
        {event["name"] for event in copies} >= {"copy to device", "copy from device"},
        "copies in both directions are on the GPU's tracks",
        copies,
    )
    wire = [event["args"]["bytes"] for event in slices if event["cat"] == "wire"]
    scenario.check(len(wire) > 4 and min(wire) > 0, "frames on the wire have their sizes", wire)
    waits = named("wait", "reply")
    scenario.check(len(waits) > 0, "waits for replies are shown", len(slices))


def trace_command(scenario):
    """gpupool trace writes a complete timeline and a summary, however the program ends."""
    setting = scenario.setting
    environment = setting.client(scenario.name)
    del environment["LD_LIBRARY_PATH"], environment["GPUPOOL_SERVER"]
    output, summary = scenario.folder / "timeline.json", scenario.folder / "summary"
    summary.unlink(missing_ok=True)
    command = [
        setting.build / "bin/gpupool",
        "trace",
        "--output",
        output,
        "--summary",
        summary,
        "--server",
        setting.address(),
        "--",
    ]
    outcome = scenario.run([*command, setting.build / "cuda/vector_add"], environment)
    scenario.check(
        outcome.status == 0 and "0 failed" in outcome.output,
        "the program ran and its checks passed",
        outcome.output + outcome.errors,
    )
    scenario.check(output.read_text().endswith("}\n]\n"), "the file is complete JSON", output.read_text()[-200:])
    check_timeline(scenario, output.read_text())
    scenario.check("cuLaunchKernel" in summary.read_text(), "there is a summary", summary.read_text())
    scenario.run([*command, setting.build / "cuda/vector_add"], environment)
    scenario.check(
        summary.read_text().count("round trips") == 1, "the next trace begins a new summary", summary.read_text()
    )
    kept = scenario.folder / "notes"
    kept.write_text("not a trace")
    for option, files in (("--output", ["--output", kept]), ("--summary", ["--output", output, "--summary", kept])):
        outcome = scenario.run([*command[:2], *files, *command[6:], setting.build / "cuda/vector_add"], environment)
        scenario.check(
            outcome.status != 0 and "has other content" in outcome.errors and kept.read_text() == "not a trace",
            f"{option} does not overwrite another file",
            outcome.end() + outcome.errors,
        )
    # A program that is killed once calls of it have been written.
    killed = scenario.folder / "killed.json"
    killed.unlink(missing_ok=True)
    abrupt = [
        "sh",
        "-c",
        f"{setting.build / 'cuda/long_running'} 60 & child=$!; "
        f"until grep -qs '\"call\"' {killed}; do sleep 0.02; done; kill -9 $child; wait $child",
    ]
    outcome = scenario.run([*command[:2], "--output", killed, *command[4:], *abrupt], environment)
    scenario.check(outcome.status == 137, "gpupool trace returns the program's status", outcome.end() + outcome.errors)
    calls = [event for event in events_of(killed.read_text()) if event["ph"] == "X" and event["cat"] == "call"]
    scenario.check(len(calls) > 0, "a killed program's timeline can be read", len(calls))
    # Events beyond the limit are omitted, and the timeline says so.
    outcome = scenario.run(
        [*command[:2], "--events", "20", *command[2:], setting.build / "cuda/vector_add"], environment
    )
    events = events_of(output.read_text())
    scenario.check(
        outcome.status == 0 and sum(event["ph"] == "X" for event in events) <= 20, "the limit holds", len(events)
    )
    scenario.check(
        any("incomplete" in event["name"] for event in events), "the timeline reports missing events", events[-1]
    )
    # A forked child leaves its traced parent's file intact.
    outcome = scenario.run([*command, setting.build / "cuda/fork_after_cuda"], environment)
    scenario.check(outcome.status == 0, "a program that forks runs", outcome.output + outcome.errors)
    scenario.check(len(events_of(output.read_text())) > 0, "and its timeline can be read")


def transport(scenario):
    """With a server on a loopback address a program uses shared memory by default, and TCP when configured."""
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
        scenario.check(expected in said, f"transport {asked or 'by default'}: its log contains {expected}", said)


SCENARIOS = {
    "run": run_command,
    "local": local,
    "no_server": no_server,
    "not_fooled": not_fooled,
    "trace": trace,
    "trace_command": trace_command,
    "transport": transport,
}


def main():
    setting, arguments = parse(__doc__, lambda parser: parser.add_argument("scenario", choices=SCENARIOS))
    scenario = Scenario(setting, f"scenario-{arguments.scenario}")
    for report in setting.written_reports(scenario.name):
        report.unlink()
    SCENARIOS[arguments.scenario](scenario)
    scenario.finish()


if __name__ == "__main__":
    main()
