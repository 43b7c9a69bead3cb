// What the variables around us say of a scheduler: read and derived from, or refused in one line. The input has a
// variable a line; what stands behind a line `---` is the content of every file that they name.
#include <map>

#include "launcher/core/scheduler/derived_options.hpp"
#include "launcher/core/scheduler/detection.hpp"
#include "launcher/core/text/text.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace torchup;

namespace {

void check_refusal(const Error& error) {
  fuzz::require(!error.context.empty() && error.context.find_first_of("\n\x1b") == std::string::npos);
}

void check(const Allocation& found) {
  fuzz::require(!found.scheduler.empty() && found.tasks.value >= 1);
  fuzz::require(found.task >= 0 && found.task < found.tasks.value);
  if (found.node) fuzz::require(found.node->value >= 0);
  if (found.nodes && found.node) fuzz::require(found.node->value < found.nodes->value);
  if (found.hosts) fuzz::require(!found.hosts->value.empty());
  if (found.gpus) fuzz::require(found.gpus->value >= 0 && found.gpus->value <= local_workers_max);
  OptionValues options;
  const auto part = derive_options(
      found, [] { return 2; }, options);
  if (!part) return check_refusal(part.error());
  fuzz::require(options.integer("nproc-per-node", 1).value() >= 1);
  fuzz::require(part->warnings.empty() || !found.each);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::string_view mark = "\n---\n";
  const std::string_view text{reinterpret_cast<const char*>(data), size};
  const auto end = std::min(text.find(mark), text.size());
  const std::string content{text.substr(std::min(end + mark.size(), text.size()))};
  std::map<std::string, std::string, std::less<>> variables;
  for (const std::string_view line : split(text.substr(0, end), '\n')) {
    const auto equals = line.find('=');
    if (equals != std::string_view::npos) variables.emplace(line.substr(0, equals), line.substr(equals + 1));
  }
  const auto variable = [&](std::string_view name) -> std::optional<std::string> {
    const auto known = variables.find(name);
    return known == variables.end() ? std::nullopt : std::optional{known->second};
  };
  const SchedulerFacts facts{variable, [&](const std::string&, std::size_t) -> Result<std::string> { return content; },
                             variable("HOSTNAME").value_or("h")};
  for (const char* const wanted : {"auto", "slurm", "kubernetes", "lsf", "sagemaker"}) {
    const auto found = find_allocation(wanted, facts);
    if (!found) {
      check_refusal(found.error());
    } else if (*found) {
      check(**found);
    }
  }
  return 0;
}
