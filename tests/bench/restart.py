#!/usr/bin/env python3
"""From SIGKILL of one rank to all ranks past their first step after the restart: `accel launch --max_restarts 1` with a
C++ program against `torchrun --max-restarts 1` with a Python script that does the same, in turn. Also from that SIGKILL
to the launcher's message, and how long 64 ranks of a program that does nothing take.

Run:  python tests/bench/restart.py --build build/release --venv .venv-full [--ranks 2] [--pairs 5]

Every run must show the failed rank and its signal, new processes for all ranks, their steps from 0 on, and an orderly
end. Prints the median of the per-pair ratios, the load, and fails when the ratio is above 0.2, the message later than
200 ms, or 64 ranks later than 3 s.
"""
import argparse
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

SCRIPT = r"""
import os, time
import torch
import torch.distributed as dist
def say(text):  # one write, so that lines of ranks do not mix
    os.write(1, (text + "\n").encode())
rank, size, attempt = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"))
# With env:// torch 2.11 finds addresses of the attempt before in torchrun's store, and connects to the dead rank.
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
dist.init_process_group("gloo", store=dist.PrefixStore(f"bench_{attempt}", store), rank=rank, world_size=size)
say(f"rank {rank} of {dist.get_world_size()} pid {os.getpid()}")
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
sgd = torch.optim.SGD(net.parameters(), 0.1)
for step in range(100000):
    sgd.zero_grad()
    net(torch.ones(2, 8)).sum().backward()
    sgd.step()
    time.sleep(0.01)
    say(f"rank {rank} step {step}")
"""
STEPS_BEFORE, STEPS_AFTER, LIMIT_S = 10, 5, 30
ENVIRONMENT = dict(os.environ, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", XDG_CONFIG_HOME="/nonexistent",
                   HF_HOME="/nonexistent")


class Job:
    """A launcher and what was seen in its output, each with the time of its first appearance."""

    def __init__(self, command, ranks):
        self.command, self.ranks, self.text = command, ranks, []
        self.pids, self.message, self.message_at = [], None, None
        self.steps = {}  # (attempt, rank) -> {step: time}
        self.changed = threading.Condition()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                        env=ENVIRONMENT)
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            now = time.monotonic()
            with self.changed:
                self.text.append(line)
                start = re.search(r"rank (\d+) of \d+ pid (\d+)", line)
                step = re.search(r"rank (\d+) step (\d+)", line)
                if start:
                    self.pids.append((int(start[1]), int(start[2])))
                if step:
                    attempt = sum(1 for rank, _ in self.pids if rank == int(step[1])) - 1
                    self.steps.setdefault((attempt, int(step[1])), {}).setdefault(int(step[2]), now)
                if self.message is None and re.search(r"SIGKILL|exitcode: -9|signal 9", line, re.IGNORECASE):
                    self.message, self.message_at = line, now
                self.changed.notify_all()

    def wait_for_step(self, attempt, step):
        wanted = [(attempt, rank) for rank in range(self.ranks)]
        with self.changed:
            if not self.changed.wait_for(lambda: all(step in self.steps.get(key, {}) for key in wanted), LIMIT_S):
                self.fail(f"step {step} of attempt {attempt} did not come")

    def fail(self, why):
        self.process.kill()
        sys.exit(f"{self.command}: {why}\n{''.join(self.text[-400:])}")


def measure(command, ranks):
    """Seconds from the kill to the first steps of the next attempt, and to the launcher's message."""
    job = Job(command, ranks)
    job.wait_for_step(0, STEPS_BEFORE)
    victim = [pid for rank, pid in job.pids if rank == ranks - 1][0]
    killed = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    job.wait_for_step(1, STEPS_AFTER)
    job.process.send_signal(signal.SIGTERM)
    job.process.wait(30)
    if len(set(job.pids)) != 2 * ranks:
        job.fail(f"{len(set(job.pids))} processes instead of {2 * ranks}")
    if job.message is None:
        job.fail("no message about SIGKILL")
    first = max(job.steps[1, rank][0] for rank in range(ranks))
    return first - killed, job.message_at - killed


def many_ranks(accel, program, ranks=64):
    start = time.monotonic()
    result = subprocess.run(accel + [str(ranks), program], capture_output=True, text=True, timeout=LIMIT_S,
                            env=ENVIRONMENT)
    if result.returncode != 0 or result.stdout.count("started") != ranks:
        sys.exit(f"{ranks} ranks: exit code {result.returncode}\n{result.stdout}{result.stderr}")
    return time.monotonic() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--launcher", help="another `accel` than the build's")
    parser.add_argument("--venv", default=".venv-full")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=5)
    arguments = parser.parse_args()
    binaries = os.path.join(arguments.build, "bin")
    accel = [arguments.launcher or os.path.join(binaries, "accel"), "launch", "--cpu"]
    n = str(arguments.ranks)
    ours, theirs, messages = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        script = os.path.join(folder, "train.py")
        with open(script, "w") as file:
            file.write(SCRIPT)
        for pair in range(arguments.pairs + 1):
            a, message = measure(accel + ["--num_processes", n, "--max_restarts", "1",
                                          os.path.join(binaries, "job_torch"), "--steps", "100000", "--step_ms", "10"],
                                 arguments.ranks)
            b, _ = measure([os.path.join(arguments.venv, "bin", "torchrun"), "--standalone", "--nproc_per_node", n, "--max-restarts", "1",
                            script], arguments.ranks)
            if pair > 0:  # the first pair fills the page cache
                ours.append(a), theirs.append(b), messages.append(message)
    ratio = statistics.median(a / b for a, b in zip(ours, theirs))
    message_ms = 1000 * statistics.median(messages)
    many = statistics.median(many_ranks(accel + ["--num_processes"], os.path.join(binaries, "clock_now"))
                             for _ in range(3))
    print(f"{n} ranks, SIGKILL to the first step after the restart: accel launch {statistics.median(ours):.2f} s, "
          f"torchrun {statistics.median(theirs):.2f} s, ratio {ratio:.3f} (limit 0.2); message after {message_ms:.0f} ms "
          f"(limit 200); 64 ranks that do nothing: {many:.2f} s (limit 3); {arguments.pairs} pairs; "
          f"load {os.getloadavg()[0]:.1f}")
    return 0 if ratio <= 0.2 and message_ms <= 200 and many <= 3 else 1


if __name__ == "__main__":
    sys.exit(main())
