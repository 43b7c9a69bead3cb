#include "launcher/os/output/log_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <string_view>
#include <utility>

#include "launcher/os/io/named_file.hpp"
#include "rendezvous/net/io/write_all.hpp"

namespace torchup {
namespace {

std::string reason_of(int error) {
  return boost::system::error_code{error, boost::system::system_category()}.message();
}

}  // namespace

LogFile::LogFile(DiskThread& disk, std::string name, std::string path, std::uint64_t bytes_max, Listener listener)
    : disk_{disk}, post_{disk.post()}, path_{std::move(path)}, listener_{std::move(listener)}, name_{std::move(name)},
      bytes_max_{bytes_max} {}

std::shared_ptr<LogFile> LogFile::created(DiskThread& disk, std::string name, std::string path, std::uint64_t bytes_max,
                                          Listener listener) {
  return std::shared_ptr<LogFile>{new LogFile{disk, std::move(name), std::move(path), bytes_max, std::move(listener)}};
}

std::shared_ptr<LogFile> LogFile::appended(DiskThread& disk, std::string path, Listener listener) {
  return std::shared_ptr<LogFile>{new LogFile{disk, "", std::move(path), 0, std::move(listener)}};
}

void LogFile::write(std::string bytes) {
  const std::size_t size = bytes.size();
  if (given_up_) return lose(size);
  disk_.call([self = shared_from_this(), bytes = std::move(bytes)] { self->write_now(bytes); }, size);
}

void LogFile::report_losses() {
  disk_.call([self = shared_from_this()] {
    self->look_for_it(true);
    self->tell(true);
  });
}

Result<> LogFile::open_in(std::shared_ptr<const UniqueFd> folder) {
  folder_ = std::move(folder);
  return open();
}

Result<> LogFile::open() {
  constexpr mode_t own = 0600;
  constexpr mode_t as_the_user_says = 0666;  // less the umask
  if (!name_.empty() && !folder_) return system_error(ENOENT, path_);
  auto opened = name_.empty() ? open_named_file(path_, O_CREAT | O_APPEND, as_the_user_says)
                              : create_new_file(folder_->get(), name_, own);
  if (!opened) return Error{opened.error().code, path_};
  fd_ = *std::move(opened);
  size_ = 0;
  unproved_ = 0;
  looked_ = Clock::now();
  return {};
}

void LogFile::write_now(std::string_view bytes) {
  const std::uint64_t lost_before = lost_;
  look_for_it(false);
  while (!bytes.empty()) {
    if (!fd_) {
      if (const auto opened = open(); !opened) {
        fail(bytes.size(), opened.error().code.message());
        break;
      }
    }
    std::string_view part = bytes.substr(0, fitting(bytes));
    bytes.remove_prefix(part.size());
    const std::size_t wanted = part.size();
    const int error = write_all(fd_.get(), part);
    size_ += wanted - part.size();
    unproved_ += wanted - part.size();
    if (error != 0) {
      fail(part.size() + bytes.size(), reason_of(error));
      break;
    }
    if (bytes.empty()) break;
    if (const auto rotated = rotate(); !rotated) {
      fail(bytes.size(), rotated.error().code.message());
      break;
    }
  }
  if (lost_ != lost_before) tell(false);
}

/// A file that somebody has deleted takes all that is written and keeps nothing of it.
void LogFile::look_for_it(bool now) {
  if (!fd_ || (!now && Clock::now() - looked_ < deletion_look_interval)) return;
  looked_ = Clock::now();
  struct stat status {};
  const bool gone = ::fstat(fd_.get(), &status) == 0 && S_ISREG(status.st_mode) && status.st_nlink == 0;
  const std::uint64_t written = std::exchange(unproved_, 0);
  if (!gone) return;
  fd_.reset();  // the next write makes it anew
  fail(written, "somebody has deleted it");
}

/// How many of these bytes go into the file before it is rotated: whole lines, unless one alone is too long.
std::size_t LogFile::fitting(std::string_view bytes) const {
  const std::uint64_t room = bytes_max_ > size_ ? bytes_max_ - size_ : 0;
  if (bytes_max_ == 0 || bytes.size() <= room) return bytes.size();
  const auto line_end = room == 0 ? std::string_view::npos : bytes.rfind('\n', room - 1);
  if (line_end != std::string_view::npos) return line_end + 1;
  return size_ == 0 ? room : 0;
}

Result<> LogFile::rotate() {
  const std::string before = name_ + ".1";
  if (::renameat(folder_->get(), name_.c_str(), folder_->get(), before.c_str()) != 0) return system_error(path_);
  fd_.reset();
  return open();
}

void LogFile::fail(std::uint64_t bytes, std::string reason) {
  lost_ += bytes;
  reason_ = std::move(reason);
}

void LogFile::tell(bool at_once) {
  const std::uint64_t lost = lost_;
  if (lost == told_ || (!at_once && told_at_ && Clock::now() - *told_at_ < loss_interval)) return;
  told_at_ = Clock::now();
  told_ = lost;
  Failure failure{path_, reason_.empty() ? "it was not written in time" : reason_, lost};
  post_([self = shared_from_this(), failure = std::move(failure)] { self->listener_(failure); });
}

}  // namespace torchup
