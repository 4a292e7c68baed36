#!/usr/bin/env python3
"""Starts and stops the server that the tests of this folder share: the build's software GPU on a free port.

`start` waits until programs may connect. `stop` checks that the server ends in order and without a sanitizer report.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from setting import parse

# Ends by itself after this time, because `stop` is not run when ctest is killed.
LONGEST_S = 3600
START_S = 60
STOP_S = 20


def wait_for_end(process, limit_s):
    """True if the process ends in time. A zombie has ended: a container's init may leave it unreaped."""
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], limit_s)[0])
    finally:
        os.close(descriptor)


def read_process(setting):
    try:
        return int((setting.state / "process").read_text())
    except (OSError, ValueError):
        return None


def read_runtime(setting):
    try:
        return (setting.state / "runtime").read_text()
    except OSError:
        return None


def is_ours(setting, process):
    """False if the process id from the file has been reused by another process."""
    try:
        with open(f"/proc/{process}/cmdline", "rb") as file:
            return read_runtime(setting).encode() in file.read()
    except OSError:
        return False


def remove_leftovers(setting):
    process, runtime = read_process(setting), read_runtime(setting)
    if runtime is None:
        return
    if process and is_ours(setting, process):  # left by an interrupted run
        os.kill(process, signal.SIGTERM)
        wait_for_end(process, STOP_S)
    shutil.rmtree(runtime, ignore_errors=True)


def start(setting):
    remove_leftovers(setting)
    shutil.rmtree(setting.state, ignore_errors=True)
    setting.reports.mkdir(parents=True)
    (setting.state / "client.toml").write_text("")
    # Not in the state folder, since a socket's path has at most 107 characters.
    runtime = tempfile.mkdtemp(prefix="gpupool-e2e-")
    (setting.state / "runtime").write_text(runtime)
    ready, ready_writer = os.pipe()
    with open(setting.state / "server.log", "wb") as log:
        server = subprocess.Popen(
            [
                "timeout",
                str(LONGEST_S),
                setting.build / "bin/gpupoold",
                "--listen",
                "127.0.0.1:0",
                "--driver",
                "software",
                "--runtime-directory",
                runtime,
                "--image-directory",
                f"{runtime}/images",
                "--ready-fd",
                str(ready_writer),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=setting.plain("server"),
            pass_fds=[ready_writer],
            start_new_session=True,
        )
    os.close(ready_writer)
    (setting.state / "process").write_text(str(server.pid))
    end = time.monotonic() + START_S
    address = b""
    while not address.endswith(b"\n"):
        arrived = select.select([ready], [], [], max(0, end - time.monotonic()))[0]
        part = os.read(ready, 256) if arrived else b""
        if not part:  # too late, or the server has ended
            break
        address += part
    if not address.endswith(b"\n"):
        server.terminate()
        print((setting.state / "server.log").read_text(errors="replace"))
        sys.exit("gpupoold did not start")
    (setting.state / "address").write_text(address.decode())
    print(f"gpupoold serves the software GPU at {address.decode().strip()}")


def stop(setting):
    good = True
    process = read_process(setting)
    log = setting.state / "server.log"
    runtime = read_runtime(setting)
    if not process or runtime is None or not is_ours(setting, process):
        print(log.read_text(errors="replace")[-4000:] if log.exists() else "gpupoold never ran")
        print("FAIL gpupoold ended before the tests did")
        good = False
    else:
        os.kill(process, signal.SIGTERM)
        if not wait_for_end(process, STOP_S):
            print(f"FAIL gpupoold was still there {STOP_S} s after SIGTERM")
            os.kill(process, signal.SIGKILL)
            good = False
    good = setting.check_reports("server") and good
    if runtime is not None:
        shutil.rmtree(runtime, ignore_errors=True)
    (setting.state / "address").unlink(missing_ok=True)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    the_setting, the_arguments = parse(__doc__, lambda parser: parser.add_argument("action", choices=["start", "stop"]))
    {"start": start, "stop": stop}[the_arguments.action](the_setting)
