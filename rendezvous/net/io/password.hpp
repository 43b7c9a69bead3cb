#pragma once

#include <string>

#include "rendezvous/base/result.hpp"

namespace torchup {

inline constexpr std::size_t password_bytes_max = 4096;

/// The password of etcd's user: from `file` without its line end, or, where that is empty, from the variable
/// TORCHUP_ETCD_PASSWORD, which is wiped.
///
/// Errors: the system's when the file cannot be read; errc::bad_value when it is no regular file, belongs to another
/// user than us and root, others may read it, or it is empty; where there is neither file nor variable.
[[nodiscard]] Result<std::string> read_etcd_password(const std::string& file);

}  // namespace torchup
