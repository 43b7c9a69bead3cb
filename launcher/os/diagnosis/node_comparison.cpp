#include "launcher/os/diagnosis/node_comparison.hpp"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "launcher/os/diagnosis/node_meeting.hpp"
#include "rendezvous/base/exit_codes.hpp"
#include "rendezvous/net/io/background.hpp"
#include "rendezvous/net/io/write_all.hpp"

namespace torchup {
namespace {

/// How long the end waits for who reads the table.
constexpr Duration print_limit = std::chrono::seconds{2};
constexpr int unprinted_code = 1;

/// All that the thread needs: nothing of the loop's.
struct Comparison {
  MeetingOrder meeting;
  int min_nodes = 1;
  bool as_json = false;
  std::shared_ptr<std::atomic_flag> printed;
};

/// With what stays of it for later.
struct Outcome {
  NodesCompared compared;
  CondemnedWays condemned = {};
  std::shared_ptr<PairEnd> pair_end = {};
};

std::string table_of(const std::vector<NodePreflight>& nodes, int min_nodes, bool as_json) {
  return as_json ? preflight_json(nodes, min_nodes) : preflight_table(nodes);
}

bool print(const std::string& table) {
  std::string_view rest = table;
  return write_all(STDOUT_FILENO, rest) == 0;
}

/// For a job, which knows the rest by itself.
NodesCompared what_is_new(const std::vector<NodePreflight>& nodes, GroupRank own) {
  NodesCompared compared;
  for (std::size_t index = 0; index < nodes.size(); ++index) {
    const bool is_own = std::cmp_equal(index, own.value());
    for (const Finding& finding : nodes[index].findings) {
      const bool new_one =
          finding.check == Check::clock || finding.check == Check::pairs || finding.check == Check::nccl;
      if (is_own && new_one) compared.own.push_back(finding);
      if (!is_own && is_of_ways(finding)) compared.others_unfit = true;
    }
  }
  return compared;
}

NodesCompared not_compared(const std::string& problem) {
  NodesCompared none;
  none.exit_code = exit_code::unreachable;
  none.reason = "the nodes could not compare what was found: " + problem;
  none.problem = problem;
  return none;
}

Outcome compare(const Comparison& order) {
  auto meeting = NodeMeeting::enter(order.meeting);
  if (!meeting) return {not_compared(meeting.error().message())};
  const auto met = (*meeting)->run();
  if (!met) return {not_compared(met.error().message())};
  const std::vector<NodePreflight>& nodes = met->nodes;
  Outcome outcome;
  outcome.condemned = met->condemned;
  const bool one_is_out = std::ranges::any_of(
      nodes, [](const NodePreflight& node) { return std::ranges::any_of(node.findings, is_of_ways); });
  if (one_is_out) outcome.pair_end = met->pair_end;
  if (!order.meeting.only) {
    outcome.compared = what_is_new(nodes, order.meeting.placement.group_rank);
    return outcome;
  }
  const bool printed = order.printed->test_and_set() || print(table_of(nodes, order.min_nodes, order.as_json));
  (*meeting)->wait_for_others();
  outcome.compared.exit_code = printed ? preflight_code(nodes, order.min_nodes) : unprinted_code;
  outcome.compared.reason = printed ? "too few nodes are fit" : "the table could not be written to stdout";
  return outcome;
}

}  // namespace

std::optional<Finding> try_again(const CondemnedWays& ways, int cancel) {
  std::vector<PairResult> results;
  for (const auto& [pair, way] : ways.others) {
    if (auto result = probe_again(pair, way, cancel)) results.push_back(*std::move(result));
  }
  std::string reason = unfit_again(results, ways.hosts, ways.own, ways.median);
  if (reason.empty()) return std::nullopt;
  return pair_finding(Check::pairs, std::move(reason));
}

NodeComparison::NodeComparison(asio::io_context& loop, const LaunchConfig& config, Hooks hooks)
    : config_{config}, hooks_{std::move(hooks)}, post_{loop} {}

NodeComparison::~NodeComparison() { post_.cut(); }

void NodeComparison::know(NodePreflight own) { own_ = std::move(own); }

void NodeComparison::run(const CompareNodes& order) {
  cancel();
  ++current_;
  end_ = std::make_shared<const UniqueFd>(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  own_.findings = order.findings;
  std::erase_if(own_.findings, is_of_ways);  // of another round
  look_at_clock();
  Comparison own{
      {order.placement, own_, config_.preflight.only, gpus_of(config_), config_.rendezvous.local_addr, pair_end_, end_},
      config_.terms.min_nodes,
      config_.preflight.as_json,
      printed_};
  const auto answer = [this, number = current_](Outcome outcome) {
    if (number != current_) return;
    condemned_ = std::move(outcome.condemned);
    if (outcome.pair_end) pair_end_ = std::move(outcome.pair_end);
    hooks_.done(std::move(outcome.compared));
  };
  const auto thread = in_background([own = std::move(own), post = post_, answer] {
    Outcome outcome;
    try {
      outcome = compare(own);
    } catch (const std::exception& error) {  // somebody waits for the answer, whatever happens here
      outcome.compared = not_compared(error.what());
    }
    post([answer, outcome] { answer(outcome); });
  });
  if (thread.valid()) return;
  post_([answer] { answer({not_compared("the system gives no thread")}); });
}

/// Nodes that meet have spoken with the coordinator.
void NodeComparison::look_at_clock() {
  std::erase(own_.done, Check::clock);
  std::erase_if(own_.findings, [](const Finding& finding) { return finding.check == Check::clock; });
  const auto ahead = hooks_.day_ahead();
  if (!ahead) return;
  own_.done.push_back(Check::clock);
  if (auto finding = clock_finding(*ahead)) own_.findings.push_back(*std::move(finding));
}

void NodeComparison::cancel() {
  ++current_;
  if (end_ && *end_) ::eventfd_write(end_->get(), 1);
  end_.reset();
}

void NodeComparison::print_own() {
  if (own_.host.empty() || printed_->test_and_set()) return;  // or nothing was looked at
  const auto printing = in_background(
      [table = table_of({own_}, config_.terms.min_nodes, config_.preflight.as_json)] { return print(table); });
  if (printing.valid()) printing.wait_for(print_limit);
}

}  // namespace torchup
