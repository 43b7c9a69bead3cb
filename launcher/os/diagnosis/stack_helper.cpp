#include "launcher/os/diagnosis/stack_helper.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <string_view>
#include <utility>

#include "launcher/os/io/child_end.hpp"

extern char** environ;

namespace torchup {
namespace {

/// How long a killed one may take to go. One that does not (it sleeps in the kernel) is left to whoever reaps our
/// children.
constexpr Duration end_limit = std::chrono::seconds{1};

int milliseconds_until(TimePoint until) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 3'600'000));
}

std::string target_text(const StackTarget& target) {
  return target.thread == 0 ? std::to_string(target.process) : fmt::format("{}:{}", target.process, target.thread);
}

}  // namespace

StackHelper::StackHelper(const std::string& program, std::vector<StackTarget> targets) : targets_{std::move(targets)} {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    problem_ = system_error("a pipe").message();
    return;
  }
  out_.reset(ends[0]);
  ChildRequest request;
  request.executable = program;
  request.arguments = {std::string{stack_program_name}};
  for (const StackTarget& target : targets_) request.arguments.push_back(target_text(target));
  for (char** entry = environ; *entry; ++entry) request.environment.emplace_back(*entry);
  request.in.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  request.out.reset(ends[1]);
  request.err.reset(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  auto started = start_child(request);
  if (started) {
    child_ = *std::move(started);
  } else {
    problem_ = started.error().message();
  }
}

StackHelper::~StackHelper() {
  if (child_.pid <= 0) return;
  // Itself alone, by what cannot become another's: at the job's end the loop's thread may have reaped it.
  kill_child(child_.pid, child_.pidfd.get());
  pollfd ended{child_.pidfd.get(), POLLIN, 0};
  if (::poll(&ended, 1, milliseconds_until(std::chrono::steady_clock::now() + end_limit)) > 0) {
    reap_if_ended(child_.pid, child_.pidfd.get());  // no waiting, for the same reason
  }
}

std::vector<NativeThread> StackHelper::read(TimePoint until, int closing) {
  std::string text;
  while (child_.pid > 0) {
    std::array<pollfd, 2> places{pollfd{out_.get(), POLLIN, 0}, pollfd{closing, POLLIN, 0}};
    const int ready = ::poll(places.data(), places.size(), milliseconds_until(until));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0 || places[1].revents != 0) {
      problem_ = "torchup-stack gives no answer in time";
      break;
    }
    std::array<char, 16 * 1024> part;
    const ssize_t count = ::read(out_.get(), part.data(), part.size());
    if (count <= 0 || text.size() + static_cast<std::size_t>(count) > native_text_bytes_max) break;
    text.append(part.data(), static_cast<std::size_t>(count));
  }
  std::vector<NativeThread> threads = parse_native_text(text);
  for (const StackTarget& target : targets_) {
    if (std::ranges::find(threads, target.process, &NativeThread::process) != threads.end()) continue;
    NativeThread& missing = threads.emplace_back();
    missing.process = target.process;
    missing.thread = target.thread != 0 ? target.thread : target.process;
    missing.problem = problem_.empty() ? "torchup-stack has ended without an answer" : problem_;
  }
  return threads;
}

}  // namespace torchup
