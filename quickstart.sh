#!/usr/bin/env bash
# From a fresh checkout to a first training run, or to all tests run.
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: ./quickstart.sh [test] [--cpu | --cuda]

  ./quickstart.sh        installs what is missing, builds, and trains the MNIST example: two processes on the CPU,
                         or one on each GPU
  ./quickstart.sh test   installs what is missing, builds everything, and runs all tests

  --cpu, --cuda          choose the variant; without them CUDA is taken where an NVIDIA driver for CUDA 13 is loaded
  -h, --help             this text

Environment: ACCELERATE_PRESET, the CMake preset to build with (release, or cuda with CUDA);
ACCELERATE_JOBS, how many files to compile at once (as many as cores and memory allow).
TEXT
}

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
say() { printf '%s\n' "$*"; }
fail() {
  printf 'quickstart: error: %s\n' "$*" >&2
  exit 1
}
usage_error() {
  printf 'quickstart: %s\n\n' "$*" >&2
  usage >&2
  exit 2
}

# step N TEXT, then `finished`, frame each step and tell its time.
step() {
  step_started=$SECONDS
  say ""
  say "[$1/$steps] $2"
}
finished() { say "      done in $((SECONDS - step_started)) s"; }

# LibTorch is built for CUDA 13, whose oldest driver is 580.
oldest_driver=580
gpu_count() { nvidia-smi -L 2>/dev/null | grep -c '^GPU ' || true; }
choose_variant() {
  local driver gpus
  [[ -e /dev/nvidiactl ]] || command -v nvidia-smi >/dev/null || return 0
  driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1 || true)
  gpus=$(gpu_count)
  if ((gpus == 0)); then
    say "An NVIDIA driver seems to be installed, but nvidia-smi lists no GPU: using the CPU."
  elif ((${driver%%.*} < oldest_driver)); then
    say "The NVIDIA driver $driver is older than $oldest_driver, which CUDA 13 needs: using the CPU."
  else
    say "Found $gpus GPU(s), driver $driver: using CUDA. (--cpu chooses the CPU.)"
    variant=cuda
  fi
}

# Torch's headers take up to 2.5 GiB for a file.
job_count() {
  local cores memory_gib jobs
  cores=$(nproc)
  memory_gib=$(awk '/^MemAvailable:/ { printf "%d", $2 / 1048576 }' /proc/meminfo)
  # A container may be allowed less than the machine has.
  local limit=max
  [[ ! -r /sys/fs/cgroup/memory.max ]] || limit=$(</sys/fs/cgroup/memory.max)
  if [[ $limit =~ ^[0-9]+$ ]] && ((limit / 1073741824 < memory_gib)); then
    memory_gib=$((limit / 1073741824))
  fi
  jobs=$((memory_gib * 2 / 5))
  ((jobs < cores)) || jobs=$cores
  ((jobs > 0)) || jobs=1
  printf '%s\n' "$jobs"
}

action=train variant=
for argument in "$@"; do
  case $argument in
    test) action="test" ;;
    --cpu | --cuda)
      [[ -z $variant || $variant == "${argument#--}" ]] || usage_error "--cpu and --cuda exclude each other"
      variant=${argument#--}
      ;;
    -h | --help)
      usage
      exit 0
      ;;
    *) usage_error "unknown argument: $argument" ;;
  esac
done

cd -- "$root"
began=$SECONDS steps=4
if [[ -z $variant ]]; then
  choose_variant
  : "${variant:=cpu}"
fi

step 1 "Setting up: Debian packages and LibTorch (first time 1 to 5 minutes, later under a second)"
third_party/setup.sh "--$variant"
finished

if [[ $variant == cuda ]]; then
  preset=${ACCELERATE_PRESET:-cuda} venv=.venv-cuda
else
  preset=${ACCELERATE_PRESET:-release} venv=.venv
fi
build=build/$preset

step 2 "Configuring the build in $build (about 5 s)"
mkdir -p -- "$build"
if ! cmake --preset "$preset" "-DACCELERATE_VENV=$venv" >"$build/configure.log" 2>&1; then
  cat -- "$build/configure.log" >&2
  fail "CMake could not configure the build; what it said is above and in $build/configure.log."
fi
grep -E '^-- LibTorch' "$build/configure.log" || true
finished

jobs=${ACCELERATE_JOBS:-$(job_count)}
[[ $jobs =~ ^[1-9][0-9]*$ ]] || fail "ACCELERATE_JOBS is \"$jobs\"; expected a number above 0."
if [[ $action == train ]]; then
  targets=(--target accel 01_mnist)
  expect="first time 4 to 8 minutes on 2 cores"
else
  targets=()
  expect="first time 10 to 20 minutes on 2 cores"
fi
step 3 "Building, $jobs file(s) at a time ($expect; later only what changed)"
cmake --build "$build" -j "$jobs" ${targets[@]+"${targets[@]}"} ||
  fail "the build failed; the compiler's message is above. Memory short? Try ACCELERATE_JOBS=1."
finished

if [[ $action == train ]]; then
  data=build/data/mnist_5k.csv.gz
  if [[ $variant == cuda ]]; then
    gpus=$(gpu_count)
    ((gpus > 0)) || fail "no GPU to train on (nvidia-smi lists none); ./quickstart.sh --cpu trains on the CPU."
    launch=(launch --num_processes "$gpus")
    step 4 "Training the MNIST example on $gpus GPU(s) (under a minute)"
  else
    launch=(launch --cpu --num_processes 2)
    step 4 "Training the MNIST example on two CPU processes (under a minute)"
  fi
  run=("$build/bin/accel" "${launch[@]}" "$build/bin/01_mnist" --data "$data")
  say "      ${run[*]}"
  "${run[@]}"
  finished
  say ""
  say "All done in $((SECONDS - began)) s. To run it again, from $root:"
  say "  ${run[*]}"
  exit 0
fi

step 4 "Running all tests (5 to 10 minutes)"
# Many tests start several processes themselves and some watch the clock: one at a time.
status=0
ctest --test-dir "$build" --output-on-failure --no-tests=error 2>&1 | tee "$build/ctest.log" || status=$?
finished
say ""
say "All done in $((SECONDS - began)) s."
grep -E '^[0-9]+% tests passed' "$build/ctest.log" || true
exit "$status"
