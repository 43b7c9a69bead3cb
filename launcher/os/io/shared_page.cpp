#include "launcher/os/io/shared_page.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>

namespace torchup {

Result<SharedPage> SharedPage::make() {
  const auto error = [] { return system_error("the page that a worker shares with us"); };
  SharedPage page;
  page.fd_ = UniqueFd{::memfd_create("torchup-worker", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  struct stat status {};
  if (page.fd() < 0 || ::ftruncate(page.fd(), static_cast<off_t>(worker_page_bytes)) != 0 ||
      ::fcntl(page.fd(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0 ||
      ::fstat(page.fd(), &status) != 0) {
    return error();
  }
  page.device_ = status.st_dev;
  page.inode_ = status.st_ino;
  return page;
}

std::optional<WorkerProgress> SharedPage::read(pid_t pid) const {
  std::array<std::byte, worker_page_bytes> copy;
  if (::pread(fd(), copy.data(), copy.size(), 0) != static_cast<ssize_t>(copy.size())) return std::nullopt;
  return read_worker_page(copy, pid);
}

bool SharedPage::is_open(pid_t pid) const {
  std::array<std::byte, worker_page_bytes> copy;
  return ::pread(fd(), copy.data(), copy.size(), 0) == static_cast<ssize_t>(copy.size()) &&
         is_worker_page_open(copy, pid);
}

void SharedPage::request_drain() {
  const std::uint64_t yes = 1;
  // A page that cannot be written is one that the worker cannot read either.
  [[maybe_unused]] const ssize_t written = ::pwrite(fd(), &yes, sizeof yes, static_cast<off_t>(worker_page::drain));
}

}  // namespace torchup
