#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launcher/core/record/cause_words.hpp"
#include "rendezvous/base/types.hpp"

namespace torchup {

/// What this machine shows of a cause, a line for each finding: `/mnt/data is full: 0 of 931 MiB are free`,
/// `port 29500: pid 4242 (python3 train.py) listens on it`, `limit of open files: 1024`. `said`: the worker's last
/// words, which may name a path or a port. Nothing where there is nothing to look at, or it may not be looked at. Reads
/// /proc and asks file systems, one of which may stand still: for the disk thread.
[[nodiscard]] std::vector<std::string> find_circumstances(CauseKind kind, std::string_view said);

/// Who listens on that port of this machine, `pid 4242 (python3 train.py)`; empty: nobody whom we may look at. Reads
/// /proc.
[[nodiscard]] std::string listener_on(Port port);

}  // namespace torchup
