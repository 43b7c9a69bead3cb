#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>

#include "rendezvous/base/result.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

/// Files in folders that others may write too. Everything is opened relative to a descriptor of the folder, so that no
/// part of the way can be exchanged meanwhile; a name that somebody else has laid is not followed.
namespace torchup {

/// Creates `name` below `folder`: a new file, or EEXIST; nothing that stands there is opened.
/// Errors: the system's, without a path.
[[nodiscard]] Result<UniqueFd> create_new_file(int folder, const std::string& name, mode_t mode);

/// Opens what a user has named, for writing: `flags` besides O_WRONLY. A symbolic link is followed when it is ours or
/// root's, as the kernel does in shared folders; a FIFO without a reader is an error, not a wait.
/// Errors: the system's with the path; errc::refused for a link of somebody else.
[[nodiscard]] Result<UniqueFd> open_named_file(const std::string& path, int flags, mode_t mode);

/// Writes `content` to a new file beside `path`, syncs it and renames it over `path`: readers see the old or the new
/// file. A path that exists and is no regular file (a FIFO, /dev/stdout) is written directly. Waits for the disk.
/// Errors: the system's, with the path.
[[nodiscard]] Result<> replace_file_now(const std::string& path, const std::string& content);

/// Puts `content` in place of what stands in `path`, which is made where it is missing: for a file at whose place no
/// other one can be put, such as one that is mounted. Waits for the disk. Errors: as open_named_file.
[[nodiscard]] Result<> overwrite_file_now(const std::string& path, const std::string& content);

inline constexpr std::size_t random_name_length = 8;
/// So many characters of a-z0-9_ that nobody can guess.
[[nodiscard]] std::string random_name();

}  // namespace torchup
