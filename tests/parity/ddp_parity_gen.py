#!/usr/bin/env python3
"""Writes ddp_parity.safetensors next to this file: what PyTorch's DistributedDataParallel computes.

Run:  python ddp_parity_gen.py      (torch 2.11, accelerate 1.15, safetensors; CPU only)

One small network is trained for 100 micro-batches on 1 and 2 ranks (real Gloo processes), with gradient accumulation
over 1 and 4 micro-batches, in the sample order of HF Accelerate's prepared loader. A window of accumulation ends with
the epoch, and the loss is divided by the number of micro-batches that the window really has. The file holds the data,
the initial weights and, for each case w{ranks}a{accumulation}, followed by bf16 where forward runs under autocast
with bfloat16 and its output is converted to float32 as Accelerate does, the loss of every micro-batch on every rank
([ranks, 100]) and the final weights.
"""
import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from accelerate.data_loader import prepare_data_loader
from safetensors.torch import save_file
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

HERE = os.path.dirname(os.path.abspath(__file__))
SAMPLES, BATCH, STEPS, DATA_SEED = 416, 8, 100, 42


def make_model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4))


def make_data():
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(SAMPLES, 16, generator=generator)
    projection = torch.randn(16, 4, generator=generator)
    return x, (x @ projection).argmax(1)


def train(rank, world, accumulation, precision, store, queue):
    torch.set_num_threads(1)
    os.environ.update(GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=rank, world_size=world, store=dist.FileStore(store, world))
    model = make_model()
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=1e-2)
    loader = prepare_data_loader(DataLoader(TensorDataset(*make_data()), batch_size=BATCH, shuffle=True),
                                 torch.device("cpu"), world, rank, use_seedable_sampler=True, data_seed=DATA_SEED)
    def forward(x):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
            return ddp(x).float()

    losses = []
    while len(losses) < STEPS:
        count = len(loader)
        for i, (x, y) in enumerate(loader):
            begin = i // accumulation * accumulation
            window = min(accumulation, count - begin)
            last = i + 1 == begin + window
            if not last:
                with ddp.no_sync():
                    loss = nn.functional.cross_entropy(forward(x), y)
                    (loss / window).backward()
            else:
                loss = nn.functional.cross_entropy(forward(x), y)
                (loss / window).backward()
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
            if len(losses) == STEPS:
                break
    # Plain bytes: the other process must not outlive this one to hand tensors over.
    queue.put((rank, losses, {name: value.tolist() for name, value in model.state_dict().items()}))
    dist.barrier()
    dist.destroy_process_group()


def main():
    x, y = make_data()
    out = {"data.x": x, "data.y": y}
    out.update({f"init.{name}": value.clone() for name, value in make_model().state_dict().items()})
    context = mp.get_context("spawn")
    for world in (1, 2):
        for accumulation, precision in ((1, ""), (4, ""), (1, "bf16")):
            queue = context.Queue()
            with tempfile.TemporaryDirectory() as folder:
                ranks = [context.Process(target=train, args=(r, world, accumulation, precision, folder + "/store", queue))
                         for r in range(world)]
                for process in ranks:
                    process.start()
                results = sorted(queue.get(timeout=300) for _ in ranks)
                for process in ranks:
                    process.join()
            case = f"w{world}a{accumulation}{precision}"
            out[f"{case}.loss"] = torch.tensor([losses for _, losses, _ in results], dtype=torch.float64)
            for name, value in results[0][2].items():
                out[f"{case}.final.{name}"] = torch.tensor(value)
    path = os.path.join(HERE, "ddp_parity.safetensors")
    save_file(out, path, metadata={"torch": torch.__version__})
    print(path, os.path.getsize(path), {k: v[0, -1].item() for k, v in out.items() if k.endswith("loss")})


if __name__ == "__main__":
    main()
