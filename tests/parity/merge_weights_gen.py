"""Writes tests/parity/merge_weights/: a model as HF's libraries shard, join and reshard it.

Run with .venv-full/bin/python3 (safetensors 0.8.0, huggingface_hub 2.4.0, torch 2.11.0):
    python3 tests/parity/merge_weights_gen.py
"""
import json
import pathlib
import shutil

import torch
from huggingface_hub import save_torch_state_dict
from huggingface_hub.serialization._base import parse_size_to_int
from safetensors.torch import save_file

out = pathlib.Path(__file__).parent / "merge_weights"
shutil.rmtree(out, ignore_errors=True)
torch.manual_seed(0)

# Names in sorted order: it is the order in which tensors are dealt out to shards.
state = {
    "a.bf16": torch.randn(3, 5).bfloat16(),
    "a.f16": torch.randn(7).half(),
    "b.bool": torch.tensor([True, False, True]),
    "b.empty": torch.empty(0, 4),
    "b.f8": torch.randn(5).to(torch.float8_e4m3fn),
    "b.f8_e5m2": torch.randn(3).to(torch.float8_e5m2),
    "c.large": torch.randn(20, 10),
    "c.steps": torch.tensor(7),
    "d.double": torch.randn(2, 2, dtype=torch.float64),
    "d.int": torch.arange(6, dtype=torch.int32),
    "d.short": torch.arange(5, dtype=torch.int16),
    "d.u8": torch.arange(9, dtype=torch.uint8),
    "e.names with 'quotes' and ü": torch.randn(4),
}
assert list(state) == sorted(state)
for name, size in [("sharded", "0.2KB"), ("resharded", "0.1KB")]:
    (out / name).mkdir(parents=True)
    save_torch_state_dict(state, out / name, max_shard_size=size)
(out / "merged").mkdir()
save_file(state, out / "merged" / "model.safetensors", metadata={"format": "pt"})
sizes = ["5GB", "500MB", "1.5TB", "64KB", " 2 mb ", "0.3kb"]
(out / "sizes.json").write_text(json.dumps({text: parse_size_to_int(text) for text in sizes}, indent=1) + "\n")
