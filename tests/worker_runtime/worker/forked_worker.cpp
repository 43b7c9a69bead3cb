// A program that says what it sees, executed or forked from itself; driven by forked_test.py. The first argument says
// what it does in worker_main, the others what its main does before.
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio_ext.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <string_view>
#include <thread>
#include <torchup/torchup.hpp>

#include "tests/worker_runtime/test_program.hpp"

namespace forked_worker {

namespace {

/// Of the process in which constructors ran.
const pid_t constructed_in = ::getpid();

/// A line NAME<tab>VALUE, whose value is one line of text.
void fact(std::string_view name, std::string value) {
  for (char& c : value) c = c == '\0' ? '|' : c == '\n' || c == '\t' ? ' ' : c;
  std::cout << name << '\t' << value << '\n';
}

std::string content(const std::string& path) {
  std::ifstream file{path, std::ios::binary};
  return {std::istreambuf_iterator<char>{file}, {}};
}

std::string link_at(const std::string& path) {
  std::string text(4096, '\0');
  const ssize_t length = ::readlink(path.c_str(), text.data(), text.size());
  text.resize(length > 0 ? static_cast<std::size_t>(length) : 0);
  return text.substr(0, text.find(":["));  // the number of a pipe
}

void facts_of_descriptors() {
  DIR* const folder = ::opendir("/proc/self/fd");
  while (const dirent* const entry = ::readdir(folder)) {
    const int descriptor = std::atoi(entry->d_name);
    if (*entry->d_name == '.' || descriptor == ::dirfd(folder)) continue;
    const std::string name = "descriptor " + std::to_string(descriptor);
    fact(name, link_at(std::string{"/proc/self/fd/"} + entry->d_name) + ", flags " +
                   std::to_string(::fcntl(descriptor, F_GETFD)) + " " + std::to_string(::fcntl(descriptor, F_GETFL)) +
                   (::isatty(descriptor) == 1 ? ", a terminal" : ""));
  }
  ::closedir(folder);
}

void facts_of_process() {
  for (const char* name : {"cmdline", "comm", "environ", "cgroup", "oom_score_adj", "timerslack_ns"}) {
    fact(name, content(std::string{"/proc/self/"} + name));
  }
  for (const char* name : {"exe", "cwd", "root"}) fact(name, link_at(std::string{"/proc/self/"} + name));
  std::ifstream status{"/proc/self/status"};
  for (std::string line; std::getline(status, line);) {
    const std::string name = line.substr(0, line.find(':'));
    for (const char* wanted : {"Umask", "Threads", "SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt", "CapEff",
                               "NoNewPrivs", "Seccomp", "Uid", "Gid", "Cpus_allowed_list"}) {
      if (name == wanted) fact("status " + name, line);
    }
  }
  int death_signal = -1;
  ::prctl(PR_GET_PDEATHSIG, &death_signal);
  fact("death signal", std::to_string(death_signal));
  int reaps = -1;
  ::prctl(PR_GET_CHILD_SUBREAPER, &reaps);
  fact("prctl", std::to_string(reaps) + " " + std::to_string(::prctl(PR_GET_DUMPABLE)) + " " +
                    std::to_string(::prctl(PR_GET_TIMERSLACK)) + " " + std::to_string(::prctl(PR_GET_KEEPCAPS)));
  fact("leads", std::to_string(::getsid(0) == ::getpid()) + std::to_string(::getpgrp() == ::getpid()) +
                    std::to_string(::gettid() == ::getpid()));
  fact("parent", content("/proc/" + std::to_string(::getppid()) + "/comm"));
  fact("scheduling", std::to_string(::sched_getscheduler(0)) + " " + std::to_string(::getpriority(PRIO_PROCESS, 0)));
  std::string limits;
  for (int number = 0; number < static_cast<int>(RLIM_NLIMITS); ++number) {
    rlimit limit{};
    ::getrlimit(static_cast<__rlimit_resource>(number), &limit);
    limits += std::to_string(limit.rlim_cur) + "/" + std::to_string(limit.rlim_max) + " ";
  }
  fact("limits", limits);
}

int facts(const torchup::Worker& worker, std::span<char*> arguments) {
  const bool used = ::__fbufsize(stdout) > 0;
  fact("stdout", std::to_string(used) + " " + std::to_string(::__flbf(stdout)));
  std::string words;
  for (const char* word : arguments) words += std::string{word} + "|";
  fact("arguments", words);
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::string name = text.substr(0, text.find('='));
    const char* const value = std::getenv(name.c_str());
    fact("variable " + name, value ? value : "none");
  }
  fact("page", std::getenv("TORCHUP_WORKER_PAGE") ? "unused" : "used");
  if (const char* const text = std::getenv("TORCHUP_WORKER_CHANNEL")) {
    unsigned long inode = 0;
    int pid = 0;
    struct stat status {};
    const bool known = std::sscanf(text, "1:4:%lu:%d", &inode, &pid) == 2 && ::fstat(4, &status) == 0;
    fact("channel is ours", std::to_string(known && inode == status.st_ino && pid == ::getpid()));
  }
  facts_of_process();
  facts_of_descriptors();
  fact("worker", std::to_string(worker.rank()) + " " + std::to_string(worker.world_size()) + " " +
                     std::to_string(worker.local_rank()) + " " + std::to_string(worker.restart_count()) + " " +
                     worker.device().str());
  fact("threads of torch",
       std::to_string(torch::get_num_threads()) + " " + std::to_string(torch::get_num_interop_threads()));
  fact("input", std::to_string(std::getchar()));
  return 0;
}

/// Tells where it is, and waits for the file `end`.
int live() {
  std::ofstream{"seen", std::ios::app} << std::string{std::getenv("TORCHELASTIC_RESTART_COUNT")} + " " +
                                              std::getenv("RANK") + " " + std::to_string(::getpid()) + " " +
                                              std::to_string(constructed_in) + "\n";
  while (::access("end", F_OK) != 0) ::usleep(10'000);
  return 0;
}

int train(torchup::Worker& worker, std::span<char*> arguments) {
  const std::string_view what = arguments[1];
  if (what == "facts") return facts(worker, arguments);
  if (what == "live") return live();
  if (what == "whose") std::puts(constructed_in == ::getpid() ? "executed" : "forked");
  if (what == "random") std::printf("%.9f %.9f\n", torch::rand({1}).item<double>(), torch::rand({1}).item<double>());
  if (what == "step") worker.end_step(5);
  if (what == "meet") {
    auto group = torchup::init_process_group({.backend = "gloo"});
    torch::Tensor sum = torch::full({1000, 10}, worker.rank() + 1.0, torch::requires_grad());
    sum.square().sum().backward();
    torch::Tensor gradient = sum.grad();
    torchup::all_reduce(gradient, group);
    std::printf("%.1f\n", gradient.sum().item<double>());
  }
  return 0;
}

/// What a main may do on its way.
void do_before(const std::string& what) {
  if (what == "exit") std::exit(3);
  if (what == "segv") ::raise(SIGSEGV);
  if (what == "sleep") ::sleep(1000);
  if (what == "thread") std::thread{[] { ::pause(); }}.detach();
  if (what == "seed") torch::manual_seed(7);
  if (what == "print") std::printf("on the way, "), std::cout << "to worker_main\n";
  if (what == "open") (void)::open("/dev/zero", O_RDONLY | O_CLOEXEC);
  if (what == "closed") ::close(3);
  if (what == "chdir") (void)!::chdir("..");
  if (what == "broken-children") ::pthread_atfork(nullptr, nullptr, [] { ::_exit(4); });
  if (what == "signals") {
    ::signal(SIGPIPE, SIG_IGN);
    ::signal(SIGUSR2, [](int) {});
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGWINCH);
    ::sigprocmask(SIG_BLOCK, &blocked, nullptr);
    ::umask(077);
  }
  if (what == "variables") {
    ::setenv("ADDED", "by main", 1);
    ::setenv("CHANGED", "by main", 1);
    ::setenv("MASTER_ADDR", "for one who is alone", 0);
    ::unsetenv("TAKEN");
  }
  if (what.starts_with("open=")) (void)::open(what.c_str() + 5, O_RDONLY | O_CLOEXEC);
}

}  // namespace

int run_as_program(int argc, char** argv) {
  const std::span<char*> before{argv + 2, argv + argc};
  for (const char* const what : before) do_before(what);
  const auto has = [&](std::string_view word) { return std::ranges::find(before, word) != before.end(); };
  if (has("in-a-child")) {
    const pid_t child = ::fork();
    int status = 0;
    if (child > 0 && ::waitpid(child, &status, 0) == child) return WEXITSTATUS(status);
  }
  return has("spawn") ? torchup::spawn(argc, argv, train, 2) : torchup::worker_main(argc, argv, train);
}

const TestProgram program{"forked_worker", run_as_program};

}  // namespace forked_worker
