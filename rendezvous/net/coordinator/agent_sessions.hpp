#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "rendezvous/base/types.hpp"
#include "rendezvous/core/text/log_line.hpp"
#include "rendezvous/net/io/frame_socket.hpp"
#include "rendezvous/net/io/stranger_list.hpp"
#include "rendezvous/net/io/tls.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

namespace boost::asio {
class io_context;
}

namespace torchup {

class Coordinator;

/// The first byte of agent_preface, or of TLS: neither a store client's nor an HTTP method's.
[[nodiscard]] constexpr bool begins_agent(unsigned char first_byte) {
  return first_byte == 't' || begins_tls(first_byte);
}

struct AgentSessionsOptions {
  std::string token = {};  ///< agents must prove it, by TLS; empty: none is asked for
  /// What TLS is spoken with; called for each connection. Unset: the token alone, and none without one.
  std::function<std::shared_ptr<const TlsContext>()> tls = {};
  /// Takes over a connection on which HTTP is spoken within TLS, with the first bytes. Unset: it is closed.
  std::function<void(UniqueFd socket, std::unique_ptr<TlsStream> tls, std::string first)> https = {};
  bool embedded = false;      ///< this process is an agent of the job and takes the coordinator with it
  std::string only_job = {};  ///< run id of the one job whose agents are let in; empty: each
  Duration hello_limit = std::chrono::seconds{10};       ///< from when the socket is taken over to the proof
  Duration join_limit = std::chrono::seconds{30};        ///< from the welcome to the first Join or Resume
  Duration frame_limit = torchup::frame_limit;           ///< from a frame's first byte to its last
  Duration wrong_proof_delay = std::chrono::milliseconds{500};  ///< before who has another token is told so
  // What one agent has done for it before others have their turn; at least one frame.
  int frames_of_turn_max = 64;
  Duration turn_limit = std::chrono::milliseconds{1};
  std::size_t connections_max = 20'000;
  /// Who at this port has not said who it is, those who were not welcomed yet among them. Null: a list of its own, of
  /// `unproven_max` and a quarter of the descriptors at most.
  std::shared_ptr<StrangerList> strangers = {};
  std::size_t unproven_max = Strangers::limit;
  /// Of them that did not join yet, welcome or not, and a quarter of the descriptors at most; likewise.
  std::size_t newcomers_max = 20'000;
  /// Unfinished frames and unsent bytes of all agents. Who holds most is closed, first of those who have not joined.
  std::size_t frames_bytes_max = std::size_t{256} << 20;
  /// Whether an agent may come from that numeric address without proving a token. Unset: from everywhere.
  std::function<bool(const std::string& address)> admits = {};
  LogSink log = {};  ///< who was refused and why
};

/// Agents of other processes: speaks agent_codec on their connections and attends the coordinator for them.
class AgentSessions {
 public:
  AgentSessions(boost::asio::io_context& loop, Coordinator& coordinator, AgentSessionsOptions options);
  AgentSessions(const AgentSessions&) = delete;
  AgentSessions& operator=(const AgentSessions&) = delete;
  /// Closes all; the coordinator sees ends of file.
  ~AgentSessions();

  /// Takes over a connected socket whose first byte begins_agent; nothing has been read from it.
  void serve(UniqueFd socket);

  /// For rehearsals: while they are `cut` off, agents find their connections broken, and each new one too.
  void set_cut(bool cut);
  [[nodiscard]] std::size_t count() const;

  /// Closes a connection whose descriptor is needed, and which no stranger gives: the oldest that has not joined, where
  /// there is no token that it has proven. False: there is none.
  bool drop_newcomer(const std::string& why);

  /// What an agent is told for whom there is no descriptor: that it is to come again.
  [[nodiscard]] static std::string busy_text();

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace torchup
