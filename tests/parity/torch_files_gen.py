#!/usr/bin/env python3
"""Writes torch_files/ next to this file: small files of torch.save() and what is in them as .safetensors.

Run:  python torch_files_gen.py      (torch 2.11, numpy, safetensors; CPU only)

The classes of __main__ that some files name are nowhere but here.
"""
import argparse
import collections
import os
import zipfile

import torch
from safetensors.torch import save_file
from torch import nn

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_files")
os.makedirs(HERE, exist_ok=True)
os.chdir(HERE)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        self.head = nn.Linear(4, 3, bias=False)
        self.head.weight = nn.Parameter(self.body[0].weight.detach().t())

    def forward(self, x):
        return self.head(self.body(x))


class Options:
    def __init__(self):
        self.lr = 0.1


def repack(source, target, change=lambda name, data: data, compression=zipfile.ZIP_STORED):
    """As a general tool packs: perhaps compressed, nothing aligned. change() gives an entry's new data or None."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", compression) as new:
        for entry in old.infolist():
            data = change(entry.filename, old.read(entry))
            if data is not None:
                new.writestr(entry.filename, data)


def plain(tensors):
    return {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}


torch.manual_seed(1)
net = Net()

# Plain and ordered dicts; the weights of a module, with its _metadata.
torch.save(net.state_dict(), "state_dict.pt")
save_file(plain(net.state_dict()), "state_dict.safetensors")
for protocol in (3, 4, 5):
    torch.save(net.state_dict(), f"protocol{protocol}.pt", pickle_protocol=protocol)

dtypes = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
          torch.uint8, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint32, torch.uint64]
base = torch.arange(24.0).reshape(4, 6)
kinds = {str(dtype)[6:]: torch.arange(6).to(dtype) for dtype in dtypes}
kinds.update(scalar=torch.tensor(2.5), empty=torch.empty(0, 3), transposed=base.t(), slice=base[1:3, 2:5],
             strided=base[:, ::2], expanded=torch.ones(1, 3).expand(4, 3), parameter=nn.Parameter(base.clone()),
             frozen=nn.Parameter(torch.ones(2), requires_grad=False), requires_grad=torch.ones(2, requires_grad=True))
attributed = torch.arange(3.0)
attributed.note = "an attribute of Python's"
kinds["attributed"] = attributed
torch.save(kinds, "kinds.pt")
save_file(plain(kinds), "kinds.safetensors")

weight = torch.arange(6.0).reshape(2, 3)
tied = collections.OrderedDict(encoder=weight, decoder=weight, row=weight[1])
torch.save(tied, "tied.pt")
save_file(plain(tied), "tied.safetensors")

# A checkpoint of a training loop.
optimizer = torch.optim.Adam(net.parameters())
net(torch.ones(2, 3)).sum().backward()
optimizer.step()
torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "loss": 0.5, "big": 2**70,
            "negative": -2**40, "note": "x", "flag": True, "nothing": None, "args": argparse.Namespace(lr=1e-3),
            "options": Options(), "set": {1, 2}, "size": torch.Size([2]), "ema": {"deep": plain(net.state_dict())},
            "a.b": {"w": torch.ones(1)}}, "checkpoint.pt")
save_file(plain(net.state_dict()), "checkpoint.safetensors")

# The same, packed anew.
repack("state_dict.pt", "deflated.pt", compression=zipfile.ZIP_DEFLATED)
repack("kinds.pt", "unaligned.pt")

# What is no dict of tensors.
torch.save(weight, "tensor.pt")
torch.save([weight, weight], "list.pt")
torch.save(net, "whole.pt")
torch.save(net.state_dict(), "legacy.pt", _use_new_zipfile_serialization=False)
torch.save({"w": weight, "o": Options()}, "unknown_class.pt")
torch.save({"w": weight, "s": weight.to_sparse()}, "sparse.pt")
torch.save({"w": torch.quantize_per_tensor(weight, 0.1, 0, torch.qint8)}, "quantized.pt")
torch.save({"w": torch.ones(2, dtype=torch.cfloat).conj()}, "conjugate.pt")
torch.save({"w": torch.ones(2, device="meta")}, "meta.pt")
torch.save({3: weight}, "number_keys.pt")
torch.save({}, "nothing.pt")
torch.jit.save(torch.jit.script(nn.Linear(2, 2)), "whole_script.pt")
repack("whole_script.pt", "script.pt", lambda name, data: None if name.endswith("debug_pkl") else data)  # names paths
os.remove("whole_script.pt")
torch.export.save(torch.export.export(nn.Linear(2, 2), (torch.ones(1, 2),)), "whole.pt2")
repack("whole.pt2", "program.pt2", lambda name, data: None if name.endswith(".json") else data)  # names paths
os.remove("whole.pt2")
with zipfile.ZipFile("other.zip", "w") as other:
    other.writestr("readme.txt", "not torch's")
repack("state_dict.pt", "big_endian.pt", lambda name, data: b"big" if name.endswith("byteorder") else data)
