#include "rendezvous/core/ops/time_ledger.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "rendezvous/core/text/json_text.hpp"

namespace torchup {
namespace {

constexpr std::int64_t second_us = 1'000'000;
constexpr std::int64_t minute_us = 60 * second_us;
constexpr std::int64_t hour_us = 60 * minute_us;
constexpr std::size_t lines_of_losses = 4;

struct Loss {
  Spent part;
  std::string_view word;
};
/// As people read them.
constexpr std::array losses{
    Loss{Spent::waiting, "waiting"},      Loss{Spent::startup, "start-up"},  Loss{Spent::failure, "failures"},
    Loss{Spent::change, "changes"},       Loss{Spent::redone, "redone"},     Loss{Spent::hang, "hangs"},
    Loss{Spent::straggler, "slow ranks"}, Loss{Spent::shutdown, "shutdown"},
};
static_assert(losses.size() + 1 == spent_words.size());

struct Unit {
  std::string_view word;
  std::string_view sign;
  std::int64_t us;
};
Unit unit_of(std::int64_t us) {
  if (us >= hour_us) return {"hours", "h", hour_us};
  if (us >= minute_us) return {"minutes", "min", minute_us};
  return {"seconds", "s", second_us};
}

double share(std::int64_t part, std::int64_t whole) {
  return whole > 0 ? 100.0 * static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

double in(const Unit& unit, std::int64_t us) { return static_cast<double>(us) / static_cast<double>(unit.us); }

/// "1,212".
std::string grouped(std::int64_t number) {
  std::string digits = std::to_string(number);
  const std::size_t begin = number < 0 ? 1 : 0;
  for (std::size_t at = digits.size(); at > begin + 3;) digits.insert(at -= 3, ",");
  return digits;
}

std::string counted(std::int64_t number, std::string_view one, std::string_view many) {
  return fmt::format("{} {}", grouped(number), number == 1 ? one : many);
}

/// "1:12:03".
std::string clock_text(std::int64_t us) {
  const std::int64_t seconds = us / second_us;
  return fmt::format("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
}

std::string comment_on(Spent part, const TimeLedger& ledger, const LedgerCounts& counts) {
  switch (part) {
    case Spent::useful:
      break;
    case Spent::waiting:
      return "for nodes";
    case Spent::startup:
      return ledger.basis == LedgerBasis::processes ? "until the workers ran" : "until the first steps";
    case Spent::failure:
      if (!counts.restarts) return "detection, stop, new start";
      return *counts.restarts == 0 ? "detection and stop"
                                   : counted(*counts.restarts, "restart", "restarts") + ": detection, stop, new start";
    case Spent::change:
      if (!counts.changes) return "of the nodes: stop, new start";
      return counted(*counts.changes, "change", "changes") + " of the nodes: stop, new start";
    case Spent::redone:
      if (!counts.redone_steps) return "steps since the last checkpoints";
      return counted(*counts.redone_steps, "step", "steps") + " since the last checkpoints";
    case Spent::hang:
      if (!counts.hangs) return "until it was found";
      return counted(*counts.hangs, "hang", "hangs") + ": until it was found";
    case Spent::straggler:
      return "waiting for the slowest";
    case Spent::shutdown:
      return ledger.basis == LedgerBasis::processes ? "after the workers" : "after the last steps";
  }
  return "";
}

std::string seconds_text_of(std::int64_t us) { return fmt::format("{}.{:06}", us / second_us, us % second_us); }

std::string loss_line(std::string_view word, std::int64_t us, const TimeLedger& ledger, std::string_view comment) {
  const std::int64_t all = ledger.rank_us();
  const Unit unit = unit_of(all);
  return fmt::format("  {:<10}{:>5.1f} % {:>6.2f} {}   {}", word, share(us, all), in(unit, us), unit.sign, comment);
}

}  // namespace

std::string_view to_text(LedgerBasis basis) {
  switch (basis) {
    case LedgerBasis::processes:
      return "processes";
    case LedgerBasis::steps:
      return "steps";
    case LedgerBasis::mixed:
      return "mixed";
  }
  return "";
}

LedgerBasis basis_of_both(LedgerBasis left, LedgerBasis right) { return left == right ? left : LedgerBasis::mixed; }

void TimeLedger::add(Spent part, std::int64_t time_us) {
  std::int64_t& sum = parts_us_[static_cast<std::size_t>(part)];
  sum += std::clamp(time_us, std::int64_t{0}, part_max_us - sum);
}

void TimeLedger::move(Spent from, Spent to, std::int64_t time_us) {
  std::int64_t& source = parts_us_[static_cast<std::size_t>(from)];
  std::int64_t& target = parts_us_[static_cast<std::size_t>(to)];
  const std::int64_t moved = std::clamp(time_us, std::int64_t{0}, std::min(source, part_max_us - target));
  source -= moved;
  target += moved;
}

TimeLedger& TimeLedger::operator+=(const TimeLedger& other) {
  if (other.rank_us() == 0) return *this;
  basis = rank_us() == 0 ? other.basis : basis_of_both(basis, other.basis);
  for (std::size_t i = 0; i < parts_us_.size(); ++i) add(static_cast<Spent>(i), other.parts_us_[i]);
  return *this;
}

std::int64_t TimeLedger::rank_us() const {
  return std::accumulate(parts_us_.begin(), parts_us_.end(), std::int64_t{0});
}

SpentTime TimeLedger::spent() const {
  SpentTime spent{};
  std::ranges::transform(parts_us_, spent.begin(), [](std::int64_t us) { return us / 1'000; });
  return spent;
}

std::string ledger_json(const TimeLedger& ledger) {
  std::string out;
  JsonObject object{out};
  object.json("rank_seconds", seconds_text_of(ledger.rank_us()));
  for (std::size_t i = 0; i < spent_words.size(); ++i) {
    object.json(spent_words[i], seconds_text_of(ledger.us(static_cast<Spent>(i))));
  }
  object.text("basis", to_text(ledger.basis));
  object.end();
  return out;
}

std::vector<std::string> ledger_lines(const TimeLedger& ledger, const LedgerCounts& counts) {
  const std::int64_t all = ledger.rank_us();
  const Unit unit = unit_of(all);
  const std::string lasted = clock_text(counts.lasted_us);
  const std::string whole = fmt::format("{:.1f} rank {}", in(unit, all), unit.word);
  std::string head = counts.ranks ? fmt::format("{} x {} = {}", counted(*counts.ranks, "rank", "ranks"), lasted, whole)
                                  : fmt::format("{} in {}", whole, lasted);
  std::vector<std::string> lines{fmt::format("{}, {:.1f} % useful", head, share(ledger.us(Spent::useful), all))};
  std::vector<Loss> found;
  for (const Loss& loss : losses) {
    if (ledger.us(loss.part) > 0) found.push_back(loss);
  }
  std::ranges::stable_sort(found, std::ranges::greater{}, [&](const Loss& loss) { return ledger.us(loss.part); });
  std::int64_t rest = 0;
  std::string names;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const auto& [part, word] = found[i];
    if (i < lines_of_losses) {
      lines.push_back(loss_line(word, ledger.us(part), ledger, comment_on(part, ledger, counts)));
      continue;
    }
    rest += ledger.us(part);
    names += (names.empty() ? "" : ", ") + std::string{word};
  }
  if (rest > 0) lines.push_back(loss_line("others", rest, ledger, names));
  return lines;
}

}  // namespace torchup
