#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/base/types.hpp"
#include "rendezvous/core/round/rendezvous.hpp"
#include "rendezvous/core/text/source_list.hpp"
#include "rendezvous/net/store/store_server.hpp"

namespace boost::asio {
class io_context;
}

namespace torchup {

class Coordinator;
class Log;

struct DaemonSettings {
  std::string bind = "localhost";
  Port port{29400};
  StoreLimits store = {};
  ConnectionLimits connections = {};
  std::string token = {};
  std::string tls_cert = {};  ///< CommonPortOptions, and below
  std::string tls_key = {};
  std::string read_token = {};  ///< CoordinatorOpsOptions, and below
  std::vector<std::string> host_names = {};
  bool control_socket = false;   ///< in the user's runtime directory; where there is none, a warning says why
  SourceList allowed = {};       ///< networks from which somebody may come without proving the token
  std::string state_dir = {};    ///< empty: jobs are not kept
  std::string events_file = {};  ///< that gets the events of all jobs; empty: none does
  int agents_max = RendezvousSettings{}.agents_max;
  bool torchrun_store_here = false;  ///< workers of torchrun's agents meet in this process (TorchrunHostOptions)
  bool store_only = false;           ///< neither agents nor pages, and torchrun's keys are keys as any other
};

/// What torchupd serves: one port for store clients, agents and pages.
///
/// Destroyed without `end`, as when an exception leaves the loop, it leaves the jobs' files as a kill would.
class Daemon {
 public:
  Daemon(boost::asio::io_context& loop, DaemonSettings settings, Log& log);
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;
  ~Daemon();

  /// Reads the state, listens. A number: it cannot, the log says why, and the process ends with it.
  [[nodiscard]] std::optional<int> start();
  /// Runs the loop to its end.
  void run();
  /// "127.0.0.1:29400", after start().
  [[nodiscard]] std::string address() const;
  [[nodiscard]] Port port() const;
  [[nodiscard]] std::size_t connection_count() const;
  /// Of the jobs that meet here; before start() it may be made one of several.
  [[nodiscard]] Coordinator& coordinator();
  /// Accepts nobody any more; `done` is called when the last client of the store has gone.
  void drain(std::function<void()> done);
  /// The jobs' last states go to their files. The last call, when all is well.
  void end();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace torchup
