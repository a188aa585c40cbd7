#!/usr/bin/env python3
"""Writes clip.json: what torch.nn.utils.clip_grad_norm_ and clip_grad_value_ do.

Run:  python clip_gen.py      (torch 2.11, CPU)

Gradients are drawn by torch.randn from a generator with the case's seed, in the order of `shapes`; a shape of null is a
parameter without a gradient. Each case holds the norm before and all clipped gradients, one after the other.
"""
import json
import math
import os

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
SHAPES = [[3, 4], None, [5], [], [2, 1, 3]]


def parameters(seed, dtype):
    generator = torch.Generator().manual_seed(seed)
    out = []
    for shape in SHAPES:
        parameter = torch.nn.Parameter(torch.zeros(shape or [], dtype=dtype))
        if shape is not None:
            parameter.grad = torch.randn(shape, generator=generator, dtype=torch.float32).to(dtype)
        out.append(parameter)
    return out


def flat(params):
    return torch.cat([p.grad.reshape(-1) for p in params if p.grad is not None]).double().tolist()


def main():
    norms, values = [], []
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for norm_type in (0.5, 1.0, 2.0, 3.0, math.inf):
            for max_norm in (0.0, 0.7, 1e6):
                params = parameters(3, dtype)
                norm = torch.nn.utils.clip_grad_norm_(params, max_norm, norm_type)
                norms.append(dict(dtype=str(dtype)[6:], norm_type="inf" if math.isinf(norm_type) else norm_type,
                                  max_norm=max_norm, norm=norm.item(), gradients=flat(params)))
    for clip_value in (0.0, 0.4, 10.0):
        params = parameters(3, torch.float32)
        torch.nn.utils.clip_grad_value_(params, clip_value)
        values.append(dict(clip_value=clip_value, gradients=flat(params)))
    path = os.path.join(HERE, "clip.json")
    with open(path, "w") as out:
        out.write(json.dumps(dict(torch=torch.__version__.split("+")[0], seed=3, shapes=SHAPES, norms=norms, values=values))
                  .replace('{"dtype"', '\n{"dtype"').replace('{"clip_value"', '\n{"clip_value"') + "\n")
    print(path, os.path.getsize(path))


if __name__ == "__main__":
    main()
