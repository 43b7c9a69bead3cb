#include "launcher/os/diagnosis/node_comparison.hpp"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "launcher/core/diagnosis/preflight_codec.hpp"
#include "launcher/os/diagnosis/pair_probe.hpp"
#include "rendezvous/base/exit_codes.hpp"
#include "rendezvous/core/diagnosis/pair_plan.hpp"
#include "rendezvous/net/io/background.hpp"
#include "rendezvous/net/io/write_all.hpp"
#include "rendezvous/net/store/store_client.hpp"

namespace torchup {
namespace {

/// How long nodes that have met may take to tell what was found on them, and to try a pair. A job does not wait long
/// for one that tries nothing: torchrun's, or one without --preflight=full.
constexpr Duration tell_limit = std::chrono::seconds{30};
constexpr Duration job_tell_limit = std::chrono::seconds{10};
/// How long those that have the table wait until the others have it, too.
constexpr Duration read_limit = std::chrono::seconds{10};
/// How long the end waits for who reads the table.
constexpr Duration print_limit = std::chrono::seconds{2};
constexpr int unprinted_code = 1;

/// All that the thread needs: nothing of the loop's.
struct Order {
  Placement placement;
  NodePreflight own;
  int min_nodes = 1;
  bool only = false;  ///< there is a table, and no job
  bool as_json = false;
  std::shared_ptr<const UniqueFd> end;
};

std::string table_of(const std::vector<NodePreflight>& nodes, int min_nodes, bool as_json) {
  return as_json ? preflight_json(nodes, min_nodes) : preflight_table(nodes);
}

bool print(const std::string& table) {
  std::string_view rest = table;
  return write_all(STDOUT_FILENO, rest) == 0;
}

/// The nodes of one round, on a thread. Errors: the store's.
class Meeting {
 public:
  Meeting(const Order& order, StoreClient& store) : order_{order}, place_{order.placement}, store_{store} {}

  Result<std::vector<NodePreflight>> run() {
    if (auto set = store_.set(key("node", own()), encode_preflight(order_.own)); !set) return set.error();
    auto nodes = gather<NodePreflight>("node", decode_preflight);
    if (!nodes) return nodes.error();
    if (place_.group_world_size > 1) {
      if (auto tried = try_ways(*nodes); !tried) return tried.error();
    }
    return nodes;
  }
  /// Nobody ends the job before all have the table.
  void wait_for_others() { static_cast<void>(store_.barrier(key("read", 0), place_.group_world_size, read_limit)); }

 private:
  [[nodiscard]] int own() const { return place_.group_rank.value(); }
  static std::string key(std::string_view what, int of) { return fmt::format("torchup/preflight/{}/{}", what, of); }

  template <class T>
  Result<std::vector<T>> gather(std::string_view what, Result<T> (*decode)(std::string_view)) {
    std::vector<T> all;
    for (int node = 0; node < place_.group_world_size; ++node) {
      const auto told = store_.get(key(what, node));
      if (!told) return Error{told.error().code, fmt::format("what node {} of the round tells", node)};
      auto value = decode(told->view());
      if (!value) return value.error();
      all.push_back(*std::move(value));
    }
    return all;
  }

  Result<> try_ways(std::vector<NodePreflight>& nodes) {
    auto end = PairEnd::open();
    if (!end) return end.error();
    const PairWay own_way{own_address_towards(place_.master_addr, place_.master_port), (*end)->port(),
                          (*end)->secret()};
    if (auto set = store_.set(key("way", own()), encode_way(own_way)); !set) return set.error();
    const auto ways = gather<PairWay>("way", decode_way);
    if (!ways) return ways.error();
    std::vector<PairResult> results;
    int turn = 0;
    for (const Matching& matching : pair_plan(place_.group_world_size, place_.round)) {
      // Side by side, as a job's collectives; whoever is late is no reason to try alone.
      if (auto all = store_.barrier(key("matching", turn++), place_.group_world_size, tell_limit); !all) {
        return all.error();
      }
      const auto pair = std::ranges::find(matching, GroupRank{own()}, &NodePair::first);
      if (pair == matching.end()) continue;
      results.push_back(probe_pair(*pair, (*ways)[static_cast<std::size_t>(pair->second.value())]));
    }
    if (auto set = store_.set(key("pairs", own()), encode_pairs(results)); !set) return set.error();
    auto told = gather<std::vector<PairResult>>("pairs", decode_pairs);
    if (!told) return told.error();
    judge(*told, nodes);
    return {};
  }

  static void judge(const std::vector<std::vector<PairResult>>& told, std::vector<NodePreflight>& nodes) {
    std::vector<PairResult> all;
    for (const auto& results : told) all.insert(all.end(), results.begin(), results.end());
    std::vector<std::string> hosts;
    for (NodePreflight& node : nodes) {
      hosts.push_back(node.host);
      node.done.push_back(Check::pairs);
    }
    for (UnfitNode& unfit : unfit_in(all, hosts)) {
      nodes[static_cast<std::size_t>(unfit.node.value())].findings.push_back(
          pair_finding(Check::pairs, std::move(unfit.reason)));
    }
  }

  const Order& order_;
  const Placement& place_;
  StoreClient& store_;
};

/// For a job, which knows the rest by itself.
NodesCompared new_alone(const std::vector<NodePreflight>& nodes, GroupRank own) {
  NodesCompared compared;
  for (std::size_t index = 0; index < nodes.size(); ++index) {
    const bool is_own = std::cmp_equal(index, own.value());
    for (const Finding& finding : nodes[index].findings) {
      const bool ways = finding.check == Check::pairs;
      if (is_own && (ways || finding.check == Check::clock)) compared.own.push_back(finding);
      if (!is_own && ways) compared.others_unfit = true;
    }
  }
  return compared;
}

NodesCompared compare(const Order& order) {
  const auto failed = [](const Error& error) {
    NodesCompared none;
    none.exit_code = exit_code::unreachable;
    none.reason = "the nodes could not compare what was found: " + error.message();
    none.problem = error.message();
    return none;
  };
  StoreClientOptions way;
  way.host = order.placement.master_addr;
  way.port = order.placement.master_port;
  way.timeout = order.only ? tell_limit : job_tell_limit;
  way.cancel = order.end->get();
  auto store = StoreClient::connect(std::move(way));
  if (!store) return failed(store.error());
  Meeting meeting{order, **store};
  const auto nodes = meeting.run();
  if (!nodes) return failed(nodes.error());
  if (!order.only) return new_alone(*nodes, order.placement.group_rank);
  const bool printed = print(table_of(*nodes, order.min_nodes, order.as_json));
  meeting.wait_for_others();
  NodesCompared compared;
  compared.exit_code = printed ? preflight_code(*nodes, order.min_nodes) : unprinted_code;
  compared.reason = printed ? "too few nodes are fit" : "the table could not be written to stdout";
  return compared;
}

}  // namespace

NodeComparison::NodeComparison(asio::io_context& loop, const LaunchConfig& config, Hooks hooks)
    : config_{config}, hooks_{std::move(hooks)}, post_{loop} {}

NodeComparison::~NodeComparison() { post_.cut(); }

void NodeComparison::know(NodePreflight own) { own_ = std::move(own); }

void NodeComparison::run(const CompareNodes& order) {
  cancel();
  ++current_;
  end_ = std::make_shared<const UniqueFd>(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  own_.findings = order.findings;
  look_at_clock();
  Order own{order.placement, own_, config_.terms.min_nodes, config_.preflight.only, config_.preflight.as_json, end_};
  const auto answer = [this, number = current_](NodesCompared compared) {
    if (number != current_) return;
    printed_ = compared.exit_code != exit_code::unreachable;
    hooks_.done(std::move(compared));
  };
  const auto thread = in_background(
      [own = std::move(own), post = post_, answer] { post([answer, compared = compare(own)] { answer(compared); }); });
  if (thread.valid()) return;
  NodesCompared none;
  none.exit_code = unprinted_code;
  none.reason = none.problem = "the system gives no thread";
  post_([answer, none] { answer(none); });
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
  if (own_.host.empty() || std::exchange(printed_, true)) return;  // or nothing was looked at
  const auto printing = in_background(
      [table = table_of({own_}, config_.terms.min_nodes, config_.preflight.as_json)] { return print(table); });
  if (printing.valid()) printing.wait_for(print_limit);
}

}  // namespace torchup
