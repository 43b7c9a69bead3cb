#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/core/etcd/scope.hpp"
#include "rendezvous/core/link/messages.hpp"
#include "rendezvous/core/text/log_line.hpp"
#include "rendezvous/net/coordinator/etcd_archive.hpp"
#include "rendezvous/net/etcd/etcd_client.hpp"
#include "rendezvous/net/etcd/etcd_seat.hpp"

namespace torchup {

class Coordinator;

struct CandidateSettings {
  EtcdSettings etcd = {};
  std::string prefix = "/torchup";
  std::optional<RunId> job = {};  ///< the one job that it is about; empty: those of several daemons
  CandidacySettings candidacy = {};
  std::string agent = {};  ///< name of the agent in this process (core/membership/ended_jobs); empty: there is none
};

/// This process as one of those that may coordinate: seeks the seat in etcd, and lets `coordinator` serve while it has
/// it, with the jobs' states that are kept there. Which process serves is decided by core/seat/candidacy alone.
class SeatCandidate {
 public:
  struct TakenOver {
    std::int64_t term = 0;
    std::string from = {};  ///< "host (10.0.0.5:4711)"; empty: nobody had the seat when it was taken
    bool proved = false;    ///< its end was
    Duration after{};       ///< from when that was known, or the seat seen vacant, to the first word of ours
    std::size_t jobs = 0;   ///< that go on
  };
  struct Handlers {
    /// Opens the port by which others reach us, if it is not open yet. Never the cause of anything else.
    std::function<Result<std::vector<Endpoint>>()> open = {};
    /// Where the one is that has the seat; it may be us.
    std::function<void(std::int64_t term, const std::vector<Endpoint>& endpoints, bool ours)> attend = {};
    std::function<void(const Verdict&)> ended = {};  ///< EtcdSeat::Handlers
    /// What is wrong with etcd, once per change; empty: nothing any more. With a code trying again does not mend it.
    std::function<void(const std::string& trouble, int exit_code)> trouble = {};
    std::function<void(const Error&)> unusable = {};  ///< a state cannot be used: 65
    std::function<void(const TakenOver&)> took_over = {};
    /// One line, once per change: "active, term 214", "standby; the active one is a:29400".
    std::function<void(const std::string& line)> stands = {};
  };

  /// The coordinator must outlive it, and serves nobody before it says so.
  SeatCandidate(boost::asio::io_context& loop, Coordinator& coordinator, CandidateSettings settings, Handlers handlers,
            LogSink log);
  SeatCandidate(const SeatCandidate&) = delete;
  SeatCandidate& operator=(const SeatCandidate&) = delete;
  ~SeatCandidate();

  void start();
  /// What our link to the holder tells (link::Attends and its like).
  void attends(std::int64_t term);
  void doubts();
  void saw_end(std::int64_t term);
  void set_group_rank(GroupRank rank);
  /// The seat is given back, if it is ours; `done` when etcd has heard of it, or does not answer.
  void leave(std::function<void()> done);

  [[nodiscard]] bool serves() const;
  /// Numeric, by which etcd was reached; empty: it has not been.
  [[nodiscard]] std::string local_address() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace torchup
