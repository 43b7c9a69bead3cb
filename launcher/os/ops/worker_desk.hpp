#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/core/record/run_record.hpp"
#include "launcher/os/diagnosis/look_order.hpp"
#include "launcher/os/output/worker_output.hpp"
#include "rendezvous/net/ops/http_server.hpp"

namespace torchup {

/// Of a log, at a time: what one node tells another must fit into a frame of their link.
inline constexpr std::size_t log_part_bytes_max = std::size_t{192} << 10U;

/// Of a log, from a place on.
struct LogPart {
  std::string bytes;
  std::uint64_t next = 0;  ///< where to go on; less than where it was to begin: it was cut
  bool from_memory = false;
};

/// Answers for this node's workers: what they have written, as bytes through all attempts, and where they are now.
/// Lives on the loop; files are read on the disk's thread.
class WorkerDesk {
 public:
  struct Hooks {
    std::function<const RunRecord&()> record;
    std::function<const AttemptOutput*()> attempt;  ///< null: there is none now
    /// A look at them, as fast as it can be. Errors: as LookTaker::take.
    std::function<Result<>(const std::vector<LocalRank>&, bool native, LooksShown)> look;
  };
  WorkerDesk(asio::io_context& loop, DiskThread& disk, Hooks hooks);

  /// Whether this rank's worker is here, or was.
  [[nodiscard]] bool has(Rank rank) const;
  /// Whether it has this rank's place in the job's newest attempt, as far as this node knows: while there is none here,
  /// others may have one.
  [[nodiscard]] bool has_now(Rank rank) const;
  /// Logs and stacks. The reply is called once, later on the loop or now.
  void perform(const OpsCall& call, HttpServer::Reply reply);

  /// An attempt has begun, and has ended: what it has written is whole then.
  void attempt_started() { over_ = false; }
  void attempt_ended();
  /// Nothing is written any more: from now on nobody waits for more.
  void job_ended();
  /// Somebody waits for what comes next of a log, or was given a part of it so lately that he is about to come again.
  [[nodiscard]] bool is_followed() const;

 private:
  using Place = std::pair<Rank, LogStream>;
  [[nodiscard]] OpsAnswer log_answer(std::optional<LogPart> part) const;
  [[nodiscard]] std::vector<std::string> files_of(const Place& place) const;
  [[nodiscard]] OutputTail::Kept memory_of(const Place& place) const;
  Task<> give_log(OpsCall call, HttpServer::Reply reply);
  void wake_waiting();
  Task<std::optional<LogPart>> log_part(Place place, std::uint64_t offset);
  void give_stacks(const OpsCall& call, const HttpServer::Reply& reply);
  [[nodiscard]] OpsAnswer stacks_answer(const std::vector<Rank>& wanted, const std::vector<RankLook>& looks,
                                        const std::vector<RankStacks>& stacks) const;

  asio::io_context& loop_;
  DiskThread& disk_;
  const Hooks hooks_;
  const std::uint64_t log_;  ///< Torchup-Log of all that lies here
  /// Of workers without files, what is remembered of the attempts that are over.
  std::map<Place, OutputTail::Kept> past_;
  bool over_ = true;  ///< the newest attempt's output is in it
  bool job_over_ = false;
  int unanswered_ = 0;         ///< who has asked for a log
  std::list<Timer*> waiting_;  ///< those of them who wait for more of it
  TimePoint comes_again_until_{};
};

}  // namespace torchup
