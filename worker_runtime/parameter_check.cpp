#include "worker_runtime/parameter_check.hpp"

#include <sstream>

#include "torchup/error.hpp"

namespace torchup {
namespace {

/// One line per parameter: what must be equal, then the name, which need not be.
std::string described(const std::vector<NamedParameter>& parameters) {
  std::ostringstream text;
  for (const auto& [name, tensor] : parameters)
    text << tensor.dtype().name() << " of sizes " << tensor.sizes() << " and strides " << tensor.strides() << '\t'
         << name << '\n';
  return text.str();
}

std::vector<std::pair<std::string, std::string>> lines_of(const std::string& text) {
  std::vector<std::pair<std::string, std::string>> lines;
  std::istringstream input{text};
  for (std::string line; std::getline(input, line);) {
    const auto tab = line.find('\t');
    lines.emplace_back(line.substr(0, tab), line.substr(tab + 1));
  }
  return lines;
}

std::string without_names(const std::string& text) {
  std::string kept;
  for (const auto& [shape, name] : lines_of(text)) kept += shape + '\n';
  return kept;
}

std::string first_difference(int rank, const std::string& ours, const std::string& rank_zeros) {
  const auto mine = lines_of(ours), reference = lines_of(rank_zeros);
  for (std::size_t index = 0; index < std::min(mine.size(), reference.size()); ++index)
    if (mine[index].first != reference[index].first)
      return "parameter " + std::to_string(index) + " (" + mine[index].second + ") on rank " + std::to_string(rank) +
             " is " + mine[index].first + ", on rank 0 (" + reference[index].second + ") " + reference[index].first;
  const bool more = mine.size() > reference.size();
  return "rank " + std::to_string(rank) + " has " + std::to_string(mine.size()) +
         " parameters that require a gradient, rank 0 has " + std::to_string(reference.size()) + "; only " +
         (more ? "rank " + std::to_string(rank) : std::string{"rank 0"}) + " has " +
         (more ? mine[reference.size()] : reference[mine.size()]).second;
}

/// FNV-1a, so that big models send 16 bytes per rank and not their parameter list.
std::string digest(const std::string& text) {
  std::uint64_t hash = 14695981039346656037u;
  for (const char byte : text) hash = (hash ^ static_cast<unsigned char>(byte)) * 1099511628211u;
  return std::to_string(hash);
}

}  // namespace

void check_same_parameters(const std::vector<NamedParameter>& parameters, const ProcessGroup& group) {
  if (group.size() == 1) return;
  const auto store = group.store();
  const std::string key = group.fresh_key("parameters");
  const std::string ours = described(parameters);
  const auto decide = [&](const std::string& verdict) { store->compareSet(key + "/verdict", std::string{}, verdict); };

  if (group.rank() == 0) {
    store->set(key + "/list", ours);
    store->set(key + "/digest", digest(without_names(ours)));
  } else if (store->get_to_str(key + "/digest") != digest(without_names(ours))) {
    decide("DistributedDataParallel: the ranks have different parameters: " +
           first_difference(group.rank(), ours, store->get_to_str(key + "/list")));
  }
  if (store->add(key + "/compared", 1) == group.size()) decide("equal");
  const std::string verdict = store->get_to_str(key + "/verdict");
  if (verdict != "equal") throw Error{verdict};
}

}  // namespace torchup
