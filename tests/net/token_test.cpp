#include "rendezvous/net/io/token.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>

using namespace torchup;

namespace {

/// A file with a token, alone in its directory.
struct TokenFile {
  TokenFile() {
    std::string name = (std::filesystem::temp_directory_path() / "torchup-token-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()));
    directory = name;
    ::chmod(name.c_str(), 0750);
    path = (directory / "token").string();
    std::ofstream{path} << "0123456789abcdef\n";
  }
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;
  ~TokenFile() {
    ::unsetenv("CREDENTIALS_DIRECTORY");
    std::filesystem::remove_all(directory);
  }
  [[nodiscard]] bool is_read(::mode_t mode) const {
    REQUIRE(::chmod(path.c_str(), mode) == 0);
    return read_token_file(path).has_value();
  }
  /// As another user, to whom the group's bits give what an access list gives the service's user. Root's tests alone.
  [[nodiscard]] bool another_reads() const {
    REQUIRE(::seteuid(65534) == 0);
    const bool read = read_token_file(path).has_value();
    REQUIRE(::seteuid(0) == 0);
    return read;
  }

  std::filesystem::path directory;
  std::string path;
};

}  // namespace

TEST_CASE("a token file is its user's alone", "[net][token]") {
  const TokenFile file;
  REQUIRE(file.is_read(0600));
  REQUIRE_FALSE(file.is_read(0640));
  REQUIRE_FALSE(file.is_read(0604));
}

TEST_CASE("a token that the service manager gives is root's, and the service may read it", "[net][token]") {
  const TokenFile file;
  if (::geteuid() != 0) return;  // nobody else makes a file of root's
  ::setenv("CREDENTIALS_DIRECTORY", "/nowhere", 1);
  REQUIRE_FALSE(file.is_read(0440));
  REQUIRE_FALSE(file.another_reads());
  ::setenv("CREDENTIALS_DIRECTORY", file.directory.c_str(), 1);
  REQUIRE(file.is_read(0440));
  REQUIRE(file.another_reads());
  REQUIRE_FALSE(file.is_read(0444));
  REQUIRE_FALSE(file.another_reads());
  REQUIRE(file.is_read(0440));
  REQUIRE(::chown(file.path.c_str(), 65533, 0) == 0);  // somebody else's, wherever it stands
  REQUIRE_FALSE(file.is_read(0440));
}

TEST_CASE("a token is long and has many different characters", "[net][token]") {
  REQUIRE(*checked_token("0123456789abcdef", "here") == "0123456789abcdef");  // token_bytes_min
  REQUIRE(checked_token("0123456789abcde", "here").error().code == errc::bad_value);
  REQUIRE(checked_token("", "here").has_error());
  REQUIRE(checked_token("abcdefghaaaaaaaa", "here").has_value());  // token_distinct_bytes_min
  REQUIRE(checked_token("abcdefgaaaaaaaaa", "here").has_error());
  std::string longest;
  while (longest.size() < token_bytes_max) longest += "0123456789abcdef";
  REQUIRE(checked_token(longest, "here").has_value());
  REQUIRE(checked_token(longest + "x", "here").error().code == errc::limit_exceeded);
}

TEST_CASE("an error about a token names where it was and not what it is", "[net][token]") {
  const std::string text = checked_token("hunter2", "token file /x").error().message();
  REQUIRE(text.find("token file /x") == 0);
  REQUIRE(text.find("hunter2") == std::string::npos);
  REQUIRE(text.find("/dev/urandom") != std::string::npos);
}

TEST_CASE("secrets are compared whole", "[net][token]") {
  REQUIRE(same("0123456789abcdef", "0123456789abcdef"));
  REQUIRE_FALSE(same("0123456789abcdef", "0123456789abcdeg"));
  REQUIRE_FALSE(same("0123456789abcdef", "0123456789abcde"));
  REQUIRE_FALSE(same("", "0"));
  REQUIRE(same("", ""));
}
