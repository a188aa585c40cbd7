#!/usr/bin/env bash
# A real MLflow server takes what our tracker sends, and MLflow's own client reads it back; a server that dies in the
# middle neither stops nor breaks the program, which says what was lost; one that comes late gets everything.
# Needs ACCELERATE_BUILD_DIR (a build with tests) and ACCELERATE_MLFLOW_VENV (an environment with mlflow).
set -euo pipefail

work=$(mktemp -d)
server=
stop_server() {
  [[ -z $server ]] || kill -KILL -- "-$server" 2>/dev/null || true
  [[ -z $server ]] || wait "$server" 2>/dev/null || true
  server=
}
trap 'stop_server; rm -rf -- "$work"' EXIT

# A proxy of this machine has nothing to do with a server on it.
export no_proxy=127.0.0.1 NO_PROXY=127.0.0.1
export MLFLOW_DISABLE_TELEMETRY=true MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false
python=$ACCELERATE_MLFLOW_VENV/bin/python3
script=$ACCELERATE_BUILD_DIR/bin/tracker_script
port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export MLFLOW_TRACKING_URI=http://127.0.0.1:$port

begin_server() {
  setsid "$python" -m mlflow server --host 127.0.0.1 --port "$port" --workers 1 \
    --backend-store-uri "sqlite:///$work/mlflow.db" --default-artifact-root "$work/artifacts" \
    >>"$work/server.log" 2>&1 &
  server=$!
}

fail() {
  printf '30_mlflow: %s\n' "$*" >&2
  tail -n 20 -- "$work"/*.log "$work"/*.err >&2 || true
  exit 1
}

wait_for_server() {
  local started=$SECONDS  # a few seconds on an idle machine
  while ((SECONDS - started < 300)); do
    ! { exec {socket}<>"/dev/tcp/127.0.0.1/$port"; } 2>/dev/null || { exec {socket}>&-; return 0; }
    kill -0 "$server" 2>/dev/null || fail "the server has ended"
    sleep 0.2
  done
  fail "the server does not answer"
}

begin_server
wait_for_server

# All of a run.
MLFLOW_TAGS='{"team": "vision"}' "$script" log "$work" mlflow 50 >"$work/whole.log" 2>"$work/whole.err" ||
  fail "a run was not taken"

# A server that is killed in the middle, once it has taken something: 400 steps take 8 s, and the end waits for 3 s.
batches() { grep -c 'runs/log-batch' "$work/server.log" || true; }
before=$(batches)
MLFLOW_EXPERIMENT_NAME=cut FINISH_SECONDS=3 timeout 60 "$script" log "$work" mlflow 400 20 >"$work/cut.log" \
  2>"$work/cut.err" &
program=$!
for ((tries = 0; tries < 50 && $(batches) <= before; ++tries)); do sleep 0.1; done
sleep 1
stop_server
status=0
wait "$program" || status=$?
((status == 1)) || fail "the program ended with $status, not with an error in words"
grep -q '^logged$' "$work/cut.log" || fail "the program did not get to its end"
longest=$(sed -n 's/^longest call of log: \([0-9]*\) ms$/\1/p' "$work/cut.log")
((longest < 1000)) || fail "a step waited $longest ms for the server"
grep -q 'values are kept and sent later' "$work/cut.err" || fail "no warning while the server was gone"
grep -qE 'mlflow \(http://127\.0\.0\.1:[0-9]+\): [0-9]+ of 808 values are lost' "$work/cut.err" ||
  fail "what was lost is not told"
lost=$(sed -n 's/.*: \([0-9]*\) of 808 values are lost.*/\1/p' "$work/cut.err")

# A server that comes late.
MLFLOW_EXPERIMENT_NAME=late FINISH_SECONDS=300 timeout 400 "$script" log "$work" mlflow 50 >"$work/late.log" \
  2>"$work/late.err" &
program=$!
begin_server
wait_for_server
wait "$program" || fail "a server that came late did not get everything"

"$python" - "$lost" <<'PY'
import math, sys
from mlflow.tracking import MlflowClient

client = MlflowClient()

def only_run(experiment):
    [run] = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    return run

def values(run, key):
    return [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, key)]

curve = [(step, 1 / (step + 1)) for step in range(50)]
for experiment in "script", "late":
    run = only_run(experiment)
    assert run.info.status == "FINISHED" and run.info.end_time >= run.info.start_time, run.info
    assert run.data.params == {"lr": "0.125", "optimizer": "adamw", "nesterov": "true", "layers": "3"}, run.data.params
    assert values(run, "loss") == curve, values(run, "loss")
    assert values(run, "lr") == [(step, 0.125) for step in range(50)]
    assert values(run, "odd_name") == [(50, 1)]
    [(step, value)] = values(run, "bad")
    assert step == 50 and math.isnan(value)
    assert values(run, "up") == [(50, sys.float_info.max)]  # what MLflow makes of infinity
    assert run.data.tags["stage"] == "größer", run.data.tags
    assert run.data.tags["mlflow.source.name"].endswith("tracker_script")
assert only_run("script").data.tags["team"] == "vision"

cut = only_run("cut")
assert cut.info.status == "RUNNING", cut.info  # nobody could tell the server
kept = sum(len(values(cut, key)) for key in cut.data.metrics) + len(cut.data.params)
assert 0 < kept < 808 and kept >= 808 - int(sys.argv[1]), (kept, sys.argv)
print(f"mlflow took two whole runs, and {kept} of 808 values before it was killed ({sys.argv[1]} told as lost)")
PY
