#include "rendezvous/core/link/message_bytes.hpp"

#include <algorithm>
#include <utility>

#include "rendezvous/core/text/names.hpp"

namespace torchup {
namespace {

/// A member's entry and its places in the indices.
constexpr std::size_t message_entry_bytes = 1024;
/// What an allocation takes beyond what was asked for.
constexpr std::size_t block_bytes = 16;

}  // namespace

std::size_t text_bytes(const std::string& text) {
  constexpr std::size_t held_within = 15;
  return text.size() <= held_within ? 0 : text.size() + block_bytes;
}

std::size_t held_bytes(const std::vector<std::string>& texts) {
  std::size_t bytes = texts.size() * sizeof(std::string);
  for (const std::string& text : texts) bytes += text_bytes(text);
  return bytes;
}

std::size_t held_bytes(const Join& join) {
  std::size_t bytes =
      message_entry_bytes + join.addresses.size() * sizeof(std::string) + join.facts.size() * sizeof(Fact);
  // A member is found by its node and its host, whose names the indices have too.
  bytes += 2 * (text_bytes(join.node.value()) + text_bytes(join.host));
  bytes += text_bytes(join.role) + text_bytes(join.terms.hostlist) + text_bytes(join.unfit);
  for (const std::string& address : join.addresses) bytes += text_bytes(address);
  for (const Fact& fact : join.facts) bytes += text_bytes(fact.name) + text_bytes(fact.value);
  return bytes;
}

std::size_t held_bytes(const std::vector<WorkerFailure>& failures) {
  std::size_t bytes = failures.size() * sizeof(WorkerFailure);
  for (const WorkerFailure& failure : failures) {
    bytes += text_bytes(failure.host) + text_bytes(failure.message) + text_bytes(failure.error_file);
  }
  return bytes;
}

std::size_t held_bytes(const Verdict& verdict) {
  return text_bytes(verdict.reason) + text_bytes(verdict.reporter) + held_bytes(verdict.failures);
}

Verdict told_verdict(Verdict verdict, std::size_t members) {
  std::vector<WorkerFailure>& failures = verdict.failures;
  if (!failures.empty()) {
    const auto root = failures.begin() + static_cast<std::ptrdiff_t>(root_cause(failures));
    std::rotate(failures.begin(), root, root + 1);
  }
  failures.resize(std::min(failures.size(), failures_kept_max));
  return shortened(std::move(verdict), verdict_told_bytes_max / std::max<std::size_t>(1, members));
}

Verdict shortened(Verdict verdict, std::size_t bytes) {
  const auto room_for_text = [](std::size_t left) { return left - std::min(left, block_bytes); };
  bytes -= std::min(bytes, text_bytes(verdict.reporter));
  verdict.reason.resize(cut_text(verdict.reason, room_for_text(bytes / 2)).size());
  std::size_t left = bytes - text_bytes(verdict.reason), kept = 0;
  for (std::size_t of_rows = left / 2; kept < verdict.failures.size(); ++kept) {
    const std::size_t row = sizeof(WorkerFailure) + text_bytes(verdict.failures[kept].host);
    if (row > of_rows) break;
    of_rows -= row;
    left -= row;
  }
  verdict.failures.resize(kept);
  for (WorkerFailure& failure : verdict.failures) {
    failure.message.resize(cut_text(failure.message, room_for_text(left)).size());
    left -= text_bytes(failure.message);
    if (text_bytes(failure.error_file) > left) failure.error_file.clear();  // half a path leads nowhere
    left -= text_bytes(failure.error_file);
  }
  return verdict;
}

}  // namespace torchup
