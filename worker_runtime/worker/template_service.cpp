#include "worker_runtime/worker/template_service.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rendezvous/base/fork_request.hpp"
#include "rendezvous/base/template_mark.hpp"
#include "rendezvous/base/worker_channel.hpp"
#include "rendezvous/net/io/unique_fd.hpp"
#include "worker_runtime/worker/forked_process.hpp"
#include "worker_runtime/worker/template_torch.hpp"

// What is said to the agent and by it stands in launcher/python/injected/template.py, which serves it for Python.
namespace torchup {
namespace {

/// The object that has it is linked with worker_main, and with nothing else. Linkers keep notes, whatever they throw
/// away. The alignment is a note's, which a compiler that optimises would raise.
[[gnu::used, gnu::section(".note.torchup"), gnu::aligned(4)]] constexpr TemplateMark mark;

constexpr int control_descriptor = 3;
constexpr int page_descriptor = 3;
constexpr int channel_descriptor = 4;
constexpr std::size_t packet_descriptors_max = 253;
constexpr int trial_limit_ms = 10'000;
/// The last is that of Windows' Linux.
constexpr std::array<std::string_view, 5> gpus{"/dev/nvidia", "/dev/nvhost-", "/dev/nvmap", "/dev/kfd", "/dev/dxg"};

void say(int descriptor, std::string_view text) {
  while (::send(descriptor, text.data(), text.size(), MSG_NOSIGNAL) < 0 && errno == EINTR) {
  }
}

struct Order {
  std::string text;  ///< empty: nobody is there any more
  std::vector<UniqueFd> descriptors;
  bool whole = true;  ///< false: some are missing, for want of a free number
};

Order hear(int descriptor) {
  std::array<char, 256> text{};
  iovec part{text.data(), text.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * packet_descriptors_max)> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t count = -1;
  do {
    count = ::recvmsg(descriptor, &message, MSG_CMSG_CLOEXEC);
  } while (count < 0 && errno == EINTR);
  Order order{{text.data(), count > 0 ? static_cast<std::size_t>(count) : 0}, {}};
  order.whole = (message.msg_flags & MSG_CTRUNC) == 0;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t at = CMSG_LEN(0); at < header->cmsg_len; at += sizeof(int)) {
      int received = -1;
      std::memcpy(&received, reinterpret_cast<const char*>(header) + at, sizeof received);
      order.descriptors.emplace_back(received);
    }
  }
  return order;
}

/// Whether our agent has started this process as a template. Where it has started another one, whose child this is,
/// there is nobody to train with: this process ends.
bool is_template() {
  const char* const text = std::getenv(template_variable);
  if (text == nullptr) return false;
  const auto address = parse_worker_channel_address(text);
  ::unsetenv(template_variable);
  struct stat status {};
  if (address && address->fd == control_descriptor && address->pid == ::getpid() &&
      ::fstat(control_descriptor, &status) == 0 && S_ISSOCK(status.st_mode) && status.st_ino == address->inode)
    return true;
  std::fprintf(stderr,
               "torchup: worker_main was called in a process that --preload program cannot fork: in a child of the "
               "program that it has started, or with descriptor %d closed\n",
               control_descriptor);
  ::_exit(EXIT_FAILURE);
}

// ---- Whether it can be forked.

std::string first_line(const std::filesystem::path& path) {
  std::string text(64, '\0');
  const UniqueFd file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  const ssize_t count = file ? ::read(file.get(), text.data(), text.size()) : 0;
  text.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
  return text.substr(0, text.find('\n'));
}

std::string other_threads() {
  std::string names;
  for (const auto& task : std::filesystem::directory_iterator{"/proc/self/task"}) {
    if (task.path().filename() == std::to_string(::getpid())) continue;
    names += (names.empty() ? "" : ", ") + first_line(task.path() / "comm");
  }
  return names;
}

bool has_opened_gpu() {
  for (const auto& entry : std::filesystem::directory_iterator{"/proc/self/fd"}) {
    std::error_code error;  // the one that lists them is gone by the time that it is looked at
    const std::string target = std::filesystem::read_symlink(entry.path(), error);
    if (std::ranges::any_of(gpus, [&](std::string_view gpu) { return target.starts_with(gpu); })) return true;
  }
  return false;
}

std::string end_of(pid_t child, bool in_time) {
  if (!in_time) ::kill(child, SIGKILL);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!in_time) return fmt::format("stood still for {} s", trial_limit_ms / 1000);
  return WIFSIGNALED(status) ? fmt::format("was ended by signal {}", WTERMSIG(status))
                             : fmt::format("ended with {}", WEXITSTATUS(status));
}

/// One child computes. Why it does not; nothing where it does.
std::optional<std::string> try_child() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return "there is no pipe for it";
  UniqueFd ours{ends[0]};
  UniqueFd its{ends[1]};
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    try {
      try_to_compute();
      ::_exit(::write(its.get(), "x", 1) == 1 ? 0 : 1);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
    } catch (...) {
    }
    ::_exit(1);
  }
  if (child < 0) return std::strerror(errno);
  its.reset();
  pollfd answer{ours.get(), POLLIN, 0};
  int ready = -1;
  do {
    ready = ::poll(&answer, 1, trial_limit_ms);
  } while (ready < 0 && errno == EINTR);
  char byte = 0;
  const bool computes = ready == 1 && ::read(ours.get(), &byte, 1) == 1;
  const std::string end = end_of(child, ready == 1);
  return computes ? std::nullopt : std::optional{"it " + end};
}

/// Why no workers can be forked from here; nothing where they can.
std::optional<std::string> unfit() {
  if (const std::string names = other_threads(); !names.empty()) {
    return fmt::format("before worker_main the program has started a thread ({}), which no forked process would have",
                       names);
  }
  if (has_opened_gpu()) return "before worker_main the program has opened the GPU, which no forked process could use";
  if (const auto reason = try_child()) {
    return fmt::format("a process forked from the program does not compute ({})", *reason);
  }
  return std::nullopt;
}

// ---- The processes.

/// Waits until its parent is the agent, and says that it is there.
void park(int end, const UniqueFd& cgroup, pid_t agent) {
  char byte = 0;
  while (::read(control_descriptor, &byte, 1) < 0 && errno == EINTR) {  // the gate
  }
  if (::getppid() != agent) ::_exit(1);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != agent) ::_exit(1);     // it has ended before it could take us along
  ::prctl(PR_SET_PTRACER, agent, 0, 0, 0);  // so that what it starts may read our stacks
  ::setsid();
  std::string text = "parked";
  if (cgroup) {
    const UniqueFd members{::openat(cgroup.get(), "cgroup.procs", O_WRONLY | O_CLOEXEC)};
    if (!members || ::write(members.get(), "0", 1) != 1) text += fmt::format(" {}", errno);
  }
  say(end, text);
}

/// Makes a process for each of `ends`, twice forked, so that it is the agent's child. Returns nothing here, and in such
/// a process, which is parked, its end.
UniqueFd make_processes(std::vector<UniqueFd> ends, UniqueFd cgroup, pid_t agent) {
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) return {};  // nobody is made, and the agent hears it by the pairs' end
  UniqueFd gate{pipe[0]};
  UniqueFd held{pipe[1]};
  const pid_t first = ::fork();
  if (first != 0) {
    while (first > 0 && ::waitpid(first, nullptr, 0) < 0 && errno == EINTR) {
    }
    return {};  // and with `held` the gate opens: whoever reads it has a new parent now
  }
  held.reset();
  // There nothing else must come to lie before the worker's page does.
  ::dup3(gate.get(), control_descriptor, O_CLOEXEC);
  gate.reset();
  for (UniqueFd& end : ends) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      UniqueFd own = std::move(end);
      ends.clear();
      park(own.get(), cgroup, agent);
      return own;
    }
    if (pid < 0) break;  // whoever has no pid by now gets none
    say(end.get(), fmt::format("forked {}", pid));
  }
  ::_exit(0);
}

// ---- What becomes of them.

std::string whole_file(int file) {
  std::string text;
  std::array<char, 65536> part;
  ssize_t count = 0;
  while (text.size() <= fork_request_bytes_max &&
         (count = ::pread(file, part.data(), part.size(), static_cast<off_t>(text.size()))) > 0)
    text.append(part.data(), static_cast<std::size_t>(count));
  return text;
}

[[noreturn]] void refuse(const char* call) {
  say(channel_descriptor, fmt::format("refused {} {}", call, errno));
  ::_exit(1);
}

/// The template's environment as the kernel gave it, and as it was when main came to worker_main.
struct Before {
  Environment given;
  Environment made;
};

/// Waits for the order to start, and becomes what it says.
void become_worker(UniqueFd end, const Before& before) {
  Order order = hear(end.get());
  if (order.text != "start" || !order.whole || order.descriptors.size() < 4) ::_exit(0);
  const auto request = parse_fork_request(whole_file(order.descriptors[0].get()));
  if (!request) {
    std::fprintf(stderr, "torchup: %s\n", request.error().message().c_str());
    ::_exit(1);
  }
  for (std::size_t i = 1; i < order.descriptors.size(); ++i)
    ::dup2(order.descriptors[i].get(), static_cast<int>(i) - 1);
  if (order.descriptors.size() - 1 <= page_descriptor) ::close(page_descriptor);
  ::dup2(end.get(), channel_descriptor);
  order.descriptors.clear();
  end.reset();
  if (!request->cpus.empty() && !bind_to(request->cpus)) refuse("sched_setaffinity");
  if (!request->directory.empty() && ::chdir(request->directory.c_str()) != 0) refuse("chdir");
  set_environment(as_main_leaves_it(before.given, before.made, request->environment), request->environment);
  renew_streams();
  draw_own_random_numbers();
  say(channel_descriptor, "started");
}

}  // namespace

void serve_as_template() {
  if (!is_template()) return;
  const Before before{environment_at_start(), environment_by_now()};
  const pid_t agent = ::getppid();
  for (int descriptor = 0; descriptor <= channel_descriptor; ++descriptor) {
    if (descriptor >= control_descriptor) ::fcntl(descriptor, F_SETFD, FD_CLOEXEC);
    // A place that main has made free must not be taken by what the agent sends.
    if (::fcntl(descriptor, F_GETFD) < 0) (void)UniqueFd{::open("/dev/null", O_RDWR | O_CLOEXEC)}.release();
  }
  std::fflush(nullptr);  // what main has written is written once
  std::cout.flush();
  std::clog.flush();
  if (const auto reason = unfit()) {
    say(control_descriptor, "failed " + *reason);
    ::_exit(1);
  }
  say(control_descriptor, "ready");
  while (true) {
    Order order = hear(control_descriptor);
    if (order.text.empty()) ::_exit(0);
    UniqueFd cgroup;
    if (order.text == "fork cgroup" && !order.descriptors.empty()) {
      cgroup = std::move(order.descriptors.front());
      order.descriptors.erase(order.descriptors.begin());
    }
    if (UniqueFd end = make_processes(std::move(order.descriptors), std::move(cgroup), agent)) {
      return become_worker(std::move(end), before);
    }
  }
}

}  // namespace torchup
