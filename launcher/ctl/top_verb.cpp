// top: a job's status, drawn again each second.

#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <optional>
#include <string>

#include "launcher/ctl/job_text.hpp"
#include "launcher/ctl/target.hpp"
#include "launcher/ctl/verbs.hpp"
#include "rendezvous/net/io/write_all.hpp"

namespace torchup {
namespace {

constexpr Duration redraw_interval = std::chrono::seconds{1};
constexpr int events_at_once = 1000;
constexpr int keyboard = STDIN_FILENO, screen_fd = STDOUT_FILENO;

volatile std::sig_atomic_t asked_to_end = 0;
void note_signal(int signal) { asked_to_end = signal; }

/// The terminal while it is ours: its other page, keys as they are typed. Given back as it was.
class Screen {
 public:
  Screen() {
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
      struct sigaction action {};
      action.sa_handler = note_signal;
      ::sigaction(signal, &action, nullptr);
    }
    if (::tcgetattr(keyboard, &before_) == 0) {
      termios keys = before_;
      keys.c_lflag &= static_cast<tcflag_t>(~(ICANON | ECHO));
      keys_changed_ = ::tcsetattr(keyboard, TCSANOW, &keys) == 0;
    }
    write("\x1b[?1049h\x1b[?25l");
  }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;
  ~Screen() {
    write("\x1b[?25h\x1b[?1049l");
    if (keys_changed_) ::tcsetattr(keyboard, TCSANOW, &before_);
  }

  [[nodiscard]] static winsize size() {
    winsize size{};
    if (::ioctl(screen_fd, TIOCGWINSZ, &size) != 0 || size.ws_row == 0 || size.ws_col == 0) size = {24, 80, 0, 0};
    return size;
  }

  static void draw(const std::vector<std::string>& lines) {
    const winsize now = size();
    std::string text = "\x1b[H";
    for (std::size_t i = 0; i < lines.size() && i < now.ws_row; ++i)
      text += fmt::format("{}{}\x1b[K", i > 0 ? "\r\n" : "", cut_line(lines[i], now.ws_col));
    write(text + "\x1b[J");
  }

 private:
  static void write(std::string_view text) { static_cast<void>(write_all(screen_fd, text)); }

  termios before_{};
  bool keys_changed_ = false;
};

/// The job as the stream tells it, which is begun again where it breaks.
class Watched {
 public:
  explicit Watched(Target target) : target_{std::move(target)} { connect(); }

  /// Takes in what has come, but no more than leaves time for the keyboard.
  void take() {
    for (int i = 0; stream_ && i < events_at_once; ++i) {
      const auto event = stream_->next({});
      if (!event) break;
      auto data = parse_json(event->data);
      if (!data || !data->is_object()) continue;
      if (event->name == "snapshot") snapshot_ = *std::move(data);
      if (event->name == "change") snapshot_.merge_patch(*data);
    }
    if (stream_ && stream_->ended()) stream_.reset();
  }
  void connect() {
    if (stream_) return;
    stream_.emplace(target_.door, target_.path("/stream"), "");
    if (!stream_->trouble()) return;
    trouble_ = stream_->trouble();
    stream_.reset();
  }
  [[nodiscard]] bool connected() const { return stream_.has_value(); }
  [[nodiscard]] int descriptor() const { return stream_ ? stream_->descriptor() : -1; }
  [[nodiscard]] const json& snapshot() const { return snapshot_; }
  [[nodiscard]] const std::optional<Trouble>& trouble() const { return trouble_; }

 private:
  Target target_;
  std::optional<EventStream> stream_;
  json snapshot_ = json::object();
  std::optional<Trouble> trouble_;
};

/// True: somebody has typed q, or nobody can type any more.
bool ends_by_key() {
  std::array<char, 64> keys{};
  const ssize_t count = ::read(keyboard, keys.data(), keys.size());
  if (count <= 0) return count == 0 || errno != EINTR;
  const auto end = keys.begin() + count;
  return std::find_if(keys.begin(), end, [](char c) { return c == 'q' || c == 'Q' || c == '\x03'; }) != end;
}

std::vector<std::string> page_of(const Watched& watched) {
  const std::size_t height = Screen::size().ws_row;
  constexpr std::size_t other_lines = 14;  // head, incident, foot
  std::vector<std::string> lines =
      status_lines(watched.snapshot(), {.colour = shows_colours() ? Colour::terminal : Colour::none,
                                        .worst_first = true,
                                        .nodes_max = height > other_lines + 4 ? height - other_lines : 4});
  lines.emplace_back();
  lines.emplace_back(watched.connected() ? "q ends" : "NOT CONNECTED, trying again; q ends");
  return lines;
}

int watch(Watched watched) {
  const Screen screen;
  TimePoint due{};
  while (asked_to_end == 0) {
    watched.take();
    const TimePoint now = std::chrono::steady_clock::now();
    if (now >= due) {
      if (!watched.connected()) watched.connect();
      Screen::draw(page_of(watched));
      due = now + redraw_interval;
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(due - std::chrono::steady_clock::now());
    std::array<pollfd, 2> wishes{{{keyboard, POLLIN, 0}, {watched.descriptor(), POLLIN, 0}}};
    const int ready = ::poll(wishes.data(), wishes.size(), static_cast<int>(std::max<std::int64_t>(left.count(), 0)));
    if (ready > 0 && wishes[0].revents != 0 && ends_by_key()) return CtlExit::done;
  }
  return 128 + asked_to_end;
}

}  // namespace

int run_top(const Command& command) {
  if (::isatty(screen_fd) != 1 || ::isatty(keyboard) != 1)
    return complain("top needs a terminal; status prints the same once", CtlExit::usage);
  auto found = find_target(command, command.operands.empty() ? "" : command.operands[0]);
  if (const int* const code = std::get_if<int>(&found)) return *code;
  Watched watched{std::get<Target>(std::move(found))};
  if (watched.trouble()) return complain(*watched.trouble());
  return watch(std::move(watched));
}

}  // namespace torchup
