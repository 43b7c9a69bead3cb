#include <fmt/format.h>

#include <utility>

#include "launcher/core/scheduler/rows.hpp"
#include "launcher/core/text/text.hpp"

namespace torchup::scheduler {
namespace {

/// A job that begins on the first of these hosts.
Allocation job_on(const ToldWords& words, const char* scheduler, std::vector<std::string> hosts,
                  const char* hosts_name) {
  Allocation found{.scheduler = scheduler, .own_name = words.host(), .gpus_visible = true};
  if (hosts.empty()) return found;
  found.first_host = Told<std::string>{hosts.front(), hosts_name};
  found.hosts = Told<std::vector<std::string>>{std::move(hosts), hosts_name};
  return found;
}

void name_job(const ToldWords& words, Allocation& found, const char* name) {
  if (const auto id = words.text(name)) {
    found.run_id = Told<std::string>{fmt::format("{}.{}", found.scheduler, *id), name};
  }
}

/// "c1 4 c2 4": hosts with their slots.
Result<std::vector<std::string>> hosts_with_slots(const ToldWords& words, const char* name) {
  const std::string text = words.text(name).value_or("");
  std::vector<std::string> hosts;
  std::string_view rest = stripped(text);
  while (!rest.empty()) {
    hosts.emplace_back(rest.substr(0, rest.find_first_of(blanks)));
    rest = stripped(rest.substr(hosts.back().size()));
    const std::string_view slots = rest.substr(0, rest.find_first_of(blanks));
    if (slots.empty() || slots.find_first_not_of("0123456789") != std::string_view::npos) {
      return wrong(name, text, fmt::format("there is no number of slots behind {}", hosts.back()));
    }
    rest = stripped(rest.substr(slots.size()));
  }
  if (const auto why = keep_first_of_each(hosts)) return wrong(name, text, *why);
  return hosts;
}

Result<std::optional<Allocation>> read_file_row(const ToldWords& words, const char* scheduler, const char* file_name,
                                                const char* id_name) {
  if (!words.has(file_name)) return std::optional<Allocation>{};
  auto hosts = words.hosts_of_file(file_name);
  if (!hosts) return hosts.error();
  Allocation found = job_on(words, scheduler, *std::move(hosts), file_name);
  name_job(words, found, id_name);
  return std::optional{std::move(found)};
}

}  // namespace

Result<std::optional<Allocation>> lsf_row(const ToldWords& words) {
  if (!words.has("LSB_JOBID")) return std::optional<Allocation>{};
  const bool has_file = words.has("LSB_DJOB_HOSTFILE");
  const char* const name = has_file ? "LSB_DJOB_HOSTFILE" : "LSB_MCPU_HOSTS";
  auto hosts = has_file ? words.hosts_of_file(name) : hosts_with_slots(words, name);
  if (!hosts) return hosts.error();
  Allocation found = job_on(words, "lsf", *std::move(hosts), name);
  name_job(words, found, "LSB_JOBID");
  return std::optional{std::move(found)};
}

Result<std::optional<Allocation>> pbs_row(const ToldWords& words) {
  return read_file_row(words, "pbs", "PBS_NODEFILE", "PBS_JOBID");
}

Result<std::optional<Allocation>> sge_row(const ToldWords& words) {
  return read_file_row(words, "sge", "PE_HOSTFILE", "JOB_ID");
}

}  // namespace torchup::scheduler
