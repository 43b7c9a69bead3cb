#pragma once

#include <sys/types.h>

#include "launcher/core/options/launch_config.hpp"
#include "launcher/os/ops/status_port.hpp"
#include "launcher/os/ops/user_socket.hpp"
#include "launcher/os/output/disk_thread.hpp"
#include "rendezvous/net/daemon/coordinator_ops.hpp"

namespace torchup {

/// Where a front makes the rounds of its hosts' agents itself: answers those who look at the job and steer it, at its
/// control socket and its status port. Lives on the loop.
class FrontDoors {
 public:
  /// Before any agent comes. `launcher`: the pid that users see. The coordinator must outlive it.
  FrontDoors(asio::io_context& loop, Coordinator& coordinator, const LaunchConfig& job, pid_t launcher,
             DoorWords words);
  FrontDoors(const FrontDoors&) = delete;
  FrontDoors& operator=(const FrontDoors&) = delete;

  /// What cannot be opened is one warning.
  void open();
  /// Nobody comes any more, and the socket's file goes.
  void close() { socket_.close(); }

 private:
  asio::io_context& loop_;
  const LaunchConfig& job_;
  const DoorWords words_;
  DiskThread disk_;
  CoordinatorOps onlookers_;
  UserSocket socket_;
  StatusPort status_;
};

}  // namespace torchup
