#!/usr/bin/env bash
# The real torchrun starts our binary, and training equals what `accel launch` gives for the same total batch.
# Needs ACCELERATE_BUILD_DIR (a build with examples) and ACCELERATE_PYTHON_VENV (an environment with torchrun).
set -euo pipefail

bin=$ACCELERATE_BUILD_DIR/bin
data=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)/build/data/mnist_5k.csv.gz
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
program=("$bin/01_mnist" --data "$data" --epochs 1 --losses --batch_size 32)

"$bin/accel" launch --cpu --num_processes 2 "${program[@]}" >"$work/accel.txt"
OMP_NUM_THREADS=1 timeout 300 "$ACCELERATE_PYTHON_VENV/bin/torchrun" --no-python --nproc_per_node 2 \
  "${program[@]}" >"$work/torchrun.txt" 2>"$work/torchrun.err" || {
  cat -- "$work/torchrun.txt" "$work/torchrun.err"
  exit 1
}

# Several Accelerators in one process on the agent's own store.
if ! timeout 120 "$ACCELERATE_PYTHON_VENV/bin/torchrun" --no-python --nproc_per_node 2 "$bin/job_torch" --several \
  --steps 2 >"$work/several.txt" 2>&1 || [[ $(grep -c "several 4" "$work/several.txt") != 2 ]]; then
  cat -- "$work/several.txt"
  exit 1
fi

python3 - "$work/accel.txt" "$work/torchrun.txt" <<'PY'
import re, sys

def losses(path):
    return [float(m) for m in re.findall(r"step \d+ loss ([0-9.]+)", open(path).read())]

ours, theirs = losses(sys.argv[1]), losses(sys.argv[2])
assert len(ours) == len(theirs) == 62, (len(ours), len(theirs))
worst = [abs(a - b) for a, b in zip(ours, theirs)]
print(f"{len(ours)} steps under torchrun and accel launch; largest difference of a loss {max(worst):.1e}")
assert max(worst[:10]) < 2e-5 and max(worst) < 5e-3, max(worst)
PY
