#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "rendezvous/base/result.hpp"
#include "rendezvous/core/link/agent_codec.hpp"

/// The job's secret, and what is made of it: HMAC-SHA-256 by libcrypto.
namespace torchup {

using Mac = std::array<std::uint8_t, 32>;

/// Loads OpenSSL, which proofs need and would load themselves. Errors: errc::refused where there is none, so that a
/// program that has a token can say so before it serves anybody.
[[nodiscard]] Result<> prepare_proofs();
[[nodiscard]] Mac hmac_sha256(std::string_view key, std::string_view text);
/// From the kernel's generator; never used twice.
[[nodiscard]] Nonce fresh_nonce();

/// A handshake shows everybody who hears it an HMAC over text that he knows: he may try guesses at home, as many as he
/// likes. So a token must be one that nobody guesses; 16 random characters of base64 are 96 bits.
inline constexpr std::size_t token_bytes_min = 16;
inline constexpr std::size_t token_distinct_bytes_min = 8;  ///< "aaaaaaaaaaaaaaaa" is long, too
inline constexpr std::size_t token_bytes_max = 4096;

/// The token itself, which `source` (a file, a variable) holds.
///
/// Errors: errc::bad_value when it is too short or too simple, with a command that makes one;
/// errc::limit_exceeded beyond token_bytes_max.
[[nodiscard]] Result<std::string> checked_token(std::string token, std::string_view source);

/// The secret in a file, without the line end.
///
/// It is ours or root's. The group may read it where it is root's and the group ours, as a mounted Secret of Kubernetes
/// is. The service manager's own files (systemd's LoadCredential, in $CREDENTIALS_DIRECTORY) are root's; that the
/// service's user may read them is an entry of their access lists, which shows in the group's bits.
///
/// Errors: the system's when it cannot be read; errc::bad_value when it is no regular file, is another user's, or
/// others may read it; those of checked_token. Never "no token".
[[nodiscard]] Result<std::string> read_token_file(const std::string& path);

/// The secret that the service manager has put at $CREDENTIALS_DIRECTORY/token (systemd's LoadCredential=token:FILE),
/// empty without one. Errors: as of read_token_file, but for its mode: its folder is guarded.
[[nodiscard]] Result<std::string> read_credential_token();

/// The secret in TORCHUP_TOKEN, empty without one. It leaves the environment: no child inherits it, and
/// /proc/<pid>/environ does not show it any more. Before any other thread runs.
[[nodiscard]] std::string take_token_variable();

}  // namespace torchup
