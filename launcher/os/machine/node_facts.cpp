#include "launcher/os/machine/node_facts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <fstream>
#include <string_view>

#include "rendezvous/core/text/names.hpp"

namespace torchup {
namespace {

constexpr std::size_t hashed_bytes_max = std::size_t{16} << 20;

/// FNV-1a: tells texts apart, proves nothing.
class Hash {
 public:
  void add(std::string_view text) {
    for (const char c : text) value_ = (value_ ^ static_cast<unsigned char>(c)) * 1099511628211U;
  }
  [[nodiscard]] std::string text() const { return fmt::format("{:016x}", value_); }

 private:
  std::uint64_t value_ = 14695981039346656037U;
};

/// Tells versions of a file apart.
std::string content_of(const std::string& path) {
  std::ifstream file{path, std::ios::binary};
  if (!file) return {};
  Hash hash;
  std::array<char, 65536> block;  // NOLINT: filled before it is read
  for (std::size_t read = 0; read < hashed_bytes_max && file; read += block.size()) {
    file.read(block.data(), block.size());
    hash.add({block.data(), static_cast<std::size_t>(file.gcount())});
  }
  file.clear();
  file.seekg(0, std::ios::end);
  return fmt::format("{} bytes, {}", static_cast<std::int64_t>(file.tellg()), hash.text());
}

/// As other nodes read it, who get names alone: or this node would find the same text different from its own. What is
/// left out of a long one still counts.
std::string as_told(const std::string& text) {
  if (why_no_name(text).empty()) return text;
  Hash hash;
  hash.add(text);
  const std::string rest = fmt::format("... ({} bytes, {})", text.size(), hash.text());
  return std::string{cut_text(as_name(text), name_bytes_max - rest.size())} + rest;
}

/// Those beyond `most` become one.
void merge_beyond(std::vector<Fact>& facts, std::size_t most) {
  if (facts.size() <= most) return;
  Hash hash;
  const std::size_t kept = most - 1;
  const std::size_t merged = facts.size() - kept;
  for (std::size_t at = kept; at < facts.size(); ++at) hash.add(facts[at].name + "=" + facts[at].value + "\n");
  facts.resize(kept);
  facts.push_back({"further variables", fmt::format("{}, {}", merged, hash.text())});
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

std::vector<Fact> node_facts(const LaunchConfig& config, std::span<const std::string> environment,
                             std::vector<Fact> versions) {
  std::vector<Fact> facts{{"torchup", TORCHUP_VERSION}};
  const WorkerProgram& program = config.program;
  // Python's own file is the interpreter's matter; the word before the arguments is the script, or a module's name.
  const std::size_t at = program.arguments_at;
  std::string path = at >= 1 && at <= program.command.size() ? program.command[at - 1] : program.executable;
  std::string content = content_of(path);
  if (content.empty() && at == 1) content = content_of(program.executable);
  if (!content.empty()) facts.push_back({"program", std::move(content)});
  for (const Fact& version : versions) facts.push_back({as_told(version.name), as_told(version.value)});
  merge_beyond(facts, facts_max / 2);
  std::vector<Fact> variables;
  for (const std::string& entry : environment) {
    const auto equals = entry.find('=');
    if (equals != std::string::npos && chosen(std::string_view{entry}.substr(0, equals))) {
      variables.push_back({as_told(entry.substr(0, equals)), as_told(entry.substr(equals + 1))});
    }
  }
  std::ranges::sort(variables, {}, &Fact::name);
  merge_beyond(variables, facts_max - facts.size());
  facts.insert(facts.end(), variables.begin(), variables.end());
  return facts;
}

}  // namespace torchup
