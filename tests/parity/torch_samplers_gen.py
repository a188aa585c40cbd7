#!/usr/bin/env python3
"""Writes torch_samplers.json: the orders of torch's weighted and subset samplers with a seeded generator.

Run:  python torch_samplers_gen.py      (torch 2.11, CPU)
"""
import json
import os

import torch
from torch.utils.data import SubsetRandomSampler, WeightedRandomSampler


def generator(seed):
    return torch.Generator().manual_seed(seed)


def main():
    weighted = []
    for seed in (0, 7, 42):
        for weights, draws, replacement in (
            ([1.0, 2.0, 3.0, 4.0], 10, True),
            ([0.5, 0.0, 0.25, 8.0, 1.0], 4, False),
            ([float(i + 1) for i in range(50)], 80, True),
        ):
            sampler = WeightedRandomSampler(weights, draws, replacement, generator(seed))
            weighted.append(dict(seed=seed, weights=weights, draws=draws, replacement=replacement, order=list(sampler)))
    subset = []
    for seed in (0, 7, 42):
        for indices in ([3, 5, 8, 13], list(range(10, 40, 3))):
            order = [int(i) for i in SubsetRandomSampler(indices, generator(seed))]
            subset.append(dict(seed=seed, indices=indices, order=order))
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_samplers.json")
    with open(path, "w") as out:
        json.dump(dict(torch=torch.__version__.split("+")[0], weighted=weighted, subset=subset), out, indent=0)
        out.write("\n")


main()
