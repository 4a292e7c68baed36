#!/usr/bin/env python3
"""Measures applications on the GPU with PyTorch and prints one `name value unit` line each.

Models have random weights, so nothing is downloaded; the work equals that of the real models. Models of transformers or
torchvision are skipped where these packages are missing. Times are wall-clock times of the whole step, after a warm-up.
"""

import argparse
import fnmatch
import json
import os
import sys
import tempfile
import time

started = time.perf_counter()
import torch

imported = time.perf_counter()
torch.zeros(1, device="cuda").add_(1).item()
FIRST_RESULT_S = time.perf_counter() - imported

APPLICATIONS = {}


STEPS = 0  # 0: as many as fit a fixed time
steps_done = {}


def note_steps(begin, steps, of="step"):
    """Records the measured part, after the warm-up: `steps` since `begin`. Returns the seconds that they took."""
    end = time.perf_counter()
    steps_done.update(steps=steps, of=of, begin=begin, end=end)
    return end - begin


def application(unit):
    def register(function):
        APPLICATIONS[function.__name__] = (function, unit)
        return function

    return register


def per_second(step, items, seconds=2.0, warm_up=5):
    """`items` per second, where `step` does that many without waiting. Waits for the GPU at the end."""
    for _ in range(warm_up):
        step()
    torch.cuda.synchronize()
    begin, steps = time.perf_counter(), 0
    while steps < STEPS if STEPS else time.perf_counter() - begin < seconds:
        for _ in range(5):
            step()
        torch.cuda.synchronize()
        steps += 5
    return steps * items / note_steps(begin, steps)


@application("s")
def first_result():
    return FIRST_RESULT_S


@application("us")
def add_():
    """A continuous sequence of one eager operation."""
    a = torch.zeros(1024, device="cuda")

    def step():
        for _ in range(2000):
            a.add_(1)

    return 1e6 / per_second(step, 2000, seconds=1.0, warm_up=2)


@application("us")
def item():
    a = torch.zeros(1, device="cuda")
    return 1e6 / per_second(a.item, 1, seconds=1.0, warm_up=100)


def inference(model, inputs, items):
    model = model.cuda().half().eval()
    with torch.inference_mode():
        return per_second(lambda: model(inputs), items)


@application("images/s")
def resnet50_batch_1():
    from torchvision.models import resnet50

    return inference(resnet50(), torch.randn(1, 3, 224, 224, device="cuda").half(), 1)


@application("images/s")
def resnet50_graph():
    """resnet50_batch_1, captured once; each image is copied in and the graph replayed."""
    from torchvision.models import resnet50

    model = resnet50().cuda().half().eval()
    image = torch.randn(1, 3, 224, 224, device="cuda").half()
    images = torch.randn(8, 3, 224, 224, device="cuda").half()
    with torch.inference_mode():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                model(image)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            model(image)

        def step():
            for one in images:
                image.copy_(one.unsqueeze(0))
                graph.replay()

        return per_second(step, len(images))


@application("images/s")
def resnet50_batch_32():
    from torchvision.models import resnet50

    return inference(resnet50(), torch.randn(32, 3, 224, 224, device="cuda").half(), 32)


@application("images/s")
def resnet50_training():
    from torchvision.models import resnet50

    model = resnet50().cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(64, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (64,), device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    return per_second(step, 64)


@application("sequences/s")
def bert_training():
    from transformers import BertConfig, BertForSequenceClassification

    model = BertForSequenceClassification(BertConfig()).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    tokens = torch.randint(0, 30000, (32, 128), device="cuda")
    labels = torch.randint(0, 2, (32,), device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(tokens, labels=labels).loss
        loss.backward()
        optimizer.step()

    return per_second(step, 32)


def decode(model, vocabulary, tokens=64, rounds=3):
    """Greedy decoding of one sequence, as generate() does it."""
    model = model.cuda().half().eval()
    prompt = torch.randint(0, vocabulary, (1, 16), device="cuda")
    options = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}
    with torch.inference_mode():
        model.generate(prompt, **options)
        torch.cuda.synchronize()
        rounds = max(1, STEPS // 5) if STEPS else rounds
        begin = time.perf_counter()
        for _ in range(rounds):
            model.generate(prompt, **options)
        torch.cuda.synchronize()
        return rounds * tokens / note_steps(begin, rounds * tokens, "token")


@application("tokens/s")
def gpt2_decode():
    from transformers import GPT2Config, GPT2LMHeadModel

    return decode(GPT2LMHeadModel(GPT2Config()), 50000)


@application("tokens/s")
def llama_decode():
    """A decoder of Llama's shape with about a billion parameters."""
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = LlamaConfig(
        vocab_size=32000,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=22,
        num_attention_heads=32,
        num_key_value_heads=4,
    )
    with torch.device("cuda"):
        model = LlamaForCausalLM(shape)
    return decode(model, 32000)


class Block(torch.nn.Module):
    def __init__(self, inputs, outputs, attention):
        super().__init__()
        self.convolutions = torch.nn.Sequential(
            torch.nn.GroupNorm(32, inputs),
            torch.nn.SiLU(),
            torch.nn.Conv2d(inputs, outputs, 3, padding=1),
            torch.nn.GroupNorm(32, outputs),
            torch.nn.SiLU(),
            torch.nn.Conv2d(outputs, outputs, 3, padding=1),
        )
        self.skip = torch.nn.Conv2d(inputs, outputs, 1)
        self.attention = torch.nn.MultiheadAttention(outputs, 8, batch_first=True) if attention else None

    def forward(self, x):
        x = self.skip(x) + self.convolutions(x)
        if self.attention is None:
            return x
        flat = x.flatten(2).transpose(1, 2)
        return x + self.attention(flat, flat, flat, need_weights=False)[0].transpose(1, 2).view_as(x)


class UNet(torch.nn.Module):
    """The shape of a latent diffusion model's UNet: three levels, attention at the lower two."""

    def __init__(self, widths=(320, 640, 1280)):
        super().__init__()
        self.begin = torch.nn.Conv2d(4, widths[0], 3, padding=1)
        ins = (widths[0], *widths[:-1])
        self.down = torch.nn.ModuleList(Block(a, b, i > 0) for i, (a, b) in enumerate(zip(ins, widths)))
        self.middle = Block(widths[-1], widths[-1], True)
        self.up = torch.nn.ModuleList(
            Block(2 * b, a, i > 0) for i, (a, b) in reversed(list(enumerate(zip(ins, widths))))
        )
        self.end = torch.nn.Conv2d(widths[0], 4, 3, padding=1)

    def forward(self, x):
        x, kept = self.begin(x), []
        for block in self.down:
            x = block(x)
            kept.append(x)
            x = torch.nn.functional.avg_pool2d(x, 2)
        x = self.middle(x)
        for block in self.up:
            x = torch.nn.functional.interpolate(x, scale_factor=2)
            x = block(torch.cat((x, kept.pop()), 1))
        return self.end(x)


@application("steps/s")
def unet_step():
    return inference(UNet(), torch.randn(1, 4, 64, 64, device="cuda").half(), 1)


@application("GB/s")
def model_loading():
    """Loads a checkpoint of 1 GB from the page cache to the GPU."""
    parts, megabytes = STEPS or 64, 16
    layer = torch.randn(megabytes << 18, dtype=torch.float32)
    weights = {f"layer_{i}": layer.clone() for i in range(parts)}
    with tempfile.NamedTemporaryFile(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as file:
        torch.save(weights, file.name)
        torch.load(file.name, mmap=True)
        begin = time.perf_counter()
        loaded = torch.load(file.name, map_location="cuda", mmap=True)
        torch.cuda.synchronize()
        seconds = note_steps(begin, parts, "tensor")
    expected = layer.cuda()
    assert all(torch.equal(value, expected) for value in loaded.values())
    return parts * (megabytes << 20) / 1e9 / seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="PATTERN", help="(repeatable)")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument(
        "--steps",
        type=int,
        default=0,
        metavar="N",
        help="make N steps (a multiple of 5), instead of as many as fit a fixed time",
    )
    arguments = parser.parse_args()
    global STEPS
    STEPS = arguments.steps
    results = {}
    for name, (function, unit) in APPLICATIONS.items():
        if arguments.only and not any(fnmatch.fnmatch(name, pattern) for pattern in arguments.only):
            continue
        try:
            value = function()
        except ImportError as missing:
            print(f"{name} omitted: {missing}", flush=True)
            continue
        torch.cuda.empty_cache()
        results[name] = (value, unit)
        print(f"{name} {value:.4g} {unit}", flush=True)
        if STEPS and steps_done:  # their place in a timeline of GPUPOOL_TRACE, on its clock
            print("{steps} {of}s from {begin:.6f} to {end:.6f}".format(**steps_done), flush=True)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(results, file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
