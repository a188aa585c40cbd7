// The job scripts of examples/slurm with stand-ins for srun and scontrol, which start tasks with the
// variables that Slurm sets (captured from its manual: srun, "OUTPUT ENVIRONMENT VARIABLES").
#include <sys/stat.h>

#include "launch_test_support.h"
#include "test_support.h"

using namespace accelerate::testing;
using accelerate::concat;

namespace {

constexpr const char* kScontrol = R"(#!/bin/sh
[ "$1 $2" = "show hostnames" ] || exit 1
# 127.0.0.[1-2], as a list that needs expansion.
[ "$3" = "127.0.0.[1-2]" ] || exit 1
printf '127.0.0.1\n127.0.0.2\n'
# More than a pipe holds, for a reader that stops after the first line.
seq 1 100000
)";

// One task a "machine"; with TASKS_PER_NODE=2 two. Ends with the first non-zero code of a task.
constexpr const char* kSrun = R"sh(#!/bin/bash
args=$*
while [ "${1#--}" != "$1" ]; do shift; done
case $args in *--cpus-per-task=8\ *) ;; *) exit 99 ;; esac
case $args in *--ntasks=1\ *) nodes=1 ;; *) nodes=$SLURM_JOB_NUM_NODES ;; esac
per=${TASKS_PER_NODE:-1}
echo "srun starts $1" >&2
pids=
for ((node = 0; node < nodes; ++node)); do
  for ((local = 0; local < per; ++local)); do
    SLURM_STEP_ID=0 SLURM_PROCID=$((node * per + local)) SLURM_LOCALID=$local SLURM_NODEID=$node \
      SLURM_STEP_NUM_TASKS=$((nodes * per)) SLURM_STEP_NUM_NODES=$nodes \
      SLURM_STEP_TASKS_PER_NODE="$per(x$nodes)" SLURM_STEP_NODELIST="127.0.0.[1-2]" "$@" &
    pids="$pids $!"
  done
done
code=0
for pid in $pids; do wait "$pid" || code=$?; done
exit "$code"
)sh";

struct Slurm {
  TempDir dir;
  RunOptions options;

  explicit Slurm(std::vector<std::pair<std::string, std::string>> more = {}) {
    install("srun", kSrun);
    install("scontrol", kScontrol);
    options.environment = {{"PATH", concat(dir.path(), ":", bin(""), ":/usr/bin:/bin")},
                           {"SLURM_JOB_ID", std::to_string(::getpid())},
                           {"SLURM_CPUS_PER_TASK", "8"},
                           {"SLURM_JOB_NUM_NODES", "2"},
                           {"SLURM_JOB_NODELIST", "127.0.0.[1-2]"}};
    options.environment.insert(options.environment.end(), more.begin(), more.end());
  }
  void install(const std::string& name, const std::string& text) const {
    write_file(dir / name, text);
    ::chmod((dir / name).c_str(), 0755);
  }
  AccelRun submit(const std::string& script, std::vector<std::string> words) const {
    return AccelRun(std::move(words), options,
                    concat(ACCELERATE_TEST_SOURCE_DIR, "/examples/slurm/", script));
  }
};

}  // namespace

TEST_CASE("the Slurm script for one machine starts a launcher", "[launcher]") {
  const Slurm slurm;
  AccelRun run = slurm.submit("single_machine.sbatch", {bin("rank_script"), "topology"});
  CHECK(run.finish() == 0);
  INFO(run.all());
  CHECK_THAT(run.out(), ContainsSubstring("launcher=accel rank=0/2 local=0/2 node=0/1") &&
                            ContainsSubstring("launcher=accel rank=1/2 local=1/2"));
  AccelRun failing = slurm.submit("single_machine.sbatch", {bin("rank_script"), "@1", "exit", "7", "sleep"});
  CHECK(failing.finish() == 7);
  CHECK(failing.nothing_left());
  AccelRun bare = slurm.submit("single_machine.sbatch", {});
  CHECK(bare.finish() == 2);
  CHECK_THAT(bare.err(), ContainsSubstring("usage: sbatch"));
}

TEST_CASE("the Slurm script for several machines starts a launcher on each", "[launcher]") {
  const Slurm slurm;
  AccelRun run = slurm.submit("several_machines.sbatch", {bin("rank_script"), "topology"});
  CHECK(run.finish() == 0);
  INFO(run.all());
  for (int rank = 0; rank < 4; ++rank) {
    CHECK_THAT(run.out(), ContainsSubstring(concat("launcher=accel rank=", rank, "/4 local=", rank % 2,
                                                   "/2 node=", rank / 2, "/2 addr=127.0.0.1")));
  }
  CHECK_THAT(run.err(), ContainsSubstring("machine_rank 1 (from SLURM_NODEID)"));
  CHECK(run.nothing_left());
}

TEST_CASE("srun's own tasks are ranks", "[launcher]") {
  const Slurm slurm({{"RANKS_BY_SRUN", "1"}, {"TASKS_PER_NODE", "2"}});
  AccelRun run = slurm.submit("several_machines.sbatch", {bin("rank_script"), "topology"});
  CHECK(run.finish() == 0);
  INFO(run.all());
  for (int rank = 0; rank < 4; ++rank)
    CHECK_THAT(run.out(), ContainsSubstring(concat("launcher=slurm rank=", rank, "/4 local=", rank % 2,
                                                   "/2 node=", rank / 2, "/2 addr=127.0.0.1")));
}
