#include "rendezvous/core/membership/terms_difference.hpp"

#include <fmt/format.h>

#include "rendezvous/core/text/wording.hpp"

namespace torchup {
namespace {

std::optional<std::string> differs(std::string_view name, const auto& mine, const auto& jobs) {
  if (mine == jobs) return {};
  return fmt::format("{} is {} here and {} in the job", name, mine, jobs);
}

std::string nodes(const JobTerms& terms) { return fmt::format("{}:{}", terms.min_nodes, terms.max_nodes); }

std::string to_text(const HangTimeout& timeout) {
  using Mode = HangTimeout::Mode;
  if (timeout.mode == Mode::automatic) return "auto";
  if (timeout.mode == Mode::off) return "off";
  return timeout.start ? fmt::format("{},{}", seconds(timeout.silence), seconds(*timeout.start))
                       : seconds(timeout.silence);
}

std::string_view to_text(RankOrder order) {
  switch (order) {
    case RankOrder::address:
      return "address";
    case RankOrder::join:
      return "join";
    case RankOrder::hostlist:
      return "hostlist";
    case RankOrder::index:
      return "a scheduler's";
    case RankOrder::unknown:
      break;
  }
  return "another";
}

std::string_view to_text(SameWorld same_world) {
  return same_world == SameWorld::off ? "off" : same_world == SameWorld::warn ? "warn" : "fail";
}

std::string_view to_text(OnHang on_hang) {
  return on_hang == OnHang::abort ? "abort" : on_hang == OnHang::restart ? "restart" : "report";
}

}  // namespace

std::optional<std::string> terms_difference(const JobTerms& mine, const JobTerms& job) {
  if (auto what = differs("--nnodes", nodes(mine), nodes(job))) return what;
  if (auto what = differs("--nnodes-multiple-of", mine.nodes_multiple_of, job.nodes_multiple_of)) return what;
  if (auto what = differs("--max-restarts", mine.max_restarts, job.max_restarts)) return what;
  if (auto what = differs("--restart-window", seconds(mine.restart_window), seconds(job.restart_window))) return what;
  if (auto what = differs("join_timeout", seconds(mine.join_timeout), seconds(job.join_timeout))) return what;
  if (auto what = differs("last_call_timeout", seconds(mine.last_call), seconds(job.last_call))) return what;
  if (auto what = differs("the lease", seconds(mine.lease), seconds(job.lease))) return what;
  if (auto what = differs("--rank-order", to_text(mine.rank_order), to_text(job.rank_order))) return what;
  const auto by_proxy = [](const JobTerms& terms) -> std::string_view {
    return terms.store_proxy ? "given" : "not given";
  };
  if (auto what = differs("--store-proxy", by_proxy(mine), by_proxy(job))) return what;
  if (auto what = differs("--same-world", to_text(mine.same_world), to_text(job.same_world))) return what;
  if (auto what = differs("--hang-timeout", to_text(mine.hang_timeout), to_text(job.hang_timeout))) return what;
  if (auto what = differs("--on-hang", to_text(mine.on_hang), to_text(job.on_hang))) return what;
  if (auto what = differs("--straggler-window", seconds(mine.straggler_window), seconds(job.straggler_window)))
    return what;
  // A node that was told of no list, such as one beside Slurm, still belongs.
  if (mine.hostlist.empty() || job.hostlist.empty()) return {};
  return differs("the host list", mine.hostlist, job.hostlist);
}

}  // namespace torchup
