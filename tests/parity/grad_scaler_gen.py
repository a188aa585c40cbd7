#!/usr/bin/env python3
"""Writes grad_scaler.json: what torch.amp.GradScaler does, step by step.

Run:  python grad_scaler_gen.py      (torch 2.11, CPU)

One weight w = 1 is trained by SGD with the loss w * factor, factor being 1, or infinity in the steps that are to
overflow. Recorded after each update: the scale, the growth tracker, the weight.
"""
import json
import os

import torch


def run(pattern, **options):
    scaler = torch.amp.GradScaler("cpu", **options)
    w = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.125)
    steps = []
    for overflow in pattern:
        optimizer.zero_grad()
        scaler.scale((w * (float("inf") if overflow else 1.0)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        state = scaler.state_dict()
        steps.append([state["scale"], state["_growth_tracker"], w.item()])
    return dict(options=options, pattern=[int(o) for o in pattern], steps=steps)


def main():
    bursts = [i % 7 == 3 or i in (11, 12, 13) for i in range(30)]
    cases = [
        run(bursts, init_scale=1024.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=3),
        run(bursts, init_scale=65536.0, growth_factor=1.5, backoff_factor=0.25, growth_interval=2),
        run([False] * 12, init_scale=2.0**120, growth_factor=2.0, backoff_factor=0.5, growth_interval=1),
        run([True] * 10, init_scale=65536.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000),
    ]
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "grad_scaler.json")
    with open(path, "w") as out:
        json.dump(cases, out)
        out.write("\n")


main()
