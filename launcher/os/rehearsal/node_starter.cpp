#include "launcher/os/rehearsal/node_starter.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <optional>
#include <utility>
#include <vector>

#include "launcher/core/plan/plan_rehearsal.hpp"
#include "launcher/core/record/launch_event.hpp"
#include "launcher/core/rehearsal/rehearsed_nodes.hpp"
#include "launcher/core/text/signals.hpp"
#include "launcher/os/io/named_file.hpp"
#include "launcher/os/io/own_log.hpp"
#include "launcher/os/machine/descendants.hpp"
#include "launcher/os/machine/own_environment.hpp"
#include "launcher/os/rehearsal/node_process.hpp"
#include "launcher/os/rehearsal/quiet_port.hpp"
#include "launcher/os/rehearsal/shown_stream.hpp"
#include "rendezvous/base/exit_codes.hpp"
#include "rendezvous/net/io/write_all.hpp"

namespace torchup {
namespace {

constexpr const char* token_name = "TORCHUP_TOKEN";

class NodeStarter {
 public:
  NodeStarter(const LaunchConfig& plan, const Guarded& guarded, NodeCommand command, std::string host, Port port)
      : plan_{plan}, guarded_{guarded}, command_{std::move(command)}, host_{std::move(host)}, port_{port},
        agents_(static_cast<std::size_t>(plan.rehearsal.nodes)), nodes_{*plan.rehearsal.script, plan.rehearsal.nodes} {}

  int run() {
    const sigset_t signals = guarded_signals();
    ::sigprocmask(SIG_SETMASK, &signals, nullptr);  // we die with the outer process, and the agents with us
    signals_ = UniqueFd{::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK)};
    step(cast::Begin{});
    while (!result_) wait();
    static_cast<void>(kill_descendants(last_kill_limit));  // whoever still writes without end
    tell(*result_);
    while (unread()) wait();
    return result_->exit_code;
  }

 private:
  void step(const cast::Event& event) {
    for (cast::Action& action : nodes_.step(event, std::chrono::steady_clock::now())) {
      std::visit([this](auto& wanted) { perform(wanted); }, action);
    }
  }

  void perform(const cast::Start& action) {
    const RehearsedNode node{action.node, plan_.rehearsal.nodes, port_, action.start};
    const auto started = at(action.node).start(command_, node, shown_);
    if (started) return;
    own_says({LogLevel::error, fmt::format("node{} cannot be started: {}", action.node, started.error().message())});
    failed_starts_.push_back(action.node);
  }
  void perform(const cast::EndNode& action) {
    at(action.node).signal(SIGTERM);
    at(action.node).resume();
  }
  void perform(const cast::Resume& action) { at(action.node).resume(); }
  void perform(cast::Finish& action) { result_ = std::move(action.result); }

  /// Waits for anything, and does what it asks for.
  void wait() {
    for (const int node : std::exchange(failed_starts_, {})) step(cast::Gone{node, exit_code::unfit});
    const bool over = result_.has_value();
    std::vector<pollfd> watched;
    const auto watch = [&](int fd, short what) { watched.push_back({fd, what, 0}); };
    watch(signals_.get(), POLLIN);
    for (const ShownStream& each : shown_) watch(each.wanted(), POLLOUT);
    for (const NodeProcess& agent : agents_) {
      watch(agent.pidfd(), POLLIN);
      watch(agent.reports(), POLLIN);
      for (std::size_t i = 0; i < shown_.size(); ++i) watch(shown_.at(i).is_full() ? -1 : agent.stream(i), POLLIN);
    }
    ::poll(watched.data(), watched.size(), over && !unread() ? 0 : patience());
    auto seen = watched.begin();
    if ((seen++)->revents != 0) read_signals();
    for (ShownStream& each : shown_) {
      if ((seen++)->revents != 0) each.write();
    }
    for (std::size_t node = 0; node < agents_.size(); ++node) {
      const bool gone = (seen++)->revents != 0;
      if ((seen++)->revents != 0) read_reports(static_cast<int>(node));
      for (std::size_t i = 0; i < shown_.size(); ++i) {
        if ((seen++)->revents != 0) agents_.at(node).read_stream(i, shown_.at(i));
      }
      if (gone) end(static_cast<int>(node));
    }
    if (!result_) step(cast::Wake{});
  }

  [[nodiscard]] int patience() const {
    const auto deadline = nodes_.deadline();
    if (!deadline || result_) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - std::chrono::steady_clock::now());
    return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 60'000));
  }

  void read_signals() {
    for (signalfd_siginfo info{}; ::read(signals_.get(), &info, sizeof info) == sizeof info;) {
      const auto number = static_cast<int>(info.ssi_signo);
      if (number == SIGCHLD) {
        reap_orphans(pids());
        continue;
      }
      if (number == SIGHUP && guarded_.hangup_ignored) continue;  // agents do not know of it
      const bool ends = ends_all_nodes(plan_, number);
      if (ends && result_) hurried_ = true;  // who sends it now does not read our last lines
      for (const NodeProcess& agent : agents_) agent.signal(number);
      if (ends) step(cast::EndsAll{shell_code(number)});
    }
  }

  [[nodiscard]] std::vector<pid_t> pids() const {
    std::vector<pid_t> list;
    for (const NodeProcess& agent : agents_) {
      if (agent.runs()) list.push_back(agent.pid());
    }
    return list;
  }

  void read_reports(int node) {
    const auto read = at(node).read_reports([&](const RehearsalReport& report) { step(cast::Told{node, report}); });
    if (!read) own_says({LogLevel::error, fmt::format("node{}: {}", node, read.error().message())});
  }

  /// What an agent has said before its end counts.
  void end(int node) {
    read_reports(node);
    const int code = at(node).end(shown_);
    step(cast::Gone{node, code});
  }

  void tell(const RehearsalResult& result) {
    const EventBody body = event::RehearsalEnded{result};
    record(body);
    const auto line = to_text(body);
    own_says({line->level, line->text}, page_of(body));
  }

  void record(const EventBody& body) {
    const std::string& path = plan_.output.events_file;
    if (path.empty()) return;
    const auto us = [](auto time) {
      return std::chrono::duration_cast<std::chrono::microseconds>(time.time_since_epoch()).count();
    };
    const LaunchEvent event{{us(std::chrono::system_clock::now()), us(std::chrono::steady_clock::now())}, body};
    const std::string text = to_json_line(event, host_);
    const auto file = open_named_file(path, O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    std::string_view rest = text;
    if (file && write_all(file->get(), rest) == 0) return;
    own_says({LogLevel::error, fmt::format("--events: {} cannot be written", path)});
  }

  /// A line of ours, and what stands below it.
  void own_says(LogLine line, const std::vector<std::string>& page = {}) {
    LogOptions options = own_log(plan_.output.log);
    const bool shown = line.level >= options.level;
    const bool as_json = options.format == LogFormat::json;
    ShownStream& err = shown_[1];
    options.write = [&err](const std::string& each) { err.add(each); };
    Log log{std::move(options)};
    const LogLevel level = line.level;
    log.tell(std::move(line));
    for (const std::string& each : page) {
      if (as_json) {
        log.tell({level, each});
      } else if (shown) {
        err.add(each + "\n");
      }
    }
  }

  [[nodiscard]] bool unread() const {
    return !hurried_ && std::ranges::any_of(shown_, [](const ShownStream& each) { return !each.empty(); });
  }
  NodeProcess& at(int node) { return agents_.at(static_cast<std::size_t>(node)); }

  const LaunchConfig& plan_;
  const Guarded& guarded_;
  const NodeCommand command_;
  const std::string host_;
  const Port port_;
  std::vector<NodeProcess> agents_;
  RehearsedNodes nodes_;
  ShownStreams shown_{ShownStream{STDOUT_FILENO}, ShownStream{STDERR_FILENO}};
  std::vector<int> failed_starts_;  ///< agents that have no process to end
  UniqueFd signals_;
  std::optional<RehearsalResult> result_;
  bool hurried_ = false;
};

}  // namespace

int run_rehearsed_nodes(const LaunchConfig& plan, const Guarded& guarded, std::span<const std::string> words,
                        const std::string& token, const std::string& host) {
  const auto port = quiet_port();
  if (!port) {
    Log{own_log(plan.output.log)}.tell({LogLevel::error, port.error().message()});
    return exit_code::unfit;
  }
  NodeCommand command{{words.begin(), words.end()}, own_environment(), guarded.heritage};
  if (!token.empty()) command.environment.push_back(std::string{token_name} + "=" + token);
  return NodeStarter{plan, guarded, std::move(command), host, *port}.run();
}

}  // namespace torchup
