#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rendezvous/core/rendezvous.hpp"
#include "rendezvous/core/store.hpp"
#include "rendezvous/core/torchrun_peer.hpp"
#include "rendezvous/core/torchrun_state.hpp"

namespace torchup {

/// What the owner of a store does for the torchrun agents of one job that meet in it, whether agents of ours are among
/// them or not. Torchrun's own faults are cured so:
///  - Workers meet at a store of ours. Group rank 0's address is held back, and ours published in its place, in every
///    round: agents that remember the first address, newcomers that wait for one, and a new group rank 0 all find the
///    same store, which no node takes along.
///  - That store is emptied as each round becomes complete: all workers of the former one have ended, none of the new
///  one
///    has begun. Nobody meets an address that a dead worker left.
///  - An agent whose connection ends has ended, and leaves the state at once instead of after its keep-alives.
///  - All participants learn of a newcomer at one moment: who looks first waits for the others. Torchrun's agents look
///  once
///    a second, and the first to stop its workers makes the others' fail, which costs each a restart.
///  - One that waits for a key sends no heartbeats, having one connection: it is kept in the state.
///  - A participant that is lost makes the others form another round. Torchrun's agents take a silent one out of the
///  state
///    (each by the lease of its own configuration, which we need not know), but look at nothing but the wait list:
///    their workers would wait for the lost ones. So an entry of ours stands on it until they all have left the round,
///    before anybody can join the next. Not where fewer than the minimum are left: they could only wait for a
///    replacement, which calls them by itself when it comes, while the silent one may come back and go on. Nor in the
///    exit barrier, which nobody leaves again.
///  - Who is in no list does not end the job. A node that comes back when the others have gone on, and has no restart
///  left,
///    would close the rendezvous for all, and so would one that has waited in vain.
///  - Between two rounds nobody sleeps. An agent that can do nothing until somebody else has acted would look again
///  after
///    a second; its answer is held back instead until it can. And the last call is for a job's beginning: a later round
///    is complete when all who are known have come.
///
/// Where group rank 0's own store does not answer, as with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, a worker is to open
/// it, in every round anew: then its address is passed on, and the first two cures are not needed.
class TorchrunCare {
 public:
  explicit TorchrunCare(RunId run_id) : run_id_{std::move(run_id)} {}

  /// The job's state was written: by a client of the store, or by ourselves.
  void wrote(std::optional<ClientId> client, TorchrunStore& store);

  /// A client publishes where workers meet. True: it is not to be stored, we do that.
  [[nodiscard]] bool withholds(std::int64_t round, std::string_view name, std::string_view value);
  /// Whether a store answers there is to be found out, and told by `answered`.
  [[nodiscard]] const std::optional<WorkerStore>& in_question() const { return in_question_; }
  void answered(bool answers, TorchrunStore& store);

  /// Whether that client's look at the state has to wait until `nobody_waits`.
  [[nodiscard]] bool holds(ClientId client);
  [[nodiscard]] bool nobody_waits() const { return !news_; }

  /// Whether that client's agent is nowhere in the state of a job that goes on without it.
  [[nodiscard]] bool outsider(ClientId client, TorchrunStore& store) const;

  /// Whether that client's agent, knowing the state as it is, has to wait for another's step.
  [[nodiscard]] bool idles(ClientId client) const;

  /// The client's connection has ended.
  void gone(ClientId client, TorchrunStore& store);

  /// To be called some times a second. `waits`: whether that client waits for a key.
  void turn(TorchrunStore& store, const std::function<bool(ClientId)>& waits, UtcTime now);

  /// From now on workers meet at our store.
  void adopt() { adopted_ = true; }
  [[nodiscard]] const TorchrunState& state() const { return known_; }
  /// The job as torchrun's state shows it, with all of its agents; `known` says what that state does not.
  [[nodiscard]] JobView view(JobView known) const;
  /// What was done since the last call, for people.
  [[nodiscard]] std::vector<std::string> notes() { return std::exchange(notes_, {}); }

 private:
  struct Published {
    std::int64_t round = 0;
    std::string address = {};
  };

  struct News {
    std::set<ClientId> unaware = {};
    std::optional<UtcTime> since = {};
  };

  void find_lost(const TorchrunState& former, std::optional<ClientId> writer);
  void learn_minimum(const TorchrunState& former);
  void tell_at_once(const TorchrunState& former);
  [[nodiscard]] bool leaving(TorchrunStore& store) const;
  [[nodiscard]] bool calls_for_another(const TorchrunState& state, TorchrunStore& store) const;
  void call_together(TorchrunStore& store, UtcTime now);
  [[nodiscard]] bool all_have_come() const;
  void complete_again(TorchrunStore& store, UtcTime now);
  void publish(std::int64_t round, const WorkerStore& workers, TorchrunStore& store);
  void begin_round(TorchrunStore& store);
  bool rewrite(const TorchrunState& state, TorchrunStore& store);
  [[nodiscard]] std::string main_key() const { return "torch.rendezvous." + run_id_.value(); }

  RunId run_id_;
  std::string text_;  ///< the state as it was last seen
  TorchrunState known_;
  std::map<ClientId, TorchrunNode> agents_;
  std::set<TorchrunNode> members_;  ///< of the last complete round
  std::set<TorchrunNode> lost_;     ///< of agents_: taken out of the state by others
  std::size_t min_nodes_ = 0;
  std::optional<UtcTime> lost_since_;  ///< that a member is nowhere in the state, and nobody waits
  std::optional<News> news_;
  bool adopted_ = false;
  std::optional<Published> withheld_;
  std::optional<WorkerStore> in_question_;
  std::int64_t questioned_round_ = 0;
  std::vector<std::string> notes_;
};

/// Which round of which job a store's key belongs to: `/torch.rendezvous.<run id>.<round>/<name>`.
struct TorchrunRoundKey {
  RunId run_id;
  std::int64_t round = 0;
  std::string_view name;
};
[[nodiscard]] std::optional<TorchrunRoundKey> read_round_key(std::string_view wire_key);

/// What torchrun's keys of all jobs begin with.
inline constexpr std::string_view torchrun_keys = "/torch.rendezvous.";

}  // namespace torchup
