#include "rendezvous/net/io/password.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {
namespace {

constexpr const char* variable = "TORCHUP_ETCD_PASSWORD";

std::string take_variable() {
  char* const value = std::getenv(variable);
  if (value == nullptr) return "";
  std::string password = value;
  ::explicit_bzero(value, password.size());  // the kernel shows these bytes, whatever environ points to
  ::unsetenv(variable);
  return password;
}

}  // namespace

Result<std::string> read_etcd_password(const std::string& file) {
  std::string given = take_variable();
  if (file.empty()) {
    if (given.empty()) {
      return fail(errc::bad_value,
                  fmt::format("etcd's user has no password: name a password_file, or set {}", variable));
    }
    return given;
  }
  const std::string what = "password file " + file;
  const UniqueFd opened{::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (!opened) return system_error(what);
  struct stat status {};
  if (::fstat(opened.get(), &status) != 0) return system_error(what);
  if (!S_ISREG(status.st_mode)) return fail(errc::bad_value, what + ": not a regular file");
  if (status.st_uid != 0 && status.st_uid != ::geteuid()) {
    return fail(errc::bad_value, what + ": belongs to another user");
  }
  if ((status.st_mode & (S_IRGRP | S_IROTH)) != 0) {
    return fail(errc::bad_value, fmt::format("{}: others can read it; chmod 600 {}", what, file));
  }
  std::string password(password_bytes_max + 1, '\0');
  const ssize_t count = ::read(opened.get(), password.data(), password.size());
  if (count < 0) return system_error(what);
  password.resize(static_cast<std::size_t>(count));
  while (!password.empty() && (password.back() == '\n' || password.back() == '\r')) password.pop_back();
  if (password.empty()) return fail(errc::bad_value, what + ": is empty");
  if (password.size() > password_bytes_max) return fail(errc::bad_value, what + ": is longer than a password may be");
  return password;
}

}  // namespace torchup
