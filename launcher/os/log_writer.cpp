#include "launcher/os/log_writer.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/os/bounded_queue.hpp"
#include "launcher/os/writer_thread.hpp"
#include "rendezvous/net/unique_fd.hpp"
#include "rendezvous/net/write_all.hpp"

namespace torchup {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto report_interval = std::chrono::minutes{1};

std::string reason_of(int error) {
  return boost::system::error_code{error, boost::system::system_category()}.message();
}

}  // namespace

class LogFile {
 public:
  LogFile(std::string path, std::uint64_t bytes_max, bool append)
      : path_{std::move(path)}, bytes_max_{bytes_max}, append_{append} {}

  [[nodiscard]] const std::string& path() const { return path_; }

  /// Returns an errno or 0.
  int open() {
    const int flags = append_ ? O_APPEND | O_NONBLOCK : O_TRUNC;  // a FIFO without reader is an error, not a wait
    fd_.reset(::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOCTTY | flags, 0666));
    if (!fd_) return errno;
    if (append_) ::fcntl(fd_.get(), F_SETFL, O_APPEND);
    size_ = 0;
    return 0;
  }

  /// Returns an errno or 0; lost bytes are counted.
  int write(std::string_view bytes) {
    while (!bytes.empty()) {
      if (!fd_)
        if (const int error = open(); error != 0) return lose(bytes, error);
      std::string_view part = bytes.substr(0, fitting(bytes));
      bytes.remove_prefix(part.size());
      const std::size_t wanted = part.size();
      const int error = write_all(fd_.get(), part);
      size_ += wanted - part.size();
      if (error != 0) {
        lost_ += part.size();
        return lose(bytes, error);
      }
      if (!bytes.empty())
        if (const int failed = rotate(); failed != 0) return lose(bytes, failed);
    }
    return 0;
  }

  /// What is to be told now about losses, if anything.
  std::optional<LogWriter::Failure> due_report(bool at_once) {
    if (lost_ == told_ || (!at_once && told_at_ && Clock::now() - *told_at_ < report_interval)) return std::nullopt;
    told_at_ = Clock::now();
    told_ = lost_;
    return LogWriter::Failure{path_, reason_of(error_), lost_};
  }

 private:
  /// How many of these bytes go into the file before it is rotated: whole lines, unless one alone is too long.
  [[nodiscard]] std::size_t fitting(std::string_view bytes) const {
    const std::uint64_t room = bytes_max_ > size_ ? bytes_max_ - size_ : 0;
    if (bytes_max_ == 0 || bytes.size() <= room) return bytes.size();
    const auto line_end = room == 0 ? std::string_view::npos : bytes.rfind('\n', room - 1);
    if (line_end != std::string_view::npos) return line_end + 1;
    return size_ == 0 ? room : 0;
  }

  int rotate() {
    if (::rename(path_.c_str(), (path_ + ".1").c_str()) != 0) return errno;
    fd_.reset();
    return open();
  }

  int lose(std::string_view bytes, int error) {
    lost_ += bytes.size();
    error_ = error;
    return error;
  }

  std::string path_;
  std::uint64_t bytes_max_;
  bool append_;
  UniqueFd fd_;
  std::uint64_t size_ = 0;
  std::uint64_t lost_ = 0;
  std::uint64_t told_ = 0;
  int error_ = 0;
  std::optional<Clock::time_point> told_at_;
};

struct LogWriter::State {
  struct Message {
    File file;
    std::string bytes;
    std::function<void()> work;
  };
  std::function<void(Failure)> failed;
  BoundedQueue<Message> queue;

  void tell(LogFile& file, bool at_once) {
    if (auto failure = file.due_report(at_once)) failed(std::move(*failure));
  }

  void run() {
    for (;;) {
      auto messages = queue.take();
      if (messages.empty()) return;
      for (Message& message : messages) {
        if (message.work) message.work();
        if (message.file && message.file->write(message.bytes) != 0) tell(*message.file, false);
        const std::size_t size = message_size(message);
        message = {};
        queue.done(size);
      }
    }
  }

  /// A call without bytes counts too: the queue is empty when it is done.
  static std::size_t message_size(const Message& message) { return message.bytes.size() + 1; }

  void put(Message message) {
    const std::size_t size = message_size(message);
    queue.put(std::move(message), size);
  }
};

LogWriter::LogWriter(std::function<void(Failure)> failed) : state_{std::make_shared<State>()} {
  state_->failed = std::move(failed);
  thread_ = start_writer_thread([state = state_] { state->run(); });
}

LogWriter::~LogWriter() {
  state_->queue.close();
  if (state_->queue.bytes() == 0)
    thread_.join();
  else
    thread_.detach();
}

LogWriter::File LogWriter::log_file(std::string path, std::uint64_t bytes_max) {
  return std::make_shared<LogFile>(std::move(path), bytes_max, false);
}

LogWriter::File LogWriter::appended_file(std::string path) {
  return std::make_shared<LogFile>(std::move(path), 0, true);
}

Result<> LogWriter::open(LogFile& file) {
  if (const int error = file.open(); error != 0) return system_error(error, file.path());
  return {};
}

void LogWriter::write(const File& file, std::string bytes) { state_->put({file, std::move(bytes), {}}); }

void LogWriter::call(std::function<void()> work) { state_->put({{}, {}, std::move(work)}); }

void LogWriter::report_losses(const File& file) {
  call([state = state_.get(), file] { state->tell(*file, true); });
}

std::size_t LogWriter::queued_bytes() const { return state_->queue.bytes(); }

void LogWriter::when_at_most(std::size_t level, std::function<void()> notice) {
  state_->queue.when_at_most(level, std::move(notice));
}

Result<> replace_file_now(const std::string& path, const std::string& content) {
  struct stat status {};
  const bool direct = ::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode);
  const std::string target = direct ? path : path + ".tmp" + std::to_string(::getpid());
  UniqueFd fd{::open(target.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0666)};
  if (!fd) return system_error(errno, target);
  std::string_view rest = content;
  int error = write_all(fd.get(), rest);
  if (error == 0 && !direct && ::fsync(fd.get()) != 0) error = errno;
  if (error == 0 && !direct && ::rename(target.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return {};
  if (!direct) ::unlink(target.c_str());
  return system_error(error, path);
}

}  // namespace torchup
