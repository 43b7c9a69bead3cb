#include "launcher/core/record/cause_words.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

namespace torchup {
namespace {

struct Words {
  std::string_view said;
  CauseKind kind;
};

/// The first that is found counts. Sources: glibc's strerror; torch 2.15's and gloo's messages as they were seen;
/// NCCL's error strings (ncclGetErrorString) and the names of its codes.
constexpr std::array words{
    // What somebody did himself, though it came by a socket or the store.
    Words{"No space left on device", CauseKind::disk_full},
    Words{"Disk quota exceeded", CauseKind::disk_full},
    Words{"EADDRINUSE", CauseKind::port_taken},
    Words{"ddress already in use", CauseKind::port_taken},
    Words{"Too many open files", CauseKind::descriptors},
    Words{"unable to mmap", CauseKind::shared_memory},
    Words{"insufficient shared memory", CauseKind::shared_memory},
    Words{"unable to open shared memory object", CauseKind::shared_memory},
    Words{"DataLoader worker (pid", CauseKind::loader_killed},
    Words{"CUDA out of memory", CauseKind::gpu_memory},
    Words{"CUDA error: out of memory", CauseKind::gpu_memory},
    Words{"uncorrectable ECC error", CauseKind::gpu_fault},
    Words{"GPU is lost", CauseKind::gpu_fault},
    Words{"fallen off the bus", CauseKind::gpu_fault},
    Words{"device-side assert triggered", CauseKind::gpu_program},
    Words{"an illegal memory access was encountered", CauseKind::gpu_program},
    Words{"can't allocate memory", CauseKind::host_memory},
    Words{"Cannot allocate memory", CauseKind::host_memory},
    Words{"MemoryError", CauseKind::host_memory},
    Words{"std::bad_alloc", CauseKind::host_memory},
    Words{"can't start new thread", CauseKind::processes},
    Words{"Resource temporarily unavailable", CauseKind::processes},
    Words{"op.preamble.length <= op.nbytes", CauseKind::sizes_differ},
    Words{"match expected size", CauseKind::sizes_differ},
    Words{"ncclInvalidUsage", CauseKind::nccl_usage},
    Words{"ncclInvalidArgument", CauseKind::nccl_usage},
    Words{"ncclUnhandledCudaError", CauseKind::nccl_cuda_error},
    // What others did to him.
    Words{"ncclRemoteError", CauseKind::consequence},
    Words{"remote process exited", CauseKind::consequence},
    Words{"communicator was aborted", CauseKind::consequence},
    Words{"Watchdog caught collective operation timeout", CauseKind::consequence},
    Words{"onnection closed by peer", CauseKind::consequence},
    Words{"onnection closed by remote peer", CauseKind::consequence},
    Words{"onnection reset by peer", CauseKind::consequence},
    Words{"Broken pipe", CauseKind::consequence},
    Words{"emote peer closed the connection", CauseKind::consequence},
    Words{"Application timeout caused pair closure", CauseKind::consequence},
    Words{"connectFullMesh failed", CauseKind::consequence},
    Words{"failed to pass monitoredBarrier", CauseKind::consequence},
    Words{"timed out in monitoredBarrier", CauseKind::consequence},
    Words{"dump signal from another rank", CauseKind::consequence},
    Words{"remote error detected from rank", CauseKind::consequence},
    Words{"recvValue failed", CauseKind::consequence},
    Words{"ailed to recv", CauseKind::consequence},
    Words{"ailed to send, sent", CauseKind::consequence},
    Words{"wait timeout after", CauseKind::consequence},
    Words{"lost the store at", CauseKind::consequence},  // our workers', while they meet
    Words{"DistNetworkError", CauseKind::consequence},
    Words{"DistStoreError", CauseKind::consequence},
    Words{"ncclSystemError", CauseKind::nccl_system},
};

constexpr std::string_view traceback_head = "Traceback (most recent call last):";
constexpr std::string_view group_head = "Exception Group Traceback";
constexpr std::size_t last_lines_read = 3;
constexpr std::size_t exception_lines_max = 8;
constexpr std::ptrdiff_t trailing_lines_max = 50;

/// Of a traceback of several exceptions what is behind the bar.
std::string_view after_bar(std::string_view line) {
  const auto bar = line.find('|');
  if (bar == std::string_view::npos) return line;
  line.remove_prefix(bar + 1);
  if (line.starts_with(' ')) line.remove_prefix(1);
  return line;
}

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r") == std::string_view::npos; }

/// One exception was raised while another was handled, or because of it.
bool is_link(std::string_view line) {
  return line.find("During handling of the above exception") != std::string_view::npos ||
         line.find("was the direct cause of the following exception") != std::string_view::npos;
}

/// Heads of the last traceback, and of the one with which its chain begins.
struct Chain {
  std::size_t first = 0;
  std::size_t last = 0;
};

/// Nothing: there is no traceback.
std::optional<Chain> chain_of(const std::vector<std::string>& lines) {
  std::optional<Chain> chain;
  for (std::size_t at = lines.size(); at-- > 0;) {
    if (lines[at].find(traceback_head) == std::string::npos) continue;
    if (!chain) {
      chain = Chain{at, at};
      continue;
    }
    // It belongs to the one behind it where a link stands right before that.
    std::size_t before = chain->first;
    while (before > 0 && is_blank(lines[before - 1])) --before;
    if (before == 0 || !is_link(lines[before - 1])) break;
    chain->first = at;
  }
  return chain;
}

void add(std::string& text, std::string_view line) {
  if (text.size() >= last_words_bytes_max) return;
  if (!text.empty()) text += '\n';
  text += line.substr(0, last_words_bytes_max - text.size());
}

/// The exception that ends the traceback at `head`, and the line behind it. A library may put its own mark before every
/// line: `[rank0]: Traceback …`.
std::pair<std::string, std::size_t> exception_at(const std::vector<std::string>& lines, std::size_t head) {
  const std::size_t margin = lines[head].find(traceback_head);
  const bool is_group = lines[head].find(group_head) != std::string::npos;
  std::string text;
  std::size_t taken = 0;
  std::size_t at = head + 1;
  for (; at < lines.size() && taken < exception_lines_max; ++at) {
    std::string_view line = lines[at];
    if (is_ruler(line)) continue;
    line.remove_prefix(is_group ? line.size() - after_bar(line).size() : std::min(margin, line.size()));
    const bool begun = taken > 0;
    if (!begun && (line.empty() || line.front() == ' ')) continue;  // a frame
    if (is_blank(line) || is_link(line) || line.find(traceback_head) != std::string_view::npos ||
        line.starts_with("Exception raised from"))
      break;
    add(text, line);
    ++taken;
  }
  return {text, at};
}

/// A frame of a C++ stack, as LibTorch says it, with or without its symbolizer.
bool is_frame(std::string_view line) {
  return line.find("frame #") != std::string_view::npos ||
         (line.size() > 1 && line[0] == '#' && line[1] >= '0' && line[1] <= '9');
}

/// Whether the traceback at `head` is old: a handled one, after which the worker has gone on. Some lines are what
/// libraries say at a process's end (NCCL_DEBUG=INFO, a tracker's summary); frames and what stands under others belong
/// to the exception. In doubt it is not: a cause is named all the same where a consequence finds none.
bool is_old(const std::vector<std::string>& lines, std::size_t head) {
  const std::string mark = lines[head].substr(0, lines[head].find(traceback_head));
  const auto end = lines.begin() + static_cast<std::ptrdiff_t>(exception_at(lines, head).second);
  const auto later = std::count_if(end, lines.end(), [&](std::string_view line) {
    if (line.starts_with(mark)) line.remove_prefix(mark.size());
    return !is_blank(line) && line.front() != ' ' && line.front() != '\t' && !is_frame(line);
  });
  return later > trailing_lines_max;
}

}  // namespace

bool is_ruler(std::string_view line) {
  return line.find("---") != std::string_view::npos &&
         line.find_first_not_of(" +-|0123456789") == std::string_view::npos;
}

CauseKind cause_kind(std::string_view text) {
  for (const Words& each : words)
    if (text.find(each.said) != std::string_view::npos) return each.kind;
  // gloo: "Timed out waiting 1800000ms for recv operation to complete".
  const auto timed_out = text.find("Timed out waiting");
  if (timed_out != std::string_view::npos) {
    const std::string_view rest = text.substr(timed_out);
    if (rest.find("for recv") != std::string_view::npos || rest.find("for send") != std::string_view::npos)
      return CauseKind::consequence;
  }
  return CauseKind::unknown;
}

std::string_view plain_words(CauseKind kind) {
  switch (kind) {
    case CauseKind::unknown:
      return "";
    case CauseKind::consequence:
      return "it lost another rank, or the store";
    case CauseKind::disk_full:
      return "a file system is full";
    case CauseKind::port_taken:
      return "its port is taken";
    case CauseKind::descriptors:
      return "it had as many files open as it may";
    case CauseKind::processes:
      return "it may not start more processes or threads";
    case CauseKind::shared_memory:
      return "shared memory (/dev/shm) is full or too small";
    case CauseKind::loader_killed:
      return "a process of its DataLoader died";
    case CauseKind::host_memory:
      return "no memory was left";
    case CauseKind::gpu_memory:
      return "the GPU's memory was full";
    case CauseKind::gpu_fault:
      return "the GPU failed: this is the machine, not the program";
    case CauseKind::gpu_program:
      return "a kernel failed on the GPU; CUDA_LAUNCH_BLOCKING=1 shows where";
    case CauseKind::sizes_differ:
      return "ranks gave tensors of different sizes to one collective";
    case CauseKind::nccl_usage:
      return "NCCL was called wrongly, or otherwise than on other ranks; NCCL_DEBUG=WARN says how";
    case CauseKind::nccl_system:
      return "a system call of NCCL's failed; NCCL_DEBUG=WARN says which";
    case CauseKind::nccl_cuda_error:
      return "a CUDA call of NCCL's failed; NCCL_DEBUG=WARN says which";
  }
  return "";
}

std::optional<std::size_t> last_traceback(const std::vector<std::string>& lines) {
  const auto chain = chain_of(lines);
  return chain && !is_old(lines, chain->last) ? std::optional{chain->last} : std::nullopt;
}

std::string last_words(const std::vector<std::string>& lines) {
  const auto chain = chain_of(lines);
  if (chain && !is_old(lines, chain->last)) return exception_at(lines, chain->first).first;
  std::string text;
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    const auto what = line->find("what():");
    if (what == std::string::npos) continue;
    add(text, std::string_view{*line}.substr(what));
    return text;
  }
  std::vector<std::string_view> last;
  for (auto line = lines.rbegin(); line != lines.rend() && last.size() < last_lines_read; ++line)
    if (!is_blank(*line)) last.push_back(*line);
  for (auto line = last.rbegin(); line != last.rend(); ++line) add(text, *line);
  return text;
}

}  // namespace torchup
