#include "launcher/os/output/terminal.hpp"

#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>

#include <cstdlib>
#include <string_view>

#include "launcher/os/machine/process_stat.hpp"

namespace torchup {

bool is_dumb_terminal() {
  const char* const terminal = std::getenv("TERM");
  return terminal != nullptr && std::string_view{terminal} == "dumb";
}

bool colours_wanted() {
  const char* const no_colour = std::getenv("NO_COLOR");
  return (no_colour == nullptr || *no_colour == '\0') && std::getenv("TERM") != nullptr && !is_dumb_terminal();
}

int terminal_columns(int terminal) {
  constexpr int usual = 80;
  winsize size{};
  return ::ioctl(terminal, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : usual;
}

bool may_draw(pid_t process, int terminal) {
  termios modes{};
  struct stat device {};
  if (::tcgetattr(terminal, &modes) != 0 || (modes.c_lflag & ICANON) == 0U) return false;
  if (::fstat(terminal, &device) != 0) return false;
  const auto shown = process_stat(process);
  const bool is_its_own = shown && shown->terminal == device.st_rdev;  // where it is not, no shell of its knows of it
  return !is_its_own || shown->group == shown->foreground;
}

}  // namespace torchup
