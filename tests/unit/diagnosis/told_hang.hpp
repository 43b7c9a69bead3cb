#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "launcher/core/diagnosis/hang_page.hpp"
#include "tests/unit/diagnosis/looks.hpp"

/// A hang to tell of, for tests.
namespace torchup::told {

using namespace std::chrono_literals;

inline constexpr std::int64_t elements = 1 << 20;

inline AwaitedCollective awaited(const std::string& missing, const std::string& waiting) {
  return {.group = "0",
          .description = "default_pg",
          .number = 1234,
          .operation = "all_reduce",
          .sizes = "[1024, 1024]",
          .elements = elements,
          .dtype = "float32",
          .bytes = 4 * elements,
          .missing = looks::ranks(missing),
          .waiting = looks::ranks(waiting)};
}

/// The spec's example: rank 3 reads, the others wait for it.
inline HangReport example() {
  HangReport told;
  told.silence = 64s + 900ms;
  told.verdict = HangVerdict{
      .kind = HangKind::stuck, .culprits = looks::list({3}), .collective = awaited("3", "0-2"), .last_step = 1233};
  for (int rank = 0; rank < 3; ++rank) {
    RankLook look = looks::in(looks::still(rank), "0", "0-3", looks::call("0", 1234, "gloo:all_reduce", elements));
    look.kernel = "sleeping in futex";
    look.frames = {{"all_reduce", "/t/torch/distributed/distributed_c10d.py", 4181},
                   {"wrapper", "/t/torch/distributed/c10d_logger.py", 83},
                   {"main", "/home/user/train.py", 57}};
    told.looks.push_back(look);
  }
  RankLook culprit = looks::at(looks::still(3), "0", "0-3", 1233);
  culprit.host = "nodeb";
  culprit.pid = 4242;
  culprit.kernel = "sleeping in read of /mnt/data/shard-17.tar";
  culprit.frames = {{"read_shard", "/home/user/data.py", 88}, {"main", "/home/user/train.py", 41}};
  told.looks.push_back(culprit);
  return told;
}

inline std::string page_text(const HangReport& told, const std::string& file = "", std::optional<RankSet> own = {}) {
  std::string text;
  for (const std::string& line : hang_page(told, own, file)) text += line + "\n";
  return text;
}

}  // namespace torchup::told
