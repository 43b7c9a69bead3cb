#include "launcher/os/io/shared_page.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <span>

namespace torchup {
namespace {

bool read_page(int memory, std::span<std::byte> copy) {
  return ::pread(memory, copy.data(), copy.size(), 0) == static_cast<ssize_t>(copy.size());
}

/// Less where it cannot be read.
std::string read_area(int memory, std::size_t at, std::size_t length) {
  std::string text(length, '\0');
  const ssize_t count = ::pread(memory, text.data(), length, static_cast<off_t>(at));
  text.resize(count < 0 ? 0 : static_cast<std::size_t>(count));
  return text;
}

}  // namespace

Result<SharedPage> SharedPage::make() {
  const auto error = [] { return system_error("the page that a worker shares with us"); };
  SharedPage page;
  page.fd_ = UniqueFd{::memfd_create("torchup-worker", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  struct stat status {};
  if (page.fd() < 0 || ::ftruncate(page.fd(), static_cast<off_t>(worker_memory_bytes)) != 0 ||
      ::lseek(page.fd(), static_cast<off_t>(worker_sheet_at), SEEK_SET) < 0 ||
      ::fcntl(page.fd(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0 ||
      ::fstat(page.fd(), &status) != 0) {
    return error();
  }
  page.device_ = status.st_dev;
  page.inode_ = status.st_ino;
  return page;
}

std::optional<WorkerProgress> SharedPage::read(pid_t pid) const { return read_progress(fd(), pid); }

std::optional<HookPage> SharedPage::hook() const { return read_hook(fd()); }

bool SharedPage::is_open(pid_t pid) const {
  std::array<std::byte, worker_page_bytes> copy;
  return read_page(fd(), copy) && is_worker_page_open(copy, pid);
}

void SharedPage::request_drain() {
  const std::uint64_t yes = 1;
  // A page that cannot be written is one that the worker cannot read either.
  [[maybe_unused]] const ssize_t written = ::pwrite(fd(), &yes, sizeof yes, static_cast<off_t>(worker_page::drain));
}

std::optional<HookPage> read_hook(int memory) {
  std::array<std::byte, worker_page_bytes> copy;
  return read_page(memory, copy) ? read_hook_page(copy) : std::nullopt;
}

std::optional<WorkerProgress> read_progress(int memory, pid_t pid) {
  std::array<std::byte, worker_page_bytes> copy;
  return read_page(memory, copy) ? read_worker_page(copy, pid) : std::nullopt;
}

std::int64_t sheet_end(int memory) { return ::lseek(memory, 0, SEEK_CUR) - static_cast<std::int64_t>(worker_sheet_at); }

void wipe_sheet(int memory) {
  constexpr auto begin = static_cast<off_t>(worker_sheet_at);
  constexpr auto size = static_cast<off_t>(worker_sheet_bytes);
  if (::fallocate(memory, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, begin, size) != 0) {
    const std::string zeros(worker_sheet_bytes, '\0');  // a seccomp filter that allows no holes
    [[maybe_unused]] const ssize_t written = ::pwrite(memory, zeros.data(), zeros.size(), begin);
  }
  ::lseek(memory, begin, SEEK_SET);
}

std::string read_sheet(int memory) {
  std::string text = read_area(memory, worker_sheet_at, worker_sheet_bytes);
  text.resize(text.find_last_not_of('\0') + 1);
  return text;
}

std::string read_answer(int memory, std::size_t length) {
  return read_area(memory, worker_answer_at, std::min(length, worker_answer_bytes));
}

}  // namespace torchup
