#include "rendezvous/base/fork_request.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

namespace torchup {
namespace {

constexpr std::string_view version_word = "torchup fork 1";
constexpr std::array<std::string_view, 3> program_words{"script", "module", "native"};

/// Cuts off the next field; `complete` is false where no zero byte ends it.
std::string_view next_field(std::string_view& rest, bool& complete) {
  const std::size_t end = rest.find('\0');
  complete = end != std::string_view::npos;
  const std::string_view field = rest.substr(0, end);
  rest.remove_prefix(complete ? end + 1 : rest.size());
  return field;
}

Error damaged(std::string_view what) { return fail(errc::bad_frame, fmt::format("a fork request with {}", what)); }

}  // namespace

Result<std::string> to_bytes(const ForkRequest& request) {
  std::string bytes;
  bool whole = true;
  const auto add = [&](std::string_view field) {
    whole = whole && field.find('\0') == std::string_view::npos;
    bytes.append(field).push_back('\0');
  };
  add(version_word);
  add(program_words.at(static_cast<std::size_t>(request.program)));
  add(request.directory);
  add(to_cpu_list(request.cpus));
  add(std::to_string(request.arguments.size()));
  for (const std::string& word : request.arguments) add(word);
  for (const std::string& variable : request.environment) add(variable);
  if (!whole) return fail(errc::bad_value, "an argument or a variable of the worker holds a zero byte");
  if (bytes.size() > fork_request_bytes_max) {
    return fail(errc::limit_exceeded, fmt::format("arguments and environment of the worker are longer than {} bytes",
                                                  fork_request_bytes_max));
  }
  return bytes;
}

Result<ForkRequest> parse_fork_request(std::string_view bytes) {
  if (bytes.size() > fork_request_bytes_max)
    return fail(errc::limit_exceeded, fmt::format("a fork request of {} bytes", bytes.size()));
  bool complete = true;
  if (next_field(bytes, complete) != version_word || !complete)
    return fail(errc::wrong_version, "a fork request of another version");

  ForkRequest request;
  const auto word = std::ranges::find(program_words, next_field(bytes, complete));
  if (!complete || word == program_words.end()) return damaged("an unknown kind of program");
  request.program = static_cast<ForkRequest::Program>(word - program_words.begin());
  request.directory = next_field(bytes, complete);
  if (!complete) return damaged("no directory");
  auto cpus = parse_cpu_list(next_field(bytes, complete));
  if (!complete || !cpus) return damaged("a bad list of CPUs");
  request.cpus = *std::move(cpus);

  const std::string_view digits = next_field(bytes, complete);
  std::size_t count = 0;
  const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), count);
  if (!complete || code != std::errc{} || end != digits.data() + digits.size())
    return damaged("a bad number of arguments");
  while (!bytes.empty()) {
    auto& list = request.arguments.size() < count ? request.arguments : request.environment;
    list.emplace_back(next_field(bytes, complete));
    if (!complete) return damaged("an open end");
  }
  if (request.arguments.size() < count) return damaged("fewer arguments than it says");
  return request;
}

}  // namespace torchup
