"""Runs one command natively and through gpupool, for the scripts that compare the two."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Outcome:
    passed: bool
    text: str  # "ok", "exit 1", "signal 11", "time limit"
    seconds: float
    output: str


def is_of_interest(process, session):
    """True for processes of the command's session, and for workers, which may have caused a hang."""
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    return fields[3] == str(session) or (process / "comm").read_text().startswith("gpupool-worker")


def what_threads_do(session):
    """A line for each thread: its state, where it sleeps, and its times in clock ticks."""
    lines = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if not is_of_interest(process, session):
                continue
            name = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:100]
            lines.append(f"-- {process.name} {name}")
            for thread in sorted((process / "task").glob("*")):
                fields = (thread / "stat").read_text().rpartition(")")[2].split()
                call = (thread / "syscall").read_text().split()[:1]
                lines.append(
                    f"   {thread.name} {(thread / 'comm').read_text().strip():16} {fields[0]}"
                    f" {(thread / 'wchan').read_text():24} call {''.join(call):8} user {fields[11]} system {fields[12]}"
                )
        except OSError:  # the process has ended, or may not be read
            continue
    return "\n".join(lines)


def run_command(command, environment, limit_s, folder=None):
    started = time.monotonic()
    with tempfile.TemporaryFile() as log:
        # Python prints its threads' stacks when it is aborted.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**environment, "PYTHONFAULTHANDLER": "1"},
            cwd=folder,
            start_new_session=True,
        )
        stuck = ""
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
            stuck = what_threads_do(process.pid)
            os.killpg(process.pid, signal.SIGABRT)
            time.sleep(1)
        except BaseException:  # this script is being ended
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        seconds = time.monotonic() - started
        try:  # ends what the command left running, at its end or its time limit
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        log.seek(0)
        output = log.read().decode(errors="replace")
    if status is None:
        return Outcome(False, "time limit", seconds, f"{output}\nat the time limit:\n{stuck}\n")
    text = "ok" if status == 0 else f"exit {status}" if status > 0 else f"signal {-status}"
    return Outcome(status == 0, text, seconds, output)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """gpupoold on a free port, for as long as the `with` block lasts."""

    def __init__(self, bundle, driver, log, options=(), environment=None):
        environment = without_settings(os.environ) if environment is None else environment
        self.address = f"127.0.0.1:{free_port()}"
        self.log = log
        with open(log, "wb") as file:
            self.process = subprocess.Popen(
                [bundle / "bin/gpupoold", "--listen", self.address, "--driver", driver, *options],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment,
            )

    def __enter__(self):
        host, port = self.address.split(":")
        end = time.monotonic() + 30
        while time.monotonic() < end:
            if self.process.poll() is not None:
                break
            try:
                socket.create_connection((host, int(port)), 1).close()
                return self
            except OSError:
                time.sleep(0.1)
        tail = Path(self.log).read_text(errors="replace")[-2000:]
        self.__exit__()
        sys.exit(f"gpupoold did not start to listen on {self.address}:\n{tail}")

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def without_settings(environment):
    """Removes gpupool's settings, which would affect one side only."""
    return {name: value for name, value in environment.items() if not name.startswith("GPUPOOL_")}


def native_environment(libraries):
    # No setting that leads to gpupool may reach the native runs.
    environment = {
        name: value
        for name, value in without_settings(os.environ).items()
        if name not in ("TRITON_LIBCUDA_PATH", "NUMBA_CUDA_DRIVER")
    }
    if libraries:
        environment["LD_LIBRARY_PATH"] = ":".join([*libraries, environment.get("LD_LIBRARY_PATH", "")]).rstrip(":")
    return environment


def through_gpupool(bundle, server, command):
    """The command line that runs `command` on `server` with the bundle's client."""
    return [str(bundle / "bin/gpupool"), "run", "--server", server.address, "--", *command]


HIDE_GPU = """
nvidia=0x10de
for device in /sys/bus/pci/devices/*; do
    # Its folder must not exist, so everything beside it disappears as well.
    [ "$(cat "$device/vendor" 2>/dev/null)" != $nvidia ] ||
        mount -t tmpfs none "$(readlink -f "$device/..")" || exit 125
done
for place in /usr/local/nvidia /proc/driver/nvidia /dev/nvidia-caps /sys/module/nvidia*; do
    [ ! -d "$place" ] || mount -t tmpfs none "$place" || exit 125
done
for file in /dev/nvidia[0-9]* /dev/nvidiactl /dev/nvidia-* /usr/lib/*/libcuda.so* /usr/lib/*/libnvidia-ml.so*; do
    [ ! -e "$file" ] || [ -d "$file" ] || mount --bind /dev/null "$file" || exit 125
done
exec "$@"
"""


def without_gpu(command):
    """The command line that runs `command` as on a machine without a GPU: in a mount namespace where the driver's
    files, its device files and the GPUs under /sys are hidden. Needs root.
    """
    return ["unshare", "--mount", "sh", "-c", HIDE_GPU, "sh", *command]


def can_hide_gpu():
    try:
        return subprocess.run(without_gpu(["true"]), capture_output=True).returncode == 0
    except OSError:
        return False


def require_bundle(bundle):
    for program in ("gpupoold", "gpupool"):
        if not (bundle / "bin" / program).is_file():
            sys.exit(f"{bundle} is no bundle: it has no bin/{program} (scripts/bundle makes one)")
