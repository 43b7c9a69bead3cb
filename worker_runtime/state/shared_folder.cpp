#include "worker_runtime/state/shared_folder.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

namespace torchup {

namespace {

struct Folders {
  std::mutex mutex;
  std::vector<std::weak_ptr<SharedFolder>> used;
};
/// Never destroyed: a Checkpoint of static storage may save for longer than any other static object lives.
Folders& folders() {
  static Folders& all = *new Folders;
  return all;
}

}  // namespace

std::shared_ptr<SharedFolder> SharedFolder::of(const std::filesystem::path& folder) {
  struct stat status {};
  if (::stat(folder.c_str(), &status) != 0) return nullptr;
  const Key key{::getpid(), status.st_dev, status.st_ino};
  const std::lock_guard guard{folders().mutex};
  for (const auto& each : folders().used) {
    if (auto used = each.lock(); used && used->key_ == key) return used;
  }
  std::erase_if(folders().used, [](const auto& each) { return each.expired(); });
  std::shared_ptr<SharedFolder> made{new SharedFolder{key}};
  folders().used.push_back(made);
  return made;
}

void SharedFolder::wait_for_line() {
  const auto last = [&] {
    const std::lock_guard guard{line_};
    return last_;
  }();
  if (last.valid()) last.wait();
}

SaveTurn::SaveTurn(std::shared_ptr<SharedFolder> folder) : folder_{std::move(folder)} {
  const std::lock_guard guard{folder_->line_};
  before_ = std::exchange(folder_->last_, gone_.get_future().share());
}

SaveTurn::~SaveTurn() {
  wait();  // who leaves the line early lets nobody pass those before
  gone_.set_value();
}

void SaveTurn::wait() const {
  if (before_.valid()) before_.wait();
}

bool SaveTurn::is_next() const {
  return !before_.valid() || before_.wait_for(std::chrono::seconds{0}) == std::future_status::ready;
}

}  // namespace torchup
