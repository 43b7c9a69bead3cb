#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/core/torchrun/torchrun_care.hpp"
#include "rendezvous/core/torchrun/torchrun_store.hpp"
#include "rendezvous/net/coordinator/held_requests.hpp"
#include "rendezvous/net/coordinator/helper_threads.hpp"
#include "rendezvous/net/coordinator/torchrun_host.hpp"
#include "rendezvous/net/io/counted_bytes.hpp"
#include "rendezvous/net/store/store_server.hpp"

namespace torchup {

struct HostedMeeting;

/// What the meetings of a TorchrunHost share. Outlives them.
struct MeetingSurroundings {
  boost::asio::io_context& loop;
  StoreServer& server;
  const TorchrunHostOptions& options;
  const HelperThreads& helpers;
  std::size_t& states_bytes;  ///< of all meetings
  std::function<bool(HostedMeeting& meeting, std::size_t bytes)> room_for_state;
};

/// One job's meeting of torchrun's agents in a store of ours, as its participants see the store.
struct HostedMeeting final : TorchrunStore {
  HostedMeeting(const MeetingSurroundings& surroundings, RunId id);
  HostedMeeting(const HostedMeeting&) = delete;
  HostedMeeting& operator=(const HostedMeeting&) = delete;

  Result<std::optional<std::string>> find(const std::string& key) override;
  Result<> set(const std::string& key, const std::string& value) override;
  Result<std::int64_t> add(const std::string& key, std::int64_t delta) override;
  Result<std::string> compare_set(const std::string& key, const std::string& expected,
                                  const std::string& desired) override;
  void erase(const std::string& key) override;
  Result<> count_in() override { return {}; }  // nobody waits for that
  [[nodiscard]] TorchrunCare* owner() override { return &care; }
  Result<std::optional<MeetingPlace>> common_place() override;
  bool empty(const MeetingPlace& place, std::int64_t round) override;

  void reached_by(const std::string& own);

  const MeetingSurroundings& around;
  RunId run_id;
  TorchrunCare care;
  CountedBytes state_bytes;  ///< of what `care` keeps of the state
  std::string address = {};  ///< of ours, by which others have come
  std::unique_ptr<StoreServer> workers;
  Port port{0};
  std::future<void> emptying;
  std::int64_t emptied_round = -1;
  std::size_t emptied = 0;  ///< of `workers`, as erase_some counts
  std::optional<MeetingPlace> asked_about;
  std::future<bool> answer;
  std::size_t clients = 0;              ///< torchrun's agents
  std::optional<TimePoint> over_since;  ///< closed, or without anybody
  std::optional<std::string> fault;     ///< of ours, with which it ends
  std::vector<HeldRequest> held;        ///< looks at the state, until all have been told of a newcomer
  std::vector<HeldRequest> idle;        ///< the same, until there is something to do
  std::vector<HeldRequest> roles;       ///< until the workers' store is empty
};

using HostedMeetings = std::map<RunId, HostedMeeting>;

/// Whether `its` may keep a state of so many bytes, for which the states of others give way: first of those that are
/// over, then larger ones. `left`: is told whose agents are left to themselves, which may be `its`.
[[nodiscard]] bool make_room_for_state(HostedMeetings& meetings, HostedMeeting& its, std::size_t bytes,
                                       const std::function<void(const HostedMeeting&)>& left);

}  // namespace torchup
