// What a user types, and what stands in PET_ variables: a plan, or one clear error.
//
// Input: words, one a line; those that begin with "PET_" or "SLURM_" and hold "=" are variables.
#include <string>
#include <vector>

#include "launcher/cli.hpp"
#include "tests/fuzz/fuzz.hpp"
#include "tests/support/fake_machine.hpp"

using namespace torchup;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::string> words{"torchup"};
  Texts variables;
  std::string_view rest{reinterpret_cast<const char*>(data), size};
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    const std::size_t equals = line.find('=');
    const bool variable = line.starts_with("PET_") || line.starts_with("SLURM_");
    if (variable && equals != std::string_view::npos) {
      variables[std::string{line.substr(0, equals)}] = line.substr(equals + 1);
    } else if (line.find('\0') == std::string_view::npos) {  // no word of a command line holds one
      words.emplace_back(line);
    }
  }
  const auto parsed = parse_command_line(words);
  if (const auto* end = std::get_if<EarlyEnd>(&parsed)) {
    fuzz::require(!end->out.empty() || !end->err.empty());
    return 0;
  }
  CommandLine line = std::get<CommandLine>(parsed);
  const Machine here = fake_machine(std::move(variables));
  if (!line.options.read_environment(here.variable)) return 0;
  if (line.program.empty()) return 0;  // main says so, or needs none
  const auto plan = make_plan(line.options, line.program, line.legacy, here);
  if (!plan) {
    fuzz::require(!plan.error().message().empty());
    return 0;
  }
  const JobTerms& terms = plan->terms;
  fuzz::require(terms.min_nodes >= 1 && terms.min_nodes <= terms.max_nodes && terms.max_nodes <= nodes_max);
  fuzz::require(plan->local_world_size >= 1 && plan->local_world_size <= local_workers_max);
  return 0;
}
