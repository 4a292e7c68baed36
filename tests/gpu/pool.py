#!/usr/bin/env python3
"""Checks on real GPUs what a pool decides: placement, exclusive sessions, jobs, the queue, and what status shows.

    tests/gpu/pool.py BUNDLE [--transport shm] [--driver auto] [--show-gpu]

BUNDLE as for tests/gpu/run. With one GPU the checks that need two are skipped. Programs run as on a machine without a
GPU (needs root; --show-gpu leaves the GPU visible). Prints a line for each check. Exit status: 0 when all pass. Writes
only to a temporary folder.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "scripts"))
from two_ways import Server, can_hide_gpu, native_environment, require_bundle, through_gpupool, without_gpu

# The beginning of the programs below.
DRIVER = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
def must(code, what):
    if code:
        raise SystemExit(f"{what}: {code}")
must(cuda.cuInit(0), "cuInit")
"""

# Says what it sees, holds memory on each device, and works until its input ends.
HOLDER = (
    DRIVER
    + """
import json, threading
held_mib, busy = int(sys.argv[1]), sys.argv[2] == "busy"
count = ctypes.c_int()
must(cuda.cuDeviceGetCount(ctypes.byref(count)), "cuDeviceGetCount")
seen = []
places = []
for device in range(count.value):
    uuid = (ctypes.c_ubyte * 16)()
    total = ctypes.c_size_t()
    must(cuda.cuDeviceGetUuid(uuid, device), "cuDeviceGetUuid")
    must(cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device), "cuDeviceTotalMem")
    context = ctypes.c_void_p()
    must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain")
    must(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")
    memory = ctypes.c_uint64()
    must(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(held_mib << 20)), "cuMemAlloc")
    places.append((context, memory))
    seen.append({"uuid": bytes(uuid).hex(), "total": total.value})
print(json.dumps(seen), flush=True)
over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
while not over.wait(0 if busy else None):
    for context, memory in places:
        must(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")
        for _ in range(20):
            must(cuda.cuMemsetD8Async(memory, 1, ctypes.c_size_t(held_mib << 20), None), "cuMemsetD8Async")
        must(cuda.cuCtxSynchronize(), "cuCtxSynchronize")
"""
)


class Pool:
    """A server with its commands and programs."""

    def __init__(self, options, folder, name, settings):
        self.options = options
        self.folder = folder
        state = folder / f"state-{name}"
        file = folder / f"{name}.toml"
        file.write_text(f'state_directory = "{state}"\n{settings}')
        self.environment = native_environment(options.libraries)
        self.server = Server(
            options.bundle, options.driver, folder / f"{name}.log", ["--config", str(file)], self.environment
        )

    def __enter__(self):
        self.server.__enter__()
        return self

    def __exit__(self, *_):
        self.server.__exit__()

    def command(self, *arguments):
        command = [self.options.bundle / "bin/gpupool", *arguments, "--server", self.server.address]
        return subprocess.run(command, capture_output=True, text=True, env=self.environment, check=False)

    def output(self, *arguments):
        done = self.command(*arguments)
        if done.returncode != 0:
            raise AssertionError(f"gpupool {' '.join(arguments)}: {done.stderr}")
        return done.stdout

    def status(self):
        return json.loads(self.output("status", "--json"))

    def holder(self, *asked, held_mib=64, busy=False, environment=None):
        script = self.folder / "holder.py"
        script.write_text(HOLDER)
        command = through_gpupool(self.options.bundle, self.server, [])
        at = command.index("--")
        program = [sys.executable, str(script), str(held_mib), "busy" if busy else "idle"]
        command = [*command[:at], *asked, "--", *program]
        if self.options.hide:
            command = without_gpu(command)
        whole = {**self.environment, "GPUPOOL_TRANSPORT": self.options.transport, **(environment or {})}
        return Holder(command, whole)


class Holder:
    def __init__(self, command, environment):
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        self.devices = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def sees(self):
        """What the program sees, once its session has begun."""
        if self.devices is None:
            line = self.process.stdout.readline()
            if not line:
                raise AssertionError(self.process.stderr.read()[-1500:])
            self.devices = json.loads(line)
        return self.devices

    def end(self):
        if self.process.poll() is None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        return self.process.returncode


def eventually(condition, seconds=20):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.1)
    return False


def uuid_of(device):
    return device["uuid"].lower().removeprefix("gpu-").replace("-", "")


def place_of(pool, holder):
    """The server's number of the only device that the program sees."""
    (seen,) = holder.sees()
    (number,) = [device["index"] for device in pool.status()["devices"] if uuid_of(device) == seen["uuid"]]
    return number


def expect(right, what):
    if not right:
        raise AssertionError(what)


def check_spread(start):
    with start("spread", '[placement]\npolicy = "spread"\n') as pool:
        with pool.holder("--gpus", "1", "--memory", "8GiB") as a, pool.holder("--gpus", "1", "--memory", "8GiB") as b:
            expect(place_of(pool, a) != place_of(pool, b), "both are on one GPU")
            expect(a.sees()[0]["total"] == 8 << 30, "the quota")


def check_pack(start):
    with start("pack", '[placement]\npolicy = "pack"\n') as pool:
        with pool.holder("--gpus", "1", "--memory", "8GiB") as a, pool.holder("--gpus", "1", "--memory", "8GiB") as b:
            place = place_of(pool, a)
            expect(place == place_of(pool, b), "they are on two GPUs")
            promised = [device["memory_promised_bytes"] for device in pool.status()["devices"]]
            expect(promised[place] >= 16 << 30 and sum(promised) == promised[place], f"promised: {promised}")


def check_exclusive(start):
    asked = ("--gpus", "1", "--class", "exclusive")
    waiting = {"GPUPOOL_WAIT_WHEN_FULL": "120s"}
    with start("exclusive", '[tenants]\nclass = "exclusive"\n') as pool:
        with pool.holder(*asked) as a, pool.holder(*asked) as b:
            expect(place_of(pool, a) != place_of(pool, b), "both are on one GPU")
            classes = [device["class"] for device in pool.status()["devices"]]
            expect(classes == ["exclusive"] * len(classes), f"classes: {classes}")
            with pool.holder("--gpus", "1", environment=waiting) as c, pool.holder(*asked, environment=waiting) as d:
                expect(eventually(lambda: len(pool.status()["queue"]) == 2), "two wait")
                expect([entry["position"] for entry in pool.status()["queue"]] == [1, 2], "their positions")
                freed = place_of(pool, a)
                expect(a.end() == 0, "the first program")
                # Of two with the same priority the one that came first; that is not known from here.
                expect(eventually(lambda: len(pool.status()["queue"]) == 1), "the queue moves")
                expect(b.end() == 0, "the second program")
                places = {place_of(pool, c), place_of(pool, d)}
                expect(freed in places and len(places) == 2, f"the places of the waiting: {places}")
    return "two waited, both got a GPU"


def check_job(start):
    """The processes of one run are one job: they share its GPUs and its account."""
    with start("job", '[tenants]\ntotal_gpus = 2\nmemory = "6GiB"\n') as pool:
        with pool.holder("--gpus", "2", held_mib=1024) as whole:
            seen = whole.sees()
            expect(len({device["uuid"] for device in seen}) == 2, f"it sees {seen}")
            shown = pool.status()
            (session,) = shown["sessions"]
            expect(len(session["devices"]) == 2, "status shows both GPUs")
            refused = pool.holder("--gpus", "1")
            expect(refused.end() != 0, "a third GPU was given to the tenant")
        script = pool.folder / "pair.py"
        script.write_text(PAIR)
        command = through_gpupool(pool.options.bundle, pool.server, [])
        at = command.index("--")
        holder = str(pool.folder / "holder.py")
        command = [*command[:at], "--gpus", "2", "--", sys.executable, str(script), holder]
        command = without_gpu(command) if pool.options.hide else command
        whole = {**pool.environment, "GPUPOOL_TRANSPORT": pool.options.transport}
        done = subprocess.run(command, capture_output=True, text=True, env=whole, check=False)
        expect(done.returncode == 0, done.stdout + done.stderr)
        return done.stdout.strip()


# Two processes of one job, each on one of its GPUs; then two on the same GPU, which share its quota.
PAIR = """
import json, os, subprocess, sys
def start(device, mib):
    return subprocess.Popen([sys.executable, sys.argv[1], str(mib), "idle"], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, text=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": device})
ranks = [start("0", 4096), start("1", 4096)]
seen = [json.loads(rank.stdout.readline())[0]["uuid"] for rank in ranks]
assert seen[0] != seen[1], seen
beyond = start("0", 4096)
assert beyond.stdout.readline() == "", "more than the job's quota was given"
for rank in ranks:
    rank.stdin.close()
    assert rank.wait() == 0
beyond.wait()
print("two processes on two GPUs, one quota")
"""


def check_readings(start):
    """Utilization and temperature as nvidia-smi shows them on the server."""
    smi = ["nvidia-smi", "--query-gpu=uuid,utilization.gpu,temperature.gpu", "--format=csv,noheader,nounits"]
    if subprocess.run(smi, capture_output=True, check=False).returncode != 0:
        raise Skipped("nvidia-smi does not work here")
    with start("readings", "") as pool, pool.holder(held_mib=2048, busy=True) as busy:
        busy.sees()
        time.sleep(4)  # NVML's utilization is an average of up to a second
        rows = []
        for _ in range(5):
            text = subprocess.run(smi, capture_output=True, text=True, check=True).stdout
            native = {}
            for line in text.splitlines():
                uuid, utilization, temperature = (part.strip() for part in line.split(","))
                native[uuid.lower().removeprefix("gpu-").replace("-", "")] = (int(utilization), int(temperature))
            for device in pool.status()["devices"]:
                rows.append((native[uuid_of(device)], (device["utilization_percent"], device["temperature_celsius"])))
            time.sleep(1)
        for (utilization, temperature), (shown, degrees) in rows:
            expect(abs(utilization - shown) <= 10, f"utilization: nvidia-smi {utilization}, status {shown}: {rows}")
            expect(abs(temperature - degrees) <= 2, f"temperature: nvidia-smi {temperature}, status {degrees}: {rows}")
        return f"(nvidia-smi), (status): {rows[0]} {rows[-1]}"


# Leaves a secret in device memory and in pinned memory, or searches it.
SPY = (
    DRIVER
    + """
leave, part_bytes, parts, secret = sys.argv[1] == "leave", 256 << 20, 16, b"\\xa5" * 64
context = ctypes.c_void_p()
must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), "cuDevicePrimaryCtxRetain")
must(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")
found = 0
for kind in ("cuMemAlloc_v2", "cuMemHostAlloc"):
    places = []
    for _ in range(parts if kind == "cuMemAlloc_v2" else 1):
        place = ctypes.c_uint64()
        bytes_of = ctypes.c_size_t(part_bytes)
        flags = () if kind == "cuMemAlloc_v2" else (0,)
        must(getattr(cuda, kind)(ctypes.byref(place), bytes_of, *flags), kind)
        places.append(place)
    for place in places:
        if kind == "cuMemHostAlloc":
            view = (ctypes.c_char * part_bytes).from_address(place.value)
            if leave:
                ctypes.memset(place.value, 0xA5, part_bytes)
            else:
                found += bytes(view).count(secret)
        elif leave:
            must(cuda.cuMemsetD8_v2(place, 0xA5, ctypes.c_size_t(part_bytes)), "cuMemsetD8")
        else:
            host = ctypes.create_string_buffer(part_bytes)
            must(cuda.cuMemcpyDtoH_v2(host, place, ctypes.c_size_t(part_bytes)), "cuMemcpyDtoH")
            found += host.raw.count(secret)
must(cuda.cuCtxSynchronize(), "cuCtxSynchronize")
print("left" if leave else f"found {found}")
sys.exit(0 if leave or found == 0 else 1)
"""
)


def check_fresh_memory(start):
    """Nothing that one tenant leaves in memory reaches the next session."""
    with start("fresh", "") as pool:
        script = pool.folder / "spy.py"
        script.write_text(SPY)
        texts = []
        for name, mode in (("alice", "leave"), ("bob", "look"), ("alice", "leave"), ("bob", "look")):
            if mode == "leave" and not texts:
                tokens = {tenant: pool.output("tenant", "add", tenant).strip() for tenant in ("alice", "bob")}
            command = through_gpupool(pool.options.bundle, pool.server, [sys.executable, str(script), mode])
            command = without_gpu(command) if pool.options.hide else command
            whole = {**pool.environment, "GPUPOOL_TRANSPORT": pool.options.transport, "GPUPOOL_TOKEN": tokens[name]}
            done = subprocess.run(command, capture_output=True, text=True, env=whole, check=False)
            expect(done.returncode == 0, f"{name} {mode}: {done.stdout}{done.stderr}")
            texts.append(done.stdout.strip())
        return ", ".join(texts)


class Skipped(Exception):
    pass


CHECKS = {
    "spread": (check_spread, 2),
    "pack": (check_pack, 2),
    "exclusive": (check_exclusive, 2),
    "job": (check_job, 2),
    "fresh_memory": (check_fresh_memory, 1),
    "readings": (check_readings, 1),
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--transport", default="shm", choices=("shm", "tcp"))
    parser.add_argument("--driver", default="auto")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--libraries", action="append", default=[])
    parser.add_argument("--show-gpu", action="store_true")
    return parser.parse_args()


def main():
    options = arguments()
    options.bundle = options.bundle.resolve()
    require_bundle(options.bundle)
    options.hide = not options.show_gpu
    if options.hide and not can_hide_gpu():
        sys.exit("cannot hide the GPU from programs (needs root): pass --show-gpu to run without that")
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def start(pool, settings):
            return Pool(options, folder, pool, settings)

        with start("count", "") as pool:
            gpus = len(pool.status()["devices"])
        for check, (function, needed) in CHECKS.items():
            if options.only and check not in options.only:
                continue
            started = time.monotonic()
            try:
                if gpus < needed:
                    raise Skipped(f"needs {needed} GPUs")
                text = f"ok       {function(start) or ''}"
            except Skipped as why:
                text = f"skipped  {why}"
            except AssertionError as error:
                failed += 1
                text = f"FAILED   {error}"
                log = folder / f"{check}.log"
                text += "\n" + log.read_text()[-3000:] if log.exists() else ""
            print(f"{check:12} {time.monotonic() - started:6.1f} s  {text}", flush=True)
    print(f"{failed} failed")
    sys.exit(os.EX_OK if failed == 0 else 1)


if __name__ == "__main__":
    main()
