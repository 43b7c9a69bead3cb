#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "rendezvous/core/ops/event_ring.hpp"
#include "rendezvous/net/ops/ops_source.hpp"

namespace torchup {

/// What is told to those who follow jobs (server-sent events): a `snapshot`, then a `change` a second at most (a merge
/// patch, RFC 7386) and each `event` with its number as `id`; `gap` where events are missing, with how many.
///
/// A reader is asked for its next frame when the one before it is written, and is told then what the ring still holds:
/// one that never reads has a frame of frame_bytes_max waiting, and no more. Readers who are equally far get the same
/// frame, made once.
class EventFeed {
 public:
  static constexpr std::size_t frame_bytes_max = 1024 * 1024;
  /// Frames of events that are kept for further readers, for a second at most and while somebody follows. One that
  /// tells of a gap is not.
  static constexpr std::size_t kept_bytes_max = 16 * frame_bytes_max;

  /// The rings and the source must outlive it.
  EventFeed(boost::asio::io_context& loop, const EventRings& rings, OpsSource& source);
  EventFeed(const EventFeed&) = delete;
  EventFeed& operator=(const EventFeed&) = delete;
  ~EventFeed();  ///< ends what it tells

  /// For a call of one of the two streams, whose job is there.
  [[nodiscard]] std::shared_ptr<FrameSource> follow(const OpsCall& call);
  /// The ring of a job has something new, since 20 ms at most.
  void added(const std::string& run_id);
  /// The rings of all other jobs have gone.
  void keep_only(const std::set<std::string>& run_ids);

  [[nodiscard]] std::size_t readers() const;
  [[nodiscard]] std::size_t kept_bytes() const;
  /// That readers were told to be missing.
  [[nodiscard]] std::uint64_t lost() const;

 private:
  struct Shared;
  class Reader;
  std::shared_ptr<Shared> shared_;
};

}  // namespace torchup
