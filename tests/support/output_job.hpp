#pragma once

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "launcher/os/io/child_end.hpp"
#include "launcher/os/output/worker_output.hpp"
#include "launcher/os/worker/child_process.hpp"
#include "tests/support/temporary_folder.hpp"

/// One job's output with real children, for the tests of it.
namespace torchup::output_test {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

inline std::string content(const fs::path& path) {
  std::ifstream file{path, std::ios::binary};
  return {std::istreambuf_iterator<char>{file}, {}};
}

/// Our own stdout or stderr is something else while this lives.
class Replaced {
 public:
  Replaced(int number, int by) : number_{number}, before_{::fcntl(number, F_DUPFD_CLOEXEC, 100)} { ::dup2(by, number); }
  ~Replaced() { ::dup2(before_.get(), number_); }

 private:
  int number_;
  UniqueFd before_;
};

inline UniqueFd create(const fs::path& path) {
  UniqueFd fd{::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600)};
  REQUIRE(fd);
  return fd;
}

/// A shell command with these descriptors; a true child of this process, which ends with this. It is started as a
/// worker is, not by fork: output has threads, and where one of them asked for memory in the moment of a fork, the
/// child waits for ever under ThreadSanitizer, whose memory has no part in forks.
class Child {
 public:
  Child(const std::string& command, ChildStreams streams) {
    ChildRequest request;
    request.executable = "/bin/sh";
    request.arguments = {"/bin/sh", "-c", command};
    for (char** line = environ; *line != nullptr; ++line) request.environment.emplace_back(*line);
    request.in = std::move(streams.in);
    request.out = std::move(streams.out);
    request.err = std::move(streams.err);
    auto started = start_child(request);
    REQUIRE(started.has_value());
    process_ = std::move(*started);
  }
  Child(Child&&) noexcept = default;
  Child& operator=(Child&&) = delete;
  ~Child() {
    if (!process_.pidfd) return;
    ::kill(process_.pid, SIGKILL);
    static_cast<void>(reap_child(process_.pid));
  }
  bool ended() {
    pollfd end{process_.pidfd.get(), POLLIN, 0};
    if (!process_.pidfd || ::poll(&end, 1, 0) == 0) return !process_.pidfd;
    static_cast<void>(reap_child(process_.pid));
    process_.pidfd.reset();
    return true;
  }

 private:
  ChildProcess process_;
};

/// One job's output on one node: what our stdout and stderr got, what the files hold.
struct Job {
  test::TemporaryFolder scratch;
  OutputOptions options;
  std::vector<std::string> commands;
  Duration drain_limit = 1s;
  int attempts = 1;
  Output::Patience patience = Output::Patience::limited;
  std::function<void(Output&)> between_attempts = [](Output&) {};
  std::function<void(Output&, AttemptOutput&)> while_running = [](Output&, AttemptOutput&) {};

  std::string out;
  std::string err;
  std::vector<EventBody> told;
  std::vector<std::vector<std::string>> tails;
  OutputLoss loss;
  std::vector<WorkerFiles> files;
  std::string run_directory;

  [[nodiscard]] fs::path log_dir() const { return scratch.path / "logs"; }

  void run() {
    UniqueFd out_file = create(scratch.path / "out");
    UniqueFd err_file = create(scratch.path / "err");
    run_on(out_file.get(), err_file.get());
    out = content(scratch.path / "out");
    err = content(scratch.path / "err");
  }

  void run_on(int out_fd, int err_fd) {
    const Replaced new_out{STDOUT_FILENO, out_fd};
    const Replaced new_err{STDERR_FILENO, err_fd};
    auto plan = make_output_plan(options, static_cast<int>(commands.size()), "default", "vm", "run/1");
    REQUIRE(plan.has_value());
    asio::io_context loop{1};
    Output output{loop, *plan, [this](EventBody event) { told.push_back(std::move(event)); }};
    spawn(loop, "job", go(output));
    loop.run();
  }

  Task<> go(Output& output) {
    for (int attempt = 0; attempt < attempts; ++attempt) {
      auto begun = co_await output.begin_attempt(attempt_name(attempt, 0, Round{attempt}), Rank{0});
      REQUIRE(begun.has_value());
      AttemptOutput& streams = **begun;
      std::vector<Child> children;
      files.clear();
      for (std::size_t worker = 0; worker < commands.size(); ++worker) {
        const LocalRank local_rank{static_cast<int>(worker)};
        auto taken = streams.take_child_streams(local_rank);
        REQUIRE(taken.has_value());
        files.push_back(streams.files(local_rank));
        children.emplace_back(commands[worker], std::move(*taken));
      }
      while_running(output, streams);
      Timer timer{co_await asio::this_coro::executor};
      const auto give_up = std::chrono::steady_clock::now() + 60s;
      while (!std::all_of(children.begin(), children.end(), [](Child& child) { return child.ended(); })) {
        REQUIRE(std::chrono::steady_clock::now() < give_up);
        timer.expires_after(1ms);
        co_await timer.async_wait();
      }
      tails.clear();
      for (std::size_t worker = 0; worker < commands.size(); ++worker) {
        streams.worker_gone(LocalRank{static_cast<int>(worker)});
        tails.push_back(streams.tail(LocalRank{static_cast<int>(worker)}));
      }
      co_await streams.drain(drain_limit);
      begun->reset();
      between_attempts(output);
    }
    run_directory = output.run_directory();
    loss = co_await output.finish(5s, patience);
  }
};

template <class Event>
std::vector<Event> only(const std::vector<EventBody>& events) {
  std::vector<Event> found;
  for (const EventBody& event : events)
    if (const auto* one = std::get_if<Event>(&event)) found.push_back(*one);
  return found;
}

inline std::vector<std::string> sorted_lines(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const auto end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  std::sort(lines.begin(), lines.end());
  return lines;
}

}  // namespace torchup::output_test
