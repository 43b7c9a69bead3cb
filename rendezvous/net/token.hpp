#pragma once

#include <string>
#include <string_view>

#include "rendezvous/base/result.hpp"
#include "rendezvous/core/agent_codec.hpp"

/// Proof of the job's secret: HMAC-SHA-256 by libcrypto.
namespace torchup {

[[nodiscard]] Mac hmac_sha256(std::string_view key, std::string_view text);
/// In a time that does not depend on where they differ.
[[nodiscard]] bool same(const Mac& left, const Mac& right);
/// From the kernel's generator; never used twice.
[[nodiscard]] Nonce fresh_nonce();

/// The secret in a file, without the line end.
///
/// Errors: the system's when it cannot be read; errc::bad_value when it is no regular file, is not ours, others may
/// read it, or it is empty; errc::limit_exceeded beyond 4 KiB. Never "no token".
[[nodiscard]] Result<std::string> read_token_file(const std::string& path);

/// The secret in TORCHUP_TOKEN, empty without one. It leaves the environment: no child inherits it, and
/// /proc/<pid>/environ does not show it any more. Before any other thread runs.
[[nodiscard]] std::string take_token_variable();

}  // namespace torchup
