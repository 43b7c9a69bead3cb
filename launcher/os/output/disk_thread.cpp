#include "launcher/os/output/disk_thread.hpp"

#include "launcher/os/io/named_file.hpp"

namespace torchup {

void DiskThread::when_at_most(std::size_t level, std::function<void()> notice) {
  thread_.when_at_most(level, [post = post_, notice = std::move(notice)] { post(notice); });
}

Task<bool> DiskThread::idle(Duration limit) {
  const auto waiting = std::make_shared<LoopWait<bool>>(loop_, std::chrono::steady_clock::now() + limit);
  when_at_most(0, [asker = std::weak_ptr{waiting}] {
    if (const auto still_there = asker.lock()) still_there->end(true);
  });
  co_await waiting->timer.async_wait();
  co_return waiting->answer.value_or(false);
}

Task<Result<>> DiskThread::write_file(Write write, std::string path, std::string content) {
  std::function<Result<>()> work = [write, path, content = std::move(content)] { return write(path, content); };
  auto written = co_await ask(work);
  if (!written) written = disk_is_dead(path);
  co_return *written;
}

Task<Result<>> DiskThread::replace_file(std::string path, std::string content) {
  return write_file(&replace_file_now, std::move(path), std::move(content));
}

Task<Result<>> DiskThread::overwrite_file(std::string path, std::string content) {
  return write_file(&overwrite_file_now, std::move(path), std::move(content));
}

}  // namespace torchup
