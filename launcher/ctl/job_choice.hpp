#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "launcher/core/text/json.hpp"

namespace torchup {

/// A job as one of those who were asked tells of it.
struct SeenJob {
  std::size_t door = 0;  ///< who
  std::string run_id = {};
  std::optional<std::int64_t> pid = {};  ///< the launcher's own, where one answered
  json row = {};
  std::optional<uid_t> owner = {};  ///< of the folder with the door; none of a port

  /// Nobody else's launcher can be of it.
  [[nodiscard]] bool of_one_node() const;
};

/// The rows of an answer to `GET /v1/jobs`; those without a run id are none.
[[nodiscard]] std::vector<SeenJob> seen_jobs(std::size_t door, const json& answer, std::optional<uid_t> owner = {});

/// When the job began, by its coordinator's word, of which a row tells: two of one run id that have begun at other
/// times are two jobs. Empty where the row says nothing of it: a launcher that knows no coordinator does not, and one
/// that tells of a job's end may know it by itself alone.
[[nodiscard]] std::string begin_of(const json& row);

/// Whether `word` is all of its run id, or its launcher's pid: another job can be meant by no more than that.
[[nodiscard]] bool is_named_whole(const SeenJob& job, std::string_view word);

struct NoChoice {
  std::string text;                          ///< what is wrong, for people
  std::vector<std::string> candidates = {};  ///< those that it could be
  /// Whether somebody who has not answered yet could be who is meant.
  bool may_come = false;
};

/// Which job is meant by `word`: a run id, else a launcher's pid, else the beginning of one run id alone; the empty
/// word is the only job that there is. Launchers of one job of several nodes are one job, those of two users are of
/// two. Of those who tell of it a launcher is taken before a daemon, and one that has a coordinator's word before
/// others.
[[nodiscard]] std::variant<const SeenJob*, NoChoice> choose_job(std::span<const SeenJob> jobs, std::string_view word);

}  // namespace torchup
