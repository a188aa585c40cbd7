#!/usr/bin/env python3
"""Steps of an ordinary training loop over an MLP: `accel launch` with bench_ddp_step against `torchrun` with the same loop
in HF Accelerate (prepared model, optimizer and loader), on as many ranks, one thread a rank, launched in turn.

Run:  python tests/bench/ddp_step.py --build build/release --venv .venv-full [--ranks 2] [--width 64] [--pairs 7]

The first ten losses of both must be equal to 1e-4. Prints the median of the per-pair ratios, a memory probe before and
after, and the load; fails when the ratio is above --limit (0.25 for the small model on 2 ranks). `--width 1024
--batch_size 256 --steps 10 --limit 1.0` is a model bound by its matrix products.
"""
import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

SCRIPT = r"""
import math, sys, time
import torch
from accelerate import Accelerator
width, layers, batch_size, steps, rounds, adamw = (int(word) for word in sys.argv[1:7])
torch.set_num_threads(1)
accelerator = Accelerator(cpu=True)
def wave(sizes, scale, start):
    count = math.prod(sizes)
    return (torch.sin(torch.arange(count, dtype=torch.double) * 0.7 + start) * scale).float().reshape(sizes)
parts = []
for i in range(layers):
    parts.append(torch.nn.Linear(width, width if i + 1 < layers else 1))
    if i + 1 < layers:
        parts.append(torch.nn.ReLU())
net = torch.nn.Sequential(*parts)
with torch.no_grad():
    for start, parameter in enumerate(net.parameters()):
        parameter.copy_(wave(tuple(parameter.shape), 1 / math.sqrt(width), float(start)))
samples = batch_size * steps * accelerator.num_processes
data = torch.utils.data.TensorDataset(wave((samples, width), 1, 0.5), wave((samples, 1), 1, 0.1))
optimizer = (torch.optim.AdamW(net.parameters(), lr=1e-3) if adamw
             else torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9))
model, optimizer, loader = accelerator.prepare(
    net, optimizer, torch.utils.data.DataLoader(data, batch_size=batch_size))
said = 0
for round in range(rounds + 1):
    accelerator.wait_for_everyone()
    start = time.perf_counter()
    for x, y in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        if said < 10:
            accelerator.print("loss", accelerator.reduce(loss.detach(), "mean").item(), flush=True)
        said += 1
    seconds = time.perf_counter() - start
    if round > 0:
        accelerator.print("us", seconds * 1e6 / steps, flush=True)
accelerator.end_training()
"""
ENVIRONMENT = dict(os.environ, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", XDG_CONFIG_HOME="/nonexistent",
                   HF_HOME="/nonexistent")


def run(command):
    result = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=600)
    losses = [float(word) for word in re.findall(r"^(?:\[rank 0\] )?loss (\S+)", result.stdout, re.MULTILINE)]
    times = [float(word) for word in re.findall(r"^(?:\[rank 0\] )?us (\S+)", result.stdout, re.MULTILINE)]
    if result.returncode or len(losses) != 10 or not times:
        sys.exit(f"{command}: exit code {result.returncode}, {len(losses)} losses, {len(times)} times\n"
                 f"{result.stdout[-2000:]}{result.stderr[-2000:]}")
    return losses, statistics.median(times)


def memory_probe_ms():
    block = bytearray(64 << 20)
    bytes(block)
    start = time.perf_counter()
    for _ in range(3):
        bytes(block)
    return (time.perf_counter() - start) / 3 * 1000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--venv", default=".venv-full")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--adamw", action="store_true", help="AdamW in place of SGD with momentum")
    parser.add_argument("--limit", type=float, default=0.25)
    arguments = parser.parse_args()
    a = arguments
    with tempfile.TemporaryDirectory() as folder:
        script = os.path.join(folder, "train.py")
        with open(script, "w") as file:
            file.write(SCRIPT)
        numbers = [str(n) for n in (a.width, a.layers, a.batch_size, a.steps, a.rounds, int(a.adamw))]
        theirs_command = [os.path.join(a.venv, "bin", "torchrun"), "--nnodes", "1", "--nproc_per_node", str(a.ranks),
                          "--master_addr", "127.0.0.1", "--master_port", "29471", script] + numbers
        bench = os.path.join(a.build, "bin", "bench_ddp_step")
        ours_command = [os.path.join(a.build, "bin", "accel"), "launch", "--cpu", "--num_processes", str(a.ranks), bench,
                        "--width", str(a.width), "--layers", str(a.layers), "--batch_size", str(a.batch_size),
                        "--steps", str(a.steps), "--rounds", str(a.rounds)] + (["--adamw"] if a.adamw else [])
        before = memory_probe_ms()
        ours, theirs = [], []
        for _ in range(a.pairs):
            our_losses, our_time = run(ours_command)
            their_losses, their_time = run(theirs_command)
            worst = max(abs(x - y) / max(abs(y), 1e-9) for x, y in zip(our_losses, their_losses))
            if worst > 1e-4:
                sys.exit(f"the losses differ by {worst:.1e}: {our_losses} {their_losses}")
            ours.append(our_time)
            theirs.append(their_time)
        after = memory_probe_ms()
    ratio = statistics.median(x / y for x, y in zip(ours, theirs))
    print(f"MLP {a.layers} x {a.width}, batch {a.batch_size}, {a.ranks} ranks, {'AdamW' if a.adamw else 'SGD'}: ours "
          f"{statistics.median(ours):.0f} us a step, Accelerate {statistics.median(theirs):.0f} us, ratio {ratio:.3f} "
          f"(limit {a.limit}); {a.pairs} pairs; copy of 64 MiB {before:.1f} ms before, {after:.1f} after; load "
          f"{os.getloadavg()[0]:.1f}")
    return 0 if ratio <= a.limit else 1


if __name__ == "__main__":
    sys.exit(main())
