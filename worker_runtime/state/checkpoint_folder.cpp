#include "worker_runtime/state/checkpoint_folder.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <torchup/error.hpp>

#include "worker_runtime/state/crc32.hpp"
#include "worker_runtime/state/file_reader.hpp"
#include "worker_runtime/state/file_writer.hpp"
#include "worker_runtime/state/safetensors_reader.hpp"

namespace torchup {

namespace {

using nlohmann::json;

constexpr int format_version = 1;
constexpr std::uint64_t manifest_bytes_max = 64 << 20;
constexpr const char* step_prefix = "step-";
constexpr const char* temporary_mark = ".tmp-";
constexpr const char* aside_mark = ".old";  // behind a temporary name: what was replaced, for a moment
constexpr const char* manifest_name = "manifest.json";
constexpr const char* model_name = "model.safetensors";
constexpr const char* training_name = "training.safetensors";

// The manifest ends with its own checksum: {…, "crc32": N} where N is that of everything before the comma.
constexpr const char* crc_mark = ",\n \"crc32\": ";

std::string seal(const json& manifest) {
  std::string text = manifest.dump(1);
  text.resize(text.rfind('\n'));  // without the closing brace
  const std::uint32_t crc = crc32(0, text.data(), text.size());
  return text + crc_mark + std::to_string(crc) + "\n}\n";
}

std::optional<json> unseal(const std::string& text) {
  const std::size_t mark = text.rfind(crc_mark);
  if (mark == std::string::npos) return std::nullopt;
  json manifest = json::parse(text, nullptr, false);
  if (!manifest.is_object() || manifest.at("crc32") != crc32(0, text.data(), mark)) return std::nullopt;
  return manifest;
}

json read_manifest(const std::filesystem::path& folder) {
  FileReader file{folder / manifest_name};
  std::string text(std::min(file.bytes(), manifest_bytes_max), '\0');
  file.read(text.data(), text.size());
  std::optional<json> manifest = unseal(text);
  if (!manifest) throw Damaged{(folder / manifest_name).string() + " is damaged: its checksum is wrong"};
  if (manifest->at("format") != format_version) {
    throw Error{fmt::format("{} has format {}; this program reads format {}", (folder / manifest_name).string(),
                            manifest->at("format").dump(), format_version)};
  }
  return std::move(*manifest);
}

/// Bytes of a file; nothing when it is not there.
std::optional<std::uint64_t> bytes_of(const std::filesystem::path& path) {
  std::error_code error;
  const std::uint64_t bytes = std::filesystem::file_size(path, error);
  if (!error) return bytes;
  if (error == std::errc::no_such_file_or_directory) return std::nullopt;
  throw Error{path.string() + ": " + error.message()};
}

/// The manifest, where the files are there with their sizes.
json checked_manifest(const std::filesystem::path& folder, std::int64_t step) {
  const Damaged damaged{folder.string() + " is damaged: a file is missing or cut short"};
  if (!bytes_of(folder / manifest_name)) throw damaged;
  json manifest = read_manifest(folder);
  if (manifest.at("step") != step) throw Error{folder.string() + " is of step " + manifest.at("step").dump()};
  for (const auto& [name, facts] : manifest.at("files").items())
    if (bytes_of(folder / name) != facts.at("bytes").get<std::uint64_t>()) throw damaged;
  return manifest;
}

std::map<std::string, torch::Tensor> read_tensors(const std::filesystem::path& folder, const char* name,
                                                  const json& manifest) {
  const json& facts = manifest.at("files").at(name);
  FileReader file{folder / name};
  if (file.bytes() != facts.at("bytes")) throw Damaged{(folder / name).string() + " has the wrong size"};
  const auto content = [&] {
    try {
      return read_safetensors(file);
    } catch (const NotRead&) {
      throw;
    } catch (const Error& error) {
      throw Damaged{error.what()};
    }
  };
  SafetensorsFile read = content();
  if (file.crc32() != facts.at("crc32")) throw Damaged{(folder / name).string() + " is damaged: its checksum is wrong"};
  return std::move(read.tensors);
}

std::string identity_of(const std::filesystem::path& folder, const json& manifest) {
  std::string identity = manifest.at("crc32").dump();
  for (const auto& [name, facts] : manifest.at("files").items()) {
    struct stat status {};
    if (::stat((folder / name).c_str(), &status) != 0) continue;
    identity += fmt::format(" {}/{}.{}", status.st_ino, status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
  }
  return identity;
}

/// The step of a folder's name, or nothing when it is not the folder of a checkpoint.
std::optional<std::int64_t> step_of(const std::filesystem::path& folder) {
  const std::string name = folder.filename().string();
  if (!name.starts_with(step_prefix)) return std::nullopt;
  const char* const begin = name.data() + std::strlen(step_prefix);
  const char* const end = name.data() + name.size();
  std::int64_t step = -1;
  const auto [stop, error] = std::from_chars(begin, end, step);
  if (error != std::errc{} || stop != end || step < 0) return std::nullopt;
  return step;
}

/// What will not go (another user's, still open on NFS) stays, and is told of: what was written is none the worse for
/// it.
void remove_if_possible(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::remove_all(folder, error);
  if (error) std::fprintf(stderr, "torchup: %s cannot be removed: %s\n", folder.c_str(), error.message().c_str());
}

/// Gives `from` the name `to`; what had it before gets the name `from`. One step for anybody who looks.
void replace_folder(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::rename(from.c_str(), to.c_str()) == 0) return;
  int error = errno;
  const auto fail = [&] {
    throw Error{"rename " + from.string() + " to " + to.string() + ": " + std::strerror(error)};
  };
  // What rename says of a name that is taken is each file system's own (sshfs EPERM, SMB EACCES): so it is asked.
  struct stat in_the_way {};
  if (::lstat(to.c_str(), &in_the_way) != 0 && errno == ENOENT) fail();
  constexpr unsigned exchange = 1 << 1;  // RENAME_EXCHANGE, which glibc declares for GNU sources only
  if (::syscall(SYS_renameat2, AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), exchange) == 0) return;
  // A file system that cannot exchange (NFS): for a moment there is no checkpoint of this step, older ones are. Who
  // looks just then brings the former one back (bring_back): so more than once.
  const std::filesystem::path aside = from.string() + aside_mark;
  for (int left = 3; left > 0; --left) {
    if (::rename(to.c_str(), aside.c_str()) == 0 && ::rename(from.c_str(), to.c_str()) == 0) {
      if (::rename(aside.c_str(), from.c_str()) != 0) remove_if_possible(aside);
      return;
    }
    error = errno;
    if (::rename(aside.c_str(), to.c_str()) == 0) break;  // nobody else did: it was not that
  }
  fail();
}

}  // namespace

CheckpointFolder::CheckpointFolder(std::filesystem::path path, std::chrono::milliseconds patience)
    : path_{std::move(path)}, patience_{patience} {
  std::error_code error;
  const bool made = std::filesystem::create_directories(path_, error);
  if (made && !error) sync_folder(std::filesystem::absolute(path_).lexically_normal().parent_path());
  if (error) throw Error{"the checkpoint folder " + path_.string() + " cannot be made: " + error.message()};
  shared_ = SharedFolder::of(path_);
  if (!shared_)
    throw Error{"the checkpoint folder " + path_.string() + " cannot be looked at: " + std::strerror(errno)};
}

std::filesystem::path CheckpointFolder::path_of(std::int64_t step) const {
  std::string digits = std::to_string(step);
  digits.insert(0, digits.size() < 12 ? 12 - digits.size() : 0, '0');
  return path_ / (step_prefix + digits);
}

/// Of this process, and of the folder that has the name now: it may have been forked or made anew.
SharedFolder& CheckpointFolder::shared() const {
  if (auto now = SharedFolder::of(path_)) shared_ = std::move(now);
  return *shared_;
}

/// Waits for other writers of this process, then for another process that writes.
std::unique_lock<std::mutex> CheckpointFolder::begin_writing() const {
  SharedFolder& folder = shared();
  std::unique_lock turn{folder.turn};
  if (folder.lock && !folder.lock->guards(path_)) folder.lock.reset();
  if (!folder.lock) folder.lock = WriterLock::take(path_, patience_);
  const std::string& unguarded = folder.lock->why_unguarded();
  if (!unguarded.empty() && told_.insert(unguarded).second) std::fprintf(stderr, "torchup: %s\n", unguarded.c_str());
  return turn;
}

std::unique_ptr<SaveTurn> CheckpointFolder::join_line() const {
  shared();
  return std::make_unique<SaveTurn>(shared_);
}

void CheckpointFolder::wait_for_line() const { shared().wait_for_line(); }

void CheckpointFolder::stop_writing() const {
  SharedFolder& folder = shared();
  folder.wait_for_line();
  const std::lock_guard turn{folder.turn};
  folder.lock.reset();
}

void CheckpointFolder::pass_over_damaged(const FoundCheckpoint& checkpoint) const {
  SharedFolder& folder = shared();
  const std::lock_guard turn{folder.turn};
  folder.passed_over.damaged.insert_or_assign(checkpoint.step, checkpoint.identity);
}

void CheckpointFolder::pass_over_unread(const FoundCheckpoint& checkpoint) const {
  SharedFolder& folder = shared();
  const std::lock_guard turn{folder.turn};
  folder.passed_over.unread.insert(checkpoint.step);
}

/// Names of checkpoints that were being replaced, where names cannot be exchanged.
std::vector<std::filesystem::path> CheckpointFolder::set_aside() const {
  std::vector<std::filesystem::path> aside;
  for (const auto& entry : std::filesystem::directory_iterator{path_}) {
    if (entry.path().filename().string().ends_with(aside_mark)) aside.push_back(entry.path());
  }
  return aside;
}

/// Whoever replaced a checkpoint may have ended in between: it has its name again.
void CheckpointFolder::bring_back() const {
  for (const auto& path : set_aside()) {
    const std::string name = path.filename().string();
    const auto step = step_of(name.substr(0, name.find(temporary_mark)));
    std::error_code error;
    if (step && !std::filesystem::exists(path_of(*step), error)) std::filesystem::rename(path, path_of(*step), error);
  }
}

FoundCheckpoints CheckpointFolder::found() const {
  SharedFolder& folder = shared();
  // A writer that is alive is between two renames: it does not need us.
  if (const std::unique_lock turn{folder.turn, std::try_to_lock}; turn && !set_aside().empty()) {
    try {
      const bool is_ours = folder.lock && folder.lock->guards(path_);
      const auto for_now = is_ours ? nullptr : WriterLock::try_take(path_);
      if (is_ours || for_now) bring_back();
    } catch (const Error&) {  // a folder that we may only read
    }
  }
  FoundCheckpoints result = look();
  const std::lock_guard turn{folder.turn};
  folder.passed_over = {.damaged = {}, .unread = result.unread};
  return result;
}

FoundCheckpoints CheckpointFolder::look() const {
  FoundCheckpoints result;
  const auto pass_over = [&](const std::exception& why) {
    if (told_.insert(why.what()).second) std::fprintf(stderr, "torchup: a checkpoint is passed over: %s\n", why.what());
  };
  for (const auto& entry : std::filesystem::directory_iterator{path_}) {
    const auto step = step_of(entry.path());
    if (!step || entry.path() != path_of(*step)) continue;
    try {
      const json manifest = checked_manifest(entry.path(), *step);
      result.whole.push_back({*step, identity_of(entry.path(), manifest)});
    } catch (const Damaged& damaged) {
      result.damaged.insert(*step);
      pass_over(damaged);
    } catch (const std::exception& error) {
      result.unread.insert(*step);
      pass_over(error);
    }
  }
  std::ranges::sort(result.whole, std::greater{}, &FoundCheckpoint::step);
  return result;
}

LoadedCheckpoint CheckpointFolder::load(std::int64_t step) const {
  const std::filesystem::path folder = path_of(step);
  LoadedCheckpoint loaded;
  loaded.facts = read_manifest(folder);
  loaded.model = read_tensors(folder, model_name, loaded.facts);
  loaded.training = read_tensors(folder, training_name, loaded.facts);
  return loaded;
}

void CheckpointFolder::remove_left_over() const {
  std::vector<std::filesystem::path> left_over;
  for (const auto& entry : std::filesystem::directory_iterator{path_}) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(step_prefix) && name.find(temporary_mark) != std::string::npos)
      left_over.push_back(entry.path());
  }
  for (const auto& path : left_over) remove_if_possible(path);
}

void CheckpointFolder::save(const CheckpointContent& content, int keep_last) const {
  const auto step = content.facts.at("step").get<std::int64_t>();
  if (step < 0) throw Error{fmt::format("a checkpoint of step {}: steps are counted from 0", step)};
  const std::unique_lock<std::mutex> turn = begin_writing();
  bring_back();
  const PassedOver& passed_over = shared_->passed_over;
  const auto is_damaged = [&](const FoundCheckpoint& checkpoint) {
    const auto known = passed_over.damaged.find(checkpoint.step);
    return known != passed_over.damaged.end() && known->second == checkpoint.identity;
  };
  const FoundCheckpoints before = look();
  std::set<std::int64_t> to_go = before.damaged;
  for (const FoundCheckpoint& checkpoint : before.whole) {
    if (is_damaged(checkpoint)) to_go.insert(checkpoint.step);
  }
  for (const auto& [newer, identity] : before.whole) {
    if (newer <= step) break;
    if (to_go.contains(newer) || passed_over.unread.contains(newer)) continue;
    throw Error{
        fmt::format("the checkpoint folder {} holds step {}, newer than this run's step {}: it is of another run. "
                    "Resume from it, or take another folder",
                    path_.string(), newer, step)};
  }
  remove_left_over();
  // After the commit, or without one, whatever has the temporary name is to go.
  struct Sweep {
    const CheckpointFolder& folder;
    ~Sweep() {
      try {
        folder.remove_left_over();
      } catch (const std::exception& error) {
        std::fprintf(stderr, "torchup: a leftover stays in the checkpoint folder: %s\n", error.what());
      }
    }
  };
  const Sweep sweep{*this};
  const std::filesystem::path final_folder = path_of(step);
  const std::filesystem::path temporary = final_folder.string() + temporary_mark + std::to_string(::getpid());
  std::filesystem::create_directory(temporary);

  json manifest = content.facts;
  manifest["format"] = format_version;
  const auto put = [&](const char* name, const NamedTensors& tensors) {
    const WrittenFile written = save_safetensors(temporary / name, tensors, {{"format", "pt"}});
    manifest["files"][name] = {{"bytes", written.bytes}, {"crc32", written.crc32}};
  };
  put(model_name, content.model);
  put(training_name, content.training);
  FileWriter file{temporary / manifest_name};
  const std::string sealed = seal(manifest);
  if (sealed.size() > manifest_bytes_max)
    throw Error{fmt::format("the checkpoint's manifest would have {} bytes, more than {}: too many parameters",
                            sealed.size(), manifest_bytes_max)};
  file.write(sealed);
  file.commit();
  replace_folder(temporary, final_folder);  // the commit
  sync_folder(path_);

  // Only now may anything older go.
  int kept = 1;  // the new one
  for (const auto& [other, identity] : before.whole) {
    if (other >= step || to_go.contains(other)) continue;  // newer ones were not read
    if (keep_last > 0 && ++kept > keep_last) to_go.insert(other);
  }
  to_go.erase(step);
  for (const std::int64_t other : to_go) remove_if_possible(path_of(other));
}

}  // namespace torchup
