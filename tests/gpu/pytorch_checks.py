#!/usr/bin/env python3
"""Compares PyTorch on the GPU with the CPU and prints one `name value` line per check.

The same seeds give the same values, so the lines of a native and of a forwarded run can be compared, except values
marked as volatile (memory in use, times). Needs only torch. Exit status: 0 when every check passed.
"""

import os
import sys
import threading

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # makes sums reproducible

import checks
import torch
import torch.nn as nn
import torch.nn.functional as functional
from checks import check


def random(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def require_close(actual, expected, relative, absolute=0.0):
    torch.testing.assert_close(actual.cpu().double(), expected.cpu().double(), rtol=relative, atol=absolute)


def total(tensor):
    return f"{tensor.double().sum().item():.6g}"


@check
def is_available():
    assert torch.cuda.is_available()
    return True


@check
def device_name():
    return torch.cuda.get_device_name(0).replace(" ", "_")


@check
def capability():
    return "{}.{}".format(*torch.cuda.get_device_capability(0))


@check
def device_count():
    return torch.cuda.device_count()


@check
def item():
    x = torch.zeros(1, device="cuda")
    for i in range(100):
        x.add_(1)
        assert x.item() == i + 1
    return x.item()


@check
def copy_there_and_back():
    a = random(4 << 20, seed=1)
    assert torch.equal(a.cuda().cpu(), a)
    return total(a)


@check
def matmul_fp32():
    a, b = random(512, 384, seed=2), random(384, 640, seed=3)
    c = a.cuda() @ b.cuda()
    require_close(c, a.double() @ b.double(), 1e-4, 1e-3)
    return total(c)


@check
def matmul_fp16():
    a, b = random(512, 384, seed=4, dtype=torch.float16), random(384, 640, seed=5, dtype=torch.float16)
    c = a.cuda() @ b.cuda()
    require_close(c, a.double() @ b.double(), 2e-3, 5e-2)
    return total(c)


@check
def matmul_bf16_batched():
    a, b = random(8, 128, 96, seed=6, dtype=torch.bfloat16), random(8, 96, 64, seed=7, dtype=torch.bfloat16)
    c = torch.bmm(a.cuda(), b.cuda())
    require_close(c, torch.bmm(a.double(), b.double()), 2e-2, 2e-1)
    return total(c)


@check
def conv2d():
    x, w, bias = random(4, 3, 32, 32, seed=8), random(16, 3, 3, 3, seed=9), random(16, seed=10)
    y = functional.conv2d(x.cuda(), w.cuda(), bias.cuda(), padding=1)
    require_close(y, functional.conv2d(x.double(), w.double(), bias.double(), padding=1), 1e-4, 1e-3)
    return total(y)


@check
def conv2d_fp16():
    x, w = random(4, 8, 32, 32, seed=11, dtype=torch.float16), random(16, 8, 3, 3, seed=12, dtype=torch.float16)
    y = functional.conv2d(x.cuda(), w.cuda(), stride=2)
    require_close(y, functional.conv2d(x.double(), w.double(), stride=2), 5e-3, 5e-2)
    return total(y)


@check
def elementwise():
    a = random(100_000, seed=13)
    g = a.cuda()
    require_close(
        torch.tanh(g) * torch.exp(-g.abs()) + torch.sin(g),
        torch.tanh(a) * torch.exp(-a.abs()) + torch.sin(a),
        1e-4,
        1e-5,
    )
    return total((g * 3).round())


@check
def sort():
    a = random(50_000, seed=14)
    values, indices = a.cuda().sort(stable=True)
    expected, expected_indices = a.sort(stable=True)
    assert torch.equal(values.cpu(), expected) and torch.equal(indices.cpu(), expected_indices)
    return total(indices[:1000])


@check
def topk():
    a = random(64, 5_000, seed=15)
    assert torch.equal(a.cuda().topk(10).values.cpu(), a.topk(10).values)
    return total(a.cuda().topk(10).values)


@check
def cumsum():
    a = torch.arange(100_000, dtype=torch.int64) % 97
    assert torch.equal(a.cuda().cumsum(0).cpu(), a.cumsum(0))
    return a.cuda().cumsum(0)[-1].item()


@check
def indexing():
    a, index = (
        random(1_000, 64, seed=16),
        torch.randint(0, 1_000, (5_000,), generator=torch.Generator().manual_seed(17)),
    )
    g, i = a.cuda(), index.cuda()
    assert torch.equal(g[i].cpu(), a[index])
    assert torch.equal(g[g > 1].cpu(), a[a > 1])
    assert torch.equal((g > 2).nonzero().cpu(), (a > 2).nonzero())
    counts = torch.zeros(1_000, dtype=torch.int64, device="cuda").scatter_add_(0, i, torch.ones_like(i))
    assert torch.equal(counts.cpu(), torch.bincount(index, minlength=1_000))
    return (g > 1).sum().item()


@check
def fft():
    a = random(16, 1_024, seed=18)
    spectrum = torch.fft.rfft(a.cuda())
    expected = torch.fft.rfft(a.double())
    require_close(spectrum.real, expected.real, 1e-4, 1e-3)
    require_close(spectrum.imag, expected.imag, 1e-4, 1e-3)
    require_close(torch.fft.irfft(spectrum), a, 1e-4, 1e-4)
    return total(spectrum.real)


@check
def solve():
    a, b = random(64, 64, seed=19) + 16 * torch.eye(64), random(64, 5, seed=20)
    x = torch.linalg.solve(a.cuda(), b.cuda())
    require_close(x, torch.linalg.solve(a.double(), b.double()), 1e-4, 1e-4)
    return total(x)


@check
def autograd():
    def gradient(device):
        w = random(40, 30, seed=21).to(device).requires_grad_()
        x = random(20, 40, seed=22).to(device)
        (torch.softmax(x @ w, dim=1).log() * -0.1).mean().backward()
        return w.grad

    require_close(gradient("cuda"), gradient("cpu"), 1e-3, 1e-6)
    return f"{gradient('cuda').abs().double().sum().item():.5g}"


@check
def random_numbers():
    torch.manual_seed(23)
    first = torch.rand(1_000, device="cuda")
    torch.manual_seed(23)
    assert torch.equal(first, torch.rand(1_000, device="cuda"))
    return total(first)


@check
def pinned_copies():
    a = random(1 << 20, seed=24).pin_memory()
    assert a.is_pinned()
    back = torch.empty_like(a).pin_memory()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        g = a.to("cuda", non_blocking=True)
        back.copy_(g * 2, non_blocking=True)
    stream.synchronize()
    assert torch.equal(back, a * 2)
    return total(back)


@check
def streams_and_events():
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    a = torch.ones(1_000_000, device="cuda")
    first.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(first):
        start.record()
        for _ in range(50):
            a.add_(1)
        end.record()
    second.wait_event(end)
    with torch.cuda.stream(second):
        b = a * 2
    second.synchronize()
    assert end.query() and start.elapsed_time(end) > 0
    a.record_stream(second)
    return b[-1].item()


@check
def threads():
    results = [None] * 4

    def steps(index, device):
        x, w = random(256, 256, seed=30 + index).to(device), random(256, 256, seed=60 + index).to(device)
        for _ in range(20):
            x = torch.tanh(x @ w * 0.05)
        return x.cpu()

    def work(index):
        with torch.cuda.stream(torch.cuda.Stream()):
            results[index] = steps(index, "cuda")

    workers = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for index, result in enumerate(results):
        require_close(result, steps(index, "cpu"), 1e-3, 1e-5)
    return ",".join(f"{result.double().abs().sum().item():.4g}" for result in results)


class SmallNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 16, 3, stride=2)
        self.last = nn.Linear(16 * 6 * 6, 10)

    def forward(self, x):
        x = functional.max_pool2d(functional.relu(self.norm(self.first(x))), 2)
        return self.last(functional.relu(self.second(x)).flatten(1))


def train(device, steps):
    torch.manual_seed(40)
    model = SmallNet().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x = random(64, 1, 28, 28, seed=41).to(device)
    y = torch.randint(0, 10, (64,), generator=torch.Generator().manual_seed(42)).to(device)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@check
def training_step():
    loss = train("cuda", 1)[0]
    assert abs(loss - train("cpu", 1)[0]) < 1e-3
    return f"{loss:.6f}"


@check
def training_loss_after_20_steps():
    losses = train("cuda", 20)
    assert losses[-1] < losses[0]
    assert abs(losses[-1] - train("cpu", 20)[-1]) < 5e-2
    return f"{losses[-1]:.6f}"


@check
def cuda_graph():
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    torch.manual_seed(43)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1)
    model = model.cuda().eval()
    x = random(32, 64, seed=44).cuda()
    with torch.no_grad():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                model(x)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = model(x)
        for seed in range(3):
            x.copy_(random(32, 64, seed=50 + seed))
            graph.replay()
            require_close(y, model(x), 1e-5, 1e-6)
    return total(y)


@check
def half_precision_training():
    torch.manual_seed(45)
    model = nn.Linear(128, 64).cuda()
    scaler = torch.amp.GradScaler("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = random(32, 128, seed=46).cuda(), random(32, 64, seed=47).cuda()
    for _ in range(5):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert torch.isfinite(loss)
    return f"{loss.item():.5f}"


@check
def out_of_memory():
    try:
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        return torch.ones(10, device="cuda").sum().item()
    raise AssertionError("1 PiB was allocated")


@check(volatile=True)
def mem_get_info():
    free, everything = torch.cuda.mem_get_info()
    assert 0 < free <= everything
    return f"{free >> 20}/{everything >> 20}_MiB"


@check(volatile=True)
def memory_allocated():
    before = torch.cuda.memory_allocated()
    block = torch.empty(10 << 20, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() >= before + (10 << 20)
    del block
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated()


if __name__ == "__main__":
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    sys.exit(checks.main(__doc__, versions={"torch": torch.__version__}))
