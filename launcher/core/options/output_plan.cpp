#include "launcher/core/options/output_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>

#include "launcher/core/text/text.hpp"

namespace torchup {
namespace {

constexpr int out_bit = 1;
constexpr int err_bit = 2;

std::optional<int> parse_number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

std::optional<int> parse_streams(std::string_view text) {
  if (text.size() != 1 || text[0] < '0' || text[0] > '3') return std::nullopt;
  return text[0] - '0';
}

/// `3`, or `0:1,12:3`, to the streams of each local rank.
Result<std::vector<int>> parse_stream_map(const std::string& text, int local_world_size) {
  std::vector<int> streams(static_cast<std::size_t>(local_world_size), 0);
  if (const auto all = parse_streams(text)) {
    std::fill(streams.begin(), streams.end(), *all);
    return streams;
  }
  for (const std::string_view entry : split(text, ',')) {
    const auto colon = entry.find(':');
    const auto rank = colon == std::string_view::npos ? std::nullopt : parse_number(entry.substr(0, colon));
    const auto value = colon == std::string_view::npos ? std::nullopt : parse_streams(entry.substr(colon + 1));
    if (!rank || *rank < 0 || !value)
      return fail(errc::bad_value, text + R"( does not match: <^[0123]$> or <^(\d:[0123],)*(\d:[0123])$>)");
    if (*rank < local_world_size) streams[static_cast<std::size_t>(*rank)] = *value;
  }
  return streams;
}

Result<std::set<int>> parse_ranks(const std::string& text) {
  std::set<int> ranks;
  for (const std::string_view entry : split(text, ',')) {
    const auto rank = parse_number(stripped(entry));
    if (!rank)
      return fail(errc::bad_value,
                  "--local_ranks_filter must be a comma-separated list of integers e.g. --local_ranks_filter=0,1,2");
    ranks.insert(*rank);
  }
  return ranks;
}

std::string prefix_from_template(const OutputPlan& plan, Rank rank, LocalRank local_rank) {
  return substituted(plan.line_prefix_template, {{"role_name", plan.role},
                                                 {"rank", std::to_string(rank.value())},
                                                 {"local_rank", std::to_string(local_rank.value())},
                                                 {"hostname", plan.host}});
}

}  // namespace

Result<OutputPlan> make_output_plan(const OutputOptions& options, int local_world_size, std::string role,
                                    std::string host, std::string run_id) {
  OutputPlan plan;
  plan.role = std::move(role);
  plan.host = std::move(host);
  plan.run_id = std::move(run_id);
  plan.log_dir = options.log_dir;
  plan.line_prefix_template = options.line_prefix_template;
  plan.duplicate_stdout_filters = options.duplicate_stdout_filters;
  plan.duplicate_stderr_filters = options.duplicate_stderr_filters;
  plan.log_max_bytes = options.log_max_bytes;
  plan.capture = options.capture;
  plan.workers.resize(static_cast<std::size_t>(local_world_size));

  const auto redirects = parse_stream_map(options.redirects, local_world_size);
  if (!redirects) return redirects.error();
  const auto tees = parse_stream_map(options.tee, local_world_size);
  if (!tees) return tees.error();
  std::set<int> shown;
  if (!options.local_ranks_filter.empty()) {
    auto ranks = parse_ranks(options.local_ranks_filter);
    if (!ranks) return ranks.error();
    shown = std::move(*ranks);
  }
  if (!plan.has_files()) {
    for (const auto* filters : {&plan.duplicate_stdout_filters, &plan.duplicate_stderr_filters})
      if (!filters->empty())
        return fail(errc::bad_value, std::string{"[Errno 20] Not a directory: '/dev/null/filtered_"} +
                                         (filters == &plan.duplicate_stdout_filters ? "stdout" : "stderr") +
                                         ".log': duplicate filters write into the log directory");
    return plan;
  }

  const auto route = [](int redirect, int tee, bool visible, int bit) {
    const bool teed = (tee & bit) != 0;
    const bool redirected = (redirect & bit) != 0;
    return StreamRoute{.to_file = teed || redirected, .to_console = visible && (teed || !redirected), .teed = teed};
  };
  for (std::size_t worker = 0; worker < plan.workers.size(); ++worker) {
    const bool visible = shown.empty() || shown.contains(static_cast<int>(worker));
    plan.workers[worker] = WorkerRoutes{.out = route((*redirects)[worker], (*tees)[worker], visible, out_bit),
                                        .err = route((*redirects)[worker], (*tees)[worker], visible, err_bit)};
  }
  return plan;
}

std::string line_prefix(const OutputPlan& plan, Rank rank, LocalRank local_rank) {
  if (!plan.line_prefix_template.empty()) return prefix_from_template(plan, rank, local_rank);
  return fmt::format("[{}{}]:", plan.role, local_rank.value());
}

std::string terminal_line_prefix(const OutputPlan& plan, Rank rank, LocalRank local_rank, bool colour) {
  if (!plan.line_prefix_template.empty()) return prefix_from_template(plan, rank, local_rank);
  const std::string text = fmt::format("[{}:{}]", plan.host, rank.value());
  if (!colour) return text + " ";
  constexpr int colours[] = {36, 33, 32, 35, 34, 96, 93, 92, 95, 94};  // no red: that is for failures
  const int number = colours[static_cast<std::size_t>(rank.value()) % std::size(colours)];
  return fmt::format("\x1b[{}m{}\x1b[0m ", number, text);
}

std::string attempt_name(int restart_count, int membership_changes, Round round) {
  return membership_changes > 0 ? fmt::format("attempt_{}.r{}", restart_count, round.value())
                                : fmt::format("attempt_{}", restart_count);
}

}  // namespace torchup
