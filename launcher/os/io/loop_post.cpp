#include "launcher/os/io/loop_post.hpp"

#include <boost/asio/post.hpp>
#include <mutex>

namespace torchup {

struct LoopPost::Connection {
  std::mutex mutex;
  asio::io_context* loop;
};

LoopPost::LoopPost(asio::io_context& loop) : connection_{std::make_shared<Connection>()} { connection_->loop = &loop; }

void LoopPost::operator()(std::function<void()> work) const {
  const std::lock_guard lock{connection_->mutex};
  if (connection_->loop == nullptr) return;
  asio::post(*connection_->loop, [connection = connection_, work = std::move(work)] {
    // Only the loop's thread cuts, so this needs no lock.
    if (connection->loop != nullptr) work();
  });
}

void LoopPost::cut() const {
  const std::lock_guard lock{connection_->mutex};
  connection_->loop = nullptr;
}

}  // namespace torchup
