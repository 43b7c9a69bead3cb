#include "launcher/os/diagnosis/health_check.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "launcher/core/text/text.hpp"
#include "launcher/os/io/helper.hpp"
#include "launcher/os/machine/descendants.hpp"
#include "rendezvous/net/io/unique_fd.hpp"
#include "rendezvous/net/io/write_all.hpp"

namespace torchup {
namespace {

constexpr int not_started_code = 127;
/// In the helper's answer, instead of a code.
constexpr std::string_view out_of_time = "out of time";
/// Of the last line; the rest of a longer one is passed over.
constexpr std::size_t line_bytes_max = 1024;
/// How long what the command has started may take to die.
constexpr Duration tidy_limit = std::chrono::seconds{2};
/// How much longer than its command the helper may take.
constexpr Duration helper_slack = std::chrono::seconds{5};

/// The last line that is not blank of what is written piece by piece.
class LastLine {
 public:
  void add(std::string_view text) {
    for (const char letter : text) {
      if (letter == '\n') {
        end_line();
      } else if (line_.size() < line_bytes_max) {
        line_ += letter;
      }
    }
  }
  std::string take() {
    end_line();
    return std::move(last_);
  }

 private:
  void end_line() {
    if (!stripped(line_).empty()) last_ = stripped(line_);
    line_.clear();
  }
  std::string line_, last_;
};

/// The helper's part: the command, from its start to the end of all that it has started.
class Patient {
 public:
  explicit Patient(const char* command) : command_{command} {}

  /// Nothing: somebody has told us to end.
  std::optional<std::string> run(Duration limit) {
    sigset_t watched;
    ::sigemptyset(&watched);
    for (const int number : {SIGCHLD, SIGTERM, SIGINT, SIGHUP}) ::sigaddset(&watched, number);
    ::sigprocmask(SIG_BLOCK, &watched, nullptr);
    signals_ = UniqueFd{::signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK)};
    become_subreaper();
    if (!start()) return answer(not_started_code, std::string{"sh cannot be started: "} + std::strerror(errno));
    const TimePoint end = std::chrono::steady_clock::now() + limit;
    while (!code_ && !told_to_end_ && std::chrono::steady_clock::now() < end) wait(end);
    if (child_ > 0) ::kill(-child_, SIGKILL);
    static_cast<void>(kill_descendants(tidy_limit));
    if (told_to_end_) return std::nullopt;
    read_output();
    return answer(code_, output_.take());
  }

 private:
  static std::string answer(std::optional<int> code, const std::string& line) {
    return fmt::format("{}\n{}\nend\n", code ? std::to_string(*code) : std::string{out_of_time}, line);
  }

  bool start() {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) return false;
    out_ = UniqueFd{ends[0]};
    UniqueFd in{ends[1]};
    ::fcntl(out_.get(), F_SETFL, O_NONBLOCK);
    const pid_t parent = ::getpid();
    child_ = ::fork();
    if (child_ == 0) {
      ::setpgid(0, 0);
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(not_started_code);
      sigset_t none;
      ::sigemptyset(&none);
      ::sigprocmask(SIG_SETMASK, &none, nullptr);
      ::dup2(in.get(), STDOUT_FILENO);
      ::dup2(in.get(), STDERR_FILENO);
      ::execl("/bin/sh", "sh", "-c", command_, static_cast<char*>(nullptr));
      ::_exit(not_started_code);
    }
    if (child_ > 0) ::setpgid(child_, child_);
    return child_ > 0;
  }

  void wait(TimePoint end) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    std::array<pollfd, 2> watched{pollfd{signals_.get(), POLLIN, 0}, pollfd{out_.get(), POLLIN, 0}};
    // A command whose output has ended may go on.
    ::poll(watched.data(), out_ ? watched.size() : 1,
           static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 60'000)));
    read_output();
    for (signalfd_siginfo info{}; ::read(signals_.get(), &info, sizeof info) == sizeof info;) {
      if (info.ssi_signo != SIGCHLD) told_to_end_ = true;
    }
    reap();
  }

  void read_output() {
    std::array<char, 4096> part{};
    // Whoever writes without end is no reason to stay here.
    for (int parts = 0; out_ && parts < 64; ++parts) {
      const ssize_t size = ::read(out_.get(), part.data(), part.size());
      if (size == 0) out_.reset();
      if (size <= 0) return;
      output_.add({part.data(), static_cast<std::size_t>(size)});
    }
  }

  void reap() {
    int status = 0;
    for (pid_t pid = 0; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
      if (pid != child_) continue;
      code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
  }

  const char* const command_;
  UniqueFd signals_;
  UniqueFd out_;
  pid_t child_ = 0;
  LastLine output_;
  std::optional<int> code_;
  bool told_to_end_ = false;
};

}  // namespace

int answer_about_health(char** words) {
  std::int64_t limit_ms = 0;
  std::from_chars(words[3], words[3] + std::strlen(words[3]), limit_ms);
  ::setenv("TORCHUP_RUN_ID", words[4], 1);
  ::setenv("TORCHUP_LAST_FAILURE", words[5], 1);
  const UniqueFd out{::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1)};
  const auto answer = Patient{words[2]}.run(std::chrono::milliseconds{limit_ms});
  if (!answer) return 1;
  std::string_view rest = *answer;
  return write_all(out.get(), rest) == 0 ? 0 : 1;
}

std::optional<Finding> check_health(const HealthQuery& query) {
  const auto limit_ms = std::chrono::duration_cast<std::chrono::milliseconds>(query.limit).count();
  const Helper helper{.executable = query.program,
                      .arguments = {std::string{health_word}, query.command, std::to_string(limit_ms), query.run_id,
                                    query.last_failure},
                      .limit = query.limit + helper_slack,
                      .answer_bytes_max = 2 * line_bytes_max,
                      .farewell = tidy_limit + std::chrono::seconds{1},
                      .cancelled = query.cancelled};
  const auto answer = ask_helper(helper);
  if (!answer && answer.error().code == boost::system::errc::operation_canceled) return std::nullopt;
  if (!answer && answer.error().code == boost::system::errc::timed_out) {
    return health_finding({}, "", query.limit);
  }
  if (!answer) return health_finding(not_started_code, answer.error().message());
  const auto lines = split(*answer, '\n');
  if (lines.size() == 4 && lines[0] == out_of_time) return health_finding({}, lines[1], query.limit);
  int code = 0;
  const bool whole = lines.size() == 4 && lines[2] == "end" &&
                     std::from_chars(lines[0].data(), lines[0].data() + lines[0].size(), code).ec == std::errc{};
  return whole ? health_finding(code, lines[1]) : health_finding(not_started_code, "it was ended from outside");
}

}  // namespace torchup
