#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "launcher/core/record/launch_event.hpp"
#include "launcher/os/io/loop_wait.hpp"
#include "rendezvous/base/result.hpp"
#include "rendezvous/net/io/asio.hpp"
#include "rendezvous/net/io/lookup.hpp"

namespace torchup {

/// Finds the interface that leads to the other nodes, for --set-socket-ifname. Lives on the loop.
class SocketInterface {
 public:
  /// `record` hears why there is none.
  SocketInterface(asio::io_context& loop, std::function<void(EventBody)> record)
      : loop_{loop}, record_{std::move(record)} {}

  /// What workers get for the master address: the variables by which NCCL and Gloo take the interface towards it, but
  /// for those that the user has set. Group rank 0 finds the interface that has its own address. Name servers have 8
  /// s; nothing comes of an address that is not found by then.
  Task<std::vector<std::string>> variables(std::string address);
  /// Nobody waits for the variables any more: they come at once, and are none.
  void cancel();

 private:
  using Answer = LoopWait<Result<Lookup::Addresses>>;

  asio::io_context& loop_;
  const std::function<void(EventBody)> record_;
  std::weak_ptr<Answer> awaited_;
  bool cancelled_ = false;
};

}  // namespace torchup
