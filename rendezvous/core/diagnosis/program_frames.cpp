#include "rendezvous/core/diagnosis/program_frames.hpp"

#include <algorithm>
#include <string_view>

namespace torchup {
namespace {

/// `/usr/lib/python3.11/queue.py`, `/usr/lib64/python3/…`
bool is_in_library(std::string_view path) {
  for (const std::string_view folder : {"/lib/python", "/lib64/python"}) {
    const auto found = path.find(folder);
    if (found == std::string_view::npos) continue;
    const std::string_view version = path.substr(found + folder.size());
    if (!version.empty() && version.front() >= '0' && version.front() <= '9') return true;
  }
  return false;
}

}  // namespace

bool is_of_program(const StackFrame& frame) {
  const std::string_view path = frame.file;
  return !path.starts_with("<frozen ") && path.find("/site-packages/") == std::string_view::npos &&
         path.find("/dist-packages/") == std::string_view::npos && !is_in_library(path);
}

bool is_in_collective(const StackFrame& frame) { return frame.file.ends_with("/distributed_c10d.py"); }

void keep_frames(std::vector<StackFrame>& frames, std::size_t count) {
  if (frames.size() <= count) return;
  const auto program = std::ranges::find_if(frames, is_of_program);
  const auto kept = static_cast<std::ptrdiff_t>(count);
  if (count > 0 && program != frames.end() && program - frames.begin() >= kept) frames[count - 1] = *program;
  frames.resize(count);
}

}  // namespace torchup
