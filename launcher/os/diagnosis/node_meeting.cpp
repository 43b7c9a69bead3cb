#include "launcher/os/diagnosis/node_meeting.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>

#include "launcher/os/worker/worker_store.hpp"
#include "rendezvous/net/io/node_identity.hpp"

namespace torchup {
namespace {

/// How long nodes that have met may take to tell what was found on them, and to try a pair. A job does not wait long
/// for one that tries nothing: torchrun's, or one without --preflight=full.
constexpr Duration tell_limit = std::chrono::seconds{30};
constexpr Duration job_tell_limit = std::chrono::seconds{10};
/// How long those that have the table wait until the others have it, too.
constexpr Duration read_limit = std::chrono::seconds{10};
/// How much earlier than the other one pair of GPUs may begin.
constexpr Duration nccl_slack = std::chrono::seconds{5};

std::string key_of(std::string_view what, int of) { return fmt::format("torchup/preflight/{}/{}", what, of); }

bool has_done(const NodePreflight& node, Check check) { return std::ranges::find(node.done, check) != node.done.end(); }

bool any_condemned(const std::vector<NodePreflight>& nodes) {
  return std::ranges::any_of(nodes,
                             [](const NodePreflight& node) { return std::ranges::any_of(node.findings, is_of_ways); });
}

std::vector<std::string> hosts_of(const std::vector<NodePreflight>& nodes) {
  std::vector<std::string> hosts;
  for (const NodePreflight& node : nodes) hosts.push_back(node.host);
  return hosts;
}

void judge(std::span<const PairResult> results, Check check, std::vector<NodePreflight>& nodes) {
  for (NodePreflight& node : nodes) {
    if (!has_done(node, check)) node.done.push_back(check);
  }
  const PairRule rule = check == Check::nccl ? PairRule::all : PairRule::half;
  for (UnfitNode& unfit : unfit_in(results, hosts_of(nodes), rule)) {
    nodes[static_cast<std::size_t>(unfit.node.value())].findings.push_back(
        pair_finding(check, std::move(unfit.reason)));
  }
}

/// Whether all nodes can try pairs over NCCL; where they cannot, but some could, the others hear why. The same on all
/// nodes, by what each has told of itself.
bool is_nccl_tried(std::vector<NodePreflight>& nodes) {
  const auto is_ready = [](const NodePreflight& node) { return has_done(node, Check::nccl); };
  const bool tried = std::ranges::all_of(nodes, is_ready) && !any_condemned(nodes);
  if (tried) return true;
  const bool all_have_gpus = std::ranges::all_of(nodes, [](const auto& node) { return has_done(node, Check::gpu); });
  const bool any_ready = std::ranges::any_of(nodes, is_ready);
  for (NodePreflight& node : nodes) {
    const bool told = std::ranges::find(node.findings, Check::nccl, &Finding::check) != node.findings.end();
    if (all_have_gpus && any_ready && !is_ready(node) && !told) {
      node.findings.push_back(nccl_skipped("no all_reduce lies beside torchup"));
    }
    std::erase(node.done, Check::nccl);
  }
  return false;
}

}  // namespace

NodeMeeting::NodeMeeting(const MeetingOrder& order, TimePoint end, std::unique_ptr<StoreClient> store)
    : order_{order}, end_{end}, store_{std::move(store)} {}

Result<std::unique_ptr<NodeMeeting>> NodeMeeting::enter(const MeetingOrder& order) {
  const TimePoint end = std::chrono::steady_clock::now() + (order.only ? comparison_limit : job_comparison_limit);
  StoreClientOptions way;
  const bool by_proxy = order.placement.local_store.value() != 0;
  way.host = by_proxy ? "127.0.0.1" : order.placement.master_addr;
  way.port = by_proxy ? order.placement.local_store : order.placement.master_port;
  way.timeout = order.only ? tell_limit : job_tell_limit;
  way.cancel = order.end->get();
  auto store = StoreClient::connect(std::move(way));
  if (!store) return store.error();
  return std::unique_ptr<NodeMeeting>{new NodeMeeting{order, end, *std::move(store)}};
}

Result<MeetingResult> NodeMeeting::run() {
  if (auto told = set("node", encode_preflight(order_.own)); !told) return told.error();
  auto nodes = gather<NodePreflight>("node", decode_preflight);
  if (!nodes) return nodes.error();
  MeetingResult result{.nodes = *std::move(nodes)};
  if (count() < 2) return result;
  if (auto tried = try_ways(result); !tried) return tried.error();
  if (!is_nccl_tried(result.nodes)) return result;
  if (auto tried = try_nccl(result); !tried) return tried.error();
  return result;
}

void NodeMeeting::wait_for_others() { static_cast<void>(store_->barrier(key_of("read", 0), count(), read_limit)); }

/// However many nodes are slow, one after the other.
Duration NodeMeeting::left(Duration limit) const {
  const Duration all = end_ - std::chrono::steady_clock::now();
  return std::clamp<Duration>(all, std::chrono::milliseconds{1}, limit);
}

template <class T>
Result<std::vector<T>> NodeMeeting::gather(std::string_view what, Result<T> (*decode)(std::string_view)) {
  std::vector<T> all;
  for (int node = 0; node < count(); ++node) {
    store_->set_timeout(left(order_.only ? tell_limit : job_tell_limit));
    const auto told = store_->get(key_of(what, node));
    if (!told) return Error{told.error().code, fmt::format("what node {} of the round tells", node)};
    auto value = decode(told->view());
    if (!value) return value.error();
    all.push_back(*std::move(value));
  }
  return all;
}

Result<> NodeMeeting::set(std::string_view what, const std::string& value) {
  store_->set_timeout(left(job_tell_limit));
  return store_->set(key_of(what, own()), value);
}

/// Side by side, as a job's collectives; whoever is late is no reason to try alone.
Result<> NodeMeeting::all_come(std::string_view what, int turn) {
  return store_->barrier(key_of(what, turn), count(), left(tell_limit));
}

std::string NodeMeeting::own_address() const {
  if (!order_.local_addr.empty() && is_of_this_machine(order_.local_addr)) return order_.local_addr;
  return address_for_others(order_.placement.master_addr);
}

Result<std::vector<PairResult>> NodeMeeting::exchange(std::string_view what, const std::vector<PairResult>& own) {
  if (auto told = set(what, encode_pairs(own)); !told) return told.error();
  auto each = gather<std::vector<PairResult>>(what, decode_pairs);
  if (!each) return each.error();
  std::vector<PairResult> all;
  for (const auto& results : *each) all.insert(all.end(), results.begin(), results.end());
  return all;
}

Result<> NodeMeeting::try_ways(MeetingResult& result) {
  result.pair_end = order_.pair_end;
  if (!result.pair_end) {
    auto opened = PairEnd::open();
    if (!opened) return opened.error();
    result.pair_end = *std::move(opened);
  }
  const PairWay own_way{own_address(), result.pair_end->port(), result.pair_end->secret()};
  if (auto told = set("way", encode_way(own_way)); !told) return told.error();
  const auto ways = gather<PairWay>("way", decode_way);
  if (!ways) return ways.error();
  std::vector<PairResult> results;
  int turn = 0;
  for (const Matching& matching : pair_plan(count(), order_.placement.round)) {
    if (auto all = all_come("matching", turn++); !all) return all.error();
    const auto pair = std::ranges::find(matching, GroupRank{own()}, &NodePair::first);
    if (pair == matching.end()) continue;
    const PairWay& other = (*ways)[static_cast<std::size_t>(pair->second.value())];
    results.push_back(probe_pair(*pair, other, order_.end->get()));
  }
  auto all = exchange("pairs", results);
  if (!all) return all.error();
  judge(*all, Check::pairs, result.nodes);
  keep_condemned(*all, *ways, result);
  return {};
}

void NodeMeeting::keep_condemned(const std::vector<PairResult>& all, const std::vector<PairWay>& ways,
                                 MeetingResult& result) {
  const auto& findings = result.nodes[static_cast<std::size_t>(own())].findings;
  if (std::ranges::none_of(findings, is_of_ways)) return;
  CondemnedWays& kept = result.condemned;
  kept.own = GroupRank{own()};
  kept.hosts = hosts_of(result.nodes);
  kept.median = median_rate(all, result.nodes.size());
  for (const PairResult& each : all) {
    const bool first = each.pair.first == kept.own;
    if (!first && each.pair.second != kept.own) continue;
    const GroupRank other = first ? each.pair.second : each.pair.first;
    if (other.value() < 0 || other.value() >= count()) continue;
    kept.others.emplace_back(each.pair, ways[static_cast<std::size_t>(other.value())]);
  }
}

Result<> NodeMeeting::try_nccl(MeetingResult& result) {
  NcclProgram program{.path = all_reduce_beside(), .gpus = order_.gpus, .cancel = order_.end->get()};
  std::vector<PairResult> results;
  int turn = 0;
  for (const Matching& matching : pair_plan(count(), order_.placement.round, nccl_pair_matchings)) {
    if (auto all = store_->barrier(key_of("nccl", turn), count(), left(nccl_pair_limit + nccl_slack)); !all) {
      return all.error();
    }
    program.limit = left(nccl_pair_limit);
    const auto pair = std::ranges::find_if(
        matching, [this](const NodePair& each) { return each.first.value() == own() || each.second.value() == own(); });
    if (pair != matching.end()) {
      auto tried = try_nccl_pair(*pair, turn, program);
      if (!tried) return tried.error();
      if (pair->first.value() == own()) results.push_back(*std::move(tried));
    }
    ++turn;
  }
  if (auto all = store_->barrier(key_of("nccl", turn), count(), left(nccl_pair_limit + nccl_slack)); !all) {
    return all.error();
  }
  auto all = exchange("nccl_pairs", results);
  if (!all) return all.error();
  judge(*all, Check::nccl, result.nodes);
  return {};
}

Result<PairResult> NodeMeeting::try_nccl_pair(const NodePair& pair, int turn, const NcclProgram& program) {
  NcclEnd end{.rank = pair.first.value() == own() ? 0 : 1, .master_addr = {}};
  const std::string key = key_of(fmt::format("nccl_way_{}", turn), pair.first.value());
  store_->set_timeout(left(job_tell_limit));
  PairWay way;
  if (end.rank == 0) {
    const auto port = free_port();
    if (!port) return port.error();
    way = {own_address(), *port, order_.own.host};
    if (auto told = store_->set(key, encode_way(way)); !told) return told.error();
  } else {
    const auto told = store_->get(key);
    if (!told) return told.error();
    auto decoded = decode_way(told->view());
    if (!decoded) return decoded.error();
    way = *std::move(decoded);
  }
  end.master_addr = way.address;
  end.master_port = way.port;
  return probe_nccl_pair(pair, end, program);
}

}  // namespace torchup
