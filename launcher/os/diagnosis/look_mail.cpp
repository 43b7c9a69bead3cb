#include "launcher/os/diagnosis/look_mail.hpp"

#include <sys/eventfd.h>

#include <utility>

namespace torchup {

LookMail::LookMail() : closing_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)} {}

void LookMail::put(LocalRank local_rank, const WorkerLooked& answer) {
  {
    const std::lock_guard lock{mutex_};
    const auto owed = owed_.find(local_rank);
    if (owed == owed_.end() || owed->second.number != answer.number) return;
    const bool wanted = owed->second.wanted;
    owed_.erase(owed);
    if (!wanted) return;
    arrived_.push_back({local_rank, answer.length});
  }
  wake_.notify_all();
}

void LookMail::close() {
  {
    const std::lock_guard lock{mutex_};
    closed_ = true;
  }
  wake_.notify_all();
  static_cast<void>(::eventfd_write(closing_.get(), 1));
}

std::optional<std::uint64_t> LookMail::expect(LocalRank local_rank, pid_t pid) {
  const std::lock_guard lock{mutex_};
  const auto owed = owed_.find(local_rank);
  if (owed != owed_.end() && owed->second.pid == pid) return std::nullopt;
  owed_[local_rank] = {pid, ++questions_, true};
  return questions_;
}

void LookMail::forget() {
  const std::lock_guard lock{mutex_};
  for (auto& [local_rank, question] : owed_) question.wanted = false;
  arrived_.clear();
}

std::vector<LookMail::Answer> LookMail::take(TimePoint until) {
  std::unique_lock lock{mutex_};
  wake_.wait_until(lock, until, [this] { return closed_ || !arrived_.empty(); });
  return closed_ ? std::vector<Answer>{} : std::exchange(arrived_, {});
}

bool LookMail::pause(TimePoint until) {
  std::unique_lock lock{mutex_};
  return !wake_.wait_until(lock, until, [this] { return closed_; });
}

bool LookMail::is_closed() const {
  const std::lock_guard lock{mutex_};
  return closed_;
}

}  // namespace torchup
