#pragma once

#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "launcher/os/io/boost_process.hpp"

namespace torchup {

/// Boost.Process's hook between fork and exec, for helpers: a group of their own, or a session, an end with us, and
/// none of our signal handling.
struct FreshProcess {
  pid_t parent = ::getpid();
  bool own_session = false;

  boost::system::error_code on_exec_setup(boost::process::v2::posix::default_launcher&, const std::filesystem::path&,
                                          const char* const*&) const {
    if (own_session) {
      ::setsid();
    } else {
      ::setpgid(0, 0);
    }
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);  // it died before it could take us along
    struct sigaction by_default {};
    by_default.sa_handler = SIG_DFL;
    for (int number = 1; number < NSIG; ++number) ::sigaction(number, &by_default, nullptr);
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    return {};
  }
};

}  // namespace torchup
