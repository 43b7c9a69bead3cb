#include "launcher/os/diagnosis/nccl_probe.hpp"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <iterator>
#include <utility>
#include <vector>

#include "launcher/core/text/text.hpp"
#include "launcher/os/io/helper.hpp"
#include "rendezvous/core/text/wording.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {
namespace {

/// NCCL_DEBUG=INFO makes it talk.
constexpr std::size_t output_bytes_max = std::size_t{1} << 20;
constexpr double rate_max = 1e15;
constexpr std::string_view cuda_devices = "CUDA_VISIBLE_DEVICES";

/// What all_reduce writes, its errors too. Errors: ask_helper's.
Result<std::string> run_all_reduce(const NcclProgram& program, std::vector<std::string> variables,
                                   std::vector<std::string> options) {
  Helper helper{.executable = "/bin/sh",
                .arguments = {"-c", "exec env \"$@\" 2>&1", "sh"},
                .limit = program.limit,
                .answer_bytes_max = output_bytes_max,
                .cancelled = program.cancel};
  // Whoever started us may have been a worker itself.
  for (const char* const inherited : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK",
                                      "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"}) {
    helper.arguments.insert(helper.arguments.end(), {"-u", inherited});
  }
  if (!program.gpus.empty()) variables.push_back(std::string{cuda_devices} + "=" + program.gpus);
  std::ranges::move(variables, std::back_inserter(helper.arguments));
  helper.arguments.insert(helper.arguments.end(), {program.path, "--backend", "nccl"});
  std::ranges::move(options, std::back_inserter(helper.arguments));
  return ask_helper(helper);
}

std::vector<std::string> sizes(std::int64_t bytes, int rounds) {
  return {"--min-bytes", std::to_string(bytes), "--max-bytes", std::to_string(bytes),
          "--rounds",    std::to_string(rounds)};
}

std::string last_line(std::string_view text) {
  std::string_view last = "it said nothing";
  for (const std::string_view line : split(text, '\n')) {
    if (!stripped(line).empty()) last = stripped(line);
  }
  return std::string{last};
}

/// Why no rate has come.
std::string problem_of(const Result<std::string>& output, const NcclProgram& program) {
  if (output) return "all_reduce: " + last_line(*output);
  if (output.error().code == boost::system::errc::timed_out) {
    return fmt::format("all_reduce did not end within {}", seconds(program.limit));
  }
  return "all_reduce: " + output.error().code.message();
}

}  // namespace

std::string gpus_of(const LaunchConfig& config) {
  const auto variable = std::ranges::find(config.variables, cuda_devices, &Variables::value_type::first);
  return variable == config.variables.end() ? std::string{} : variable->second;
}

std::string all_reduce_beside() {
  std::error_code error;
  const auto own = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return {};
  std::string path = (own.parent_path() / "all_reduce").string();
  return ::access(path.c_str(), X_OK) == 0 ? path : std::string{};
}

std::optional<std::string> why_no_nccl(const NcclProgram& program) {
  constexpr std::int64_t bytes = 4;
  const auto output = run_all_reduce(program, {}, sizes(bytes, 1));
  if (output && all_reduce_rate(*output, bytes)) return std::nullopt;
  return problem_of(output, program);
}

PairResult probe_nccl_pair(const NodePair& pair, const NcclEnd& end, const NcclProgram& program) {
  PairResult result{.pair = pair};
  const auto output =
      run_all_reduce(program,
                     {fmt::format("RANK={}", end.rank), "WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1",
                      "MASTER_ADDR=" + end.master_addr, fmt::format("MASTER_PORT={}", end.master_port.value())},
                     sizes(nccl_pair_bytes, 3));
  const auto rate = output ? all_reduce_rate(*output, nccl_pair_bytes) : std::nullopt;
  result.connected = rate.has_value();
  result.bytes_per_s = rate.value_or(0);
  if (!rate) result.problem = problem_of(output, program);
  return result;
}

std::optional<std::int64_t> all_reduce_rate(std::string_view output, std::int64_t bytes) {
  for (const std::string_view line : split(output, '\n')) {
    std::vector<std::string_view> words;  // bytes, median in us, GB/s of the algorithm, of the bus
    for (const std::string_view word : split(line, ' ')) {
      if (!word.empty()) words.push_back(word);
    }
    if (words.size() != 4 || words[0] != std::to_string(bytes)) continue;
    double gigabytes = 0;
    const auto [end, error] = std::from_chars(words[2].data(), words[2].data() + words[2].size(), gigabytes);
    if (error != std::errc{} || !(gigabytes >= 0)) continue;
    return static_cast<std::int64_t>(std::min(gigabytes * 1e9, rate_max));
  }
  return std::nullopt;
}

}  // namespace torchup
