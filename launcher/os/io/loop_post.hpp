#pragma once

#include <functional>
#include <memory>

#include "rendezvous/net/io/asio.hpp"

namespace torchup {

/// The way from a writer thread back to the loop. Copies share one connection; `cut` ends it, and what is posted later
/// is dropped: a thread blocked in a write may outlive the loop.
class LoopPost {
 public:
  explicit LoopPost(asio::io_context& loop);
  void operator()(std::function<void()> work) const;
  void cut() const;

 private:
  struct Connection;
  std::shared_ptr<Connection> connection_;
};

}  // namespace torchup
