#include "launcher/os/machine/node_facts.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <string_view>

namespace torchup {
namespace {

constexpr std::size_t hashed_bytes_max = std::size_t{16} << 20;

/// FNV-1a: tells versions of a file apart, proves nothing.
std::string content_of(const std::string& path) {
  std::ifstream file{path, std::ios::binary};
  if (!file) return {};
  std::uint64_t hash = 14695981039346656037U;
  std::array<char, 65536> block;  // NOLINT: filled before it is read
  for (std::size_t read = 0; read < hashed_bytes_max && file; read += block.size()) {
    file.read(block.data(), block.size());
    for (const char c : std::string_view{block.data(), static_cast<std::size_t>(file.gcount())}) {
      hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
    }
  }
  file.clear();
  file.seekg(0, std::ios::end);
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%llu bytes, %016llx", static_cast<unsigned long long>(file.tellg()),
                static_cast<unsigned long long>(hash));
  return text.data();
}

bool chosen(std::string_view name) {
  constexpr std::array<std::string_view, 6> beginnings{"NCCL_", "GLOO_", "TORCH_", "CUBLAS_", "CUDNN_", "PYTORCH_"};
  constexpr std::array<std::string_view, 3> whole{"OMP_NUM_THREADS", "PYTHONHASHSEED", "PYTHONPATH"};
  constexpr std::array<std::string_view, 4> own{"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_HCA",
                                                "NCCL_HOSTID"};
  if (std::ranges::find(own, name) != own.end()) return false;
  return std::ranges::find(whole, name) != whole.end() ||
         std::ranges::any_of(beginnings, [&](std::string_view beginning) { return name.starts_with(beginning); });
}

}  // namespace

std::vector<Fact> node_facts(const LaunchConfig& config, std::span<const std::string> environment) {
  std::vector<Fact> facts{{"torchup", TORCHUP_VERSION}};
  const WorkerProgram& program = config.program;
  // Python's own file is the interpreter's matter; the word before the arguments is the script, or a module's name.
  const std::size_t at = program.arguments_at;
  std::string path = at >= 1 && at <= program.command.size() ? program.command[at - 1] : program.executable;
  std::string content = content_of(path);
  if (content.empty() && at == 1) content = content_of(program.executable);
  if (!content.empty()) facts.push_back({"program", std::move(content)});
  std::vector<Fact> variables;
  for (const std::string& entry : environment) {
    const auto equals = entry.find('=');
    if (equals != std::string::npos && chosen(std::string_view{entry}.substr(0, equals))) {
      variables.push_back({entry.substr(0, equals), entry.substr(equals + 1)});
    }
  }
  std::ranges::sort(variables, {}, &Fact::name);
  facts.insert(facts.end(), variables.begin(), variables.end());
  return facts;
}

}  // namespace torchup
