#include "rendezvous/base/worker_env.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <limits>
#include <utility>

namespace torchup {
namespace {

constexpr std::array required_names{"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"};

/// Reads integers from variables and keeps the first thing that is wrong with one of them.
class NumberReader {
 public:
  explicit NumberReader(const VariableLookup& lookup) : lookup_{lookup} {}

  int number(std::string_view name, int otherwise, int least, int most = std::numeric_limits<int>::max()) {
    const auto text = lookup_(name);
    if (!text) return otherwise;
    int value = 0;
    const auto [end, code] = std::from_chars(text->data(), text->data() + text->size(), value);
    if (code == std::errc{} && end == text->data() + text->size() && value >= least && value <= most) return value;
    const bool open = most == std::numeric_limits<int>::max();
    report(
        fmt::format("{}={} is not a number from {}{}", name, *text, least, open ? " on" : fmt::format(" to {}", most)));
    return least;
  }
  void below(std::string_view name, int value, std::string_view limit_name, int limit) {
    if (value >= limit) report(fmt::format("{}={} must be less than {}={}", name, value, limit_name, limit));
  }
  void report(std::string what) {
    if (!error_) error_ = fail(errc::bad_value, what + "; start the program with torchup, or set the variables again");
  }
  const std::optional<Error>& error() const { return error_; }

 private:
  const VariableLookup& lookup_;
  std::optional<Error> error_;
};

std::optional<Error> missing_names(const VariableLookup& lookup) {
  std::string present, missing;
  for (const char* name : required_names) {
    std::string& list = lookup(name) ? present : missing;
    list += (list.empty() ? "" : ", ") + std::string{name};
  }
  if (missing.empty()) return std::nullopt;
  return fail(errc::missing_value, "the environment has " + present + " but not " + missing +
                                       "; set all of them, or none to run alone, or start the program with torchup");
}

}  // namespace

std::vector<std::pair<std::string, std::string>> to_variables(const WorkerEnv& env) {
  std::vector<std::pair<std::string, std::string>> variables;
  variables.reserve(16);
  const auto set = [&](const char* name, std::string value) { variables.emplace_back(name, std::move(value)); };
  const auto set_number = [&](const char* name, int value) { set(name, std::to_string(value)); };
  set_number("LOCAL_RANK", env.local_rank.value());
  set_number("RANK", env.rank.value());
  set_number("GROUP_RANK", env.group_rank.value());
  set_number("ROLE_RANK", env.role_rank.value());
  set("ROLE_NAME", env.role_name);
  set_number("LOCAL_WORLD_SIZE", env.local_world_size);
  set_number("WORLD_SIZE", env.world_size);
  set_number("GROUP_WORLD_SIZE", env.group_world_size);
  set_number("ROLE_WORLD_SIZE", env.role_world_size);
  set("MASTER_ADDR", env.master_addr);
  set_number("MASTER_PORT", env.master_port.value());
  set_number("TORCHELASTIC_RESTART_COUNT", env.restart_count);
  set_number("TORCHELASTIC_MAX_RESTARTS", env.max_restarts);
  set("TORCHELASTIC_RUN_ID", env.run_id);
  set("TORCHELASTIC_USE_AGENT_STORE", env.use_agent_store ? "True" : "False");
  set("TORCHELASTIC_ERROR_FILE", env.error_file);
  return variables;
}

Result<std::optional<WorkerEnv>> read_worker_env(const VariableLookup& lookup) {
  bool any = false;
  for (const char* name : required_names) any = any || lookup(name).has_value();
  if (!any) return std::optional<WorkerEnv>{};
  if (auto missing = missing_names(lookup)) return *missing;

  NumberReader reader{lookup};
  WorkerEnv env;
  env.world_size = reader.number("WORLD_SIZE", 1, 1);
  env.rank = Rank{reader.number("RANK", 0, 0)};
  reader.below("RANK", env.rank.value(), "WORLD_SIZE", env.world_size);
  env.local_world_size = reader.number("LOCAL_WORLD_SIZE", env.world_size, 1);
  env.local_rank = LocalRank{reader.number("LOCAL_RANK", env.rank.value() % env.local_world_size, 0)};
  reader.below("LOCAL_RANK", env.local_rank.value(), "LOCAL_WORLD_SIZE", env.local_world_size);
  env.group_rank = GroupRank{reader.number("GROUP_RANK", env.rank.value() / env.local_world_size, 0)};
  env.group_world_size = reader.number("GROUP_WORLD_SIZE", 1, 1);
  env.role_rank = Rank{reader.number("ROLE_RANK", env.rank.value(), 0)};
  env.role_world_size = reader.number("ROLE_WORLD_SIZE", env.world_size, 1);
  env.role_name = lookup("ROLE_NAME").value_or("default");
  env.master_addr = *lookup("MASTER_ADDR");
  env.master_port = Port{static_cast<std::uint16_t>(reader.number("MASTER_PORT", 0, 0, 65535))};
  env.restart_count = reader.number("TORCHELASTIC_RESTART_COUNT", 0, 0);
  env.max_restarts = reader.number("TORCHELASTIC_MAX_RESTARTS", 0, 0);
  env.run_id = lookup("TORCHELASTIC_RUN_ID").value_or("");
  env.use_agent_store = lookup("TORCHELASTIC_USE_AGENT_STORE") == "True";
  env.error_file = lookup("TORCHELASTIC_ERROR_FILE").value_or("");
  if (env.master_addr.empty()) reader.report("MASTER_ADDR is empty");
  if (reader.error()) return *reader.error();
  return std::optional{env};
}

}  // namespace torchup
