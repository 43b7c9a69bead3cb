#include "launcher/os/io/program_file.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string_view>
#include <utility>

#include "launcher/core/plan/elf_note.hpp"
#include "rendezvous/base/template_mark.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {
namespace {

/// So much of a `#!` line the kernel reads.
constexpr std::size_t first_line_bytes_max = 255;

std::optional<std::uint32_t> template_mark_of(int file) {
  const auto read = [file](std::uint64_t offset, std::size_t bytes) {
    std::string text(bytes, '\0');
    const ssize_t count = ::pread(file, text.data(), text.size(), static_cast<off_t>(offset));
    text.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
    return text;
  };
  return elf_note(read, TemplateMark::owner, TemplateMark::kind);
}

/// What `path` begins with: ELF, `#!` and its line, or something else.
ProgramFile file_at(const std::string& path) {
  ProgramFile file{path, ProgramFile::Kind::other, ::access(path.c_str(), X_OK) == 0};
  const UniqueFd opened{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  std::array<char, first_line_bytes_max> first{};
  const ssize_t length = opened ? ::read(opened.get(), first.data(), first.size()) : -1;
  const std::string_view begin{first.data(), length > 0 ? static_cast<std::size_t>(length) : 0};
  if (begin.starts_with("\x7f"
                        "ELF")) {
    file.kind = ProgramFile::Kind::elf;
    file.template_mark = template_mark_of(opened.get());
  } else if (begin.starts_with("#!")) {
    file.kind = ProgramFile::Kind::script;
    file.first_line = begin.substr(0, begin.find('\n'));
  } else if (!opened && file.executable) {
    file.kind = ProgramFile::Kind::elf;  // what we may run but not read can only be native
  }
  return file;
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
  return file_at(path);
}

/// The first folder of PATH in which `name` is executable and of which `wanted` approves.
template <class Wanted>
std::optional<ProgramFile> first_on_path_list(const std::string& name, const Wanted& wanted) {
  const char* const variable = std::getenv("PATH");
  const std::string_view list = variable ? variable : "/usr/local/bin:/usr/bin:/bin";
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(':', begin), list.size());
    std::string folder{list.substr(begin, end - begin)};
    begin = end + 1;
    if (folder.empty()) folder = ".";
    const std::string path = folder + "/" + name;
    if (::access(path.c_str(), X_OK) != 0 || !wanted(folder)) continue;
    if (auto file = look_at(path); file && file->executable) return file;
  }
  return std::nullopt;
}

std::optional<ProgramFile> look_on_path_list(const std::string& name) {
  if (name.find('/') != std::string::npos) return look_at(name);
  return first_on_path_list(name, [](const std::string&) { return true; });
}

/// Whether both paths lead to the same folder, by whatever way.
bool is_same_folder(const std::string& left, const std::string& right) {
  struct stat one {
  }, other{};
  return ::stat(left.c_str(), &one) == 0 && ::stat(right.c_str(), &other) == 0 && one.st_dev == other.st_dev &&
         one.st_ino == other.st_ino;
}

/// The folder of this very program, however it was started.
std::string own_folder() {
  std::array<char, PATH_MAX> path{};
  const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size());
  const std::string_view file{path.data(), length > 0 ? static_cast<std::size_t>(length) : 0};
  return std::string{file.substr(0, file.find_last_of('/'))};
}

/// Whether a line of pyvenv.cfg says so; case and blanks as Python's site reads them.
bool sees_packages_of_base(const std::string& configuration) {
  std::ifstream file{configuration};
  for (std::string line; std::getline(file, line);) {
    std::erase_if(line, [](unsigned char c) { return std::isspace(c) != 0; });
    std::ranges::transform(line, line.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    if (line == "include-system-site-packages=true") return true;
  }
  return false;
}

bool has_torch(const std::string& environment) {
  const std::string libraries = environment + "/lib";
  const std::unique_ptr<DIR, int (*)(DIR*)> folder{::opendir(libraries.c_str()), ::closedir};
  while (const dirent* const entry = folder ? ::readdir(folder.get()) : nullptr) {
    if (!std::string_view{entry->d_name}.starts_with("python3.")) continue;
    const std::string torch = libraries + "/" + entry->d_name + "/site-packages/torch";
    if (::access(torch.c_str(), F_OK) == 0) return true;
  }
  return false;
}

bool names(const char* variable, const std::string& environment) {
  const char* const value = std::getenv(variable);
  return value != nullptr && *value != '\0' && is_same_folder(value, environment);
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

Pythons find_pythons() {
  constexpr const char* python = "python3";
  Pythons found;
  found.folder = own_folder();
  if (auto beside = look_at(found.folder + "/" + python); beside && beside->executable) {
    const std::string environment = found.folder.substr(0, found.folder.rfind('/'));
    const std::string configuration = environment + "/pyvenv.cfg";
    found.beside = std::move(beside);
    found.is_virtual = ::access(configuration.c_str(), F_OK) == 0;
    found.has_torch = has_torch(environment) || (found.is_virtual && sees_packages_of_base(configuration));
    found.is_activated = names("VIRTUAL_ENV", environment) || names("CONDA_PREFIX", environment);
  }
  found.on_path = look_on_path_list(python);
  if (found.is_virtual) {
    found.elsewhere =
        first_on_path_list(python, [&](const std::string& folder) { return !is_same_folder(folder, found.folder); });
  }
  return found;
}

}  // namespace torchup
