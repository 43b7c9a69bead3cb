#include "worker_runtime/ddp/parameter_check.hpp"

#include <fmt/format.h>

#include <sstream>

#include "torchup/error.hpp"
#include "worker_runtime/store/job_store.hpp"

namespace torchup {
namespace {

// What the two lists hold.
constexpr const char* reduced_kind = "parameters that require a gradient";
constexpr const char* state_kind = "parameters and buffers";

/// One line per tensor: its list, what must be equal, then the name, which need not be.
void describe(const char* kind, const std::vector<NamedParameter>& tensors, std::ostream& text) {
  for (const auto& [name, tensor] : tensors)
    text << kind << '\t' << tensor.dtype().name() << " of sizes " << tensor.sizes() << " and strides "
         << tensor.strides() << '\t' << name << '\n';
}

struct Line {
  std::string shape, name;
};

/// The lines of one list, or of both.
std::vector<Line> lines_of(const std::string& text, const char* kind = nullptr) {
  std::vector<Line> lines;
  std::istringstream input{text};
  for (std::string line; std::getline(input, line);) {
    const auto first = line.find('\t'), second = line.find('\t', first + 1);
    if (kind && line.substr(0, first) != kind) continue;
    lines.push_back({line.substr(first + 1, second - first - 1), line.substr(second + 1)});
  }
  return lines;
}

/// What must be equal, and how many there are in each list.
std::string without_names(const std::string& text) {
  std::string kept;
  for (const char* kind : {reduced_kind, state_kind}) {
    kept += kind;
    for (const auto& line : lines_of(text, kind)) kept += '\n' + line.shape;
  }
  return kept;
}

std::string first_difference(int rank, const std::string& ours, const std::string& rank_zeros) {
  for (const char* kind : {reduced_kind, state_kind}) {
    const auto mine = lines_of(ours, kind), reference = lines_of(rank_zeros, kind);
    for (std::size_t index = 0; index < std::min(mine.size(), reference.size()); ++index)
      if (mine[index].shape != reference[index].shape)
        return fmt::format("{} {} ({}) on rank {} is {}, on rank 0 ({}) {}",
                           kind == reduced_kind ? "parameter" : "parameter or buffer", index, mine[index].name, rank,
                           mine[index].shape, reference[index].name, reference[index].shape);
    if (mine.size() == reference.size()) continue;
    const bool more = mine.size() > reference.size();
    return fmt::format("rank {} has {} {}, rank 0 has {}; only rank {} has {}", rank, mine.size(), kind,
                       reference.size(), more ? rank : 0,
                       (more ? mine[reference.size()] : reference[mine.size()]).name);
  }
  return "the lists differ";
}

/// FNV-1a, so that big models send 16 bytes per rank and not their parameter list.
std::string digest(const std::string& text) {
  std::uint64_t hash = 14695981039346656037u;
  for (const char byte : text) hash = (hash ^ static_cast<unsigned char>(byte)) * 1099511628211u;
  return std::to_string(hash);
}

}  // namespace

void check_same_parameters(const std::vector<NamedParameter>& reduced, const std::vector<NamedParameter>& state,
                           const ProcessGroup& group) {
  if (group.size() == 1) return;
  const auto store = group.store();
  const std::string key = group.fresh_key("parameters");
  std::ostringstream text;
  describe(reduced_kind, reduced, text);
  describe(state_kind, state, text);
  const std::string ours = text.str();
  const auto decide = [&](const std::string& verdict) { store->compareSet(key + "/verdict", std::string{}, verdict); };

  if (group.rank() == 0) {
    publish(*store, key + "/list", ours);
    publish(*store, key + "/digest", digest(without_names(ours)));
  } else if (store->get_to_str(key + "/digest") != digest(without_names(ours))) {
    decide("DistributedDataParallel: the ranks have different parameters: " +
           first_difference(group.rank(), ours, store->get_to_str(key + "/list")));
  }
  if (store->add(key + "/compared", 1) == group.size()) decide("equal");
  const std::string verdict = store->get_to_str(key + "/verdict");
  if (verdict != "equal") throw Error{verdict};
}

}  // namespace torchup
