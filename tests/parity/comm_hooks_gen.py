#!/usr/bin/env python3
"""Writes comm_hooks.safetensors next to this file: what PyTorch's DDP communication hooks compute.

Run:  python comm_hooks_gen.py      (torch 2.11, numpy, safetensors; CPU only)

One small network is trained for 30 steps by SGD with momentum on 2 ranks (real Gloo processes), once a case of CASES.
In step s rank r gets the rows of data.x from (2 s + r) * 8 on, 8 of them, cyclically. The file holds the data, the
initial weights and, for each case, the loss of every step on every rank ([2, 30], float64) and the final weights.

Three things differ from calling the hooks as they are, none of them in what they compute:
  - DDP takes the bf16 hook for NCCL only, by the function's name; here it has another name;
  - on Gloo several buckets' hooks run their later all-reduces from callbacks in no fixed order; here each bucket's
    hook is waited for;
  - batched_powerSGD_hook of torch 2.11 hands matrices to a function that asserts a batch of matrices; here they get
    the missing dimension.
numpy.random.RandomState(seed).randint(1_000_000_000), from which PowerSGD draws its seeds, is in the file as well.
"""
import os
import tempfile

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from safetensors.torch import save_file
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

HERE = os.path.dirname(os.path.abspath(__file__))
SAMPLES, BATCH, STEPS, WORLD = 416, 8, 30, 2

orthogonalize = powerSGD_hook._orthogonalize
powerSGD_hook._orthogonalize = lambda m, epsilon=0: orthogonalize(m if m.dim() == 3 else m.unsqueeze(0), epsilon)

EXACT = dict(use_error_feedback=False, warm_start=False)
# name: (hook, wrapper, PowerSGDState's options, bucket_cap_mb)
CASES = {
    "no": (None, None, {}, 25),
    "fp16": ("fp16", None, {}, 25),
    "bf16": ("bf16", None, {}, 25),
    "fp16_buckets": ("fp16", None, {}, 0.004),
    "rank1": ("power_sgd", None, dict(matrix_approximation_rank=1, start_powerSGD_iter=2), 25),
    "rank2": ("power_sgd", None, dict(matrix_approximation_rank=2, start_powerSGD_iter=5, random_seed=7), 25),
    "rank3": ("power_sgd", None, dict(matrix_approximation_rank=3, start_powerSGD_iter=2, min_compression_rate=1.5), 25),
    "epsilon": ("power_sgd", None, dict(matrix_approximation_rank=2, start_powerSGD_iter=2,
                                        orthogonalization_epsilon=1e-3), 25),
    "cold": ("power_sgd", None, dict(matrix_approximation_rank=2, start_powerSGD_iter=2, warm_start=False), 25),
    "no_feedback": ("power_sgd", None, dict(matrix_approximation_rank=2, start_powerSGD_iter=2,
                                            use_error_feedback=False), 25),
    "from_start": ("power_sgd", None, dict(matrix_approximation_rank=2, start_powerSGD_iter=0, **EXACT), 25),
    "same_shape": ("power_sgd", None, dict(matrix_approximation_rank=2, start_powerSGD_iter=2,
                                           batch_tensors_with_same_shape=True), 25),
    "rate6": ("power_sgd", None, dict(matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=6), 25),
    "buckets": ("power_sgd", None, dict(matrix_approximation_rank=2, start_powerSGD_iter=2), 0.004),
    "batched": ("batched_power_sgd", None, dict(matrix_approximation_rank=1, start_powerSGD_iter=2), 25),
    "batched_buckets": ("batched_power_sgd", None, dict(matrix_approximation_rank=2, start_powerSGD_iter=3,
                                                        warm_start=False), 0.004),
    "rank2_fp16": ("power_sgd", "fp16", dict(matrix_approximation_rank=2, start_powerSGD_iter=2), 25),
    "rank2_bf16": ("power_sgd", "bf16", dict(matrix_approximation_rank=2, start_powerSGD_iter=2), 25),
}


def make_model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(),
                         nn.Linear(32, 4))


def make_data():
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(SAMPLES, 16, generator=generator)
    projection = torch.randn(16, 4, generator=generator)
    return x, (x @ projection).argmax(1)


def make_hook(name, wrapper):
    hook = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook,
            "power_sgd": powerSGD_hook.powerSGD_hook, "batched_power_sgd": powerSGD_hook.batched_powerSGD_hook}[name]
    if wrapper:
        hook = {"fp16": default_hooks.fp16_compress_wrapper, "bf16": default_hooks.bf16_compress_wrapper}[wrapper](hook)

    def one_after_the_other(state, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        future = hook(state, bucket)
        future.wait()
        return future

    return one_after_the_other


def train(rank, store, queue):
    torch.set_num_threads(1)
    os.environ.update(GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=rank, world_size=WORLD, store=dist.FileStore(store, WORLD))
    x, y = make_data()
    results = {}
    first_bucket = dist._DEFAULT_FIRST_BUCKET_BYTES
    for case, (hook, wrapper, options, cap) in CASES.items():
        dist._DEFAULT_FIRST_BUCKET_BYTES = min(first_bucket, int(cap * 1024 * 1024))
        model = make_model()
        ddp = DistributedDataParallel(model, bucket_cap_mb=cap)
        buckets = set()
        if hook:
            state = powerSGD_hook.PowerSGDState(None, **options) if "power" in hook else None
            run = make_hook(hook, wrapper)

            def counted(state, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
                buckets.add(bucket.index())
                return run(state, bucket)

            ddp.register_comm_hook(state, counted)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        losses = []
        for step in range(STEPS):
            rows = torch.arange(BATCH) + (step * WORLD + rank) * BATCH
            rows %= SAMPLES
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(ddp(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        if rank == 0:
            print(case, len(buckets), losses[0], losses[-1], flush=True)
        # Plain numbers: the other process must not outlive this one to hand tensors over.
        results[case] = (losses, {name: value.tolist() for name, value in model.state_dict().items()})
        dist.barrier()
    queue.put((rank, results))
    dist.barrier()
    dist.destroy_process_group()


def main():
    x, y = make_data()
    out = {"data.x": x, "data.y": y}
    out.update({f"init.{name}": value.clone() for name, value in make_model().state_dict().items()})
    context = mp.get_context("spawn")
    queue = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        ranks = [context.Process(target=train, args=(r, folder + "/store", queue)) for r in range(WORLD)]
        for process in ranks:
            process.start()
        results = [result for _, result in sorted((queue.get(timeout=600) for _ in ranks), key=lambda item: item[0])]
        for process in ranks:
            process.join()
    for case in CASES:
        out[f"{case}.loss"] = torch.tensor([result[case][0] for result in results], dtype=torch.float64)
        for name, value in results[0][case][1].items():
            out[f"{case}.final.{name}"] = torch.tensor(value)
    for seed in (0, 7, 4294967295):
        random = np.random.RandomState(seed)
        out[f"randint.{seed}"] = torch.tensor([int(random.randint(1_000_000_000)) for _ in range(40)])
    path = os.path.join(HERE, "comm_hooks.safetensors")
    save_file(out, path, metadata={"torch": torch.__version__})
    print(path, os.path.getsize(path))


if __name__ == "__main__":
    main()
