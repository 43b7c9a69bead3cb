#include "worker_runtime/state/save_turn.hpp"

#include <chrono>
#include <map>
#include <mutex>
#include <utility>

namespace torchup {

namespace {

/// By folder: when the last one in line has gone, and how many are in it.
struct Line {
  std::shared_future<void> last;
  int length = 0;
};
struct Lines {
  std::mutex mutex;
  std::map<std::string, Line> by_folder;
};
Lines& lines() {
  static Lines all;
  return all;
}

}  // namespace

SaveTurn::SaveTurn(const std::filesystem::path& folder) : folder_{std::filesystem::weakly_canonical(folder).string()} {
  const std::lock_guard lock{lines().mutex};
  Line& line = lines().by_folder[folder_];
  if (!line.last.valid()) {
    std::promise<void> nobody;
    nobody.set_value();
    line.last = nobody.get_future().share();
  }
  before_ = std::exchange(line.last, gone_.get_future().share());
  ++line.length;
}

SaveTurn::~SaveTurn() {
  before_.wait();  // who leaves the line early lets nobody pass those before
  const std::lock_guard lock{lines().mutex};
  const auto line = lines().by_folder.find(folder_);
  if (--line->second.length == 0) lines().by_folder.erase(line);
  gone_.set_value();
}

bool SaveTurn::is_next() const { return before_.wait_for(std::chrono::seconds{0}) == std::future_status::ready; }

}  // namespace torchup
