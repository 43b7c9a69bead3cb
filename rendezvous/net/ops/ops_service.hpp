#pragma once

#include <functional>
#include <list>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "rendezvous/core/ops/event_ring.hpp"
#include "rendezvous/net/ops/event_feed.hpp"
#include "rendezvous/net/ops/ops_source.hpp"

namespace torchup {

/// Performs what is asked of a process about its jobs, by whatever door it came, or for another node: their pages and
/// events itself, everything else by its source.
class OpsService {
 public:
  /// The source must outlive it.
  OpsService(boost::asio::io_context& loop, OpsSource& source, EventRings::Limits limits);
  OpsService(const OpsService&) = delete;
  OpsService& operator=(const OpsService&) = delete;
  ~OpsService();

  /// Calls the reply once, now or later, on the loop.
  void perform(const OpsCall& call, HttpServer::Reply reply);
  /// The same for somebody whose right was found elsewhere: another node asks for him. Streams are not for these: they
  /// get 501.
  void perform(const OpsRequest& request, const OpsCaller& caller, std::string_view body, HttpServer::Reply reply);

  /// Something has happened. Gives its number. As EventRings::add.
  std::uint64_t record(const std::string& run_id, std::string_view event);
  /// Called for each of them, from within `record`. Unset: nobody is.
  using Recorded = std::function<void(const std::string& run_id, std::uint64_t seq, std::string_view event)>;
  void set_recorded(Recorded recorded) { recorded_ = std::move(recorded); }
  /// Forgets the events of all other jobs.
  void keep_only(const std::set<std::string>& run_ids);
  [[nodiscard]] EventRings& events() { return rings_; }
  [[nodiscard]] const EventFeed& feed() const { return feed_; }

 private:
  struct Waiting;
  void perform_hosted(const OpsCall& call, HttpServer::Reply reply);
  void give_events(const OpsCall& call, HttpServer::Reply reply);
  [[nodiscard]] std::optional<OpsAnswer> events_answer(const OpsCall& call, bool even_none) const;
  void answer_waiting(const std::string& run_id);
  template <class Then>
  void prepare(const std::string& run_id, Then then);

  boost::asio::io_context& loop_;
  OpsSource& source_;
  EventRings rings_;
  EventFeed feed_;
  Recorded recorded_;
  std::list<std::shared_ptr<Waiting>> waiting_;
  std::shared_ptr<OpsService*> self_;  ///< what is done later finds null there when this has gone
};

/// The same limits, with numbers that no process before this one has given: who read events of that one, and goes on
/// behind them here, hears of a gap.
[[nodiscard]] EventRings::Limits numbered_anew(EventRings::Limits limits);

/// The page's file, with its policy.
[[nodiscard]] OpsAnswer page_answer();

}  // namespace torchup
