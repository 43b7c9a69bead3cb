#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/os/diagnosis/nccl_probe.hpp"
#include "launcher/os/diagnosis/node_comparison.hpp"
#include "rendezvous/net/store/store_client.hpp"

namespace torchup {

/// All that a meeting needs.
struct MeetingOrder {
  Placement placement;
  NodePreflight own;
  bool only = false;                         ///< there is a table, and no job: it may take longer
  std::string gpus = {};                     ///< as in NcclProgram
  std::string local_addr = {};               ///< that the user wants others to use; empty: found out
  std::shared_ptr<PairEnd> pair_end = {};    ///< of an earlier meeting; nothing: one is opened
  std::shared_ptr<const UniqueFd> end = {};  ///< an eventfd: readable when nobody wants it any more
};

struct MeetingResult {
  std::vector<NodePreflight> nodes;  ///< by group rank, with what the ways say of them: the same on all nodes
  CondemnedWays condemned = {};      ///< ours
  std::shared_ptr<PairEnd> pair_end = {};
};

/// The nodes of one round, which tell each other what was found, and try the ways between them at the same time. For a
/// thread: it blocks, until comparison_limit or job_comparison_limit at most.
class NodeMeeting {
 public:
  /// At the round's store. Errors: its.
  [[nodiscard]] static Result<std::unique_ptr<NodeMeeting>> enter(const MeetingOrder& order);
  /// Errors: the store's: somebody has not come, or has not told in time.
  [[nodiscard]] Result<MeetingResult> run();
  /// Nobody ends the job before all have what `run` returns.
  void wait_for_others();

 private:
  NodeMeeting(const MeetingOrder& order, TimePoint end, std::unique_ptr<StoreClient> store);

  [[nodiscard]] int own() const { return order_.placement.group_rank.value(); }
  [[nodiscard]] int count() const { return order_.placement.group_world_size; }
  [[nodiscard]] Duration left(Duration limit) const;
  template <class T>
  Result<std::vector<T>> gather(std::string_view what, Result<T> (*decode)(std::string_view));
  Result<> set(std::string_view what, const std::string& value);
  Result<> all_come(std::string_view what, int turn);
  [[nodiscard]] std::string own_address() const;
  Result<> try_ways(MeetingResult& result);
  Result<> try_nccl(MeetingResult& result);
  Result<PairResult> try_nccl_pair(const NodePair& pair, int turn, const NcclProgram& program);
  Result<std::vector<PairResult>> exchange(std::string_view what, const std::vector<PairResult>& own);
  void keep_condemned(const std::vector<PairResult>& all, const std::vector<PairWay>& ways, MeetingResult& result);

  const MeetingOrder& order_;
  const TimePoint end_;
  std::unique_ptr<StoreClient> store_;
};

}  // namespace torchup
