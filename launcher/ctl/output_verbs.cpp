// logs and stacks: what workers have written, and where they are.

#include <fmt/format.h>

#include <boost/system/errc.hpp>
#include <charconv>
#include <map>
#include <thread>
#include <utility>

#include "launcher/core/text/text.hpp"
#include "launcher/ctl/job_text.hpp"
#include "launcher/ctl/target.hpp"
#include "launcher/ctl/values.hpp"
#include "launcher/ctl/verbs.hpp"

namespace torchup {
namespace {

constexpr int follow_wait_s = 20;
constexpr auto ask_again = std::chrono::milliseconds{500};

/// The letter of a rank in a job's snapshot; nothing where it has no place.
std::optional<char> letter_of(const json& job, std::int64_t rank) {
  const json* const nodes = member(job, "nodes");
  if (!nodes || !nodes->is_object()) return std::nullopt;
  for (const json& node : *nodes) {
    const auto first = integer_in(node, "first_rank");
    const std::string letters = text_in(node, "ranks");
    if (!first || *first < 0 || rank < *first || rank - *first >= static_cast<std::int64_t>(letters.size())) continue;
    return letters[static_cast<std::size_t>(rank - *first)];
  }
  return std::nullopt;
}

/// How a job stands, as far as a worker's log is concerned.
enum class LogState : std::uint8_t {
  goes_on,
  ending,  ///< the job has ended, and its worker has not: it has its grace
  over,    ///< nobody writes into it any more
  untold,  ///< nobody says
};

/// One worker's stream, from its first byte on.
class LogReader {
 public:
  LogReader(const Target& target, std::int64_t rank, std::string stream)
      : target_{target}, rank_{rank}, stream_{std::move(stream)} {}

  int copy(bool follow) {
    bool over = false;  // nothing more is written
    while (true) {
      const bool waits = follow && begun_ && !over;
      const auto answer = ask(target_.door, {.target = place(waits)},
                              far_answer_limit + std::chrono::seconds{waits ? follow_wait_s : 0});
      if (!answer || answer->status != 200) {
        const Trouble trouble = answer ? trouble_of(*answer) : trouble_of(target_.door, answer.error());
        if (!follow || !begun_ || trouble.exit_code == CtlExit::forbidden) return complain(trouble);
        const LogState log = over ? LogState::over : state();
        if (log == LogState::untold) return complain(trouble);
        if (log != LogState::goes_on) return CtlExit::done;  // what it had to say is said
        std::this_thread::sleep_for(ask_again);              // its node is away, or between two attempts
        continue;
      }
      if (turns_to(answer->log)) continue;
      tell_of_loss(*answer);
      if (const int code = give(answer->body); code != CtlExit::done) return code;
      const std::uint64_t next = answer->offset.value_or(offset_ + answer->body.size());
      const bool at_end = answer->body.empty();
      if (at_end && next < offset_) {
        complain(fmt::format("the log of rank {} is shorter than it was: what comes from here on", rank_), 0);
        offset_ = next;
      }
      if (at_end && (!follow || over)) return CtlExit::done;
      if (!at_end && next <= offset_) return complain("the answers do not get on", CtlExit::nobody);
      offset_ = std::max(offset_, next);
      begun_ = true;
      // Between the answer and this question more may have been written: it is read once the end is known.
      if (at_end) over = state() == LogState::over;
    }
  }

 private:
  [[nodiscard]] std::string place(bool waits) const {
    return target_.path(fmt::format("/ranks/{}/log?stream={}&offset={}{}{}", rank_, stream_, offset_,
                                    log_ != 0 ? fmt::format("&log={}", log_) : "",
                                    waits ? fmt::format("&wait_s={}", follow_wait_s) : ""));
  }
  /// Whether another node's log is read from now on, where the rank is now: from where it was left, if it was there
  /// before.
  bool turns_to(std::uint64_t log) {
    const std::uint64_t former = std::exchange(log_, log);
    if (former == 0 || log == 0 || log == former) return false;
    read_[former] = offset_;
    const auto known = read_.find(log);
    offset_ = known == read_.end() ? 0 : known->second;
    complain(fmt::format("rank {} is on another node now: its log there, {}", rank_,
                         offset_ == 0 ? "from its beginning" : "from where it was left"),
             0);
    return true;
  }
  [[nodiscard]] LogState state() const {
    const bool of_launcher = std::holds_alternative<SocketFile>(target_.door.at) && integer_in(target_.row, "pid");
    auto answer = ask(target_.door, {.target = target_.path()});
    const auto was_cut = [&] {
      return !answer && !nobody_is_there(answer.error()) && answer.error().code != boost::system::errc::timed_out;
    };
    if (of_launcher && was_cut()) {  // it may be about to end
      std::this_thread::sleep_for(ask_again);
      answer = ask(target_.door, {.target = target_.path()});
    }
    // A launcher that ends takes its socket with it.
    if (!answer && of_launcher && nobody_is_there(answer.error())) return LogState::over;
    const auto snapshot = json_of(target_.door, answer);
    const auto* const job = std::get_if<json>(&snapshot);
    if (!job) return LogState::untold;
    if (text_in(*job, "ended").empty()) return LogState::goes_on;
    const auto letter = letter_of(*job, rank_);
    const bool lives = letter && std::string_view{"srwh"}.find(*letter) != std::string_view::npos;
    return lives ? LogState::ending : LogState::over;
  }
  void tell_of_loss(const HttpAnswer& answer) {
    if (begun_) return;
    if (answer.source == "memory")
      complain(fmt::format("rank {} has no log files: this is what memory has of it, 16 KiB at most", rank_), 0);
  }

  const Target& target_;
  std::int64_t rank_;
  std::string stream_;
  std::uint64_t log_ = 0;                        ///< that is read; 0: nobody has said which one that is
  std::uint64_t offset_ = 0;                     ///< of it
  std::map<std::uint64_t, std::uint64_t> read_;  ///< of the others, how far
  bool begun_ = false;
};

/// Of --rank; negative ones are wrong.
std::optional<std::int64_t> rank_option(const Command& command, std::int64_t otherwise) {
  const auto rank = command.options.integer("rank", otherwise);
  if (rank && *rank >= 0) return *rank;
  return std::nullopt;
}

}  // namespace

int run_logs(const Command& command) {
  const auto rank = rank_option(command, 0);
  if (!rank) return complain("--rank: ranks are counted from 0", CtlExit::usage);
  auto found = find_target(command, command.operands.empty() ? "" : command.operands[0]);
  if (const int* const code = std::get_if<int>(&found)) return *code;
  return LogReader{std::get<Target>(found), *rank, command.options.text("stream", "stdout")}.copy(
      command.options.flag("follow"));
}

int run_stacks(const Command& command) {
  const auto rank = rank_option(command, 0);
  if (!rank) return complain("--rank: ranks are counted from 0", CtlExit::usage);
  auto found = find_target(command, command.operands.empty() ? "" : command.operands[0]);
  if (const int* const code = std::get_if<int>(&found)) return *code;
  const auto& target = std::get<Target>(found);
  std::string query;
  if (command.options.has("rank")) query += fmt::format("?rank={}", *rank);
  if (command.options.flag("native")) query += query.empty() ? "?native=1" : "&native=1";
  const auto answer = ask(target.door, {.target = target.path("/stacks" + query)}, far_answer_limit);
  if (!answer) return complain(trouble_of(target.door, answer.error()));
  if (answer->status != 200) return complain(trouble_of(*answer));
  if (command.options.flag("json")) {
    return give(json_line(json{{"stacks", answer->body}}));
  }
  std::string text = printable_lines(answer->body);
  if (!text.empty() && text.back() != '\n') text += '\n';
  return give(text);
}

}  // namespace torchup
