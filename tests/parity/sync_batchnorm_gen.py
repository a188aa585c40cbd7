#!/usr/bin/env python3
"""Writes sync_batchnorm.safetensors next to this file: what synchronised batch normalisation computes.

Run:  python sync_batchnorm_gen.py      (torch 2.11, safetensors; CPU only)

Python's SyncBatchNorm is for GPUs. By definition it is plain BatchNorm over the joined batch, so one process trains
on that, in float64 where only rounding is at stake: each rank's loss is the mean over its own rows (the ranks' batches
differ in size), the joint loss is the mean over the ranks' losses, which is what averaging of gradients comes to.
A case NAME trains linear or convolution, batch norm, tanh, flatten and linear for 4 steps of SGD. The file holds for each
case and number of ranks: init.*, the input x and target y ([steps, rows, ...]), the gradients of the first step
(grad.*), each rank's loss in each step (loss, [ranks, steps]), the final weights and buffers (final.*), and in
eval mode afterwards the output for the first step's input (eval).
"""
import os

import torch
from safetensors.torch import save_file
from torch import nn

HERE = os.path.dirname(os.path.abspath(__file__))
STEPS = 4
ROWS = {2: [3, 5], 3: [2, 6, 3]}  # each rank's rows
CASES = {
    "bn1d": (1, {}),
    "bn2d": (2, {}),
    "bn3d": (3, {}),
    "cumulative": (2, dict(momentum=None)),
    "momentum": (1, dict(momentum=0.3, eps=1e-2)),
    "not_affine": (2, dict(affine=False)),
    "not_tracking": (2, dict(track_running_stats=False)),
    "stateless": (1, dict(affine=False, track_running_stats=False)),
}


def make_model(dims, options):
    torch.manual_seed(11)
    first = {1: lambda: nn.Linear(4, 6), 2: lambda: nn.Conv2d(2, 6, 2), 3: lambda: nn.Conv3d(2, 6, 2)}[dims]()
    norm = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}[dims](6, **options)
    if norm.affine:
        nn.init.uniform_(norm.weight)
        nn.init.uniform_(norm.bias)
    size = {1: 6, 2: 6 * 4, 3: 6 * 8}[dims]
    return nn.Sequential(first, norm, nn.Tanh(), nn.Flatten(), nn.Linear(size, 2))


def main():
    out = {}
    for name, (dims, options) in CASES.items():
        for world, rows in ROWS.items():
            case = f"{name}.{world}."
            model = make_model(dims, options)
            out.update({f"{case}init.{key}": value.clone() for key, value in model.state_dict().items()})
            generator = torch.Generator().manual_seed(5)
            shape = {1: (4,), 2: (2, 3, 3), 3: (2, 3, 3, 3)}[dims]
            x = torch.randn(STEPS, sum(rows), *shape, generator=generator) * 2 + 1
            y = torch.randn(STEPS, sum(rows), 2, generator=generator)
            model.double()
            sgd = torch.optim.SGD(model.parameters(), lr=0.1)
            losses = []
            for step in range(STEPS):
                sgd.zero_grad()
                result = model(x[step].double()).split(rows)
                each = [nn.functional.mse_loss(a, b) for a, b in zip(result, y[step].double().split(rows))]
                (sum(each) / world).backward()
                if step == 0:
                    out.update({f"{case}grad.{key}": p.grad.float() for key, p in model.named_parameters()})
                sgd.step()
                losses.append([loss.item() for loss in each])
            out[f"{case}x"], out[f"{case}y"] = x, y
            out[f"{case}loss"] = torch.tensor(losses, dtype=torch.float64).T.contiguous()
            out.update({f"{case}final.{key}": value.float() if value.is_floating_point() else value.clone()
                        for key, value in model.state_dict().items()})
            if name not in ("not_tracking", "stateless"):
                model.eval()
                out[f"{case}eval"] = model(x[0].double()).detach().float()
            print(case, losses[-1])
    path = os.path.join(HERE, "sync_batchnorm.safetensors")
    save_file(out, path, metadata={"torch": torch.__version__})
    print(path, os.path.getsize(path))


if __name__ == "__main__":
    main()
