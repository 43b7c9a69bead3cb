#include "worker_runtime/worker/forked_process.hpp"

#include <linux/prctl.h>
#include <sched.h>
#include <stdio_ext.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string_view>

namespace torchup {
namespace {

std::string_view name_of(std::string_view entry) { return entry.substr(0, entry.find('=')); }

/// Values by name, as getenv finds them.
class Values {
 public:
  explicit Values(const Environment& environment) {
    for (const std::string& entry : environment) entries_.emplace(name_of(entry), entry);
  }
  /// "NAME=value"; nothing where there is none.
  [[nodiscard]] std::optional<std::string_view> entry(std::string_view name) const {
    const auto found = entries_.find(name);
    return found == entries_.end() ? std::nullopt : std::optional{found->second};
  }

 private:
  std::map<std::string_view, std::string_view> entries_;
};

std::string content(const char* path) {
  std::ifstream file{path, std::ios::binary};
  return {std::istreambuf_iterator<char>{file}, {}};
}

/// Memory that is never given back: the kernel reads it, and the environment lies in it.
struct Memory {
  char* begin = nullptr;
  std::size_t bytes = 0;
};

Memory joined(const Environment& environment) {
  Memory memory;
  for (const std::string& entry : environment) memory.bytes += entry.size() + 1;
  void* const place = ::mmap(nullptr, std::max<std::size_t>(memory.bytes, 1), PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (place == MAP_FAILED) return {};
  memory.begin = static_cast<char*>(place);
  char* end = memory.begin;
  for (const std::string& entry : environment) {
    std::memcpy(end, entry.c_str(), entry.size() + 1);
    end += entry.size() + 1;
  }
  return memory;
}

/// A field of /proc/self/stat by its number in proc(5). `stat`: what stands behind the name, which is field 2.
std::uint64_t field(const std::vector<std::uint64_t>& stat, std::size_t number) {
  return number - 4 < stat.size() ? stat[number - 4] : 0;
}

void show(const Memory& environment) {
  const std::string text = content("/proc/self/stat");
  std::istringstream words{text.substr(std::min(text.rfind(')') + 4, text.size()))};  // behind the state's letter
  std::vector<std::uint64_t> stat;
  for (std::string word; words >> word;) stat.push_back(std::strtoull(word.c_str(), nullptr, 10));
  prctl_mm_map map{};
  map.start_code = field(stat, 26);
  map.end_code = field(stat, 27);
  map.start_data = field(stat, 45);
  map.end_data = field(stat, 46);
  map.start_brk = field(stat, 47);
  map.brk = reinterpret_cast<std::uintptr_t>(::sbrk(0));
  map.start_stack = field(stat, 28);
  map.arg_start = field(stat, 48);
  map.arg_end = field(stat, 49);
  map.env_start = reinterpret_cast<std::uintptr_t>(environment.begin);
  map.env_end = map.env_start + environment.bytes;
  map.exe_fd = ~0U;
  ::prctl(PR_SET_MM, PR_SET_MM_MAP, &map, sizeof map, 0);
}

}  // namespace

Environment environment_at_start() {
  Environment list;
  const std::string text = content("/proc/self/environ");
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\0', begin), text.size());
    list.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return list;
}

Environment environment_by_now() {
  Environment list;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) list.emplace_back(*entry);
  return list;
}

Environment as_main_leaves_it(const Environment& given, const Environment& made, const Environment& wanted) {
  const Values before{given};
  const Values after{made};
  const Values workers{wanted};
  const auto is_mains = [&](std::string_view name) {
    return before.entry(name) != after.entry(name) && before.entry(name) == workers.entry(name);
  };
  Environment left;
  for (const std::string& entry : wanted) {
    if (!is_mains(name_of(entry))) {
      left.push_back(entry);
    } else if (const auto mains = after.entry(name_of(entry))) {
      left.emplace_back(*mains);
    }
  }
  for (const std::string& entry : made) {
    if (is_mains(name_of(entry)) && !workers.entry(name_of(entry))) left.push_back(entry);
  }
  return left;
}

void set_environment(const Environment& environment, const Environment& shown) {
  const Memory memory = joined(environment);
  if (memory.begin == nullptr) return;
  auto list = std::make_unique<char*[]>(environment.size() + 1);  // as glibc's own: nobody frees it
  char* entry = memory.begin;
  for (std::size_t i = 0; i < environment.size(); ++i) {
    list[i] = entry;
    entry += environment[i].size() + 1;
  }
  environ = list.release();
  const Memory text = joined(shown);
  if (text.begin != nullptr) show(text);
}

void renew_streams() {
  std::clearerr(stdin);  // of the template's nobody has read anything
  // A buffer of more than a byte is one that stdio has made for what was no terminal, or that main has given it. That
  // of stderr is always main's.
  if (::__fbufsize(stdout) > 1 && ::isatty(STDOUT_FILENO) == 1) std::setvbuf(stdout, nullptr, _IOLBF, 0);
}

bool bind_to(const CpuSet& cpus) {
  const int count = cpus.empty() ? 0 : *cpus.rbegin() + 1;
  const std::size_t bytes = CPU_ALLOC_SIZE(count);
  const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> mask{CPU_ALLOC(count), [](cpu_set_t* set) { CPU_FREE(set); }};
  CPU_ZERO_S(bytes, mask.get());
  for (const int cpu : cpus) CPU_SET_S(static_cast<std::size_t>(cpu), bytes, mask.get());
  return ::sched_setaffinity(0, bytes, mask.get()) == 0;
}

}  // namespace torchup
