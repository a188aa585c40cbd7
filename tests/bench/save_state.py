#!/usr/bin/env python3
"""How long an asynchronous save keeps the training thread: bench_save_state against torch.distributed.checkpoint's
async_save of an equal state (weights and AdamW's moments of a stack of 2048 x 2048 matrices), one thread, in turn.

Run:  python tests/bench/save_state.py --build build/release --venv .venv-full [--gb 0.5] [--pairs 3]

Prints the median of the ratios of the stalls, ours over DCP's.
"""
import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile

SCRIPT = r"""
import math, os, shutil, statistics, sys, tempfile, time
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict
gb, rounds = float(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
width = 2048
count = math.ceil(gb * 1e9 / (3 * width * width * 4))
model = torch.nn.ParameterDict({f"w{i}": torch.nn.Parameter(torch.full((width, width), 0.5)) for i in range(count)})
optimizer = torch.optim.AdamW(model.parameters())
def step():
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 0.25)
    optimizer.step()
    optimizer.zero_grad()
step()
folder = tempfile.mkdtemp()
stalls = []
for round in range(rounds + 1):
    path = os.path.join(folder, str(round))
    start = time.perf_counter()
    weights, moments = get_state_dict(model, optimizer)
    future = dcp.async_save({"model": weights, "optimizer": moments}, checkpoint_id=path)
    stall = time.perf_counter() - start
    step()
    future.result()
    shutil.rmtree(path)
    if round > 0:
        stalls.append(stall)
shutil.rmtree(folder)
print("stall_s", statistics.median(stalls))
"""


def stall_of(command, environment):
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    found = re.search(r"^stall_s ([0-9.e+-]+)$", result.stdout, re.M)
    if found is None:
        sys.exit(f"{command[0]} printed no stall:\n{result.stdout}{result.stderr}")
    return float(found.group(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, help="build folder with bin/bench_save_state")
    parser.add_argument("--venv", required=True, help="virtual environment with torch and numpy")
    parser.add_argument("--gb", type=float, default=0.5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    environment = dict(os.environ, OMP_NUM_THREADS="1", ACCELERATE_LOG_LEVEL="warning")
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(SCRIPT)
        script.flush()
        ours_command = [os.path.join(options.build, "bin", "bench_save_state"), "--gb", str(options.gb), "--rounds",
                        str(options.rounds)]
        theirs_command = [os.path.join(options.venv, "bin", "python3"), script.name, str(options.gb),
                          str(options.rounds)]
        ratios = []
        for pair in range(options.pairs):
            theirs = stall_of(theirs_command, environment)
            ours = stall_of(ours_command, environment)
            ratios.append(ours / theirs)
            print(f"pair {pair}: ours {ours:.4f} s, DCP's async_save {theirs:.4f} s, ratio {ratios[-1]:.3f}")
    print(f"load {os.getloadavg()[0]:.1f}; median of the ratios {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
