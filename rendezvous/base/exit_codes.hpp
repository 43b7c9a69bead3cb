#pragma once

/// The launcher's own exit codes, which are also those of verdicts. What they mean is told in README, "Exit codes"
/// (launcher/core/options/exit_codes).
namespace torchup::exit_code {

inline constexpr int failed = 1;        ///< workers failed, or nobody is left who could say how the job came out
inline constexpr int refused = 2;       ///< the command line
inline constexpr int unfit = 65;        ///< the machine lacks what was asked for
inline constexpr int too_few = 66;      ///< nodes within the join timeout
inline constexpr int unreachable = 67;  ///< the endpoint
inline constexpr int mismatch = 68;     ///< nodes do not fit together
inline constexpr int internal = 70;     ///< a fault of our own
inline constexpr int requeue = 75;      ///< workers have saved their state: the job is to be started again
inline constexpr int terminated = 143;  ///< as by SIGTERM

}  // namespace torchup::exit_code
