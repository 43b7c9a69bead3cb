#pragma once

#include <filesystem>
#include <future>
#include <string>

namespace torchup {

/// A place in the line of this process's saves into a folder: they are written in the order in which the program asked
/// for them, whichever object and thread does it. An older step that came after a newer one would look like another
/// run's.
class SaveTurn {
 public:
  /// Joins the line.
  explicit SaveTurn(const std::filesystem::path& folder);
  ~SaveTurn();  ///< the next one may write
  SaveTurn(const SaveTurn&) = delete;
  SaveTurn& operator=(const SaveTurn&) = delete;

  /// Returns when all that joined before have gone.
  void wait() const { before_.wait(); }
  [[nodiscard]] bool is_next() const;

 private:
  std::string folder_;
  std::promise<void> gone_;
  std::shared_future<void> before_;
};

}  // namespace torchup
