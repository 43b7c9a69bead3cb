#include "launcher/os/machine/process_stat.hpp"

#include <fcntl.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdio>
#include <string_view>

#include "launcher/os/io/read_text.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {
namespace {

/// Takes the text up to the next blank off `line`, and the blank.
std::string_view next_field(std::string_view& line) {
  const auto end = line.find(' ');
  const std::string_view field = line.substr(0, end);
  line.remove_prefix(end == std::string_view::npos ? line.size() : end + 1);
  return field;
}

template <class Number>
bool read_number(std::string_view field, Number& number) {
  return std::from_chars(field.data(), field.data() + field.size(), number).ec == std::errc{};
}

/// The fields of /proc/<pid>/stat from the state on, as they are kept in `text`; empty: there is no such process.
std::string_view stat_fields(pid_t pid, std::array<char, 1024>& text) {
  std::array<char, 32> path{};
  std::snprintf(path.data(), path.size(), "/proc/%d/stat", pid);
  const UniqueFd file{::open(path.data(), O_RDONLY | O_CLOEXEC)};
  if (!file) return {};
  const ssize_t length = ::read(file.get(), text.data(), text.size());
  if (length <= 0) return {};
  // The name may hold anything, blanks and brackets too; the last bracket ends it: ") S 1234 ".
  std::string_view line{text.data(), static_cast<std::size_t>(length)};
  const auto bracket = line.rfind(')');
  if (bracket == std::string_view::npos || bracket + 2 >= line.size()) return {};
  line.remove_prefix(bracket + 2);
  return line;
}

}  // namespace

std::optional<ProcessStat> process_stat(pid_t pid) {
  std::array<char, 1024> text{};
  std::string_view line = stat_fields(pid, text);
  if (line.empty()) return std::nullopt;
  ProcessStat stat;
  stat.state = next_field(line).front();
  if (!read_number(next_field(line), stat.parent) || !read_number(next_field(line), stat.group)) return std::nullopt;
  next_field(line);  // session
  unsigned terminal = 0;
  if (!read_number(next_field(line), terminal) || !read_number(next_field(line), stat.foreground)) return std::nullopt;
  stat.terminal = ::makedev((terminal >> 8) & 0xfffU, (terminal & 0xffU) | ((terminal >> 12) & 0xfff00U));
  constexpr int fields_between = 13;  // proc(5): the group of the terminal is the 8th, start time the 22nd
  for (int field = 0; field < fields_between; ++field) next_field(line);
  if (!read_number(next_field(line), stat.start_time)) return std::nullopt;
  return stat;
}

std::optional<ProcessUse> process_use(pid_t pid) {
  std::array<char, 1024> text{};
  std::string_view line = stat_fields(pid, text);
  if (line.empty()) return std::nullopt;
  constexpr int fields_before = 11;  // proc(5): the state is the 3rd, user time the 14th, resident pages the 24th
  constexpr int fields_between = 8;
  std::uint64_t user = 0, system = 0, pages = 0;
  for (int field = 0; field < fields_before; ++field) next_field(line);
  if (!read_number(next_field(line), user) || !read_number(next_field(line), system)) return std::nullopt;
  for (int field = 0; field < fields_between; ++field) next_field(line);
  if (!read_number(next_field(line), pages)) return std::nullopt;
  return ProcessUse{.cpu_s = static_cast<double>(user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK)),
                    .resident_bytes = pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE))};
}

pid_t parent_of(pid_t pid) {
  const auto stat = process_stat(pid);
  return stat ? stat->parent : 0;
}

std::string command_line(pid_t pid, std::size_t bytes_max) {
  return read_text("/proc/" + std::to_string(pid) + "/cmdline", bytes_max);
}

}  // namespace torchup
