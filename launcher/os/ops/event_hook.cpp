#include "launcher/os/ops/event_hook.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <chrono>
#include <csignal>
#include <utility>

#include "launcher/core/text/signals.hpp"
#include "launcher/os/io/child_end.hpp"
#include "launcher/os/io/fresh_process.hpp"
#include "launcher/os/machine/descendants.hpp"
#include "launcher/os/machine/own_environment.hpp"
#include "rendezvous/net/io/write_all.hpp"

namespace torchup {
namespace {

/// What earlier commands have left behind is told from workers' by its session, for so many of them.
constexpr std::size_t sessions_kept_max = 16;

std::vector<std::string> with_variables(const std::vector<std::pair<std::string, std::string>>& own) {
  std::vector<std::string> all = own_environment();
  for (const auto& [name, value] : own) {
    std::erase_if(all, [&, begin = name + "="](const std::string& line) { return line.starts_with(begin); });
    all.push_back(name + "=" + value);
  }
  return all;
}

/// A file that lies in memory: whoever reads late, or not at all, keeps nobody waiting.
Result<UniqueFd> file_of(std::string_view text) {
  UniqueFd file{::memfd_create("torchup-event", MFD_CLOEXEC)};
  if (!file || write_all(file.get(), text) != 0 || ::lseek(file.get(), 0, SEEK_SET) != 0) {
    return system_error("the event for --on-event");
  }
  return file;
}

/// Empty: it has done its work.
std::string problem_of_end(int status) {
  if (WIFSIGNALED(status)) return "ended by " + signal_text(WTERMSIG(status));
  return WEXITSTATUS(status) == 0 ? "" : fmt::format("exit code {}", WEXITSTATUS(status));
}

}  // namespace

struct EventHook::Child {
  Child(asio::io_context& loop, pid_t of, UniqueFd end) : pid{of}, watch{loop, end.release()} {}
  pid_t pid;
  asio::posix::stream_descriptor watch;
};

EventHook::EventHook(asio::io_context& loop, const LaunchConfig& config, std::string host, Hooks hooks)
    : loop_{loop}, config_{config}, host_{std::move(host)}, hooks_{std::move(hooks)},
      queue_{config.output.on_event, job_teller(config)}, timer_{loop}, finished_{loop} {}

EventHook::~EventHook() = default;

void EventHook::happened(const LaunchEvent& event) {
  if (const auto* round = std::get_if<event::RoundCompleted>(&event.body)) {
    step(hook::Placed{round->placement.group_rank});
  }
  if (config_.output.on_event.command.empty()) return;
  std::string name = event_name(event.body);
  if (std::ranges::find(config_.output.on_event.kinds, name) == config_.output.on_event.kinds.end()) return;
  step(hook::Happened{std::move(name), to_json_line(event, host_), concerns_job(event.body)});
}

void EventHook::step(const hook::Event& event) {
  for (const hook::Action& action : queue_.step(event, std::chrono::steady_clock::now())) {
    std::visit([this](const auto& what) { perform(what); }, action);
  }
  arm();
  if (finishing_ && queue_.idle()) finished_.cancel();
}

void EventHook::arm() {
  const auto deadline = queue_.deadline();
  timer_.cancel();
  if (!deadline) return;
  timer_.expires_at(*deadline);
  timer_.async_wait([this](boost::system::error_code error) {
    if (!error) step(hook::Wake{});
  });
}

void EventHook::perform(const hook::Start& action) {
  auto started = start(action);
  if (!started) {
    asio::post(loop_, [this, why = started.error().message()] { step(hook::Ended{why}); });
    return;
  }
  running_ = *std::move(started);
  sessions_.push_back(running_->pid);
  if (sessions_.size() > sessions_kept_max) sessions_.pop_front();
  watch(running_);
}

void EventHook::perform(const hook::Kill&) {
  if (!running_) return;
  const auto child = std::exchange(running_, nullptr);
  for (const pid_t below : descendants_of(child->pid)) ::kill(below, SIGKILL);
  ::kill(-child->pid, SIGKILL);
  killed_.push_back(child);
}

void EventHook::perform(const hook::Failed& action) {
  hooks_.record(event::HookFailed{config_.output.on_event.command, action.reason});
}

Result<std::shared_ptr<EventHook::Child>> EventHook::start(const hook::Start& action) {
  auto line = file_of(action.line);
  if (!line) return line.error();
  if (!output_) {
    auto streams = hooks_.streams();
    if (!streams) return streams.error();
    output_ = std::move((*streams)[1]);
  }
  const FreshProcess command{.executable = "/bin/sh",
                             .arguments = {"/bin/sh", "-c", config_.output.on_event.command},
                             .environment = with_variables({{"TORCHUP_EVENT", action.name},
                                                            {"TORCHUP_RUN_ID", config_.rendezvous.run_id.value()},
                                                            {"TORCHUP_HOST", host_}}),
                             .in = line->get(),
                             .out = output_->get(),
                             .err = output_->get(),
                             .own_session = true};
  const auto pid = start_fresh(command);
  if (!pid) return Error{pid.error().code, "it cannot be started"};
  auto end = watch_child(*pid);
  if (!end) {
    ::kill(-*pid, SIGKILL);
    return Error{end.error().code, "it cannot be watched"};
  }
  return std::make_shared<Child>(loop_, *pid, *std::move(end));
}

void EventHook::watch(const std::shared_ptr<Child>& child) {
  child->watch.async_wait(asio::posix::descriptor_base::wait_read, [this, child](boost::system::error_code error) {
    if (!error) ended(child);
  });
}

void EventHook::ended(const std::shared_ptr<Child>& child) {
  int status = 0;
  const bool reaped = ::waitpid(child->pid, &status, WNOHANG) == child->pid;
  std::erase(killed_, child);
  const std::vector<Forebear> session{{.pid = child->pid}};
  if (left_behind_by(session).empty()) std::erase(sessions_, child->pid);
  if (running_ != child) return;
  running_.reset();
  step(hook::Ended{reaped ? problem_of_end(status) : ""});
}

Task<> EventHook::finish() {
  if (config_.output.on_event.command.empty()) co_return;
  finishing_ = true;
  step(hook::JobEnds{});
  while (!queue_.idle()) {
    finished_.expires_at(TimePoint::max());
    co_await finished_.async_wait();
  }
}

std::vector<pid_t> EventHook::spared() {
  std::vector<pid_t> pids;
  if (running_) pids.push_back(running_->pid);
  for (const auto& child : killed_) pids.push_back(child->pid);
  std::vector<Forebear> sessions;
  for (const pid_t session : sessions_) sessions.push_back({.pid = session});
  const std::vector<pid_t> heirs = left_behind_by(sessions);
  // The number of a session in which nobody is left may soon be a worker's.
  std::vector<pid_t> alive = pids;
  for (const pid_t heir : heirs) alive.push_back(::getsid(heir));
  std::erase_if(sessions_, [&](pid_t session) { return std::ranges::find(alive, session) == alive.end(); });
  pids.insert(pids.end(), heirs.begin(), heirs.end());
  return pids;
}

}  // namespace torchup
