#include "launcher/os/agent/hang_desk.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "launcher/core/diagnosis/hang_files.hpp"
#include "launcher/os/io/named_file.hpp"
#include "launcher/os/output/evidence.hpp"

namespace torchup {
namespace {

/// Numbers from here on are of looks that somebody has asked for over HTTP: the agent machine counts from 0.
constexpr std::uint64_t asked_looks = std::uint64_t{1} << 63U;

}  // namespace

HangDesk::HangDesk(asio::io_context& loop, const LaunchConfig& config, WorkerGroup& workers, Output& output,
                   Hooks hooks)
    : loop_{loop}, workers_{workers}, output_{output}, writes_files_{!config.output.log_dir.empty()},
      hooks_{std::move(hooks)}, taker_{loop,
                                       {[this](LookTaken look) { taken(std::move(look)); },
                                        [this](ArrivalsTaken taken) {
                                          hooks_.tell(ArrivalsSeen{taken.number, std::move(taken.ranks),
                                                                   std::move(taken.shared_groups), hooks_.clock()});
                                        }}} {}

LookOrder HangDesk::order_of(std::uint64_t number, const std::vector<LocalRank>& workers) {
  LookOrder order;
  order.number = number;
  order.workers = workers_.looked_at();
  std::erase_if(order.workers,
                [&](const LookedAt& each) { return std::ranges::find(workers, each.local_rank) == workers.end(); });
  return order;
}

void HangDesk::taken(LookTaken look) {
  if (const auto asked = asked_.extract(look.number)) {
    return asked.mapped()(std::move(look.looks), std::move(look.stacks));
  }
  hooks_.tell(LooksTaken{look.number, std::move(look.looks), std::move(look.stacks)});
}

Result<> HangDesk::show(const std::vector<LocalRank>& workers, bool native, LooksShown shown) {
  LookOrder order = order_of(asked_looks + asked_count_++, workers);
  order.asked = true;
  order.native = native;
  const std::uint64_t number = order.number;
  asked_.emplace(number, std::move(shown));
  auto ordered = taker_.take(std::move(order));
  if (!ordered) asked_.erase(number);
  return ordered;
}

void HangDesk::perform(const TakeLooks& action) {
  LookOrder order = order_of(action.number, action.workers);
  order.asked = action.asked;
  const auto ordered = action.arrivals_only ? taker_.take_arrivals(std::move(order)) : taker_.take(std::move(order));
  if (ordered) return;
  // The others wait for an answer.
  hooks_.record(event::Notice{"no look at the workers: " + ordered.error().message(), LogLevel::warning});
  if (!action.arrivals_only) hooks_.tell(LooksTaken{action.number, {}, {}});
}

void HangDesk::perform(TellHang& action, const std::string& directory) {
  const bool has_files = writes_files_ && !directory.empty();
  const std::string path = has_files ? fmt::format("{}/hang_{}", directory, action.report.number) : "";
  hooks_.record(hang_event(action.report, action.own, has_files ? path + ".txt" : ""));
  if (!has_files) return;
  auto told = std::make_shared<const TellHang>(std::move(action));
  spawn(loop_, "hang files", write(std::move(told), path));
}

/// The texts are made aside too: they can be long.
Task<> HangDesk::write(std::shared_ptr<const TellHang> told, std::string path) {
  std::function<std::string()> work = [told, path] {
    const auto text = replace_file_now(path + ".txt", hang_text(told->report, told->stacks));
    const auto numbers = replace_file_now(path + ".json", hang_json(told->report, told->own));
    return !text ? text.error().message() : !numbers ? numbers.error().message() : std::string{};
  };
  const std::optional<std::string> problem = co_await output_.disk().ask(std::move(work));
  if (!problem) hooks_.record(event::Fault{disk_is_dead(path).message()});
  if (problem && !problem->empty()) hooks_.record(event::Fault{*problem});
}

void HangDesk::perform(const ShowWorkers& action) {
  for (const LivingWorker& worker : workers_.living()) {
    if (std::ranges::find(action.workers, worker.local_rank) == action.workers.end()) continue;
    event::WorkerSeen seen;
    seen.worker = {worker.rank, worker.local_rank, worker.pid};
    seen.state = process_state(worker.pid);
    if (worker.progress) seen.step = worker.progress->step;
    seen.on_page = action.on_page;
    hooks_.record(std::move(seen));
  }
}

}  // namespace torchup
