#include "launcher/ctl/gpu_lines.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "launcher/core/text/python_numbers.hpp"
#include "launcher/core/text/text.hpp"
#include "rendezvous/core/text/printable.hpp"
#include "rendezvous/core/text/wording.hpp"

namespace torchup {
namespace {

/// The driver tells of those that answer, and numbers all.
const Gpu* gpu_at(const Gpus& gpus, std::size_t index) {
  return gpus.list.size() == gpus.facts.size() && index < gpus.list.size() ? &gpus.list[index] : nullptr;
}

std::string lost_text(const GpuFacts& facts) {
  return facts.xid ? fmt::format("lost (Xid {})", *facts.xid) : std::string{"lost"};
}

const HolderFacts& facts_of(const HoldersByPid& holders, std::int64_t pid) {
  static const HolderFacts nothing;
  const auto found = holders.find(pid);
  return found == holders.end() ? nothing : found->second;
}

std::string holder_line(const GpuHolder& holder, const HolderFacts& facts) {
  std::string line =
      fmt::format("    pid {}  {}  {}  {}", holder.pid, facts.user.empty() ? "-" : printable_start(facts.user),
                  holder.bytes > 0 ? bytes_text(holder.bytes) : "-", printable_start(holder.name));
  if (!facts.run_id.empty()) line += fmt::format("  run {}", printable_start(facts.run_id));
  if (facts.rank) line += fmt::format(" rank {}", *facts.rank);
  return line + "\n";
}

}  // namespace

HolderFacts holder_of_environment(const std::string& environment) {
  HolderFacts facts;
  for (std::string_view variable : split(environment, '\0')) {
    if (take_start(variable, "TORCHELASTIC_RUN_ID=")) {
      facts.run_id = variable;
    } else if (take_start(variable, "RANK=")) {
      const auto rank = python_int(variable);
      if (rank && *rank >= 0 && *rank <= INT32_MAX) facts.rank = static_cast<int>(*rank);
    }
  }
  if (facts.run_id.empty()) facts.rank.reset();
  return facts;
}

json gpus_json(const Gpus& gpus, const HoldersByPid& holders) {
  json list = json::array();
  for (std::size_t i = 0; i < gpus.facts.size(); ++i) {
    const GpuFacts& facts = gpus.facts[i];
    json row{{"index", facts.index}, {"name", facts.name}, {"lost", facts.lost}, {"holders", json::array()}};
    if (const Gpu* const gpu = gpu_at(gpus, i)) {
      row["uuid"] = gpu->uuid;
      row["pci"] = gpu->pci;
      row["mig_instances"] = gpu->mig_instances;
    }
    row["memory_bytes"] = facts.memory_bytes ? json(*facts.memory_bytes) : json(nullptr);
    row["free_bytes"] = facts.free_bytes ? json(*facts.free_bytes) : json(nullptr);
    for (const GpuHolder& holder : facts.holders) {
      const HolderFacts& known = facts_of(holders, holder.pid);
      row["holders"].push_back({{"pid", holder.pid},
                                {"name", holder.name},
                                {"bytes", holder.bytes},
                                {"user", known.user},
                                {"run_id", known.run_id.empty() ? json(nullptr) : json(known.run_id)},
                                {"rank", known.rank ? json(*known.rank) : json(nullptr)}});
    }
    list.push_back(std::move(row));
  }
  json all{{"gpus", std::move(list)}};
  if (!gpus.driver.empty()) all["driver"] = gpus.driver;
  if (gpus.facts.empty()) all["reason"] = gpus.problem.empty() ? "the driver knows of no GPU" : gpus.problem;
  return all;
}

std::string gpus_text(const Gpus& gpus, const HoldersByPid& holders) {
  if (gpus.facts.empty()) {
    if (gpus.problem.empty()) return "no GPUs: the driver knows of none\n";
    const bool named = gpus.problem.find("driver") != std::string::npos;
    return fmt::format("no GPUs: {}{}\n", named ? "" : "the driver does not tell: ", printable_start(gpus.problem));
  }
  std::string text;
  for (std::size_t i = 0; i < gpus.facts.size(); ++i) {
    const GpuFacts& facts = gpus.facts[i];
    const Gpu* const gpu = gpu_at(gpus, i);
    text += fmt::format("GPU {}: {}", facts.index, facts.lost ? lost_text(facts) : printable_start(facts.name));
    text += gpu ? fmt::format(" (UUID: {})\n", printable_start(gpu->uuid)) : "\n";
    if (gpu) {
      for (const std::string& instance : gpu->mig_instances)
        text += fmt::format("  MIG (UUID: {})\n", printable_start(instance));
    }
    for (const GpuHolder& holder : facts.holders) text += holder_line(holder, facts_of(holders, holder.pid));
  }
  return text;
}

}  // namespace torchup
