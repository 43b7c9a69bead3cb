#pragma once

#include <memory>
#include <string>
#include <vector>

#include "rendezvous/base/result.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {

/// The directory of one run: `<log dir>/<run id>_<8 random characters>`, 0700. Its functions wait for the disk: for the
/// disk thread.
struct RunDirectory {
  std::string path;
  std::shared_ptr<const UniqueFd> folder = {};  ///< what is in it is made relative to this descriptor
  std::vector<std::string> temporary =
      {};                      ///< goes at the end, each before those below it; none when the user named one
  std::string in_memory = {};  ///< what the first of `temporary` is a link to; empty: it is a directory itself
};

/// Where temporary files may go, the first choice first: TMPDIR, TEMP, TMP, /tmp, /var/tmp, /usr/tmp and the working
/// directory, as Python's tempfile chooses.
[[nodiscard]] std::vector<std::string> temporary_places();

/// `log_dir` as in OutputPlan; empty: a temporary directory in the first place that takes one of temporary_places.
///
/// `torchelastic_<8 random characters>` is its name, as torchrun's. Where no logs come into it (`for_logs`), but error
/// files at most, it is a link into memory until the end: on a disk, making and removing a directory for each of 256
/// workers took as long as a quarter of all else, and a disk that hangs would keep a job from its start. Where no place
/// takes one (a container's read-only root), it is in memory and stays there, if anything is in it.
///
/// Errors: the system's, with the path.
[[nodiscard]] Result<RunDirectory> make_run_directory(std::string log_dir, const std::string& run_id, bool for_logs);

/// Makes directories below the run's, each after those above it: `names` relative to it. A run directory that somebody
/// has deleted is made anew: the result is `run` as it is then. Errors: the system's, with the path.
[[nodiscard]] Result<RunDirectory> make_directories(RunDirectory run, const std::vector<std::string>& names);

/// Removes what is temporary as far as no file in it has any bytes; what is left in memory goes to the disk, where the
/// link was.
void remove_temporary(RunDirectory run);

/// A directory in memory, 0700, whose name says whose it is (memory_name), for what no disk may keep waiting.
/// Errors: the system's, with the path; errc::refused where /dev/shm is no memory.
[[nodiscard]] Result<std::string> make_memory_directory();
/// Of what is in such a directory: files of ours that nobody wants once their launcher is gone.
inline constexpr const char* hook_folder_name = "hook";

/// At most so many directories of launchers that are gone are cleared away at once, and so many names of a folder are
/// looked at: a temporary folder of thousands is no reason to keep a short job from its end.
inline constexpr int left_behind_max = 256;
inline constexpr int names_looked_at_max = 4096;
/// Does the same for what launchers of this user have left in memory on this machine because both their processes were
/// killed, and removes the hook there; and links to what is gone, beside `own_link`
/// (empty: there is none).
void remove_left_behind(const std::string& own_link);

/// The name in memory of what `link` leads to: `torchelastic_<boot and pid namespace>_<pid>_<start time>_<the link's 8
/// random characters>`, of this process. About processes of other containers nothing is known here: they differ in the
/// first part.
[[nodiscard]] std::string memory_name(const std::string& link);
/// It is such a name, made on this machine since its start and in this pid namespace, and no process has that number
/// and start time any more.
[[nodiscard]] bool launcher_is_gone(const std::string& name);

}  // namespace torchup
