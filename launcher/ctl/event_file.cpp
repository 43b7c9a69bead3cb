#include "launcher/ctl/event_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <optional>
#include <thread>

#include "launcher/core/record/time_event.hpp"
#include "launcher/ctl/values.hpp"
#include "rendezvous/core/text/printable.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {
namespace {

constexpr auto look_again = std::chrono::milliseconds{200};

/// Lines of a file, one at a time.
class FileLines {
 public:
  explicit FileLines(UniqueFd file) : file_{std::move(file)} {}

  /// The next whole line; nothing at the end of what is there, or when it cannot be read (errno_).
  std::optional<std::string> next() {
    while (true) {
      if (const std::size_t end = bytes_.find('\n', begin_); end != std::string::npos) {
        std::string line = bytes_.substr(begin_, end - begin_);
        begin_ = end + 1;
        return line;
      }
      bytes_.erase(0, std::exchange(begin_, 0));
      if (bytes_.size() > event_line_bytes_max) return std::nullopt;
      std::array<char, 65536> part;
      const ssize_t size = ::read(file_.get(), part.data(), part.size());
      if (size < 0 && errno == EINTR) continue;
      error = size < 0 ? errno : 0;
      if (size <= 0) return std::nullopt;
      bytes_.append(part.data(), static_cast<std::size_t>(size));
    }
  }
  [[nodiscard]] const std::string& rest() const { return bytes_; }
  int error = 0;

 private:
  UniqueFd file_;
  std::string bytes_;
  std::size_t begin_ = 0;
};

}  // namespace

bool is_event_file(const std::string& word) {
  struct stat status {};
  return ::stat(word.c_str(), &status) == 0 && !S_ISDIR(status.st_mode) && !S_ISSOCK(status.st_mode);
}

Result<std::string> read_event_file(const std::string& path, bool follow, const SeeEvent& see) {
  const std::string shown = printable(path);
  UniqueFd file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (!file) return system_error(shown);
  FileLines lines{std::move(file)};
  bool ended = false;
  for (std::size_t number = 1;; ++number) {
    auto line = lines.next();
    while (!line && follow && !ended && lines.error == 0 && lines.rest().size() <= event_line_bytes_max) {
      std::this_thread::sleep_for(look_again);
      line = lines.next();
    }
    if (!line) {
      if (lines.error != 0) return system_error(lines.error, shown);
      if (lines.rest().empty()) return std::string{};
      return fmt::format("{}:{}: cut off in the middle of a line; what stands before it was read", shown, number);
    }
    const auto event = parse_json(*line);
    const auto schema = event ? integer_in(*event, "schema") : std::nullopt;
    if (!schema)
      return fmt::format("{}:{}: this is no event of torchup; what stands before it was read", shown, number);
    if (*schema > event_schema) {
      return fail(errc::wrong_version, fmt::format("{}:{}: its schema is {}, and this torchupctl reads {} at most",
                                                   shown, number, *schema, event_schema));
    }
    see(*line, *event);
    ended = ended || text_in(*event, "event") == "job_ended";
  }
}

}  // namespace torchup
