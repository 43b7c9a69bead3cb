#include "launcher/os/rehearsal/node_starter.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "launcher/core/record/launch_event.hpp"
#include "launcher/core/rehearsal/rehearsed_nodes.hpp"
#include "launcher/core/text/line_splitter.hpp"
#include "launcher/core/text/signals.hpp"
#include "launcher/os/io/named_file.hpp"
#include "launcher/os/io/own_log.hpp"
#include "launcher/os/io/read_text.hpp"
#include "launcher/os/machine/descendants.hpp"
#include "launcher/os/machine/own_environment.hpp"
#include "launcher/os/worker/child_process.hpp"
#include "rendezvous/net/io/write_all.hpp"

namespace torchup {
namespace {

constexpr const char* node_variable = "TORCHUP_REHEARSED_NODE";
constexpr const char* token_name = "TORCHUP_TOKEN";
constexpr const char* program_of_agents = "/proc/self/exe";
/// Where an agent finds its way to the starter: ChildRequest::more.
constexpr int starter_descriptor = 3;
/// What the reader of our stdout or stderr may leave lying before the agents have to wait for him.
constexpr std::size_t unread_bytes_max = std::size_t{1} << 20;
/// What a pipe that poll calls writable takes without blocking.
constexpr std::size_t write_bytes = 4096;
constexpr std::size_t read_bytes = std::size_t{64} << 10;
constexpr int port_tries = 1000;

/// A port that nobody has, and that the kernel gives nobody for a connection: while the node that hosts the rendezvous
/// is away the others dial it, and one of them would meet itself there.
Result<Port> port_of_nobody() {
  int first_dynamic = 32768;
  std::sscanf(read_text("/proc/sys/net/ipv4/ip_local_port_range").c_str(), "%d", &first_dynamic);
  constexpr int least = 10'000;
  const bool outside = first_dynamic > least + port_tries;
  for (int i = 0; i < port_tries; ++i) {
    unsigned chance = 0;
    if (::getrandom(&chance, sizeof chance, 0) != sizeof chance) return system_error("no random bytes");
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int port = outside ? least + static_cast<int>(chance % static_cast<unsigned>(first_dynamic - least)) : 0;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    const UniqueFd socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    if (!socket) return system_error("no socket");
    socklen_t length = sizeof address;
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    if (::bind(socket.get(), any, length) != 0) continue;
    if (::getsockname(socket.get(), any, &length) != 0) return system_error("no port");
    return Port{ntohs(address.sin_port)};
  }
  return fail(errc::refused,
              fmt::format("--rehearse-nodes: {} ports of 127.0.0.1 were tried, and none is free", port_tries));
}

/// Two ends of a pipe, ours for reading.
struct ReadPipe {
  UniqueFd ours, theirs;
};
Result<ReadPipe> make_read_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return system_error("no pipe");
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return ReadPipe{UniqueFd{ends[0]}, UniqueFd{ends[1]}};
}

/// Our stdout or stderr: what waits for its reader.
struct Shown {
  int fd = -1;
  std::string text = {};
  bool gone = false;  ///< nobody reads it any more

  [[nodiscard]] bool is_full() const { return text.size() >= unread_bytes_max; }
  void write() {
    const ssize_t written = ::write(fd, text.data(), std::min(text.size(), write_bytes));
    if (written >= 0) {
      text.erase(0, static_cast<std::size_t>(written));
    } else if (errno != EINTR && errno != EAGAIN) {
      gone = true;
      text.clear();
    }
  }
};

/// One stream of an agent.
struct AgentStream {
  UniqueFd fd = {};
  std::optional<LineSplitter> lines = {};
};

struct StartedAgent {
  pid_t pid = -1;
  UniqueFd pidfd = {};  ///< empty: no process
  std::array<AgentStream, 2> streams = {};
  UniqueFd reports = {};
  std::string report_bytes = {};
};

class NodeStarter {
 public:
  NodeStarter(const LaunchConfig& plan, const Guarded& guarded, std::span<const std::string> words,
              const std::string& token, std::string host, Port port)
      : plan_{plan}, guarded_{guarded},
        words_(words.begin(), words.end()), host_{std::move(host)}, port_{port}, environment_{own_environment()},
        agents_(static_cast<std::size_t>(plan.rehearsal.nodes)), nodes_{*plan.rehearsal.script, plan.rehearsal.nodes} {
    if (!token.empty()) environment_.push_back(std::string{token_name} + "=" + token);
  }

  int run() {
    const sigset_t signals = guarded_signals();
    ::sigprocmask(SIG_SETMASK, &signals, nullptr);  // we die with the outer process, and the agents with us
    signals_ = UniqueFd{::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK)};
    step(cast::Begin{});
    while (!result_) wait();
    tell(*result_);
    while (unread()) wait();
    static_cast<void>(kill_descendants(last_kill_limit));
    return result_->exit_code;
  }

 private:
  void step(const cast::Event& event) {
    for (cast::Action& action : nodes_.step(event, std::chrono::steady_clock::now())) {
      std::visit([this](auto& wanted) { perform(wanted); }, action);
    }
  }

  void perform(const cast::Start& action) {
    auto started = start(action);
    if (started) return;
    own_says({LogLevel::error, fmt::format("node{} cannot be started: {}", action.node, started.error().message())});
    failed_starts_.push_back(action.node);
  }
  void perform(const cast::EndNode& action) { ::kill(at(action.node).pid, SIGTERM); }
  void perform(cast::Finish& action) { result_ = std::move(action.result); }

  Result<> start(const cast::Start& action) {
    auto out = make_read_pipe(), err = make_read_pipe(), reports = make_read_pipe();
    for (const auto* pipe : {&out, &err, &reports}) {
      if (!*pipe) return pipe->error();
    }
    ChildRequest request;
    request.executable = program_of_agents;
    request.arguments = words_;
    request.environment = environment_;
    const RehearsedNode node{action.node, plan_.rehearsal.nodes, port_, action.start};
    request.environment.push_back(fmt::format("{}={}", node_variable, to_text(node)));
    // One of them has what we are told.
    request.in = UniqueFd{action.node == 0 ? ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0)
                                           : ::open("/dev/null", O_RDONLY | O_CLOEXEC)};
    request.out = std::move(out->theirs);
    request.err = std::move(err->theirs);
    request.more = {reports->theirs.get(), -1};
    request.heritage = guarded_.heritage;
    auto child = start_child(request);
    if (!child) return child.error();
    StartedAgent& agent = at(action.node);
    agent = {};
    agent.pid = child->pid;
    agent.pidfd = std::move(child->pidfd);
    agent.reports = std::move(reports->ours);
    agent.streams[0].fd = std::move(out->ours);
    agent.streams[1].fd = std::move(err->ours);
    LineRules rules;
    rules.form = LineRules::Form::prefixed;
    rules.prefix = fmt::format("[node{}] ", action.node);
    for (AgentStream& stream : agent.streams) stream.lines.emplace(rules);
    return {};
  }

  /// Waits for anything, and does what it asks for.
  void wait() {
    for (const int node : std::exchange(failed_starts_, {})) step(cast::Gone{node, shell_code(SIGKILL)});
    std::vector<pollfd> watched;
    const auto watch = [&](int fd, short what) { watched.push_back({fd, what, 0}); };
    watch(signals_.get(), POLLIN);
    for (const Shown& each : shown_) watch(each.text.empty() ? -1 : each.fd, POLLOUT);
    for (const StartedAgent& agent : agents_) {
      watch(agent.pidfd ? agent.pidfd.get() : -1, POLLIN);
      watch(agent.reports ? agent.reports.get() : -1, POLLIN);
      for (std::size_t i = 0; i < agent.streams.size(); ++i) {
        const AgentStream& stream = agent.streams.at(i);
        watch(stream.fd && !shown_.at(i).is_full() ? stream.fd.get() : -1, POLLIN);
      }
    }
    ::poll(watched.data(), watched.size(), patience());
    auto seen = watched.begin();
    if ((seen++)->revents != 0) read_signals();
    for (Shown& each : shown_) {
      if ((seen++)->revents != 0) each.write();
    }
    for (std::size_t node = 0; node < agents_.size(); ++node) {
      const bool gone = (seen++)->revents != 0;
      if ((seen++)->revents != 0) read_reports(static_cast<int>(node));
      for (std::size_t i = 0; i < shown_.size(); ++i) {
        if ((seen++)->revents != 0) read_stream(agents_.at(node).streams.at(i), shown_.at(i));
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
      if (std::ranges::find(plan_.end_signals, number) != plan_.end_signals.end() || number == SIGINT ||
          number == SIGQUIT) {
        if (result_) hurried_ = true;  // who sends it now does not read our last lines
        step(cast::EndsAll{});
      }
      for (const StartedAgent& agent : agents_) {
        if (agent.pidfd) ::kill(agent.pid, number);
      }
    }
  }

  [[nodiscard]] std::vector<pid_t> pids() const {
    std::vector<pid_t> list;
    for (const StartedAgent& agent : agents_) {
      if (agent.pidfd) list.push_back(agent.pid);
    }
    return list;
  }

  void read_reports(int node) {
    StartedAgent& agent = at(node);
    std::array<char, write_bytes> part{};
    for (;;) {
      const ssize_t size = ::read(agent.reports.get(), part.data(), part.size());
      if (size <= 0) {
        if (size == 0) agent.reports.reset();
        return;
      }
      agent.report_bytes.append(part.data(), static_cast<std::size_t>(size));
      for (;;) {
        auto report = take_rehearsal_report(agent.report_bytes);
        if (!report) {
          own_says({LogLevel::error, fmt::format("node{}: {}", node, report.error().message())});
          agent.reports.reset();
          return;
        }
        if (!*report) break;
        step(cast::Told{node, **std::move(report)});
      }
    }
  }

  static void read_stream(AgentStream& stream, Shown& shown) {
    std::string part(read_bytes, '\0');
    const ssize_t size = ::read(stream.fd.get(), part.data(), part.size());
    if (size < 0) return;
    std::string duplicates;
    std::string& text = shown.text;
    if (size == 0) {
      stream.lines->finish(text, duplicates);
      stream.fd.reset();
    } else {
      stream.lines->feed({part.data(), static_cast<std::size_t>(size)}, std::chrono::steady_clock::now(), text,
                         duplicates);
    }
    if (shown.gone) text.clear();
  }

  /// What an agent has said before its end counts; somebody else may still hold its streams.
  void end(int node) {
    StartedAgent& agent = at(node);
    if (agent.reports) read_reports(node);
    agent.reports.reset();
    const int code = reap(agent.pidfd.get());
    agent.pidfd.reset();
    for (std::size_t i = 0; i < shown_.size(); ++i) {
      AgentStream& stream = agent.streams.at(i);
      while (stream.fd && is_readable(stream.fd.get())) read_stream(stream, shown_.at(i));
    }
    step(cast::Gone{node, code < 0 ? shell_code(-code) : code});
  }
  static bool is_readable(int fd) {
    pollfd watched{fd, POLLIN, 0};
    return ::poll(&watched, 1, 0) == 1;
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
    std::string& text = shown_[1].text;
    options.write = [&text](std::string each) { text += each; };
    Log log{std::move(options)};
    const LogLevel level = line.level;
    log.tell(std::move(line));
    for (const std::string& each : page) {
      if (as_json) {
        log.tell({level, each});
      } else if (shown) {
        text += each + "\n";
      }
    }
  }

  [[nodiscard]] bool unread() const {
    return !hurried_ && std::ranges::any_of(shown_, [](const Shown& each) { return !each.text.empty(); });
  }
  StartedAgent& at(int node) { return agents_.at(static_cast<std::size_t>(node)); }

  const LaunchConfig& plan_;
  const Guarded& guarded_;
  const std::vector<std::string> words_;
  const std::string host_;
  const Port port_;
  std::vector<std::string> environment_;
  std::vector<StartedAgent> agents_;
  RehearsedNodes nodes_;
  std::array<Shown, 2> shown_{Shown{STDOUT_FILENO}, Shown{STDERR_FILENO}};
  std::vector<int> failed_starts_;  ///< agents that have no process to end
  UniqueFd signals_;
  std::optional<RehearsalResult> result_;
  bool hurried_ = false;
};

}  // namespace

int run_rehearsed_nodes(const LaunchConfig& plan, const Guarded& guarded, std::span<const std::string> words,
                        const std::string& token, const std::string& host) {
  const auto port = port_of_nobody();
  if (!port) {
    Log{own_log(plan.output.log)}.tell({LogLevel::error, port.error().message()});
    constexpr int shortage_status = 65;
    return shortage_status;
  }
  return NodeStarter{plan, guarded, words, token, host, *port}.run();
}

std::string take_rehearsed_node() {
  const char* const value = std::getenv(node_variable);
  if (!value) return "";
  std::string text = value;
  ::unsetenv(node_variable);
  ::fcntl(starter_descriptor, F_SETFD, FD_CLOEXEC);
  return text;
}

void tell_starter(const RehearsalReport& report) {
  const std::string text = encode(report);
  std::string_view rest = text;
  static_cast<void>(write_all(starter_descriptor, rest));  // without a starter we are about to end
}

}  // namespace torchup
