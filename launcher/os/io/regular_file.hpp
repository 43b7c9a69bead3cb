#pragma once

#include <cstddef>
#include <string>

#include "rendezvous/base/result.hpp"

namespace torchup {

/// The content of a file that a user has named; of a longer one the beginning, with more than `bytes_max` bytes. What
/// is no regular file is not waited for.
///
/// Errors: the system's, with the path; errc::bad_value where it is a folder, FIFO, device or socket.
[[nodiscard]] Result<std::string> read_regular_file(const std::string& path, std::size_t bytes_max);

}  // namespace torchup
