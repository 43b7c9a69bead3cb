#include "launcher/os/worker/hook_folder.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include "launcher/os/output/run_directory.hpp"
#include "rendezvous/net/io/unique_fd.hpp"
#include "rendezvous/net/io/write_all.hpp"

namespace torchup {

// launcher/python/injected
extern const std::string_view sitecustomize_text;
extern const std::string_view torchup_worker_text;
extern const std::string_view torchup_seldom_text;
extern const std::string_view torchup_error_text;
extern const std::string_view torchup_groups_text;
extern const std::string_view torchup_loaded_text;
// Made at build by its Python (cmake/embed_bytecode.py); empty where there was none.
extern const std::string_view bytecode_tag;
extern const std::string_view sitecustomize_bytecode;
extern const std::string_view torchup_worker_bytecode;

namespace {

Result<> write_file(int folder, const char* name, std::string_view text) {
  const UniqueFd file{::openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600)};
  if (!file) return system_error(name);
  const int error = write_all(file.get(), text);  // the first write may take a part, and the next one say why
  if (error != 0) return system_error(error, name);
  return {};
}

struct HookFile {
  const char* name;
  const std::string_view& text;  // defined elsewhere, maybe later
};

constexpr HookFile files[] = {{"sitecustomize.py", sitecustomize_text},   {"torchup_worker.py", torchup_worker_text},
                              {"torchup_seldom.py", torchup_seldom_text}, {"torchup_error.py", torchup_error_text},
                              {"torchup_groups.py", torchup_groups_text}, {"torchup_loaded.py", torchup_loaded_text}};
// Of one Python: others see by the name, and by what is inside, that it is not theirs, and write their own beside it.
constexpr HookFile bytecode[] = {{"sitecustomize", sitecustomize_bytecode},
                                 {"torchup_worker", torchup_worker_bytecode}};
constexpr const char* bytecode_folder = "__pycache__";

std::string bytecode_name(const HookFile& file) {
  return std::string{file.name} + "." + std::string{bytecode_tag} + ".pyc";
}

UniqueFd open_folder(const std::string& path) {
  return UniqueFd{::open(path.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)};
}

/// A link in its place leads to what is another's.
UniqueFd open_inner(int folder) {
  return UniqueFd{::openat(folder, bytecode_folder, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)};
}

Result<> write_bytecode(int folder) {
  if (bytecode_tag.empty()) return {};
  if (::mkdirat(folder, bytecode_folder, 0700) != 0) return system_error(bytecode_folder);
  const UniqueFd inner = open_inner(folder);
  if (!inner) return system_error(bytecode_folder);
  for (const HookFile& file : bytecode) {
    if (auto written = write_file(inner.get(), bytecode_name(file).c_str(), file.text); !written) return written;
  }
  return {};
}

Result<> write_files(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0) return system_error(path);
  const UniqueFd folder = open_folder(path);
  if (!folder) return system_error(path);
  for (const auto& [name, text] : files) {
    if (auto written = write_file(folder.get(), name, text); !written) return written;
  }
  return write_bytecode(folder.get());
}

void remove_files(int folder) {
  for (const HookFile& file : files) ::unlinkat(folder, file.name, 0);
  const UniqueFd inner = open_inner(folder);
  if (!inner) return;
  for (const HookFile& file : bytecode) ::unlinkat(inner.get(), bytecode_name(file).c_str(), 0);
  ::unlinkat(folder, bytecode_folder, AT_REMOVEDIR);
}

}  // namespace

Result<HookFolder> HookFolder::make() {
  auto directory = make_memory_directory();
  if (!directory) return directory.error();
  HookFolder made{*std::move(directory)};
  if (auto written = write_files(made.path()); !written) return written.error();
  return made;
}

HookFolder::~HookFolder() {
  if (directory_.empty()) return;
  // Where no worker was Python there is nothing but what we wrote, and to read the folders takes longer.
  if (const UniqueFd folder = open_folder(path())) remove_files(folder.get());
  ::rmdir(path().c_str());
  if (::rmdir(directory_.c_str()) == 0) return;
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

std::string HookFolder::path() const { return directory_ + "/" + hook_folder_name; }

}  // namespace torchup
