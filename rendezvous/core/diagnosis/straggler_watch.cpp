#include "rendezvous/core/diagnosis/straggler_watch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <string_view>

#include "rendezvous/core/diagnosis/operation_words.hpp"
#include "rendezvous/core/text/printable.hpp"
#include "rendezvous/core/text/wording.hpp"

namespace torchup {
namespace {

double to_ms(Duration duration) { return std::chrono::duration<double, std::milli>{duration}.count(); }

int whole_percent(double part, double whole) {
  return whole > 0 ? static_cast<int>(std::min(100 * part / whole, 1e6)) : 0;
}

StragglerFound found_of(const LateMember& member) {
  const Lateness& lateness = member.lateness;
  const double late_ms = to_ms(lateness.late);
  const double step_ms = to_ms(lateness.period);
  return {.rank = lateness.rank,
          .host = member.host,
          .share_percent = whole_percent(late_ms, step_ms),
          .late_ms = late_ms,
          .step_ms = step_ms,
          .last_percent = whole_percent(static_cast<double>(lateness.last), static_cast<double>(lateness.count)),
          .operation = std::string{plain_operation(lateness.signature.operation)},
          .count = lateness.count,
          .bytes = bytes_of(lateness.signature.elements, lateness.dtype),
          .cpu_side = lateness.cpu_side};
}

std::string straggler_name(const std::optional<Rank>& rank, const std::string& host) {
  return rank ? fmt::format("rank {} ({})", rank->value(), printable_start(host))
              : fmt::format("node {}", printable_start(host));
}

/// "31 ms", and below ten "1.4 ms".
std::string straggler_ms_text(double ms) {
  return ms < 10 ? fmt::format("{:.1f} ms", ms) : fmt::format("{:.0f} ms", ms);
}

/// " (4.0 MiB)"; nothing where it is not known.
std::string straggler_size_text(std::int64_t bytes) {
  return bytes < 0 ? std::string{} : fmt::format(" ({})", bytes_text(bytes));
}

}  // namespace

std::string to_text(const StragglerFound& found) {
  return fmt::format("{} is late{}: last in {} % of {} {}{}, by {} of a {} step; the others wait for it",
                     straggler_name(found.rank, found.host), found.cpu_side ? " on the CPU side" : "",
                     found.last_percent, found.count, printable_start(found.operation),
                     straggler_size_text(found.bytes), straggler_ms_text(found.late_ms),
                     straggler_ms_text(found.step_ms));
}

std::string to_text(const StragglerOver& over) {
  return fmt::format("{} is not late any more", straggler_name(over.rank, over.host));
}

bool StragglerWatch::same(const std::optional<Member>& known, const std::optional<LateMember>& seen) {
  return known && seen && known->node == seen->node && known->rank == seen->lateness.rank;
}

std::vector<StragglerNews> StragglerWatch::window(const WindowFindings& findings) {
  std::vector<StragglerNews> news;
  if (!findings.measured) return news;
  const auto& late = findings.straggler;
  windows_without_ = !told_ || same(told_, late) ? 0 : windows_without_ + 1;
  if (windows_without_ >= straggler_windows_over) {
    news.emplace_back(StragglerOver{told_->rank, told_->host});
    told_.reset();
    windows_without_ = 0;
  }
  if (!late) {
    candidate_.reset();
    return news;
  }
  windows_with_ = same(candidate_, late) ? windows_with_ + 1 : 1;
  candidate_ = Member{late->node, late->lateness.rank, late->host};
  if (windows_with_ < straggler_windows_found || same(told_, late)) return news;
  told_ = candidate_;
  news.emplace_back(found_of(*late));
  return news;
}

}  // namespace torchup
