// Files as people have them, where a checkout lies beside a folder of them. The rules that they teach are
// tested on texts of our own in the other files here, so nothing is lost where there is no such folder.
#include "accelerate/config/deepspeed_file.h"
#include "config_test_support.h"
#include "test_support.h"

using namespace accelerate;
using namespace accelerate::test;

namespace {

struct Expected {
  std::string file;
  std::string distributed_type;
  std::string num_processes;
  std::string num_machines;
  std::string mixed_precision;
  std::string verdict;
};

std::vector<Expected> read_expected(const std::filesystem::path& folder) {
  std::vector<Expected> out;
  std::ifstream in(folder / "expected.tsv");
  std::string line;
  std::getline(in, line);
  while (std::getline(in, line)) {
    auto parts = split(line, '\t');
    parts.resize(6);
    out.push_back({parts[0], parts[1], parts[2], parts[3], parts[4], trim(parts[5])});
  }
  return out;
}

// Not counted: what another machine or a later release would take.
bool counts(const Problem& problem) {
  return problem.kind == ProblemKind::kContent;
}

struct Verdict {
  bool error = false;  // whatever the kind
  bool content_error = false;
  bool warning = false;
  std::string text;
};

Verdict judge(const std::vector<Problem>& problems) {
  Verdict out;
  for (const Problem& problem : problems) {
    const bool error = problem.severity == Severity::kError;
    out.error = out.error || error;
    out.content_error = out.content_error || (error && counts(problem));
    out.warning = out.warning || (!error && counts(problem));
  }
  out.text = joined(problems);
  return out;
}

void check_verdict(const Expected& row, const Verdict& verdict) {
  if (row.verdict == "ok") {
    CHECK_FALSE(verdict.content_error);
    // "ok", with a warning: 068 for its single process, the others for what they ask of TPU pods.
    if (row.file != "068.yaml" && row.file != "002.yaml" && row.file != "035.yaml")
      CHECK_FALSE(verdict.warning);
  } else if (row.verdict == "warn") {
    CHECK_FALSE(verdict.content_error);
    CHECK(verdict.warning);
  } else if (row.verdict == "err") {
    CHECK(verdict.error);
  } else {
    REQUIRE((row.verdict == "err/warn" || row.verdict == "warn/err"));
    CHECK((verdict.error || verdict.warning));
  }
}

std::filesystem::path real_files() {
  return std::string(ACCELERATE_TEST_SOURCE_DIR) + "/../shared/cases/configs";
}

}  // namespace

TEST_CASE("real configuration files give the values and verdicts that were worked out for them") {
  const std::filesystem::path folder = real_files();
  if (!std::filesystem::exists(folder / "expected.tsv")) {
    WARN("no folder of real files at " << folder << ": nothing was checked here");
    SUCCEED();
    return;
  }
  const EnvVars none;
  int read = 0;
  int refused_unread = 0;
  for (const Expected& row : read_expected(folder)) {
    INFO(row.file << ", expected verdict " << row.verdict);
    const auto path = folder / row.file;
    InspectedConfig found;
    try {
      found = inspect_config({.file = path, .environment = none, .machine = cpu_box()});
    } catch (const ConfigError& error) {
      INFO(error.what());
      CHECK(row.distributed_type.empty());
      CHECK(row.verdict == "err");
      CHECK_THAT(error.what(), ContainsSubstring(row.file + ":"));
      CHECK(error.exit_code() == 2);
      ++refused_unread;
      continue;
    }
    ++read;
    std::vector<Problem> problems;
    for (const Problem& problem : found.problems) {
      if (problem.severity == Severity::kError) problems.push_back(problem);
    }
    const auto more = validate(found.config, ValidateFor::kFile);
    problems.insert(problems.end(), more.begin(), more.end());
    const Verdict verdict = judge(problems);
    INFO(verdict.text);
    CHECK(std::string(to_string(found.config.distributed_type)) == row.distributed_type);
    CHECK((found.config.num_processes ? std::to_string(*found.config.num_processes) : "") ==
          row.num_processes);
    CHECK(std::to_string(found.config.num_machines) == row.num_machines);
    CHECK(std::string(to_string(found.config.mixed_precision)) == row.mixed_precision);
    check_verdict(row, verdict);
  }
  WARN("real configuration files: " << read << " read, " << refused_unread << " refused as no YAML");
  CHECK(read + refused_unread >= 51);
}

TEST_CASE("real DeepSpeed files give the stage, the devices and the verdict that were worked out for them") {
  struct Row {
    const char* file;
    int64_t stage;
    const char* optimizer_device;  // "" where there is none
    const char* param_device;
    size_t errors;
    size_t warnings;
  };
  constexpr Row kRows[] = {
      {"ds01.json", 2, "", "", 0, 0},       {"ds02.json", 2, "cpu", "", 0, 0},
      {"ds04.json", 3, "cpu", "cpu", 0, 0}, {"ds05.json", 3, "cpu", "cpu", 0, 0},
      {"ds07.json", 2, "cpu", "cpu", 0, 3}, {"ds08.json", 3, "", "cpu", 0, 1},
      {"ds10.json", 2, "", "", 0, 0},       {"ds11.json", 2, "", "", 0, 0},
  };
  const auto folder = real_files();
  if (!std::filesystem::exists(folder / "ds01.json")) {
    WARN("no folder of real files at " << folder << ": nothing was checked here");
    SUCCEED();
    return;
  }
  const auto device = [](const DeepSpeedOffload& offload) {
    return offload.device && offload.device->value ? *offload.device->value : std::string();
  };
  for (const Row& row : kRows) {
    CAPTURE(row.file);
    CHECK(is_deepspeed_file(folder / row.file));
    const InspectedDeepSpeedFile found = inspect_deepspeed_file(folder / row.file);
    INFO(joined(found.problems));
    CHECK(found.file.stage() == row.stage);
    CHECK(device(found.file.zero.offload_optimizer) == row.optimizer_device);
    CHECK(device(found.file.zero.offload_param) == row.param_device);
    CHECK(described(found.problems, Severity::kError).size() == row.errors);
    CHECK(described(found.problems, Severity::kWarning).size() == row.warnings);
  }
  CHECK(has_errors(inspect_deepspeed_file(folder / "ds08.json", {.num_processes = 2}).problems));
  CHECK_FALSE(has_errors(inspect_deepspeed_file(folder / "ds08.json", {.num_processes = 8}).problems));
}
