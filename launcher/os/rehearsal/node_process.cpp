#include "launcher/os/rehearsal/node_process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "launcher/core/text/signals.hpp"
#include "launcher/os/io/child_end.hpp"
#include "launcher/os/machine/descendants.hpp"
#include "launcher/os/rehearsal/starter_link.hpp"

namespace torchup {
namespace {

constexpr const char* program_of_agents = "/proc/self/exe";
constexpr std::size_t report_part_bytes = 4096;
constexpr std::size_t stream_part_bytes = std::size_t{64} << 10;
/// What is read of a stream whose agent is gone: more than a pipe holds was written by somebody who lives.
constexpr std::size_t left_bytes_max = std::size_t{1} << 20;

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

bool is_readable(int fd) {
  pollfd watched{fd, POLLIN, 0};
  return ::poll(&watched, 1, 0) == 1;
}

LineRules rules_of(int node) {
  LineRules rules;
  rules.form = LineRules::Form::prefixed;
  rules.prefix = fmt::format("[node{}] ", node);
  return rules;
}

/// One of them has what we are told.
UniqueFd input_of(int node) {
  const int fd =
      node == 0 ? ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1) : ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  return UniqueFd{fd};
}

}  // namespace

Result<> NodeProcess::start(const NodeCommand& command, const RehearsedNode& node, ShownStreams& shown) {
  auto out = make_read_pipe(), err = make_read_pipe(), reports = make_read_pipe();
  for (const auto* pipe : {&out, &err, &reports}) {
    if (!*pipe) return pipe->error();
  }
  ChildRequest request;
  request.executable = program_of_agents;
  request.arguments = command.words;
  request.environment = command.environment;
  request.environment.push_back(fmt::format("{}={}", rehearsed_node_variable, to_text(node)));
  request.in = input_of(node.index);
  request.out = std::move(out->theirs);
  request.err = std::move(err->theirs);
  request.more = {reports->theirs.get(), -1};
  request.heritage = command.heritage;
  auto child = start_child(request);
  if (!child) return child.error();
  pid_ = child->pid;
  pidfd_ = std::move(child->pidfd);
  reports_ = std::move(reports->ours);
  report_bytes_.clear();
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    finish_stream(streams_.at(i), shown.at(i));
    streams_.at(i).lines.emplace(rules_of(node.index));
  }
  streams_[0].fd = std::move(out->ours);
  streams_[1].fd = std::move(err->ours);
  return {};
}

void NodeProcess::signal(int number) const {
  if (runs()) ::kill(pid_, number);
}

void NodeProcess::resume() const {
  if (!runs()) return;
  for (const pid_t pid : descendants_of(pid_)) ::kill(pid, SIGCONT);
  ::kill(pid_, SIGCONT);
}

Result<> NodeProcess::read_reports(const std::function<void(const RehearsalReport&)>& take) {
  std::array<char, report_part_bytes> part{};
  while (reports_) {
    const ssize_t size = ::read(reports_.get(), part.data(), part.size());
    if (size == 0) reports_.reset();
    if (size <= 0) break;
    report_bytes_.append(part.data(), static_cast<std::size_t>(size));
    for (;;) {
      auto report = take_rehearsal_report(report_bytes_);
      if (!report) {
        reports_.reset();
        return report.error();
      }
      if (!*report) break;
      take(**report);
    }
  }
  return {};
}

void NodeProcess::read_stream(std::size_t index, ShownStream& shown) {
  Stream& stream = streams_.at(index);
  std::string part(stream_part_bytes, '\0');
  const ssize_t size = ::read(stream.fd.get(), part.data(), part.size());
  if (size > 0) shown.feed(*stream.lines, {part.data(), static_cast<std::size_t>(size)});
  if (size == 0) finish_stream(stream, shown);
}

void NodeProcess::finish_stream(Stream& stream, ShownStream& shown) {
  if (stream.lines) shown.finish(*stream.lines);
  stream = {};
}

int NodeProcess::end(ShownStreams& shown) {
  reports_.reset();
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    for (std::size_t parts = 0; parts < left_bytes_max / stream_part_bytes; ++parts) {
      if (!streams_.at(i).fd || !is_readable(streams_.at(i).fd.get())) break;
      read_stream(i, shown.at(i));
    }
  }
  const int code = reap_child(pid_);
  pidfd_.reset();
  return code < 0 ? shell_code(-code) : code;
}

}  // namespace torchup
