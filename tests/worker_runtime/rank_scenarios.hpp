#pragma once

#include <torch/torch.h>

#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <torchup/torchup.hpp>

/// One rank of a test's scenarios. A Python script starts some of them as a job, and looks at what they print; a failed
/// expectation or an exception ends a rank with 1 and a line on stderr.
namespace rank_scenarios {

inline void expect(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error{"expected: " + what};
}

/// What `action` throws, or nothing.
inline std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

inline std::string setting(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value ? value : otherwise;
}

/// The job's group, as the variables TEST_… ask for it.
inline torchup::ProcessGroup start() {
  torchup::ProcessGroupOptions options;
  options.init_method = setting("TEST_INIT_METHOD", "env://");
  options.backend = setting("TEST_BACKEND", "gloo");
  options.timeout = std::chrono::milliseconds{std::stoi(setting("TEST_TIMEOUT_MS", "20000"))};
  if (std::getenv("TEST_RANK")) options.rank = std::stoi(std::getenv("TEST_RANK"));
  if (std::getenv("TEST_WORLD_SIZE")) options.world_size = std::stoi(std::getenv("TEST_WORLD_SIZE"));
  return torchup::init_process_group(options);
}

/// The words of the command line after the scenario's name.
using Words = std::span<char*>;
using Scenario = std::function<void(torchup::ProcessGroup&, Words)>;

/// main: `<program> SCENARIO [WORD...]`.
inline int run(int argc, char** argv, const std::map<std::string_view, Scenario>& scenarios) {
  torch::set_num_threads(1);
  try {
    const auto wanted = scenarios.find(argc > 1 ? argv[1] : "");
    if (wanted == scenarios.end()) throw std::runtime_error{"there is no such scenario"};
    auto group = start();
    wanted->second(group, Words{argv, static_cast<std::size_t>(argc)}.subspan(2));
    group.shutdown();
  } catch (const std::exception& error) {
    std::cerr << argv[0] << ": " << error.what() << std::endl;
    std::_Exit(1);
  }
  return 0;
}

}  // namespace rank_scenarios
