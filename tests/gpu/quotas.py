#!/usr/bin/env python3
"""Runs applications inside quotas of device memory: each gets its quota, and an ordinary error beyond it.

    tests/gpu/quotas.py BUNDLE [--quotas 2,4,20] [--transport shm] [--only NAME] [--programs FOLDER] [--rounds N]

BUNDLE as for tests/gpu/run. For each quota (GiB) a server with that limit is started. Each application sees the quota
as the device's size, works with most of it, asks for more than there is, catches its library's ordinary error, and goes
on working. --programs: a folder with quota_rounds, which allocates by every path of the driver API. Applications whose
libraries are not installed are skipped. Exit status: 0 when all pass. Writes only to a temporary folder.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "scripts"))
from two_ways import Server, native_environment, require_bundle, run_command, through_gpupool

TORCH = """
import torch
free, total = torch.cuda.mem_get_info()
assert total == QUOTA, (total, QUOTA)
assert torch.cuda.get_device_properties(0).total_memory == QUOTA
a = torch.randn(1024, 1024, device="cuda")
held = []
def fill(step):
    try:
        while True:
            held.append(torch.full((step,), 7, dtype=torch.uint8, device="cuda"))
    except torch.cuda.OutOfMemoryError as error:
        return str(error)
message = fill(64 << 20)
assert "out of memory" in message.lower(), message
filled = sum(part.numel() for part in held)
assert filled <= QUOTA
assert all(int(part[-1]) == 7 for part in held)
print("filled", round(filled / QUOTA, 3), flush=True)
assert filled > 0.75 * QUOTA, (filled, QUOTA)
held.clear()
torch.cuda.empty_cache()
for _ in range(3):
    a = torch.nn.functional.normalize(a @ a)
assert bool(torch.isfinite(a).all())
model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(5):
    loss = (model(a) - a).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
assert torch.isfinite(loss)
print("done", torch.cuda.memory_reserved() >> 20, "MiB reserved")
"""

JAX = """
import os
import jax, jax.numpy as jnp
stats = jax.devices("gpu")[0].memory_stats()
print("limit", stats["bytes_limit"] / QUOTA, flush=True)
assert stats["bytes_limit"] <= QUOTA
assert stats["bytes_limit"] > 0.5 * QUOTA  # it takes three quarters by default
a = jnp.ones((1024, 1024))
assert float((a @ a)[0, 0]) == 1024
part = int(stats["bytes_limit"] * 0.6)
b = jnp.zeros((part,), jnp.uint8).block_until_ready()
try:
    jnp.zeros((part,), jnp.uint8).block_until_ready()
    raise SystemExit("more than the limit was given")
except Exception as error:
    assert "RESOURCE_EXHAUSTED" in str(error), error
del b
assert float((a @ a)[0, 0]) == 1024
print("done")
"""

CUPY = """
import cupy
assert cupy.cuda.Device(0).mem_info[1] == QUOTA
assert cupy.cuda.runtime.getDeviceProperties(0)["totalGlobalMem"] == QUOTA
held = []
try:
    while True:
        held.append(cupy.full(64 << 20, 7, dtype=cupy.uint8))
except cupy.cuda.memory.OutOfMemoryError:
    pass
filled = sum(part.nbytes for part in held)
print("filled", round(filled / QUOTA, 3), flush=True)
assert 0.8 * QUOTA < filled <= QUOTA
assert all(int(part[-1]) == 7 for part in held)
held.clear()
cupy.get_default_memory_pool().free_all_blocks()
a = cupy.random.rand(512, 512)
assert cupy.allclose(a @ cupy.linalg.inv(a), cupy.eye(512), atol=1e-6)
print("done")
"""

# A model server takes its weights, measures the free memory, and takes a part of that for its cache.
MODEL_SERVER = """
import torch
free, total = torch.cuda.mem_get_info()
assert total == QUOTA
weights = [torch.randn(4096, 4096, device="cuda", dtype=torch.float16) for _ in range(8)]
x = torch.randn(16, 4096, device="cuda", dtype=torch.float16)
for w in weights:
    x = torch.nn.functional.normalize(x @ w)
torch.cuda.synchronize()
free, total = torch.cuda.mem_get_info()
used = total - free
cache_bytes = int(total * 0.9) - used
assert cache_bytes > 0, (free, total)
block = 16 << 20
cache = [torch.full((block,), i % 251, dtype=torch.uint8, device="cuda") for i in range(cache_bytes // block)]
print("cache", len(cache) * block >> 20, "MiB of", total >> 20, flush=True)
for _ in range(20):
    for w in weights:
        x = torch.nn.functional.normalize(x @ w)
assert bool(torch.isfinite(x).all())
assert all(int(part[0]) == i % 251 for i, part in enumerate(cache))
try:
    torch.empty(QUOTA, dtype=torch.uint8, device="cuda")
    raise SystemExit("more than the quota was given")
except torch.cuda.OutOfMemoryError:
    pass
print("done")
"""

APPLICATIONS = {
    "pytorch": (TORCH, {}),
    "pytorch_expandable": (TORCH, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
    "pytorch_async": (TORCH, {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}),
    "jax": (JAX, {"JAX_PLATFORMS": "cuda"}),
    "cupy": (CUPY, {}),
    "model_server": (MODEL_SERVER, {}),
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--quotas", default="2,4,20", help="in GiB")
    parser.add_argument("--transport", default="shm", choices=("shm", "tcp"))
    parser.add_argument("--driver", default="auto")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--programs", type=Path)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--limit", type=float, default=180, help="seconds for each application")
    parser.add_argument("--libraries", action="append", default=[])
    return parser.parse_args()


def commands(options, quota, folder):
    """Name, command and environment of each application."""
    for name, (text, environment) in APPLICATIONS.items():
        file = folder / f"application_{name}.py"  # not the name of a library
        file.write_text(f"QUOTA = {int(quota * 1024) << 20}\n{text}")
        yield name, [sys.executable, str(file)], environment
    if options.programs:
        yield "quota_rounds", [str(options.programs / "quota_rounds"), "quota", f"rounds={options.rounds}"], {}


def run_one(options, server, command, environment):
    whole = {**native_environment(options.libraries), **environment, "GPUPOOL_TRANSPORT": options.transport}
    return run_command(through_gpupool(options.bundle, server, command), whole, options.limit)


def run_quota(options, quota, folder):
    settings = folder / "gpupoold.toml"
    settings.write_text(f'[limits]\nsession_memory = "{int(quota * 1024)}MiB"\n')
    failed = 0
    log = folder / f"server-{quota}.log"
    environment = native_environment(options.libraries)
    with Server(options.bundle, options.driver, log, ["--config", str(settings)], environment) as server:
        for name, command, settings_of_it in commands(options, quota, folder):
            if options.only and name not in options.only:
                continue
            outcome = run_one(options, server, command, settings_of_it)
            missing = "No module named" in outcome.output
            lines = [line for line in outcome.output.splitlines() if line.strip()]
            print(
                f"{quota:5} GiB {name:20} {'skipped' if missing else outcome.text:10} {outcome.seconds:6.1f} s  "
                f"{' | '.join(lines[-2:])[:150]}",
                flush=True,
            )
            if not outcome.passed and not missing:
                failed += 1
                print(outcome.output[-3000:], flush=True)
    text = log.read_text()
    print("".join(line + "\n" for line in text.splitlines() if "NVML" in line), end="")
    print(text[-1500:] if failed else "", end="")
    return failed


def main():
    options = arguments()
    options.bundle = options.bundle.resolve()
    require_bundle(options.bundle)
    with tempfile.TemporaryDirectory() as folder:
        failed = sum(run_quota(options, float(quota), Path(folder)) for quota in options.quotas.split(","))
    print(f"{failed} failed")
    sys.exit(os.EX_OK if failed == 0 else 1)


if __name__ == "__main__":
    main()
