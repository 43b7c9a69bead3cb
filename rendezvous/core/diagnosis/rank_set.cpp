#include "rendezvous/core/diagnosis/rank_set.hpp"

#include <algorithm>
#include <charconv>
#include <optional>

#include "rendezvous/core/link/messages.hpp"

namespace torchup {
namespace {

/// Takes a number of 0 to world_size_max - 1 off the front of `text`.
std::optional<int> take_number(std::string_view& text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || number < 0 || number >= world_size_max) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

bool take_sign(std::string_view& text, char sign) {
  if (!text.starts_with(sign)) return false;
  text.remove_prefix(1);
  return true;
}

/// FIRST, FIRST-LAST or FIRST-LAST:STEP.
std::optional<RankRun> parse_run(std::string_view text) {
  const auto first = take_number(text);
  if (!first) return std::nullopt;
  RankRun run{*first, *first, 1};
  if (take_sign(text, '-')) {
    const auto last = take_number(text);
    if (!last || *last <= run.first) return std::nullopt;
    run.last = *last;
    if (take_sign(text, ':')) {
      const auto step = take_number(text);
      if (!step || *step < 1 || (run.last - run.first) % *step != 0) return std::nullopt;
      run.step = *step;
    }
  }
  return text.empty() ? std::optional{run} : std::nullopt;
}

}  // namespace

RankSet::RankSet(std::vector<Rank> ranks) {
  std::ranges::sort(ranks);
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  for (std::size_t at = 0; at < ranks.size();) {
    const int first = ranks[at].value();
    std::size_t count = 1;
    const int step = at + 1 < ranks.size() ? ranks[at + 1].value() - first : 1;
    while (at + count < ranks.size() && ranks[at + count].value() - ranks[at + count - 1].value() == step) ++count;
    // Two ranks with a gap between them are shorter as two, and the second may begin a longer stretch.
    if (count == 2 && step != 1) count = 1;
    runs_.push_back({first, ranks[at + count - 1].value(), count == 1 ? 1 : step});
    at += count;
  }
}

std::int64_t RankSet::size() const {
  std::int64_t sum = 0;
  for (const RankRun& run : runs_) sum += (run.last - run.first) / run.step + 1;
  return sum;
}

bool RankSet::contains(Rank rank) const {
  const auto run = std::ranges::lower_bound(runs_, rank.value(), {}, &RankRun::last);
  return run != runs_.end() && rank.value() >= run->first && (rank.value() - run->first) % run->step == 0;
}

std::vector<Rank> RankSet::below(int end) const {
  std::vector<Rank> ranks;
  for (const RankRun& run : runs_) {
    for (std::int64_t rank = run.first; rank <= run.last && rank < end; rank += run.step) {
      ranks.emplace_back(static_cast<int>(rank));
    }
  }
  return ranks;
}

std::string to_text(const RankSet& ranks) {
  std::string text;
  for (const RankRun& run : ranks.runs()) {
    if (!text.empty()) text += ',';
    text += std::to_string(run.first);
    if (run.last > run.first) text.append("-").append(std::to_string(run.last));
    if (run.step > 1) text.append(":").append(std::to_string(run.step));
  }
  return text;
}

Result<RankSet> parse_rank_set(std::string_view text) {
  RankSet ranks;
  if (text.empty()) return ranks;
  for (bool more = true; more;) {
    const auto comma = text.find(',');
    const auto run = parse_run(text.substr(0, comma));
    if (!run || (!ranks.runs_.empty() && run->first <= ranks.runs_.back().last)) {
      return fail(errc::bad_value, "a set of ranks is not of the form 0-7,12-60:4, in order");
    }
    if (ranks.runs_.size() == rank_runs_max) {
      return fail(errc::limit_exceeded, "a set of ranks has more than " + std::to_string(rank_runs_max) + " stretches");
    }
    ranks.runs_.push_back(*run);
    more = comma != std::string_view::npos;
    if (more) text.remove_prefix(comma + 1);
  }
  return ranks;
}

}  // namespace torchup
