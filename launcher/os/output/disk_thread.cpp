#include "launcher/os/output/disk_thread.hpp"

#include "launcher/os/io/named_file.hpp"

namespace torchup {

void DiskThread::when_at_most(std::size_t level, std::function<void()> notice) {
  thread_.when_at_most(level, [post = post_, notice = std::move(notice)] { post(notice); });
}

Task<bool> DiskThread::idle(Duration limit) {
  auto timer = std::make_shared<Timer>(loop_);
  auto done = std::make_shared<bool>(false);
  timer->expires_after(limit);
  when_at_most(0, [timer, done] {
    *done = true;
    timer->cancel();
  });
  co_await timer->async_wait();
  co_return *done;
}

Task<Result<>> DiskThread::replace_file(std::string path, std::string content) {
  std::function<Result<>()> replace = [path, content = std::move(content)] { return replace_file_now(path, content); };
  auto replaced = co_await ask(replace);
  if (!replaced) replaced = disk_is_dead(path);
  co_return *replaced;
}

}  // namespace torchup
