#include "worker_runtime/place/launcher_arguments.hpp"

#include <charconv>
#include <string>
#include <string_view>

#include "worker_runtime/place/throw_error.hpp"

namespace torchup {

namespace {

int parse_local_rank(std::string_view text) {
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 0) {
    throw_error("--local-rank " + std::string{text} + ": not a number from 0 on");
  }
  return value;
}

}  // namespace

LauncherArguments take_launcher_arguments(std::span<char* const> command_line) {
  LauncherArguments result;
  bool ours = true;
  for (std::size_t i = 0; i < command_line.size(); ++i) {
    const std::string_view argument = command_line[i];
    const std::string_view name = argument.substr(0, argument.find('='));
    if (argument == "--") ours = false;
    if (i == 0 || !ours || (name != "--local-rank" && name != "--local_rank")) {
      result.rest.push_back(command_line[i]);
    } else if (name.size() < argument.size()) {
      result.local_rank = parse_local_rank(argument.substr(name.size() + 1));
    } else if (i + 1 < command_line.size()) {
      result.local_rank = parse_local_rank(command_line[++i]);
    } else {
      throw_error(std::string{argument} + " needs a number");
    }
  }
  result.rest.push_back(nullptr);
  return result;
}

}  // namespace torchup
