#include "accelerate/config/schema.h"

#include <algorithm>
#include <set>

#include "config_test_support.h"
#include "test_support.h"

using namespace accelerate;
using namespace accelerate::test;

namespace {

const void* address_of(const Slot& slot) {
  return std::visit([](auto* member) { return static_cast<const void*>(member); }, slot);
}

bool contains(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

}  // namespace

TEST_CASE("the table is consistent") {
  std::set<std::string> names;
  std::set<std::string> variables;
  std::set<const void*> members;
  Config config;
  for (const KeyRow& row : schema()) {
    INFO(row.name);
    CHECK(names.insert(std::string(row.name)).second);
    CHECK_FALSE(row.help.empty());
    CHECK_FALSE(row.help.ends_with("."));
    const bool holds_value = row.type != ValueType::kBlock && row.support != Support::kForeign;
    CHECK((row.slot != nullptr) == holds_value);
    if (row.slot != nullptr) CHECK(members.insert(address_of(row.slot(config))).second);
    for (const std::string& name : words_of(row.environment)) CHECK(variables.insert(name).second);
    if (!row.block().empty()) {
      REQUIRE(find_row(row.block()) != nullptr);
      CHECK(find_row(row.block())->type == ValueType::kBlock);
    }
    for (const std::string& word : words_of(row.works)) {
      if (row.type == ValueType::kWord) CHECK(contains(words_of(row.allowed), word));
    }
    if (!row.moved_to.empty()) CHECK(find_row(row.moved_to) != nullptr);
    if (!row.needs.empty()) CHECK(find_row(row.needs.substr(0, row.needs.find('='))) != nullptr);
  }
  CHECK(names.size() > 100);
}

TEST_CASE("defaults of the table are those of the struct") {
  for (const KeyRow& row : schema()) {
    if (row.slot == nullptr || !row.block().empty()) continue;
    INFO(row.name);
    CHECK(value_text(Config{}, row).value_or("") == row.default_text);
  }
}

TEST_CASE("every allowed word, old value and default can be set and read back") {
  for (const KeyRow& row : schema()) {
    if (row.slot == nullptr) continue;
    INFO(row.name);
    std::vector<std::string> words =
        row.type == ValueType::kWord ? words_of(row.allowed) : std::vector<std::string>();
    if (!row.default_text.empty()) words.emplace_back(row.default_text);
    for (const std::string& word : words) {
      Config config;
      const SetResult result = set_value(config, row, word);
      INFO(word << ": " << result.error);
      CHECK(result.error.empty());
      CHECK(result.warning.empty());
      CHECK(value_text(config, row) == word);
      reset_value(config, row);
      CHECK(differing_keys(config, Config{}).empty());
    }
    for (const std::string& pair :
         row.type == ValueType::kWord ? words_of(row.old_values) : std::vector<std::string>()) {
      Config config;
      const SetResult result = set_value(config, row, pair.substr(0, pair.find('=')));
      INFO(pair);
      CHECK(result.error.empty());
      CHECK_FALSE(result.warning.empty());
      CHECK(value_text(config, row) == pair.substr(pair.find('=') + 1));
    }
  }
}

TEST_CASE("enums go by the order of their words") {
  CHECK(to_string(DistributedType::kNo) == "NO");
  CHECK(to_string(DistributedType::kMultiCpu) == "MULTI_CPU");
  CHECK(to_string(DistributedType::kMultiGpu) == "MULTI_GPU");
  CHECK(to_string(DistributedType::kFsdp) == "FSDP");
  CHECK(to_string(DistributedType::kDeepSpeed) == "DEEPSPEED");
  CHECK(to_string(DistributedType::kMegatronLm) == "MEGATRON_LM");
  CHECK(to_string(DistributedType::kXla) == "XLA");
  CHECK(to_string(DistributedType::kMultiNeuron) == "MULTI_NEURON");
  CHECK(to_string(MixedPrecision::kNo) == "no");
  CHECK(to_string(MixedPrecision::kFp16) == "fp16");
  CHECK(to_string(MixedPrecision::kBf16) == "bf16");
  CHECK(to_string(MixedPrecision::kFp8) == "fp8");
}

TEST_CASE("a key is found by path, last part, flag and old name") {
  const auto name = [](std::string_view given) {
    const KeyRow* row = find_key(given);
    return row == nullptr ? std::string("none") : std::string(row->name);
  };
  CHECK(name("num_processes") == "num_processes");
  CHECK(name("--num-processes") == "num_processes");
  CHECK(name("cpu") == "use_cpu");
  CHECK(name("use_cpu") == "use_cpu");
  CHECK(name("fsdp_config.fsdp_version") == "fsdp_config.fsdp_version");
  CHECK(name("fsdp_version") == "fsdp_config.fsdp_version");
  CHECK(name("zero_stage") == "deepspeed_config.zero_stage");
  CHECK(name("fp8_backend") == "fp8_config.backend");
  CHECK(name("dynamo_backend") == "dynamo_config.dynamo_backend");
  CHECK(name("use_fsdp") == "fsdp_config");
  // Two blocks have such a key; the job's own comes first.
  CHECK(name("gradient_accumulation_steps") == "gradient_accumulation_steps");
  CHECK(name("fp16") == "none");
  CHECK(name("nothing_like_it") == "none");
  CHECK(nearest_key({}, "num_proceses") == "num_processes");
  CHECK_FALSE(nearest_key({}, "zzzzzzzz").has_value());
  CHECK(find_key_in_file("fsdp_config", "version") == find_row("fsdp_config.fsdp_version"));
  CHECK(find_key_in_file("fp8_config", "fp8_backend") == find_row("fp8_config.backend"));
  CHECK(find_key_in_file("", "fsdp_version") == nullptr);
}

TEST_CASE("the reference names every key that can be given") {
  const std::string text = concat("\n", describe_schema());
  for (const KeyRow& row : schema()) {
    if (row.support == Support::kForeign) continue;
    CHECK_THAT(text, ContainsSubstring(concat("\n", row.name, "\n")));
  }
  CHECK(expected_text(*find_row("mixed_precision")) == "no, fp16, bf16 or fp8");
  CHECK(expected_text(*find_row("main_process_port")) == "an integer from 0 to 65535");
  CHECK(expected_text(*find_row("num_processes")) == "an integer from 1 to 1000000");
  CHECK(expected_text(*find_row("deepspeed_config.gradient_clipping")) == "a number, or auto");
}
