#pragma once

#include <string>
#include <utility>

#include "rendezvous/base/result.hpp"

namespace torchup {

/// The folder with the hook of Python workers (launcher/python/injected/torchup_worker.py), which stands first on their
/// PYTHONPATH: `hook` in a directory in memory of this launcher's, both 0700. The bytecode of what each worker runs at
/// its start is there from the first one on, for the Python of this build (cmake/embed_bytecode.py); all other
/// bytecode, and that of other Pythons, is kept there by the workers that make it.
///
/// Where both processes of a launcher were killed the next launcher of this user clears it away, with its run directory
/// (os/output/run_directory).
class HookFolder {
 public:
  /// Errors: the system's, with the path: no memory to be had there, no right; errc::refused where /dev/shm is none.
  [[nodiscard]] static Result<HookFolder> make();
  HookFolder(HookFolder&& other) noexcept : directory_{std::exchange(other.directory_, {})} {}
  HookFolder& operator=(HookFolder&&) = delete;
  ~HookFolder();

  [[nodiscard]] std::string path() const;

 private:
  explicit HookFolder(std::string directory) : directory_{std::move(directory)} {}

  std::string directory_;  ///< empty: moved from
};

}  // namespace torchup
