#include "rendezvous/net/coordinator/state_directory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <charconv>
#include <condition_variable>
#include <deque>
#include <exception>
#include <filesystem>
#include <mutex>
#include <new>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "rendezvous/net/io/unique_fd.hpp"
#include "rendezvous/net/io/write_all.hpp"

namespace torchup {

namespace asio = boost::asio;

namespace {

constexpr std::string_view prefix = "job-", suffix = ".state", unfinished = ".new";

/// A decision waits for a write, and nobody for a removal: so many writes go first.
constexpr int writes_before_removals = 16;

/// What is no fault of the disk, and passes: the file that is there is older, and agents make up for that.
bool passes(const boost::system::error_code& code) {
  namespace errc = boost::system::errc;
  return code == errc::too_many_files_open || code == errc::too_many_files_open_in_system ||
         code == errc::not_enough_memory;
}

std::string file_name(std::uint64_t number) { return fmt::format("{}{}{}", prefix, number, suffix); }

/// Empty for names that are not ours.
std::optional<std::uint64_t> number_of(std::string_view name) {
  if (!name.starts_with(prefix) || !name.ends_with(suffix)) return {};
  name.remove_prefix(prefix.size());
  name.remove_suffix(suffix.size());
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc{} || end != name.data() + name.size()) return {};
  return number;
}

Error too_large(const std::string& path) {
  return fail(errc::limit_exceeded, fmt::format("{}: more than {} bytes are no state of a job", path, state_bytes_max));
}

Result<std::string> read_all(const std::string& path) {
  const UniqueFd file{::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)};
  if (file.get() < 0) return system_error(path);
  std::string content;
  char piece[1 << 16];
  while (true) {
    const ssize_t count = ::read(file.get(), piece, sizeof piece);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_error(path);
    if (count == 0) return content;
    content.append(piece, static_cast<std::size_t>(count));
    if (content.size() > state_bytes_max) return too_large(path);
  }
}

}  // namespace

class StateDirectory::Impl {
 public:
  Impl(asio::io_context& loop, std::string path, UniqueFd folder, UniqueFd lock)
      : loop_{loop}, path_{std::move(path)}, folder_{std::move(folder)}, lock_{std::move(lock)}, thread_{[this] {
          work();
        }} {}

  ~Impl() {
    {
      const std::lock_guard guard{mutex_};
      ending_ = true;
    }
    awake_.notify_one();
    thread_.join();
  }

  void write(std::uint64_t number, std::function<std::string()> content, Done done) {
    {
      const std::lock_guard guard{mutex_};
      writes_.push_back({number, std::move(content), std::move(done)});
    }
    awake_.notify_one();
  }

  void remove(std::uint64_t number) {
    {
      const std::lock_guard guard{mutex_};
      std::erase_if(writes_, [number](const Write& write) { return write.number == number; });
      removals_.push_back(number);
    }
    awake_.notify_one();
  }

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  struct Write {
    std::uint64_t number = 0;
    std::function<std::string()> content;
    Done done;
  };

  void work() {
    std::unique_lock guard{mutex_};
    while (true) {
      awake_.wait(guard, [this] { return ending_ || !writes_.empty() || !removals_.empty(); });
      if (writes_.empty() && removals_.empty()) return;
      if (writes_.empty() || (!removals_.empty() && writes_since_removals_ >= writes_before_removals)) {
        writes_since_removals_ = 0;
        const auto removals = std::exchange(removals_, {});
        guard.unlock();
        unlink(removals);
        guard.lock();
        continue;
      }
      Write write = std::move(writes_.front());
      writes_.pop_front();
      ++writes_since_removals_;
      guard.unlock();
      const Result<> result = carry_out(write);
      write.content = {};  // a snapshot of thousands is not freed in no time: not where the loop may wait for us
      guard.lock();
      if (write.done && !ending_) asio::post(loop_, [done = write.done, result] { done(result); });
    }
  }

  /// What is thrown here would end the process. Where memory has run out the file stays, as where descriptors have.
  Result<> carry_out(const Write& write) {
    const auto failed = [&](const char* why) {
      unlink({write.number});
      return fail(errc::bad_value, fmt::format("{}/{}: {}", path_, file_name(write.number), why));
    };
    try {
      return replace(write.number, write.content());
    } catch (const std::bad_alloc&) {
      return system_error(ENOMEM, path_ + "/" + file_name(write.number));
    } catch (const std::exception& fault) {
      return failed(fault.what());
    } catch (...) {
      return failed("it could not be made");
    }
  }

  Result<> replace(std::uint64_t number, const std::string& content) {
    auto written = write_beside(number, content);
    if (!written && !passes(written.error().code)) unlink({number});
    return written;
  }

  Result<> write_beside(std::uint64_t number, std::string_view content) {
    const std::string name = file_name(number), fresh = name + std::string{unfinished}, path = path_ + "/" + name;
    if (content.size() > state_bytes_max) return too_large(path);
    ::unlinkat(folder_.get(), fresh.c_str(), 0);
    constexpr int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    const UniqueFd file{::openat(folder_.get(), fresh.c_str(), flags, 0600)};
    if (file.get() < 0) return system_error(path);
    if (const int error = write_all(file.get(), content); error != 0) return system_error(error, path);
    if (::fdatasync(file.get()) != 0) return system_error(path);
    if (::renameat(folder_.get(), fresh.c_str(), folder_.get(), name.c_str()) != 0) return system_error(path);
    if (::fsync(folder_.get()) != 0) return system_error(path_);
    return {};
  }

  void unlink(const std::vector<std::uint64_t>& numbers) {
    for (const std::uint64_t number : numbers) {
      const std::string name = file_name(number);
      ::unlinkat(folder_.get(), (name + std::string{unfinished}).c_str(), 0);
      ::unlinkat(folder_.get(), name.c_str(), 0);
    }
    ::fsync(folder_.get());
  }

  asio::io_context& loop_;
  std::string path_;
  UniqueFd folder_, lock_;
  std::mutex mutex_;  ///< of the five below
  std::condition_variable awake_;
  std::deque<Write> writes_;
  std::vector<std::uint64_t> removals_;
  int writes_since_removals_ = 0;
  bool ending_ = false;
  std::thread thread_;  ///< last: it uses the others
};

StateDirectory::StateDirectory(std::unique_ptr<Impl> impl) : impl_{std::move(impl)} {}
StateDirectory::~StateDirectory() = default;

Result<std::unique_ptr<StateDirectory>> StateDirectory::open(asio::io_context& loop, std::string path) {
  const bool made = ::mkdir(path.c_str(), 0700) == 0;
  if (!made && errno != EEXIST) return system_error(path);
  if (made) {  // its name is to survive a power cut, as what will be in it
    const UniqueFd around{::open((path + "/..").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
    if (around.get() >= 0) ::fsync(around.get());
  }
  UniqueFd folder{::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (folder.get() < 0) return system_error(path);
  struct stat status {};
  if (::fstat(folder.get(), &status) != 0) return system_error(path);
  const bool strangers_write = (status.st_mode & S_IWOTH) != 0;
  if ((status.st_uid != ::geteuid() && status.st_uid != 0) || strangers_write) {
    return fail(errc::refused,
                fmt::format("{}: others own it or may write in it; chmod 700 {} or give a --state-dir of "
                            "your own",
                            path, path));
  }
  const std::string lock_path = path + "/lock";
  UniqueFd lock{::openat(folder.get(), "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600)};
  if (lock.get() < 0) return system_error(lock_path);
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK)
      return fail(
          errc::refused,
          path + ": another torchupd uses this state directory; end it, or give this one a --state-dir of its own");
    return system_error(lock_path);
  }
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator{path, error}) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(prefix) && name.ends_with(unfinished)) ::unlinkat(folder.get(), name.c_str(), 0);
  }
  if (error) return system_error(error.value(), path);
  auto impl = std::make_unique<Impl>(loop, std::move(path), std::move(folder), std::move(lock));
  return std::unique_ptr<StateDirectory>{new StateDirectory{std::move(impl)}};
}

Result<std::vector<StateDirectory::File>> StateDirectory::read() const {
  std::vector<File> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator{impl_->path(), error}) {
    const auto number = number_of(entry.path().filename().string());
    if (!number) continue;
    auto content = read_all(entry.path().string());
    if (!content) return content.error();
    files.push_back({*number, entry.path().string(), std::move(*content)});
  }
  if (error) return system_error(error.value(), impl_->path());
  std::sort(files.begin(), files.end(), [](const File& left, const File& right) { return left.number < right.number; });
  return files;
}

void StateDirectory::write(std::uint64_t number, std::function<std::string()> content, Done done) {
  impl_->write(number, std::move(content), std::move(done));
}
void StateDirectory::remove(std::uint64_t number) { impl_->remove(number); }
const std::string& StateDirectory::path() const { return impl_->path(); }

}  // namespace torchup
