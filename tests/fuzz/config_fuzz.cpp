// A file of --config, from whomever: options of their types, or one error that names the line.
#include "launcher/core/options/option_table.hpp"
#include "launcher/core/options/option_values.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace torchup;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  OptionValues values;
  const auto read = values.read_config({reinterpret_cast<const char*>(data), size}, "file");
  if (!read) {
    fuzz::require(read.error().message().starts_with("file"));
    return 0;
  }
  for (const OptionSpec& option : option_table()) {
    if (!values.has(option.name)) continue;
    if (option.kind == ValueKind::integer) fuzz::require(values.integer(option.name, 0).has_value());
    if (option.kind == ValueKind::seconds) fuzz::require(values.number(option.name, 0).has_value());
  }
  return 0;
}
