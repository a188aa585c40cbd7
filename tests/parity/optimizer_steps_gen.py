#!/usr/bin/env python3
"""Writes optimizer_steps.json: 220 steps of Python's fused SGD, Adam, AdamW and Adagrad.

Run:  python optimizer_steps_gen.py      (torch 2.11, CPU)

Weights and gradients come from one generator, so that no input has to be stored: the weights are torch.randn of SHAPES
in order, and the gradient of each weight in each step is the weight plus torch.randn of its shape. The second group of
parameters (the last shape) has a rate of its own. Every case holds the sum of all weights after every tenth step, and
the weights and the optimizer's state at the end.
"""
import json
import os

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
SEED, STEPS, SHAPES, SECOND_RATE = 11, 220, [[5, 3], [7], [], [2, 3, 2]], 0.02
CASES = [
    ("SGD", dict(lr=0.05)),
    ("SGD", dict(lr=0.05, weight_decay=0.1)),
    ("SGD", dict(lr=0.05, momentum=0.9)),
    ("SGD", dict(lr=0.05, momentum=0.9, dampening=0.3, weight_decay=0.01)),
    ("SGD", dict(lr=0.05, momentum=0.8, nesterov=True, weight_decay=0.01)),
    ("Adam", dict(lr=0.01)),
    ("Adam", dict(lr=0.01, betas=[0.8, 0.95], eps=1e-6, weight_decay=0.1)),
    ("Adam", dict(lr=0.01, amsgrad=True, weight_decay=0.01)),
    ("AdamW", dict(lr=0.01)),
    ("AdamW", dict(lr=0.01, betas=[0.8, 0.95], eps=1e-6, weight_decay=0.3)),
    ("AdamW", dict(lr=0.01, amsgrad=True, weight_decay=0.0)),
    ("Adagrad", dict(lr=0.05)),
    ("Adagrad", dict(lr=0.05, lr_decay=0.01, weight_decay=0.1, initial_accumulator_value=0.2, eps=1e-8)),
]
STATE = ("momentum_buffer", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "sum")


def run(kind, options, dtype):
    generator = torch.Generator().manual_seed(SEED)
    weights = [torch.nn.Parameter(torch.randn(s, generator=generator).to(dtype)) for s in SHAPES]
    groups = [dict(params=weights[:-1]), dict(params=weights[-1:], lr=SECOND_RATE)]
    optimizer = getattr(torch.optim, kind)(groups, fused=True, **options)
    sums = []
    for step in range(STEPS):
        for weight in weights:
            weight.grad = weight.detach() + torch.randn(weight.shape, generator=generator).to(dtype)
        optimizer.step()
        if step % 10 == 9:
            sums.append(sum(w.detach().double().sum() for w in weights).item())
    flat = lambda tensors: torch.cat([t.detach().reshape(-1) for t in tensors]).double().tolist()
    state = {name: flat([optimizer.state[w][name] for w in weights]) for name in STATE
             if optimizer.state.get(weights[0], {}).get(name) is not None}
    digits = 17 if dtype == torch.float64 else 9
    rounded = lambda values: [float(f"{v:.{digits}g}") for v in values]
    return dict(kind=kind, options=options, dtype=str(dtype)[6:], sums=sums, weights=rounded(flat(weights)),
                state={name: rounded(values) for name, values in state.items()})


def main():
    cases = [run(kind, options, torch.float32) for kind, options in CASES]
    cases += [run(kind, options, dtype) for kind, options in (CASES[3], CASES[7], CASES[9], CASES[12])
              for dtype in (torch.float64, torch.bfloat16)]
    path = os.path.join(HERE, "optimizer_steps.json")
    with open(path, "w") as out:
        out.write(json.dumps(dict(torch=torch.__version__.split("+")[0], seed=SEED, steps=STEPS, shapes=SHAPES,
                                  second_rate=SECOND_RATE, cases=cases)).replace('{"kind"', '\n{"kind"') + "\n")
    print(path, os.path.getsize(path))


if __name__ == "__main__":
    main()
