#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/core/store/store.hpp"
#include "rendezvous/core/store/store_codec.hpp"
#include "rendezvous/core/store/store_status.hpp"
#include "rendezvous/net/store/store_connections.hpp"
#include "rendezvous/net/store/store_replies.hpp"
#include "rendezvous/net/store/store_server.hpp"

namespace torchup {

/// What clients of a store ask: from the bytes of a socket to the engine.
class StoreRequests {
 public:
  /// `have_turn` is called when somebody is to be served on in a turn of its own.
  StoreRequests(const StoreServerOptions& options, StoreConnections& connections, StoreReplies& replies, Store& store,
                std::function<void()> have_turn);

  /// Serves what has come. The kernel tells once for all of it, so nothing may be left: a full piece can have more
  /// behind it, and so can the last one before the end of the stream.
  void receive_all(StoreSession& session, std::uint32_t events);
  /// Serves one piece of what has come; false when nothing has.
  bool receive(StoreSession& session);
  /// What a client without a socket has said.
  void heard(StoreSession& session, std::string_view bytes);
  /// Until when requests are served in this turn; beyond, each client gets store_slice_requests of them.
  void begin_turn(TimePoint end) { turn_end_ = end; }
  /// Serves on those for whom the last turns had no time, until this one ends. The first is always served.
  void serve_paused();
  /// Sends what the kernel takes of that session's answers, and serves what waited for the room. `offered`: what has
  /// come of it already.
  void send_replies(StoreSession& session, ReplyOffer offered = {});
  /// The same for all who have been answered since the last time.
  void flush();

  void watch(std::string_view prefix, StoreWatcher& watcher);
  void apply_taken(ClientId client, Request& request);
  void gone(ClientId client);
  [[nodiscard]] std::uint64_t served() const { return served_; }
  [[nodiscard]] const StoreRequestCounts& served_of() const { return served_of_; }

 private:
  bool begin(StoreSession& session);
  bool has_place(StoreSession& session);
  bool prove(StoreSession& session, const RequestReader& reader);
  bool admit(StoreSession& session);
  void serve(StoreSession& session, std::string_view input);
  void serve_with(StoreSession& session, RequestReader& reader, std::string_view input);
  bool turn_is_over();
  [[nodiscard]] bool may_list(const StoreSession& session) const;
  void wait_for_list(StoreSession& session, std::string rest);
  void pause(StoreSession& session, std::string rest);
  void go_on();
  void serve_lister();
  void leave_line(StoreSession& session);
  void apply(StoreSession& session);
  void apply_seen(ClientId client, Request& request);
  bool refuse_if_told();
  void settle(StoreSession& session, RequestReader& reader);
  void keep_spare();

  StoreConnections& connections_;
  StoreReplies& replies_;
  Store& store_;
  const std::function<void()> have_turn_;
  const std::function<bool(unsigned char first_byte, UniqueFd& socket)> other_language_;
  const std::function<bool(const std::string& address)> admits_;
  const std::function<void(const std::string& address)> refused_;
  FieldLimits fields_;
  std::unique_ptr<RequestReader> idle_reader_;  ///< between two requests, as most sessions are
  std::vector<char> scratch_;
  std::unique_ptr<char[]> spare_;  ///< to be given up where there is no memory left to refuse somebody for that
  Request request_;
  StoreWatcher* watcher_ = nullptr;
  std::string watched_prefix_;
  std::uint64_t served_ = 0;
  StoreRequestCounts served_of_{};
  TimePoint turn_end_{};
  std::vector<std::uint32_t> paused_;
  std::deque<std::uint32_t> listers_;  ///< they too
  bool going_on_ = false;              ///< they are to be served on
  bool piece_was_full_ = false;        ///< the last one received
};

}  // namespace torchup
