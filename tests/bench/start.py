#!/usr/bin/env python3
"""From launch to all ranks past their first barrier: `accel launch` with a C++ program against torchrun with a Python
script that does the same, run in turn. Also the launcher's own time to its first child.

Run:  python tests/bench/start.py --build build/release --venv .venv-full [--ranks 2] [--pairs 7]

The time is read by the ranks themselves from the machine's monotonic clock. Every run must print as many times as there
are ranks. Prints the median of the per-pair ratios, the load, and fails when the ratio is above 0.2 or the first child
later than 20 ms.
"""
import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

SCRIPT = """
import time
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
print("past barrier %.9f" % time.monotonic(), flush=True)
dist.destroy_process_group()
"""


def run(command, pattern, count):
    environment = dict(os.environ, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", XDG_CONFIG_HOME="/nonexistent",
                       HF_HOME="/nonexistent")
    start = time.monotonic()
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    times = [float(t) - start for t in re.findall(pattern + r" (\d+\.\d+)", result.stdout)]
    if result.returncode != 0 or len(times) != count:
        sys.exit(f"{command}: exit code {result.returncode}, {len(times)} of {count} ranks\n{result.stdout}{result.stderr}")
    return max(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--venv", default=".venv-full")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=7)
    arguments = parser.parse_args()
    binaries = os.path.join(arguments.build, "bin")
    accel = [os.path.join(binaries, "accel"), "launch", "--cpu", "--num_processes"]
    ours, theirs, forks = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        script = os.path.join(folder, "first_barrier.py")
        with open(script, "w") as file:
            file.write(SCRIPT)
        n = str(arguments.ranks)
        for pair in range(arguments.pairs + 1):
            a = run(accel + [n, os.path.join(binaries, "first_barrier_torch")], "past barrier", arguments.ranks)
            b = run([os.path.join(arguments.venv, "bin", "torchrun"), "--nproc_per_node", n, script], "past barrier",
                    arguments.ranks)
            f = run(accel + ["1", os.path.join(binaries, "clock_now")], "started", 1)
            if pair > 0:  # the first pair fills the page cache
                ours.append(a), theirs.append(b), forks.append(f)
    ratio = statistics.median(a / b for a, b in zip(ours, theirs))
    fork_ms = 1000 * statistics.median(forks)
    print(f"{n} ranks past their first barrier: accel launch {statistics.median(ours):.2f} s, torchrun "
          f"{statistics.median(theirs):.2f} s, ratio {ratio:.3f} (limit 0.2); first child of the launcher after "
          f"{fork_ms:.1f} ms (limit 20); {arguments.pairs} pairs; load {os.getloadavg()[0]:.1f}")
    return 0 if ratio <= 0.2 and fork_ms <= 20 else 1


if __name__ == "__main__":
    sys.exit(main())
