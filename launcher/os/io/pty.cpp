#include "launcher/os/io/pty.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

namespace torchup {

Result<Pty> open_pty(int like) {
  const auto failed = [] { return system_error("open a pseudo terminal"); };
  Pty pty;
  pty.master.reset(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK));
  std::array<char, 64> name{};
  if (!pty.master || ::grantpt(pty.master.get()) != 0 || ::unlockpt(pty.master.get()) != 0 ||
      ::ptsname_r(pty.master.get(), name.data(), name.size()) != 0)
    return failed();
  pty.slave.reset(::open(name.data(), O_RDWR | O_NOCTTY | O_CLOEXEC));
  if (!pty.slave) return failed();

  termios settings{};
  if (::tcgetattr(like, &settings) != 0 && ::tcgetattr(pty.slave.get(), &settings) != 0) return failed();
  settings.c_oflag &= ~static_cast<tcflag_t>(OPOST);
  settings.c_lflag &= ~static_cast<tcflag_t>(ECHO);
  if (::tcsetattr(pty.slave.get(), TCSANOW, &settings) != 0) return failed();
  copy_window_size(like, pty.master.get());
  return pty;
}

void copy_window_size(int like, int pty_master) {
  winsize size{};
  if (::ioctl(like, TIOCGWINSZ, &size) == 0) ::ioctl(pty_master, TIOCSWINSZ, &size);
}

}  // namespace torchup
