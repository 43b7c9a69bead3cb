#include "rendezvous/net/io/token.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sodium/crypto_auth_hmacsha256.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>
#include <system_error>
#include <vector>

#include "rendezvous/core/text/same_secret.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {

Mac hmac_sha256(std::string_view key, std::string_view text) {
  static_assert(std::tuple_size_v<Mac> == crypto_auth_hmacsha256_BYTES);
  const auto bytes = [](std::string_view words) { return reinterpret_cast<const unsigned char*>(words.data()); };
  Mac mac{};
  // No sodium_init: it chooses between implementations for other functions, and this one has a single one.
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, bytes(key), key.size());
  crypto_auth_hmacsha256_update(&state, bytes(text), text.size());
  crypto_auth_hmacsha256_final(&state, mac.data());
  ::explicit_bzero(&state, sizeof state);
  return mac;
}

bool same(const Mac& left, const Mac& right) {
  const auto text = [](const Mac& mac) {
    return std::string_view{reinterpret_cast<const char*>(mac.data()), mac.size()};
  };
  return same_secret(text(left), text(right));
}

Nonce fresh_nonce() {
  Nonce nonce{};
  if (getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size())) {
    throw std::system_error{errno, std::generic_category(), "getrandom"};
  }
  return nonce;
}

std::string take_token_variable() {
  constexpr const char* name = "TORCHUP_TOKEN";
  char* const value = std::getenv(name);
  if (!value) return "";
  std::string token = value;
  ::explicit_bzero(value, token.size());  // the kernel shows these bytes, whatever environ points to
  ::unsetenv(name);
  return token;
}

namespace {

/// A group of this process.
bool is_ours(gid_t group) {
  if (group == ::getegid()) return true;
  std::vector<gid_t> groups(static_cast<std::size_t>(std::max(::getgroups(0, nullptr), 0)));
  const int count = ::getgroups(static_cast<int>(groups.size()), groups.data());
  return count > 0 && std::find(groups.begin(), groups.begin() + count, group) != groups.begin() + count;
}

/// Whether the file stands where the service manager puts what a service is given.
bool is_credential(const std::filesystem::path& path) {
  const char* const directory = std::getenv("CREDENTIALS_DIRECTORY");
  if (!directory || !*directory) return false;
  std::error_code error;
  return std::filesystem::equivalent(path.parent_path(), directory, error) && !error;
}

/// What the file holds, without the line end.
Result<std::string> token_text(const std::string& path, const std::string& what) {
  const UniqueFd file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (!file) return system_error(what);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return system_error(what);
  if (!S_ISREG(status.st_mode)) return fail(errc::bad_value, what + ": not a regular file");
  const bool roots = status.st_uid == 0;
  if (!roots && status.st_uid != ::geteuid()) return fail(errc::bad_value, what + ": belongs to another user");
  const bool for_group = roots && (is_ours(status.st_gid) || is_credential(path));
  if ((status.st_mode & (for_group ? S_IROTH : S_IRGRP | S_IROTH)) != 0) {
    return fail(errc::bad_value, fmt::format("{}: others can read it; chmod 600 {} (a Secret of Kubernetes: "
                                             "defaultMode: 0440, and an fsGroup for the pod)",
                                             what, path));
  }
  std::string token(token_bytes_max + 1, '\0');
  const ssize_t count = ::read(file.get(), token.data(), token.size());
  if (count < 0) return system_error(what);
  token.resize(static_cast<std::size_t>(count));
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
  return token;
}

}  // namespace

Result<std::string> read_token_file(const std::string& path) {
  const std::string what = "token file " + path;
  auto token = token_text(path, what);
  return token ? checked_token(*std::move(token), what) : token;
}

Result<std::string> read_credential(std::string_view name) {
  const char* const directory = std::getenv("CREDENTIALS_DIRECTORY");
  if (!directory || !*directory) return std::string{};
  const std::string path = fmt::format("{}/{}", directory, name);
  if (::access(path.c_str(), F_OK) != 0 && errno == ENOENT) return std::string{};
  const std::string what = "credential " + path;
  auto token = token_text(path, what);
  if (!token || token->find_first_not_of(" \t\r\n") != std::string::npos) {
    return token ? checked_token(*std::move(token), what) : token;
  }
  return std::string{};
}

Result<std::string> checked_token(std::string token, std::string_view source) {
  if (token.size() > token_bytes_max) {
    return fail(errc::limit_exceeded, fmt::format("{}: a token has {} bytes at most", source, token_bytes_max));
  }
  const std::set<char> distinct{token.begin(), token.end()};
  if (token.size() < token_bytes_min || distinct.size() < token_distinct_bytes_min) {
    return fail(errc::bad_value,
                fmt::format("{}: a token that can be guessed; it needs {} characters, {} of them different: "
                            "head -c 24 /dev/urandom | base64 makes one",
                            source, token_bytes_min, token_distinct_bytes_min));
  }
  return token;
}

}  // namespace torchup
