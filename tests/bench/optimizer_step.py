#!/usr/bin/env python3
"""A prepared AdamW step in C++ against Python's torch.optim.AdamW(fused=True), on the same 200 weights, one thread each,
processes run in turn.

Run:  python tests/bench/optimizer_step.py --build build/release [--pairs 5]      (in an environment with torch)

bench_optimizer_step checks its results itself. Prints the median of the per-pair ratios of the two programs' medians, and
the load, and fails when the ratio is above 1.05.
"""
import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

ROUNDS, STEPS, LAYERS, WIDTH = 25, 8, 16, 128


def python_step_us():
    import torch
    torch.set_num_threads(1)
    w = WIDTH
    shapes = LAYERS * [[w], [w], [3 * w, w], [3 * w], [w, w], [w], [w], [w], [4 * w, w], [4 * w], [w, 4 * w], [w]]
    shapes += [[2048, w], [256, w], [w], [w], [w, w], [w], [10, w], [10]]
    weights = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    optimizer = torch.optim.AdamW(weights, lr=1e-3, fused=True)
    times = []
    for _ in range(ROUNDS + 2):
        start = time.perf_counter()
        for _ in range(STEPS):
            optimizer.step()
        times.append((time.perf_counter() - start) / STEPS * 1e6)
    return statistics.median(times[2:])  # the first two warm up


def our_step_us(program):
    with tempfile.NamedTemporaryFile("r") as file:
        result = subprocess.run([program], env=dict(os.environ, ACCELERATE_BENCH_TIMES=file.name), capture_output=True,
                                text=True, timeout=300)
        print(result.stdout, end="")
        times = [float(line) for line in file]
    if len(times) != ROUNDS:
        sys.exit(f"{program}: exit code {result.returncode}, {len(times)} times\n{result.stderr}")
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--python-side", action="store_true", help="print Python's time and leave")
    arguments = parser.parse_args()
    if arguments.python_side:
        print(python_step_us())
        return 0
    program = os.path.join(arguments.build, "bin", "bench_optimizer_step")
    ours, theirs = [], []
    for _ in range(arguments.pairs):
        ours.append(our_step_us(program))
        theirs.append(float(subprocess.run([sys.executable, __file__, "--python-side"], capture_output=True, text=True,
                                           check=True, timeout=300).stdout))
    ratio = statistics.median(a / b for a, b in zip(ours, theirs))
    print(f"AdamW over {LAYERS * 12 + 8} weights: prepared {statistics.median(ours):.0f} us, Python's fused=True "
          f"{statistics.median(theirs):.0f} us, ratio {ratio:.3f} (limit 1.05); {arguments.pairs} pairs; load "
          f"{os.getloadavg()[0]:.1f}")
    return 0 if ratio <= 1.05 else 1


if __name__ == "__main__":
    sys.exit(main())
