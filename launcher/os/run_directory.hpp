#pragma once

#include <string>
#include <vector>

#include "rendezvous/base/result.hpp"

namespace torchup {

/// The directory of one run: `<log dir>/<run id>_<8 random characters>`. Its functions wait for the disk: for the log
/// writer's thread.
struct RunDirectory {
  std::string path;
  std::vector<std::string> temporary;  ///< goes at the end, each before those below it; none when the user named one
  std::string in_memory;               ///< what the first of `temporary` is a link to; empty: it is a directory itself
};

/// `log_dir` as in OutputPlan; empty: a `torchelastic_<8 random characters>` for temporary files.
///
/// Where no logs come into that (`for_logs`), but error files at most, it is a link into memory until the end: on a
/// disk, making and removing a directory for each of 256 workers took as long as a quarter of all else, and a disk that
/// hangs would keep a job from its start.
///
/// Errors: the system's, with the path.
[[nodiscard]] Result<RunDirectory> make_run_directory(std::string log_dir, const std::string& run_id, bool for_logs);

/// Makes the first, and the others in it. Errors: the system's, with the path.
[[nodiscard]] Result<> make_directories(const std::vector<std::string>& directories);

/// Removes what is temporary as far as no file in it has any bytes; what is left in memory goes to the disk, where the
/// link was.
void remove_temporary(RunDirectory run);

}  // namespace torchup
