#include "launcher/os/fan_out/front.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <chrono>
#include <csignal>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "launcher/core/fan_out/fan_out_result.hpp"
#include "launcher/core/fan_out/host_address.hpp"
#include "launcher/core/fan_out/remote_command.hpp"
#include "launcher/core/record/exit_report.hpp"
#include "launcher/core/text/signals.hpp"
#include "launcher/os/agent/signal_source.hpp"
#include "launcher/os/fan_out/front_doors.hpp"
#include "launcher/os/fan_out/front_output.hpp"
#include "launcher/os/fan_out/host_process.hpp"
#include "launcher/os/fan_out/host_watch.hpp"
#include "launcher/os/io/own_log.hpp"
#include "launcher/os/machine/descendants.hpp"
#include "launcher/os/machine/own_environment.hpp"
#include "rendezvous/net/coordinator/agent_sessions.hpp"
#include "rendezvous/net/coordinator/coordinator.hpp"
#include "rendezvous/net/io/log.hpp"

namespace torchup {
namespace {

/// Of all hosts' results; what is more is not kept.
constexpr std::size_t results_bytes_max = std::size_t{64} << 20;
/// How long our last lines may take to be read where a signal has ended the job.
constexpr Duration last_lines_patience = std::chrono::seconds{2};

class Front {
 public:
  Front(const FrontPlan& plan, Guarded guarded, std::string host)
      : plan_{plan}, guarded_{std::move(guarded)}, host_{std::move(host)}, machine_{plan.hosts.settings},
        output_{loop_,
                plan.job.output.events_file,
                plan.hosts.label && (plan.hosts.settings.discovers || plan.hosts.settings.hosts.size() > 1),
                {[this](HostLink link, std::size_t bytes) { acknowledge(link, bytes); },
                 [this](bool held) { step(fan::OutputHeld{held}); }}},
        coordinator_{loop_, [this](LogLine line) { coordinator_says(std::move(line)); }, settings()},
        sessions_{loop_, coordinator_, sessions_options(plan)}, timer_{loop_},
        signals_{loop_, std::move(guarded_.lifeline), [this](const signalfd_siginfo& info) { on_signal(info); },
                 [] { end_alone(); }} {
    LogOptions options = own_log(plan_.job.output.log);
    options.write = [this](const std::string& line) { output_.print(line); };
    log_ = std::make_unique<Log>(std::move(options));
    if (plan_.hosts.settings.own_coordinator) {
      doors_.emplace(loop_, coordinator_, plan_.job, guarded_.outer,
                     DoorWords{[this](std::string why) {
                                 log_->tell({LogLevel::warning, std::move(why)});
                               },
                               log_->sink()});
    }
    if (plan_.hosts.discovery) {
      watch_.emplace(loop_, *plan_.hosts.discovery,
                     HostWatch::Handlers{[this](std::vector<Host> hosts) {
                                           hosts_ = hosts;
                                           step(fan::Listed{std::move(hosts)});
                                         },
                                         [this](std::string why) {
                                           log_->tell({LogLevel::warning, std::move(why)});
                                         }});
    }
  }

  int run() {
    signals_.start();
    if (doors_) doors_->open();
    step(fan::Begin{});
    if (watch_) watch_->start();
    loop_.run();
    return exit_code_;
  }

 private:
  struct Linked {
    std::shared_ptr<HostProcess> process;
    std::string name;
    std::vector<std::string> command;
    int node = 0;
    bool greeted = false;
    std::string result = {};
  };

  /// An agent's connection is there before ssh has reached its host, and its node is looked at before it joins: how
  /// long that may take is its link's business.
  static AgentSessionsOptions sessions_options(const FrontPlan& plan) {
    return {.token = plan.hosts.agents.token,
            .embedded = true,
            .only_job = plan.job.rendezvous.run_id.value(),
            .hello_limit = duration_max,
            .join_limit = duration_max};
  }

  /// No agent can have lost a coordinator before this one: what it knew of would have ended with it.
  static RendezvousSettings settings() {
    RendezvousSettings settings;
    settings.patience = settings.redial = Duration{0};
    return settings;
  }

  // ---- the machine

  void step(const fan::Event& event) {
    events_.push_back(event);
    if (events_.size() > 1) return;  // from within a step
    while (!events_.empty()) {
      for (fan::Action& action : machine_.step(events_.front(), std::chrono::steady_clock::now())) {
        std::visit([this](auto& wanted) { perform(wanted); }, action);
      }
      events_.erase(events_.begin());
    }
    arm();
  }

  void arm() {
    const auto deadline = machine_.deadline();
    if (!deadline) return static_cast<void>(timer_.cancel());
    timer_.expires_at(*deadline);
    timer_.async_wait([this](const boost::system::error_code& error) {
      if (!error) step(fan::Wake{});
    });
  }

  void perform(const fan::Start& action) {
    const bool here = is_this_host(action.host, host_);
    Linked linked{.process = nullptr,
                  .name = std::string{name_of_host(action.host.name)},
                  .command = here ? local_command(plan_.hosts.own_program, other_host(hosts_, host_))
                                  : remote_command(plan_.hosts.command, action.host, plan_.hosts.program),
                  .node = action.node};
    const HostLink link = action.link;
    output_.open(link, linked.name);
    linked.process = std::make_shared<HostProcess>(loop_, handlers_of(link));
    Linked& kept = links_.insert_or_assign(link, std::move(linked)).first->second;
    const auto started = kept.process->start(kept.command, own_environment(), guarded_.heritage);
    if (!started) return step(fan::Broken{link, started.error().message(), {}});
    if (plan_.hosts.settings.own_coordinator) {
      auto socket = kept.process->line().open_agents();
      if (!socket) return step(fan::Broken{link, socket.error().message(), {}});
      sessions_.serve(*std::move(socket));
    }
    kept.process->line().send(link_plan(plan_.hosts, action.host, action.node));
  }

  void perform(const fan::Send& action) {
    if (const auto found = links_.find(action.link); found != links_.end()) {
      found->second.process->line().send(action.message);
    }
  }

  void perform(const fan::Close& action) {
    const auto found = links_.find(action.link);
    if (found == links_.end()) return;
    found->second.process->close();
    output_.close(action.link);
    keep_result(found->second, action.left);
    links_.erase(found);
  }

  void perform(fan::Expect& action) {
    Foretold foretold{.agents = action.agents, .verdict = {}, .others_come = action.others_come};
    if (action.exit_code) {
      foretold.verdict = Verdict{.exit_code = *action.exit_code, .reason = std::move(action.reason)};
    }
    coordinator_.foretell(plan_.job.rendezvous.run_id, std::move(foretold));
  }

  void perform(fan::Say& action) {
    const LogLevel level = action.level == fan::Say::Level::error     ? LogLevel::error
                           : action.level == fan::Say::Level::warning ? LogLevel::warning
                                                                      : LogLevel::info;
    log_->tell({level, std::move(action.text)});
  }

  void perform(const fan::Finish& action) {
    exit_code_ = action.exit_code;
    finishing_ = true;
    if (watch_) watch_->stop();
    timer_.cancel();
    spawn(loop_, "finish", finish());
  }

  Task<> finish() {
    const bool by_signal = signal_of_shell_code(exit_code_).has_value();
    if (!plan_.job.output.result_file.empty()) co_await write_result();
    co_await output_.finish(by_signal ? std::optional{last_lines_patience} : std::nullopt);
    if (doors_) doors_->close();
    loop_.stop();
  }

  Task<> write_result() {
    std::vector<HostResult> results;
    for (auto& [node, result] : results_) results.push_back(std::move(result));
    const std::string& path = plan_.job.output.result_file;
    const auto written = co_await output_.disk().replace_file(path, fan_out_result(exit_code_, results));
    if (!written) log_->tell({LogLevel::error, "--result-file: " + written.error().message()});
  }

  // ---- the hosts

  HostProcess::Handlers handlers_of(HostLink link) {
    return {[this, link](std::string_view bytes) { output_.take_before(link, bytes); },
            [this, link](FarMessage message) { std::visit([&](auto& said) { hear(link, said); }, message); },
            [this, link](LinkChannel channel, std::string_view bytes) { take(link, channel, bytes); },
            [this, link](std::string_view bytes) { output_.take_said(link, bytes); },
            [this, link](const std::string& why, std::optional<int> exit_code) {
              const auto found = links_.find(link);
              if (found == links_.end()) return;
              look_for_verdict();
              const Linked& linked = found->second;
              step(fan::Broken{link, why_broken(why, exit_code, linked.greeted, linked.command), exit_code});
            }};
  }

  void hear(HostLink link, LinkHello& hello) {
    if (const auto found = links_.find(link); found != links_.end()) found->second.greeted = true;
    output_.end_before(link);
    step(fan::HelloCame{link, std::move(hello)});
  }
  void hear(HostLink link, LinkRefuse& refusal) { step(fan::RefusalCame{link, std::move(refusal)}); }
  void hear(HostLink link, const LinkEnded& ended) {
    look_for_verdict();
    step(fan::EndCame{link, ended.code});
  }
  void hear(HostLink, const LinkPing&) {}

  /// Agents end after the verdict, of which the machine is to hear first.
  void look_for_verdict() {
    if (verdict_told_ || !plan_.hosts.settings.own_coordinator) return;
    const auto verdict = coordinator_.verdict(plan_.job.rendezvous.run_id);
    if (!verdict) return;
    verdict_told_ = true;
    step(fan::JobOver{launcher_exit_code(*verdict, plan_.job.propagate_exit_code)});
  }

  void take(HostLink link, LinkChannel channel, std::string_view bytes) {
    if (channel != LinkChannel::result) {
      if (!output_.take(link, channel, bytes))
        step(fan::Broken{link, "the link is broken: more comes than was asked for"});
      return;
    }
    acknowledge(link, bytes.size());
    const auto found = links_.find(link);
    if (found == links_.end() || results_bytes_ + bytes.size() > results_bytes_max) return;
    results_bytes_ += bytes.size();
    found->second.result += bytes;
  }

  void keep_result(Linked& linked, bool left) {
    if (!linked.result.empty())
      results_.insert_or_assign(linked.node, HostResult{linked.name, std::move(linked.result), left});
  }

  void acknowledge(HostLink link, std::size_t bytes) {
    if (const auto found = links_.find(link); found != links_.end()) {
      found->second.process->line().acknowledge(bytes);
    }
  }

  /// What agents tell of the job, the first host's tells for all, where it is there. The verdict is among it, and the
  /// coordinator still in the midst of that.
  void coordinator_says(LogLine line) {
    asio::post(loop_, [this] { look_for_verdict(); });
    const bool first_tells = std::ranges::any_of(links_, [](const auto& link) { return link.second.node == 0; });
    if (line.level == LogLevel::info && first_tells) line.level = LogLevel::debug;
    line.job.clear();  // there is one only
    log_->tell(std::move(line));
  }

  // ---- from outside

  void on_signal(const signalfd_siginfo& info) {
    const auto number = static_cast<int>(info.ssi_signo);
    if (number == SIGCHLD || number == SIGWINCH || number == SIGURG) return;
    if (number == SIGXFSZ && static_cast<pid_t>(info.ssi_pid) == ::getpid()) return;
    if (number == SIGHUP && guarded_.hangup_ignored) return;
    if (finishing_) return output_.hurry();
    step(fan::SignalCame{number});
  }

  /// The outer process is gone.
  [[noreturn]] static void end_alone() {
    static_cast<void>(kill_descendants(last_kill_limit));
    ::_exit(shell_code(SIGKILL));
  }

  const FrontPlan& plan_;
  Guarded guarded_;
  const std::string host_;
  std::vector<Host> hosts_ = plan_.hosts.settings.hosts;  ///< the newest list
  asio::io_context loop_{1};
  FanOut machine_;
  FrontOutput output_;
  std::unique_ptr<Log> log_;
  Coordinator coordinator_;
  std::optional<FrontDoors> doors_;
  AgentSessions sessions_;
  Timer timer_;
  SignalSource signals_;
  std::optional<HostWatch> watch_;
  std::map<HostLink, Linked> links_;
  std::vector<fan::Event> events_;  ///< the first one is being dealt with
  std::map<int, HostResult> results_;
  std::size_t results_bytes_ = 0;
  bool verdict_told_ = false;
  bool finishing_ = false;
  int exit_code_ = exit_code::internal;
};

}  // namespace

int run_front(const FrontPlan& plan, Guarded guarded, const std::string& host) {
  answer_for_workers();
  Front front{plan, std::move(guarded), host};
  const int status = front.run();
  // Links and commands are ended by the kernel and the outer process, faster than one by one.
  ::_exit(status);
}

}  // namespace torchup
