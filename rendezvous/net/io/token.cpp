#include "rendezvous/net/io/token.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>
#include <stdexcept>
#include <system_error>
#include <vector>

#include "rendezvous/net/io/openssl.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {

namespace {

/// libcrypto, loaded when the first token is proved: its 20,000 relocations cost every start a quarter of its time
/// otherwise, with a token or without.
struct Crypto {
  Crypto() {
    void* const library = ::dlopen("libcrypto.so.3", RTLD_NOW | RTLD_LOCAL);
    if (!library) throw std::runtime_error{std::string{"a job token needs libcrypto: "} + ::dlerror()};
    hmac = reinterpret_cast<decltype(hmac)>(::dlsym(library, "HMAC"));
    sha256 = reinterpret_cast<decltype(sha256)>(::dlsym(library, "EVP_sha256"));
    if (!hmac || !sha256) throw std::runtime_error{"libcrypto.so.3 lacks HMAC-SHA-256"};
  }
  decltype(&::HMAC) hmac = nullptr;
  decltype(&::EVP_sha256) sha256 = nullptr;
};

const Crypto& crypto() {
  static const Crypto loaded;
  return loaded;
}

}  // namespace

Result<> prepare_proofs() {
  try {
    (void)crypto();
    if (const auto loaded = OpenSsl::load(); !loaded) return loaded.error();
    return {};
  } catch (const std::runtime_error& error) {
    return fail(errc::refused, error.what());
  }
}

Mac hmac_sha256(std::string_view key, std::string_view text) {
  Mac mac{};
  unsigned int length = 0;
  const auto* bytes =
      crypto().hmac(crypto().sha256(), key.data(), static_cast<int>(key.size()),
                    reinterpret_cast<const unsigned char*>(text.data()), text.size(), mac.data(), &length);
  if (!bytes || length != mac.size()) throw std::runtime_error{"libcrypto gave no HMAC-SHA-256"};
  return mac;
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

}  // namespace

namespace {

/// `guarded`: the folder keeps others out, whatever the file's mode says.
Result<std::string> read_secret(const std::string& path, bool guarded) {
  const std::string what = "token file " + path;
  const UniqueFd file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (!file) return system_error(what);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return system_error(what);
  if (!S_ISREG(status.st_mode)) return fail(errc::bad_value, what + ": not a regular file");
  const bool roots = status.st_uid == 0;
  if (!roots && status.st_uid != ::geteuid()) return fail(errc::bad_value, what + ": belongs to another user");
  const bool for_group = roots && (is_ours(status.st_gid) || is_credential(path));
  if (!guarded && (status.st_mode & (for_group ? S_IROTH : S_IRGRP | S_IROTH)) != 0) {
    return fail(errc::bad_value, fmt::format("{}: others can read it; chmod 600 {} (a Secret of Kubernetes: "
                                             "defaultMode: 0440, and an fsGroup for the pod)",
                                             what, path));
  }
  std::string token(token_bytes_max + 1, '\0');
  const ssize_t count = ::read(file.get(), token.data(), token.size());
  if (count < 0) return system_error(what);
  token.resize(static_cast<std::size_t>(count));
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
  return checked_token(std::move(token), what);
}

}  // namespace

Result<std::string> read_token_file(const std::string& path) { return read_secret(path, false); }

Result<std::string> read_credential_token() {
  const char* const directory = std::getenv("CREDENTIALS_DIRECTORY");
  if (!directory || !*directory) return std::string{};
  const std::string path = std::string{directory} + "/token";
  // A service may have credentials, and this not among them.
  if (::access(path.c_str(), F_OK) != 0 && errno == ENOENT) return std::string{};
  return read_secret(path, true);
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
