#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "rendezvous/base/result.hpp"
#include "rendezvous/base/types.hpp"
#include "rendezvous/core/membership/job_snapshot.hpp"

namespace torchup {

/// Raised whenever a reader of the former version would misunderstand the bytes: a field that is added at the end of a
/// structure is no such case, who does not know it passes over it.
inline constexpr std::uint32_t job_format_version = 1;

struct SavedJob {
  RunId run_id{""};
  JobSnapshot snapshot = {};
  friend bool operator==(const SavedJob&, const SavedJob&) = default;
};

/// One job as the content of a file: the line "torchupd job", the format's version, a checksum, the fields.
[[nodiscard]] std::string encode_job(const SavedJob& job);

/// The opposite. Whatever was cut off, changed or written by another version is an error, never a different job: a
/// phase or stage that only a newer release knows is errc::wrong_version too, for who is in a round cannot be guessed.
///
/// Errors, each with a reason that makes sense behind a file's name: errc::wrong_version; errc::bad_frame for anything
/// else.
[[nodiscard]] Result<SavedJob> decode_job(std::string_view bytes);

}  // namespace torchup
