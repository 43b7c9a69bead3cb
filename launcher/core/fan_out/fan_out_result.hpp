#pragma once

#include <string>
#include <vector>

namespace torchup {

/// What the agent of one host wrote as its result, RECORDS.md's JSON; the last of several, one behind the other.
struct HostResult {
  std::string host;
  std::string text;
  bool left = false;  ///< the job has gone on without it
};

/// The front's `--result-file`: the result of the first host that has one and did not leave, or of the first one, with
/// the job's exit code and `hosts`, the results of all. What cannot be read is left out. Ends with a line feed.
[[nodiscard]] std::string fan_out_result(int exit_code, const std::vector<HostResult>& results);

}  // namespace torchup
