#!/usr/bin/env python3
"""Writes tracking.json: what torch.profiler and numpy make of the same schedules, spans, model and step times.

Run:  python tracking_gen.py      (torch 2.11, CPU)

operators: counts (and flops) by name in key_averages() of two passes, forward and backward, of a small model, whose second
pass adds to the gradients of the first.
"""
import json
import os
import random
import warnings

import numpy
import torch
from torch.autograd import DeviceType
from torch.autograd.profiler_util import EventList, FunctionEvent
from torch.profiler import ProfilerActivity, profile, schedule

HERE = os.path.dirname(os.path.abspath(__file__))
SCHEDULES = [
    dict(wait=1, warmup=1, active=2),
    dict(wait=0, warmup=0, active=1),
    dict(wait=0, warmup=0, active=3, repeat=2),
    dict(wait=2, warmup=1, active=1, repeat=2, skip_first=3),
    dict(wait=3, warmup=2, active=2, repeat=2, skip_first=1, skip_first_wait=1),
    dict(wait=0, warmup=2, active=1, repeat=1),
]


def schedules():
    out = []
    for numbers in SCHEDULES:
        action = schedule(**numbers)
        out.append(dict(numbers, actions=[action(step).name for step in range(25)]))
    return out


def operators():
    torch.manual_seed(0)
    w1, b1, w2, b2 = (torch.randn(shape).requires_grad_() for shape in ((32, 16), (32,), (4, 32), (4,)))
    x, y, one = torch.randn(8, 16), torch.randint(4, (8,)), torch.ones(())
    with profile(activities=[ProfilerActivity.CPU], with_flops=True) as prof:
        for _ in range(2):
            hidden = torch.relu(torch.addmm(b1, x, w1.t()))
            hidden = torch.layer_norm(hidden, (32,))
            torch.nn.functional.cross_entropy(torch.addmm(b2, hidden, w2.t()), y).backward(one)
    return [dict(name=row.key, count=row.count, flops=row.flops) for row in sorted(prof.key_averages(), key=lambda r: r.key)]


def random_spans(rng):
    """Calls that call calls, on two threads, of few names so that operators call themselves."""
    spans = []

    def call(thread, start, end, depth):
        spans.append(dict(name=rng.choice("abc"), thread=thread, start_us=start, end_us=end))
        at = start
        while depth < 5 and end - at > 4 and rng.random() < 0.75:
            # Now and then the callee takes all of the caller's time.
            begin = at if rng.random() < 0.3 else rng.randint(at, end - 2)
            stop = end if rng.random() < 0.3 else rng.randint(begin + 1, end)
            call(thread, begin, stop, depth + 1)
            at = stop

    for thread in (1, 2):
        at = 0
        for _ in range(12):
            stop = at + rng.randint(5, 400)
            call(thread, at, stop, 0)
            at = stop + rng.randint(0, 20)
    rng.shuffle(spans)
    # Two that only overlap.
    spans.append(dict(name="x", thread=3, start_us=0, end_us=10))
    spans.append(dict(name="y", thread=3, start_us=5, end_us=15))
    spans.append(dict(name="ProfilerStep#4", thread=3, start_us=20, end_us=30))
    spans.append(dict(name="ProfilerStep#5", thread=3, start_us=30, end_us=45))
    return spans


def span_sums():
    out = []
    for seed in range(5):
        spans = random_spans(random.Random(seed))
        events = [FunctionEvent(id=i, name="ProfilerStep*" if "#" in s["name"] else s["name"], thread=s["thread"],
                                start_us=s["start_us"], end_us=s["end_us"], stack=[], device_type=DeviceType.CPU,
                                use_device=None)
                  for i, s in enumerate(spans)]
        events.sort(key=lambda e: [e.time_range.start, -e.time_range.end])
        events = EventList(events, use_device=None, profile_memory=False, with_flops=False)
        events._build_tree()
        rows = [dict(name=row.key, count=row.count, self_us=round(row.self_cpu_time_total), total_us=round(row.cpu_time_total))
                for row in sorted(events.key_averages(), key=lambda r: r.key)]
        out.append(dict(spans=spans, rows=rows))
    return out


def step_times():
    out = []
    for count in (1, 2, 19, 20, 101):
        times = numpy.random.default_rng(count).integers(1, 10_000_000, count)
        seconds = times / 1e9
        out.append(dict(step_ns=times.tolist(), mean=seconds.mean(), median=numpy.percentile(seconds, 50),
                        p95=numpy.percentile(seconds, 95), max=seconds.max()))
    return out


def main():
    warnings.filterwarnings("ignore")
    path = os.path.join(HERE, "tracking.json")
    parts = dict(schedules=schedules(), operators=operators(), span_sums=span_sums(), step_times=step_times())
    with open(path, "w") as out:
        out.write('{"torch": %s' % json.dumps(torch.__version__.split("+")[0]))
        for name, rows in parts.items():
            out.write(',\n"%s": [\n%s]' % (name, ",\n".join(json.dumps(row) for row in rows)))
        out.write("}\n")
    print(path, os.path.getsize(path))


if __name__ == "__main__":
    main()
