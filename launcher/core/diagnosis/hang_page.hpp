#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/core/diagnosis/hang_verdict.hpp"

/// What people are told of a hang. What strangers wrote (names, files, kernels' words) is made printable here.
namespace torchup {

/// Blocks of the page: culprits, and ranks that do the same. What more there is, is counted.
inline constexpr std::size_t told_blocks_max = 16;
/// More members of a group that does the same are not counted out: "0-7,12-60:4" is cut behind so much.
inline constexpr std::size_t told_ranks_bytes_max = 128;

/// Everything that the page, the files and the events of one hang are made of.
struct HangReport {
  std::uint64_t number = 0;
  bool asked = false;                       ///< somebody wanted to see the ranks
  std::optional<HangVerdict> verdict = {};  ///< without one, they get on
  Duration silence{0};
  HangAction action = HangAction::none;
  HangSpared spared = HangSpared::nobody;  ///< as in hang::Found
  OnHang on_hang = OnHang::report;
  std::vector<RankLook> looks = {};  ///< by rank
  friend bool operator==(const HangReport&, const HangReport&) = default;
};

/// What is the matter, in our words, and those of the program behind them: what it calls, and on which group.
struct HangWords {
  std::string ours;
  std::string said;  ///< or empty
};
[[nodiscard]] HangWords hang_words(const HangReport& told);

/// Both in one line: `No progress for 64 s, last step 1233: rank 3 on nodeb is stuck; ranks 0-2 wait for it: all_reduce
/// #1234 (default_pg, 4.0 MiB float32)`. Of a mismatch with what each side calls. Who may only read sees ours
/// (rendezvous/core/ops/withheld.hpp): it has one colon, and the program's words follow another.
[[nodiscard]] std::string hang_summary(const HangReport& told);

/// The page, line by line: the summary, the culprits, the others, those not seen, and what is done. Ranks that do the
/// same are told once. `own`: those ranks alone, as other nodes than group rank 0's show it. `file`: where all stacks
/// are; empty: nowhere.
[[nodiscard]] std::vector<std::string> hang_page(const HangReport& told, const std::optional<RankSet>& own,
                                                 const std::string& file);

/// `rank 3`, `ranks 0-2,5`.
[[nodiscard]] std::string ranks_text(const RankSet& ranks);

/// `uninterruptible in openat of /nfs/x`, or what else is known of it.
[[nodiscard]] std::string doing_text(const RankLook& look);

}  // namespace torchup
