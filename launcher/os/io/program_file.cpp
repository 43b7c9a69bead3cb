#include "launcher/os/io/program_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <string_view>

#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {
namespace {

ProgramFile::Kind kind_of(const std::string& path) {
  const UniqueFd file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  std::array<char, 4> first{};
  const ssize_t length = file ? ::read(file.get(), first.data(), first.size()) : -1;
  const std::string_view begin{first.data(), length > 0 ? static_cast<std::size_t>(length) : 0};
  if (begin == std::string_view{"\x7f"
                                "ELF"})
    return ProgramFile::Kind::elf;
  if (begin.starts_with("#!")) return ProgramFile::Kind::script;
  // A program that we may run but not read can only be native.
  if (!file && ::access(path.c_str(), X_OK) == 0) return ProgramFile::Kind::elf;
  return ProgramFile::Kind::other;
}

std::optional<ProgramFile> look_at(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    if (errno != EACCES) return std::nullopt;
    return ProgramFile{path, ProgramFile::Kind::other, false,
                       "Permission denied (a folder above it cannot be searched)"};
  }
  if (S_ISDIR(status.st_mode)) {
    if (::access((path + "/__main__.py").c_str(), R_OK) != 0)
      return ProgramFile{path, ProgramFile::Kind::other, false, "Is a directory (and has no __main__.py)"};
    return ProgramFile{path, ProgramFile::Kind::other, false};
  }
  return ProgramFile{path, kind_of(path), ::access(path.c_str(), X_OK) == 0};
}

std::optional<ProgramFile> look_on_path_list(const std::string& name) {
  if (name.find('/') != std::string::npos) return look_at(name);
  const char* const variable = std::getenv("PATH");
  const std::string_view list = variable ? variable : "/usr/local/bin:/usr/bin:/bin";
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(':', begin), list.size());
    std::string folder{list.substr(begin, end - begin)};
    begin = end + 1;
    if (folder.empty()) folder = ".";
    const std::string path = folder + "/" + name;
    if (::access(path.c_str(), X_OK) != 0) continue;
    if (auto file = look_at(path); file && file->executable) return file;
  }
  return std::nullopt;
}

}  // namespace

std::optional<ProgramFile> find_program(const std::string& name, Where where) {
  std::optional<ProgramFile> found;
  switch (where) {
    case Where::path:
      return look_at(name);
    case Where::path_list:
      return look_on_path_list(name);
    case Where::path_then_list:
      found = look_at(name);
      if (found && found->problem.empty()) return found;
      if (auto listed = look_on_path_list(name)) return listed;
      return found;
    case Where::list_then_path:
      found = look_on_path_list(name);
      return found ? found : look_at(name);
  }
  return found;
}

}  // namespace torchup
