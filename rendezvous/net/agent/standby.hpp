#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "rendezvous/core/text/log_line.hpp"
#include "rendezvous/net/coordinator/seat_candidate.hpp"

namespace boost::asio {
class io_context;
}

namespace torchup {

struct StandbySettings {
  EtcdSettings etcd = {};
  std::string prefix = "/torchup";
  std::string token = {};                 ///< of the agents, and between daemons
  std::optional<Endpoint> advertised = {};  ///< what agents are sent to; port 0: the one that is listened at
  std::string bind = {};                  ///< as the daemon's; what is loopback is advertised so
  std::function<Port()> port = {};        ///< that is listened at
  /// One line for people, once per change; also for the service manager.
  std::function<void(const std::string& line)> stands = {};
  /// A state in etcd cannot be used: the process ends with 65.
  std::function<void(const Error&)> unusable = {};
  LogSink log = {};
};

/// A torchupd that is one of several: a candidate for the seat of all jobs that meet at them. While another is active
/// it keeps a connection there, as an agent that never joins, so that the other's end is proved to it at once.
class Standby {
 public:
  Standby(boost::asio::io_context& loop, Coordinator& coordinator, StandbySettings settings);
  Standby(const Standby&) = delete;
  Standby& operator=(const Standby&) = delete;
  ~Standby();

  /// After the port is open.
  void start();
  /// The seat is given back, if it is ours.
  void leave(std::function<void()> done);

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace torchup
