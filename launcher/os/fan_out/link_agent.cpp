#include "launcher/os/fan_out/link_agent.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <utility>
#include <vector>

#include "launcher/core/fan_out/far_agent.hpp"
#include "launcher/core/fan_out/host_address.hpp"
#include "launcher/core/text/signals.hpp"
#include "launcher/os/fan_out/link_streams.hpp"
#include "launcher/os/machine/descendants.hpp"
#include "launcher/os/machine/own_environment.hpp"
#include "launcher/os/worker/guardian.hpp"
#include "rendezvous/base/exit_codes.hpp"
#include "rendezvous/net/io/node_identity.hpp"
#include "rendezvous/net/io/standard_descriptors.hpp"

namespace torchup {
namespace {

/// How long what was said last may take to be read.
constexpr Duration last_words_limit = std::chrono::seconds{5};

TimePoint clock_now() { return std::chrono::steady_clock::now(); }

/// Best first. Where no command is between, ssh's variable is of whoever has logged in here.
std::vector<std::string> addresses_here(const LinkStart& start) {
  const char* const connection = start.by_command ? std::getenv("SSH_CONNECTION") : nullptr;
  std::string_view reached = reached_by_ssh(connection ? connection : "");
  if (!is_of_this_machine(reached)) reached = {};
  std::vector<std::string> list = addresses_for_others(reached, own_addresses());
  if (list.size() > addresses_max) list.resize(addresses_max);
  return list;
}

/// The one that leads to the host `beside` this one, which has to be looked up; else `own`.
std::string address_for_hosts(const std::string& beside, const std::string& own) {
  std::string towards = beside.empty() ? std::string{} : address_towards(beside);
  return leads_from_others(towards) ? towards : own;
}

class LinkAgent {
 public:
  explicit LinkAgent(LinkStart start) : start_{std::move(start)}, machine_{TORCHUP_VERSION, clock_now()} {}

  /// Returns in the agent alone.
  LinkedNode run() {
    block_signals();
    say_hello();
    while (!exits_) {
      if (auto linked = step(far::Wake{})) return *std::move(linked);
      if (exits_) break;
      if (auto linked = wait()) return *std::move(linked);
    }
    flush_last_words();
    ::_exit(*exits_);
  }

 private:
  using Linked = std::optional<LinkedNode>;

  void block_signals() {
    const sigset_t signals = guarded_signals();
    ::sigprocmask(SIG_SETMASK, &signals, nullptr);
    signals_ = UniqueFd{::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK)};
    become_subreaper();
  }

  void say_hello() {
    LinkHello hello{.version = TORCHUP_VERSION, .host = own_host_name(), .addresses = addresses_here(start_)};
    if (!hello.addresses.empty()) own_address_ = hello.addresses.front();
    front_.write_raw(link_greeting);
    front_.send(hello);
  }

  Linked step(const far::Event& event) {
    Linked linked;
    for (far::Action& action : machine_.step(event, clock_now())) {
      if (auto here = std::visit([this](auto& wanted) { return perform(wanted); }, action)) linked = std::move(here);
      if (linked) break;
    }
    return linked;
  }

  Linked perform(const far::Send& action) {
    front_.send(action.message);
    return {};
  }
  Linked perform(const far::SignalAgent& action) {
    if (agent_ > 0) ::kill(agent_, action.number);
    return {};
  }
  Linked perform(const far::Credit& action) {
    streams_.credit(action.bytes);
    return {};
  }
  Linked perform(const far::Deafen&) {
    front_.close();
    streams_.deafen();
    return {};
  }
  Linked perform(const far::Exit& action) {
    exits_ = action.exit_code;
    return {};
  }
  Linked perform(far::StartAgent& action) {
    if (::chdir(action.plan.directory.c_str()) != 0) {
      const Error error = system_error(action.plan.directory);
      return step(far::NotStarted{{exit_code::refused, error.message() + "; --chdir names another"}});
    }
    auto ends = streams_.open(action.plan);
    if (!ends) return step(far::NotStarted{{exit_code::unfit, ends.error().message()}});
    const pid_t above = ::getpid();
    agent_ = ::fork();
    if (agent_ < 0) return step(far::NotStarted{{exit_code::unfit, system_error("no new process").message()}});
    if (agent_ == 0) return become_agent(std::move(action.plan), *std::move(ends), above);
    std::signal(SIGPIPE, SIG_IGN);
    return {};
  }

  /// In the process below. Signals stay blocked until it is guarded: one that comes meanwhile waits.
  LinkedNode become_agent(LinkPlan plan, AgentEnds ends, pid_t above) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != above) ::_exit(shell_code(SIGKILL));  // it died before it could take us along
    signals_.reset();
    streams_.forget();
    const UniqueFd nothing{::open("/dev/null", O_RDONLY | O_CLOEXEC)};
    ::dup2(nothing.get(), STDIN_FILENO);
    ::dup2(ends.out.get(), STDOUT_FILENO);
    ::dup2(ends.err.get(), STDERR_FILENO);
    for (const std::string& entry : own_environment()) {  // options are the front's
      if (entry.starts_with("PET_")) ::unsetenv(entry.substr(0, entry.find('=')).c_str());
    }
    for (const std::string& entry : plan.environment) {
      const auto equals = entry.find('=');
      if (equals != 0 && equals != std::string::npos) {
        ::setenv(entry.substr(0, equals).c_str(), entry.c_str() + equals + 1, 1);
      }
    }
    plan.environment.clear();
    if (ends.events) plan.arguments.push_back(fmt::format("--events=/dev/fd/{}", ends.events.release()));
    if (ends.result) plan.arguments.push_back(fmt::format("--result-file=/dev/fd/{}", ends.result.release()));
    auto address = [told = plan.address, beside = start_.beside, own = own_address_] {
      return told.empty() ? address_for_hosts(beside, own) : told;
    };
    return {.plan = std::move(plan), .address = std::move(address), .connection = ends.connection.release()};
  }

  /// Waits for anything, and does what it asks for.
  Linked wait() {
    std::vector<pollfd> watched{{signals_.get(), POLLIN, 0}};
    front_.watch(watched);
    streams_.watch(watched, front_);
    if (::poll(watched.data(), watched.size(), patience()) <= 0) return {};
    if (watched.front().revents != 0) {
      if (auto linked = read_signals()) return linked;
    }
    const auto message = [this](FrontMessage said) { messages_.push_back(std::move(said)); };
    const auto agents = [this](std::string_view bytes) { streams_.to_agent(bytes); };
    const bool heard = front_.serve(watched, message, agents);
    streams_.serve(watched, front_);
    if (heard) {
      if (auto linked = step(far::Heard{})) return linked;
    }
    for (FrontMessage& said : std::exchange(messages_, {})) {
      if (auto linked = step(far::MessageCame{std::move(said)})) return linked;
    }
    if (front_.ended() || streams_.overflowed()) {
      if (auto linked = step(far::InputEnded{})) return linked;
    }
    return end_if_over();
  }

  [[nodiscard]] int patience() const {
    const auto deadline = machine_.deadline();
    if (!deadline) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - clock_now());
    return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 60'000));
  }

  Linked read_signals() {
    for (signalfd_siginfo info{}; ::read(signals_.get(), &info, sizeof info) == sizeof info;) {
      const auto number = static_cast<int>(info.ssi_signo);
      if (number == SIGCHLD) {
        reap();
      } else if (number != SIGWINCH && number != SIGURG) {
        if (auto linked = step(far::SignalCame{number})) return linked;
      }
    }
    return {};
  }

  void reap() {
    int status = 0;
    for (pid_t ended = 0; (ended = ::waitpid(-1, &status, WNOHANG)) > 0;) {
      if (ended != agent_) continue;
      agent_ = -1;
      status_ = WIFSIGNALED(status) ? shell_code(WTERMSIG(status)) : WEXITSTATUS(status);
      // Who has killed it may have left others.
      static_cast<void>(kill_descendants(last_kill_limit));
      streams_.agent_ended();
    }
  }

  /// Its last words have been read, and passed on.
  Linked end_if_over() {
    if (!status_ || !streams_.drained()) return {};
    return step(far::AgentEnded{*std::exchange(status_, {})});
  }

  void flush_last_words() {
    const TimePoint until = clock_now() + last_words_limit;
    while (front_.waits() && !front_.ended() && clock_now() < until) {
      std::vector<pollfd> watched;
      front_.watch(watched);
      if (::poll(watched.data(), watched.size(), 100) > 0) {
        front_.serve(
            watched, [](const FrontMessage&) {}, [](std::string_view) {});
      }
    }
  }

  const LinkStart start_;
  FarAgent machine_;
  LinkFront front_;
  AgentStreams streams_;
  UniqueFd signals_;
  std::string own_address_;
  pid_t agent_ = -1;
  std::optional<int> status_;  ///< of the agent that has ended, until that is told
  std::vector<FrontMessage> messages_;
  std::optional<int> exits_;
};

}  // namespace

LinkedNode link_agent(LinkStart start) {
  fill_standard_descriptors();
  return LinkAgent{std::move(start)}.run();
}

}  // namespace torchup
