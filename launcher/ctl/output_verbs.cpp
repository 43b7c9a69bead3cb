// logs and stacks: what workers have written, and where they are.

#include <fmt/format.h>

#include <charconv>

#include "launcher/core/text/text.hpp"
#include "launcher/ctl/job_text.hpp"
#include "launcher/ctl/target.hpp"
#include "launcher/ctl/values.hpp"
#include "launcher/ctl/verbs.hpp"

namespace torchup {
namespace {

constexpr int follow_wait_s = 20;

/// Whether anybody still says that the job runs.
bool still_runs(const Target& target) {
  const auto snapshot = ask_json(target.door, {.target = target.path()});
  const auto* job = std::get_if<json>(&snapshot);
  return job && text_in(*job, "ended").empty();
}

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
      if (!answer) return gone(trouble_of(target_.door, answer.error()), follow);
      if (answer->status != 200) return gone(trouble_of(*answer), follow);
      tell_of_loss(*answer);
      if (const int code = give(answer->body); code != CtlExit::done) return code;
      const std::uint64_t next = answer->offset.value_or(offset_ + answer->body.size());
      const bool at_end = answer->body.empty();
      if (at_end && (!follow || over)) return CtlExit::done;
      if (!at_end && next <= offset_) return complain("the answers do not get on", CtlExit::nobody);
      offset_ = std::max(offset_, next);
      begun_ = true;
      // Between the answer and this question more may have been written: it is read once the end is known.
      if (at_end) over = !still_runs(target_);
    }
  }

 private:
  [[nodiscard]] std::string place(bool waits) const {
    return target_.path(fmt::format("/ranks/{}/log?stream={}&offset={}{}", rank_, stream_, offset_,
                                    waits ? fmt::format("&wait_s={}", follow_wait_s) : ""));
  }
  /// A launcher that ends takes its socket with it: what it had to say is said.
  [[nodiscard]] int gone(const Trouble& trouble, bool follow) const {
    if (follow && begun_ && trouble.exit_code != CtlExit::forbidden) return CtlExit::done;
    return complain(trouble);
  }
  void tell_of_loss(const HttpAnswer& answer) {
    if (begun_) return;
    if (answer.source == "memory")
      complain(fmt::format("rank {} has no log files: this is what memory has of it, 16 KiB at most", rank_), 0);
  }

  const Target& target_;
  std::int64_t rank_;
  std::string stream_;
  std::uint64_t offset_ = 0;
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
