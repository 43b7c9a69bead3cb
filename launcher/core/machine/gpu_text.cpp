#include "launcher/core/machine/gpu_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <utility>
#include <vector>

#include "launcher/core/text/text.hpp"

namespace torchup {
namespace {

/// What may stand between two tabs.
std::string field(std::string_view text) {
  std::string one{text.substr(0, gpu_field_bytes_max)};
  const auto control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  std::replace_if(one.begin(), one.end(), control, ' ');
  return one;
}

/// "0000:dc:00.0", or nothing.
std::string pci_address(std::string_view text) {
  const bool good = text.size() <= gpu_field_bytes_max &&
                    text.find_first_not_of("0123456789abcdefABCDEF:.") == std::string_view::npos &&
                    text.find("..") == std::string_view::npos;
  return good ? std::string{text} : std::string{};
}

constexpr std::string_view not_told = "-";

template <class Number>
std::string number_field(const std::optional<Number>& number) {
  return number ? fmt::format("{}", *number) : std::string{not_told};
}

/// A number that is not negative.
template <class Number>
std::optional<Number> whole_number(std::string_view text) {
  Number number{};
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (code != std::errc{} || end != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

std::string flags_of(const GpuFacts& facts) {
  std::string flags;
  for (const bool flag :
       {facts.lost, facts.remap_pending, facts.retirement_pending, facts.thermal_slowdown, facts.hardware_slowdown}) {
    flags += flag ? '1' : '0';
  }
  return flags;
}
constexpr std::size_t flag_count = 5;

std::string facts_text(const GpuFacts& facts) {
  std::string text = fmt::format("facts\t{}\t{}\t{}\t{}\t{}\t{}\t{}\n", facts.index, field(facts.name), flags_of(facts),
                                 number_field(facts.xid), facts.uncorrected_ecc, number_field(facts.memory_bytes),
                                 number_field(facts.free_bytes));
  for (const GpuHolder& holder : facts.holders) {
    text += fmt::format("holder\t{}\t{}\t{}\n", holder.pid, holder.bytes, field(holder.name));
  }
  return text;
}

/// False where something is no number.
bool read_facts(const std::vector<std::string_view>& line, GpuFacts& facts) {
  const auto index = whole_number<int>(line[1]);
  const auto ecc = whole_number<std::int64_t>(line[5]);
  if (!index || !ecc || line[3].size() != flag_count) return false;
  facts.index = *index;
  facts.name = field(line[2]);
  facts.lost = line[3][0] == '1';
  facts.remap_pending = line[3][1] == '1';
  facts.retirement_pending = line[3][2] == '1';
  facts.thermal_slowdown = line[3][3] == '1';
  facts.hardware_slowdown = line[3][4] == '1';
  facts.xid = whole_number<int>(line[4]);
  facts.uncorrected_ecc = *ecc;
  facts.memory_bytes = whole_number<std::int64_t>(line[6]);
  facts.free_bytes = whole_number<std::int64_t>(line[7]);
  return true;
}

/// "0000:DC:00", behind "PCI:"; in small letters.
std::string lower(std::string_view text) {
  std::string small{text};
  for (char& letter : small) letter = letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
  return small;
}

}  // namespace

std::string to_gpu_text(const Gpus& gpus) {
  std::string text;
  for (const Gpu& gpu : gpus.list) {
    text += fmt::format("gpu\t{}\t{}\t{}\t{}\n", field(gpu.uuid), field(gpu.name), field(gpu.pci),
                        gpu.mig_enabled ? "split" : "whole");
    for (const std::string& instance : gpu.mig_instances) text += fmt::format("mig\t{}\n", field(instance));
  }
  for (const GpuFacts& facts : gpus.facts) text += facts_text(facts);
  if (!gpus.driver.empty()) text += fmt::format("driver\t{}\n", field(gpus.driver));
  if (!gpus.problem.empty()) text += fmt::format("problem\t{}\n", field(gpus.problem));
  return text + "end\n";
}

std::optional<Gpus> from_gpu_text(std::string_view text) {
  if (text.size() > gpu_text_bytes_max) return {};
  Gpus gpus;
  std::size_t instances = 0, holders = 0;
  while (true) {
    const auto end = text.find('\n');
    if (end == std::string_view::npos) return {};
    const std::vector<std::string_view> line = split(text.substr(0, end), '\t');
    text.remove_prefix(end + 1);
    if (line[0] == "end") return gpus;
    if (line[0] == "gpu" && line.size() == 5) {
      if (gpus.list.size() == gpus_max) return {};
      Gpu& gpu = gpus.list.emplace_back();
      gpu.uuid = field(line[1]);
      gpu.name = field(line[2]);
      gpu.pci = pci_address(line[3]);
      gpu.mig_enabled = line[4] == "split";
    } else if (line[0] == "mig" && line.size() == 2 && !gpus.list.empty()) {
      if (instances++ == gpus_max) return {};
      gpus.list.back().mig_instances.push_back(field(line[1]));
    } else if (line[0] == "facts" && line.size() == 8) {
      if (gpus.facts.size() == gpus_max) return {};
      if (GpuFacts facts; read_facts(line, facts)) gpus.facts.push_back(std::move(facts));
    } else if (line[0] == "holder" && line.size() == 4 && !gpus.facts.empty()) {
      if (holders++ == gpu_holders_max) return {};
      const auto pid = whole_number<std::int64_t>(line[1]);
      const auto bytes = whole_number<std::int64_t>(line[2]);
      if (pid && bytes) gpus.facts.back().holders.push_back({*pid, field(line[3]), *bytes});
    } else if (line[0] == "driver" && line.size() == 2) {
      gpus.driver = field(line[1]);
    } else if (line[0] == "problem" && line.size() == 2) {
      gpus.problem = field(line[1]);
    }
  }
}

std::optional<int> lost_gpu_xid(std::string_view kernel_log, std::span<const Gpu> gpus) {
  // NVRM: Xid (PCI:0000:dc:00): 79, pid=1234, GPU has fallen off the bus.
  constexpr std::string_view mark = "NVRM: Xid (PCI:";
  constexpr std::string_view behind_address = "): ";
  for (auto at = kernel_log.rfind(mark); at != std::string_view::npos;
       at = at == 0 ? std::string_view::npos : kernel_log.rfind(mark, at - 1)) {
    std::string_view rest = kernel_log.substr(at + mark.size());
    rest = rest.substr(0, rest.find('\n'));
    const auto end = rest.find(behind_address);
    if (end == std::string_view::npos) continue;
    const std::string address = lower(rest.substr(0, end));
    rest.remove_prefix(end + behind_address.size());
    const auto number = whole_number<int>(rest.substr(0, rest.find_first_not_of("0123456789")));
    const bool answers = std::ranges::any_of(gpus, [&](const Gpu& gpu) { return lower(gpu.pci).starts_with(address); });
    if (number && !address.empty() && !answers) return number;
  }
  return std::nullopt;
}

}  // namespace torchup
