#!/usr/bin/env python3
"""Writes lr_schedules.json: learning rates of transformers' get_scheduler(), step by step.

Run:  pip download transformers==5.24.0 --no-deps -d /tmp/wheels
      python lr_schedules_gen.py /tmp/wheels/transformers-5.24.0-py3-none-any.whl      (torch 2.11)

Only the wheel's optimization.py is used, so that nothing else of transformers has to be installed. Each case has two
parameter groups with rates of their own and holds the rates in force before the first and after each of STEPS steps.
"""
import enum
import json
import logging
import os
import sys
import types
import zipfile

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
STEPS, RATE, SECOND_RATE = 36, 0.1, 0.03
NAMES = ("linear cosine cosine_with_restarts polynomial constant constant_with_warmup inverse_sqrt cosine_with_min_lr "
         "cosine_warmup_with_min_lr warmup_stable_decay").split()
# name, warm-up steps, training steps, options
CASES = [
    ("linear", 0, 30, {}), ("linear", 5, 30, {}), ("linear", 30, 30, {}),
    ("cosine", 0, 30, {}), ("cosine", 5, 30, {}), ("cosine", 3, 30, dict(num_cycles=1.75)),
    ("cosine_with_restarts", 5, 30, {}), ("cosine_with_restarts", 4, 30, dict(num_cycles=3)),
    ("polynomial", 5, 30, {}), ("polynomial", 0, 30, dict(lr_end=0.01, power=2.5)),
    ("constant", 0, None, {}), ("constant_with_warmup", 7, None, {}),
    ("inverse_sqrt", 6, None, {}), ("inverse_sqrt", 0, None, {}), ("inverse_sqrt", 6, None, dict(timescale=20)),
    ("cosine_with_min_lr", 5, 30, dict(min_lr=0.02)), ("cosine_with_min_lr", 0, 30, dict(min_lr_rate=0.1, num_cycles=1.5)),
    ("cosine_warmup_with_min_lr", 5, 30, dict(min_lr=0.02)),
    ("cosine_warmup_with_min_lr", 5, 30, dict(min_lr_rate=0.1, warmup_lr_rate=0.3)),
    ("cosine_warmup_with_min_lr", 1, 30, dict(min_lr_rate=0.0, warmup_lr_rate=0.3)),
    ("warmup_stable_decay", 5, 30, dict(num_decay_steps=10)),
    ("warmup_stable_decay", 4, None, dict(num_decay_steps=10, num_stable_steps=8, decay_type="linear", min_lr_ratio=0.1)),
    ("warmup_stable_decay", 5, 30, dict(num_decay_steps=12, warmup_type="cosine", decay_type="1-sqrt", min_lr_ratio=0.05)),
    ("warmup_stable_decay", 5, 30, dict(num_decay_steps=12, warmup_type="1-sqrt", decay_type="cosine", num_cycles=0.75)),
]


def load_get_scheduler(wheel):
    """optimization.py with the three modules that it imports from beside it replaced by what it needs of them."""
    stubs = {
        "trainer_pt_utils": dict(LayerWiseDummyOptimizer=type("A", (), {}), LayerWiseDummyScheduler=type("B", (), {})),
        "trainer_utils": dict(SchedulerType=enum.Enum("SchedulerType", [(n.upper(), n) for n in NAMES] + [
            ("REDUCE_ON_PLATEAU", "reduce_lr_on_plateau"), ("GREEDY", "greedy")])),
        "utils": dict(logging=types.SimpleNamespace(get_logger=logging.getLogger)),
    }
    package = sys.modules["transformers"] = types.ModuleType("transformers")
    package.__path__ = []
    for name, members in stubs.items():
        module = sys.modules["transformers." + name] = types.ModuleType("transformers." + name)
        module.__dict__.update(members)
    module = types.ModuleType("transformers.optimization")
    module.__package__ = "transformers"
    sys.modules["transformers.optimization"] = module
    exec(zipfile.ZipFile(wheel).read("transformers/optimization.py"), module.__dict__)
    return module.get_scheduler


def main():
    get_scheduler = load_get_scheduler(sys.argv[1])
    cases = []
    for name, warmup, training, options in CASES:
        groups = [dict(params=[torch.zeros(1)]), dict(params=[torch.zeros(1)], lr=SECOND_RATE)]
        optimizer = torch.optim.SGD(groups, lr=RATE)
        schedule = get_scheduler(name, optimizer, warmup, training, dict(options))
        rates = [schedule.get_last_lr()]
        for _ in range(STEPS):
            optimizer.step()
            schedule.step()
            rates.append(schedule.get_last_lr())
        cases.append(dict(name=name, num_warmup_steps=warmup, num_training_steps=training, options=options, rates=rates))
    path = os.path.join(HERE, "lr_schedules.json")
    with open(path, "w") as out:
        out.write(json.dumps(dict(transformers="5.24.0", rate=RATE, second_rate=SECOND_RATE, cases=cases)).replace(
            '{"name"', '\n{"name"') + "\n")
    print(path, os.path.getsize(path))


if __name__ == "__main__":
    main()
