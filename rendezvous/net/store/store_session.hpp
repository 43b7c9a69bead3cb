#pragma once

#include <sys/epoll.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <boost/intrusive/list.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "rendezvous/base/types.hpp"
#include "rendezvous/core/store/store_codec.hpp"
#include "rendezvous/core/text/wording.hpp"
#include "rendezvous/net/io/stranger_list.hpp"
#include "rendezvous/net/io/unique_fd.hpp"
#include "rendezvous/net/store/reply_queue.hpp"

namespace torchup {

struct StoreSession;

/// Takes the answers to a client of the store that has no socket of its own. Called on the loop, within the store's
/// turns: it must not call the server back.
class StoreSink {
 public:
  /// Takes what it has room for, from the front: how many bytes, or -EAGAIN where it has none now.
  virtual ssize_t take(std::span<const iovec> pieces) = 0;
  /// All that was said to the store is served but for so much.
  virtual void served(std::size_t unserved_bytes) = 0;
  /// The store has closed this client; nothing more is called.
  virtual void closed() = 0;

 protected:
  ~StoreSink() = default;
};

/// Something that a session has to finish in time.
struct Deadline : boost::intrusive::list_base_hook<boost::intrusive::link_mode<boost::intrusive::auto_unlink>> {
  explicit Deadline(StoreSession& whose) : session{&whose} {}

  StoreSession* session;
  TimePoint begun{};
};

/// Sessions that have something to finish, all within the same time: the oldest are in front.
class DeadlineQueue {
 public:
  using Entries = boost::intrusive::list<Deadline, boost::intrusive::constant_time_size<false>>;

  explicit DeadlineQueue(Duration limit) : limit_{limit} {}

  /// Does nothing where it runs already.
  void begin(Deadline& deadline, TimePoint now) {
    if (deadline.is_linked()) return;
    deadline.begun = now;
    entries_.push_back(deadline);
  }
  static void end(Deadline& deadline) { deadline.unlink(); }
  [[nodiscard]] bool empty() const { return entries_.empty(); }
  [[nodiscard]] const Entries& entries() const { return entries_; }
  [[nodiscard]] StoreSession* oldest() const { return entries_.empty() ? nullptr : entries_.front().session; }
  [[nodiscard]] StoreSession* expired(TimePoint now) const {
    return !entries_.empty() && entries_.front().begun + limit_ <= now ? entries_.front().session : nullptr;
  }
  [[nodiscard]] std::string limit_text() const { return seconds(limit_); }

 private:
  Duration limit_;
  Entries entries_;
};

/// Whose answers are too many: they are thrown away, and so is the connection.
enum class Overflow : std::uint8_t {
  none,
  of_one,  ///< this connection's alone
  of_all,  ///< together with those of others
};

/// One connection of a store's client. Between its events it holds this and nothing else.
struct StoreSession {
  StoreSession(std::uint32_t session_index, UniqueFd connection, FieldLimits limits)
      : index{session_index}, socket{std::move(connection)}, reader{std::make_unique<RequestReader>(limits)} {}

  std::uint32_t index;
  UniqueFd socket;
  StoreSink* sink = nullptr;  ///< in place of a socket
  std::string from = {};      ///< then: where it is, for people
  bool counts_as_channel = false;
  std::uint32_t interest = EPOLLIN;  ///< what epoll tells us about
  /// Until VALIDATE, and while a request is incomplete. Between requests there is none: one reader serves all sessions,
  /// and with ten thousand of them stays in the cache.
  std::unique_ptr<RequestReader> reader;
  std::string unserved = {};  ///< requests that have come while there was no room for answers, or no time
  ReplyQueue replies = {};
  StrangerPlace stranger = {};  ///< until it has said VALIDATE
  bool language_known = false;
  Overflow overflow = Overflow::none;
  bool has_unsent = false;   ///< stands in the list of those to be flushed
  bool peer_closed = false;  ///< its stream has ended; closed when the answers are out
  bool closed = false;
  bool paused = false;  ///< the turn was over before its requests were served: it stands in the list of those who go on
  bool lists = false;   ///< its next request is LIST_KEYS: it stands in the list of those who wait for that
  bool held = false;    ///< an answer is owed by whoever watches its key: nothing more may be asked
  std::size_t arriving_bytes = 0;  ///< of unfinished and unserved requests, as counted in the sum of all
  std::size_t unread_bytes = 0;    ///< of its answers, likewise
  Deadline handshake{*this}, request{*this};
  Deadline stalled{*this};  ///< nothing has been read
  Deadline large{*this};    ///< much lies unread
  TimePoint unread_since{};
};

}  // namespace torchup
