#include "launcher/core/machine/gpu_text.hpp"

#include <fmt/format.h>

#include <algorithm>
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

}  // namespace

std::string to_gpu_text(const Gpus& gpus) {
  std::string text;
  for (const Gpu& gpu : gpus.list) {
    text += fmt::format("gpu\t{}\t{}\t{}\t{}\n", field(gpu.uuid), field(gpu.name), field(gpu.pci),
                        gpu.mig_enabled ? "split" : "whole");
    for (const std::string& instance : gpu.mig_instances) text += fmt::format("mig\t{}\n", field(instance));
  }
  if (!gpus.problem.empty()) text += fmt::format("problem\t{}\n", field(gpus.problem));
  return text + "end\n";
}

std::optional<Gpus> from_gpu_text(std::string_view text) {
  if (text.size() > gpu_text_bytes_max) return {};
  Gpus gpus;
  std::size_t instances = 0;
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
    } else if (line[0] == "problem" && line.size() == 2) {
      gpus.problem = field(line[1]);
    }
  }
}

}  // namespace torchup
