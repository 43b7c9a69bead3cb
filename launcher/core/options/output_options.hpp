#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace torchup {

/// How our own lines are written: in the words of --log-level and --log-format, which rendezvous/net/io/log reads.
struct LogWords {
  std::string level = "info";
  std::string format = "text";
  friend bool operator==(const LogWords&, const LogWords&) = default;
};

/// --ledger: whether people are told at the end what the job's time was spent on.
enum class LedgerTelling : std::uint8_t { automatic, always, never };
/// A shorter job's is told only where somebody wants it.
inline constexpr std::int64_t told_ledger_us_min = std::int64_t{60} * 1'000'000;
[[nodiscard]] constexpr bool is_told(LedgerTelling telling, std::int64_t lasted_us) {
  return telling == LedgerTelling::always || (telling == LedgerTelling::automatic && lasted_us > told_ledger_us_min);
}

/// --on-event.
struct EventHookOptions {
  std::string command{};             ///< for sh -c; empty: none
  std::vector<std::string> kinds{};  ///< names of events
  friend bool operator==(const EventHookOptions&, const EventHookOptions&) = default;
};

/// What the command line says about worker output and records, as text. output_plan checks it and gives it meaning.
struct OutputOptions {
  std::string log_dir{};               ///< empty: a temporary folder, which goes if nothing was written in it
  std::string redirects = "0";         ///< 0 to 3, or LOCAL_RANK:VALUE,…
  std::string tee = "0";               ///< the same syntax
  std::string local_ranks_filter{};    ///< comma list of local ranks; empty: all
  std::string line_prefix_template{};  ///< empty: `[${role_name}${local_rank}]:`
  std::vector<std::string> duplicate_stdout_filters{};
  std::vector<std::string> duplicate_stderr_filters{};
  std::uint64_t log_max_bytes = 0;  ///< size at which a log file is rotated; 0: never
  bool capture = true;              ///< false: workers without redirect or tee write to our own descriptors
  LogWords log{};
  std::string events_file{};      ///< empty: none
  std::string result_file{};      ///< empty: none
  std::string termination_log{};  ///< empty: none
  LedgerTelling ledger = LedgerTelling::automatic;
  EventHookOptions on_event{};
  friend bool operator==(const OutputOptions&, const OutputOptions&) = default;
};

}  // namespace torchup
