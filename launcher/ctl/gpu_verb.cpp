// gpus: what this machine has, and who holds it.

#include <fmt/format.h>
#include <pwd.h>
#include <sys/stat.h>

#include "launcher/ctl/gpu_lines.hpp"
#include "launcher/ctl/job_text.hpp"
#include "launcher/ctl/verbs.hpp"
#include "launcher/os/io/read_text.hpp"
#include "launcher/os/machine/gpus.hpp"
#include "launcher/os/machine/process_stat.hpp"

namespace torchup {
namespace {

constexpr std::size_t environment_bytes_max = std::size_t{4} << 20;
constexpr int generations_max = 16;

std::string user_of(std::int64_t pid) {
  struct stat status {};
  if (::stat(fmt::format("/proc/{}", pid).c_str(), &status) != 0) return {};
  const passwd* const user = ::getpwuid(status.st_uid);
  return user ? std::string{user->pw_name} : fmt::format("uid {}", status.st_uid);
}

/// What its environment says, or that of the one that has started it: workers may be forked from a template.
HolderFacts facts_of_process(std::int64_t pid) {
  HolderFacts facts;
  auto each = static_cast<pid_t>(pid);
  for (int i = 0; i < generations_max && each > 1 && facts.run_id.empty(); ++i, each = parent_of(each))
    facts = holder_of_environment(read_text(fmt::format("/proc/{}/environ", each), environment_bytes_max));
  facts.user = user_of(pid);
  return facts;
}

}  // namespace

int run_gpus(const Command& command) {
  const Gpus gpus = read_gpus();
  HoldersByPid holders;
  for (const GpuFacts& facts : gpus.facts) {
    for (const GpuHolder& holder : facts.holders) holders.try_emplace(holder.pid, facts_of_process(holder.pid));
  }
  if (!command.options.flag("json")) return give(gpus_text(gpus, holders));
  return give(json_line(gpus_json(gpus, holders)));
}

}  // namespace torchup
