#include "rendezvous/net/io/token.hpp"

#include <fmt/format.h>
#include <grp.h>
#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <vector>

#include "rendezvous/core/text/same_secret.hpp"

using namespace torchup;

namespace {

/// A file with a token, alone in its directory.
struct TokenFile {
  TokenFile() {
    std::string name = (std::filesystem::temp_directory_path() / "torchup-token-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()));
    directory = name;
    ::chmod(name.c_str(), 0755);
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
  /// As another user, who is of these groups too. Root's tests alone.
  [[nodiscard]] bool another_reads(const std::vector<::gid_t>& groups = {}) const {
    std::vector<::gid_t> own(static_cast<std::size_t>(::getgroups(0, nullptr)));
    REQUIRE(::getgroups(static_cast<int>(own.size()), own.data()) >= 0);
    REQUIRE(::setgroups(groups.size(), groups.data()) == 0);
    REQUIRE(::setegid(another) == 0);
    REQUIRE(::seteuid(another) == 0);
    const bool read = read_token_file(path).has_value();
    REQUIRE(::seteuid(0) == 0);
    REQUIRE(::setegid(0) == 0);
    REQUIRE(::setgroups(own.size(), own.data()) == 0);
    return read;
  }
  void belongs_to(::uid_t user, ::gid_t group) const { REQUIRE(::chown(path.c_str(), user, group) == 0); }

  /// Gives another user an entry of the file's access list, as the service manager does. False: there are no such
  /// lists.
  [[nodiscard]] bool list_another() const {
    constexpr auto nobody = static_cast<std::uint32_t>(ACL_UNDEFINED_ID);
    struct List {
      posix_acl_xattr_header header{POSIX_ACL_XATTR_VERSION};
      std::array<posix_acl_xattr_entry, 5> entries{{{ACL_USER_OBJ, ACL_READ, nobody},
                                                    {ACL_USER, ACL_READ, another},
                                                    {ACL_GROUP_OBJ, 0, nobody},
                                                    {ACL_MASK, ACL_READ, nobody},
                                                    {ACL_OTHER, 0, nobody}}};
    } const list;
    return ::setxattr(path.c_str(), "system.posix_acl_access", &list, sizeof list, 0) == 0;
  }

  static constexpr ::uid_t another = 65534;
  std::filesystem::path directory;
  std::string path;
};

}  // namespace

TEST_CASE("a proof is HMAC-SHA-256, whatever the key's length", "[net][token]") {
  const auto hexadecimal = [](const Mac& mac) {
    std::string text;
    for (const auto byte : mac) text += fmt::format("{:02x}", static_cast<unsigned>(byte));
    return text;
  };
  // RFC 4231, cases 1, 2 and 6.
  REQUIRE(hexadecimal(hmac_sha256(std::string(20, '\x0b'), "Hi There")) ==
          "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  REQUIRE(hexadecimal(hmac_sha256("Jefe", "what do ya want for nothing?")) ==
          "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  REQUIRE(
      hexadecimal(hmac_sha256(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First")) ==
      "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST_CASE("a token file is its user's alone", "[net][token]") {
  const TokenFile file;
  if (::geteuid() == 0) file.belongs_to(0, TokenFile::another);
  REQUIRE(file.is_read(0600));
  REQUIRE_FALSE(file.is_read(0640));
  REQUIRE_FALSE(file.is_read(0604));
}

TEST_CASE("a mounted Secret is root's, and its group ours", "[net][token]") {
  const TokenFile file;
  if (::geteuid() != 0) return;  // nobody else makes a file of root's
  constexpr ::gid_t fs_group = 2000;
  file.belongs_to(0, fs_group);
  REQUIRE_FALSE(file.is_read(0440));  // by root, who can, but is not of the group
  REQUIRE(file.another_reads({fs_group}));
  REQUIRE(file.another_reads({1, 2, fs_group}));
  file.belongs_to(0, TokenFile::another);  // the group of the process itself
  REQUIRE(file.another_reads());
  REQUIRE_FALSE(file.is_read(0444));
  REQUIRE_FALSE(file.another_reads());
  REQUIRE_FALSE(file.is_read(0404));
  REQUIRE_FALSE(file.another_reads());
  file.belongs_to(TokenFile::another, fs_group);  // one's own is nobody else's to read
  REQUIRE_FALSE(file.is_read(0440));
  REQUIRE_FALSE(file.another_reads({fs_group}));
  REQUIRE_FALSE(file.is_read(0400));  // another user's, for root too
  REQUIRE(file.another_reads());
  file.belongs_to(1, fs_group);
  REQUIRE_FALSE(file.is_read(0440));
  REQUIRE_FALSE(file.another_reads({fs_group}));
}

TEST_CASE("a token that the service manager gives is root's, and the service may read it", "[net][token]") {
  const TokenFile file;
  if (::geteuid() != 0) return;  // nobody else makes a file of root's
  file.belongs_to(0, 65533);
  if (!file.list_another()) return;
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
  REQUIRE(same_secret("0123456789abcdef", "0123456789abcdef"));
  REQUIRE_FALSE(same_secret("0123456789abcdef", "0123456789abcdeg"));
  REQUIRE_FALSE(same_secret("0123456789abcdef", "0123456789abcde"));
  REQUIRE_FALSE(same_secret("", "0"));
  REQUIRE(same_secret("", ""));
}
